"""Whether the source's log can be kept and read, by what a plan finds."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from unit.formats.wal_builder import TRAILER, header
from unit.migration.planning.versions import of_version
from walferry.hbase.address import ClusterAddress
from walferry.hbase.zookeeper import Server
from walferry.migration.planning.log_findings import codec_findings, peer_findings, wal_folder_findings
from walferry.run import log_folder
from walferry.run.sides import SIDES
from walferry.storage import Local
from walferry.wal.files import WalFile, list_wals

GROUP = "rs%2C1%2C2"


def logs(root: Path, *contents: bytes) -> list[WalFile]:
    """Logs of one server, the oldest first."""
    for number, content in enumerate(contents):
        Local().write(f"{root}/WALs/rs,1,2/{GROUP}.{number}", [content])
    return list_wals(Local(), str(root))


@pytest.mark.parametrize(
    "fields", [{}, {"has_compression": True}, {"has_compression": True, "has_tag_compression": True}]
)
def test_a_plain_or_a_compressed_log_is_not_refused(fields: dict[str, object], tmp_path: Path) -> None:
    assert list(codec_findings(Local(), str(tmp_path), logs(tmp_path, header(**fields) + TRAILER))) == []


@pytest.mark.parametrize(
    "fields",
    [
        {"has_compression": True, "has_value_compression": True, "value_compression_algorithm": 0},
        {"cell_codec_cls_name": "org.example.OtherCodec"},
        {"encryption_key": b"key"},
        {
            "encryption_key": b"key",
            "cell_codec_cls_name": "org.apache.hadoop.hbase.regionserver.wal.SecureWALCellCodec",
        },
    ],
)
def test_a_log_that_cannot_be_read_is_refused_by_the_name_of_what_it_uses(
    fields: dict[str, object], tmp_path: Path
) -> None:
    (found,) = codec_findings(Local(), str(tmp_path), logs(tmp_path, header(**fields)))
    assert (found.level, found.subject) == ("refuse", "WAL codec")
    assert f"{GROUP}.0" in found.message


def test_the_newest_log_with_a_header_tells_the_codec(tmp_path: Path) -> None:
    old, new, empty, gone = logs(tmp_path, header(cell_codec_cls_name="org.example.Codec"), header(), b"", b"")
    Path(gone.path).unlink()
    assert list(codec_findings(Local(), str(tmp_path), [old, new, empty, gone])) == []
    assert len(list(codec_findings(Local(), str(tmp_path), [old, empty, gone]))) == 1
    assert list(codec_findings(Local(), str(tmp_path), [])) == []


def test_logs_elsewhere_are_refused_on_either_side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_folder, "log_files_of", lambda _: Local())
    client = of_version("2.6.3", None, ClusterAddress("zk:2181", rootdir=f"hdfs://nn:8020{tmp_path}"))
    for side in SIDES:
        (found,) = wal_folder_findings(side, client, ["t"])
        assert (found.level, found.subject) == ("refuse", side)
        assert "has no folder of a live region server" in found.message
    logs(tmp_path, header())
    assert list(wal_folder_findings("target", client, ["t"])) == []
    both = [Server("rs", 1, 2), Server("rs", 2, 3)]
    client.servers = lambda: both  # type: ignore[method-assign]
    client.regions = lambda table: [SimpleNamespace(server=both[1])]  # type: ignore[method-assign, list-item]
    (found,) = wal_folder_findings("source", client, ["t"])
    assert "has no folder of rs,2,3, which has regions of t" in found.message


def test_a_source_whose_log_no_peer_can_keep_is_refused_with_the_other_way() -> None:
    (found,) = peer_findings(of_version("2.1.10"))
    assert (found.level, found.subject) == ("refuse", "protect")
    assert "could not start again" in found.message
    assert found.message.endswith("have it. `protect: stage` needs no peer")
    assert list(peer_findings(of_version("2.6.3"))) == []
