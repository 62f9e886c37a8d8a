"""What of a source ends a stream before it begins."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType

import pytest

from unit.migration.planning.versions import of_version
from unit.streams.test_stream_spec import SPEC, unknown
from walferry.errors import UsageError
from walferry.hbase.address import ClusterAddress
from walferry.hbase.client import HBaseClient
from walferry.run import log_folder
from walferry.storage import Local, WebHdfs
from walferry.streams import plan
from walferry.streams.stream_spec import parse_stream_spec, resolve_stream


class Source:
    """A client of a cluster of a version, as `with` has it."""

    def __init__(self, version: str, address: ClusterAddress) -> None:
        self._client = of_version(version, None, address)
        self._client.table_exists = lambda table: True  # type: ignore[method-assign]
        self._client.lacking_rights = lambda wanted: None  # type: ignore[method-assign]

    def __enter__(self) -> HBaseClient:
        return self._client

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        pass


def refusal(version: str, root: Path, patch: pytest.MonkeyPatch) -> str:
    """What is said of a source whose files are below a folder."""
    keys = SPEC["source"] | {"rootdir": f"hdfs://nn:8020{root}"}
    spec = resolve_stream(parse_stream_spec(SPEC | {"source": keys}, origin="x"), unknown)
    patch.setattr(plan, "file_system", lambda cluster: Local())
    patch.setattr(log_folder, "log_files_of", lambda _: Local())
    patch.setattr(plan, "HBaseClient", lambda address: Source(version, address))
    with pytest.raises(UsageError) as raised:
        plan.examine(spec)
    return str(raised.value)


def test_a_source_that_could_not_restart_its_servers_under_a_peer_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "WALs" / "rs,1,2").mkdir(parents=True)
    said = refusal("2.1.10", tmp_path, monkeypatch)
    assert said.startswith("a stream needs a replication peer, which keeps the log: region servers of HBase 2.1.10")


def test_a_source_whose_logs_are_elsewhere_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "has no folder of a live region server" in refusal("2.6.3", tmp_path, monkeypatch)


def test_a_source_whose_name_node_is_an_observer_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "WALs" / "rs,1,2").mkdir(parents=True)
    monkeypatch.setattr(WebHdfs, "behind", lambda files: iter([(files.url, "is an Observer")]))
    assert refusal("2.6.3", tmp_path, monkeypatch).startswith("source.webhdfs: http://nn:9870 is an Observer")
