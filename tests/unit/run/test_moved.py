from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

from walferry.errors import UsageError
from walferry.formats.proto import hbase_pb2 as pb
from walferry.hbase.address import ClusterAddress
from walferry.hbase.zookeeper import znode
from walferry.ledger import Ledger
from walferry.run import moved
from walferry.run.heartbeat import RunBusyError, beating
from walferry.run.moved import accept_moved
from walferry.storage import Local

OLD, NEW = "zk1:2181", "zk2:2181"


class Registry:
    """The client of a cluster, which only tells the id that is at its ZooKeeper."""

    ids: dict[str, str]

    def __init__(self, address: ClusterAddress) -> None:
        self._address = address

    def __enter__(self) -> Registry:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        pass

    def cluster_id(self) -> str:
        return self.ids[self._address.zookeeper]


@pytest.fixture
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ledger]:
    """Has a planned run; its source has moved, and the old address is another cluster's."""
    monkeypatch.setattr(Registry, "ids", {NEW: "A", "other:2181": "C", "target:2181": "B"}, raising=False)
    monkeypatch.setattr(moved, "HBaseClient", Registry)
    monkeypatch.setattr(moved, "files_of", lambda _: Local())
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "hbase.id").write_bytes(znode(pb.ClusterId(cluster_id="A")))
    with Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}", actor="test") as book:
        run = book.open_run("move", "me", spec(tmp_path, OLD), "me")
        book.of(run.run_id).phases.start("plan")
        book.of(run.run_id).phases.finish("plan", {"source_cluster_id": "A", "target_cluster_id": "B"})
        yield book


def spec(root: Path, zookeeper: str, **more: str) -> dict[str, Any]:
    source = {"zookeeper": zookeeper, "webhdfs": "http://nn:1", "rootdir": f"hdfs://nn:2{root}/source", **more}
    target = {"zookeeper": "target:2181", "webhdfs": "http://nn:3", "rootdir": "hdfs://nn:4/hbase"}
    return {"name": "move", "source": source, "target": target, "tables": ["t"]}


def test_the_same_cluster_at_another_address_is_accepted_and_audited(ledger: Ledger, tmp_path: Path) -> None:
    given = spec(tmp_path, NEW)
    with pytest.raises(UsageError, match=r"with another spec \(source.zookeeper\) than this one"):
        ledger.open_run("move", "me", given, "me")
    accept_moved(ledger, "move", given, "migration", "me")
    run = ledger.open_run("move", "me", given, "me")
    assert (run.run_id, run.spec) == ("move-1", given)
    line = next(line for line in ledger.audit_trail() if line.action == "move run")
    assert line.inputs == {"source": given["source"]}
    ledger.verify_audit()


def test_another_cluster_is_refused_by_its_id_in_zookeeper_or_below_its_root(ledger: Ledger, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"^source \(zookeeper changed\) is not the cluster of run move-1: the id in "
                       "ZooKeeper at other:2181/hbase is C, that of the run's source is A"):  # fmt: skip
        accept_moved(ledger, "move", spec(tmp_path, "other:2181"), "migration", "me")
    (tmp_path / "source" / "hbase.id").write_bytes(znode(pb.ClusterId(cluster_id="C")))
    with pytest.raises(UsageError, match=r"the id in the root folder hdfs://.* is C"):
        accept_moved(ledger, "move", spec(tmp_path, NEW), "migration", "me")
    (tmp_path / "source" / "hbase.id").unlink()
    with pytest.raises(UsageError, match=r"the id in the root folder hdfs://.* is none"):
        accept_moved(ledger, "move", spec(tmp_path, NEW), "migration", "me")
    assert ledger.run("move-1").spec == spec(tmp_path, OLD)


def test_a_run_that_a_process_works_on_keeps_its_addresses(ledger: Ledger, tmp_path: Path) -> None:
    with beating(ledger.of("move-1"), "replay", "me"), pytest.raises(RunBusyError):
        accept_moved(ledger, "move", spec(tmp_path, NEW), "migration", "me")
    assert ledger.run("move-1").spec == spec(tmp_path, OLD)


def test_nothing_is_asked_while_nothing_has_moved(ledger: Ledger, tmp_path: Path) -> None:
    accept_moved(ledger, "move", spec(tmp_path, OLD), "migration", "me")
    accept_moved(ledger, "another", spec(tmp_path, NEW), "migration", "me")
    assert ledger.run("move-1").spec == spec(tmp_path, OLD)
