from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace, TracebackType
from typing import Any

import pytest

from walferry.errors import UsageError
from walferry.formats.proto import hbase_pb2 as pb
from walferry.hbase.address import ClusterAddress
from walferry.hbase.zookeeper import Server, znode
from walferry.ledger import Ledger
from walferry.ledger.rows import RunKind
from walferry.run import log_folder, moved
from walferry.run.cluster_ids import same_root
from walferry.run.heartbeat import RunBusyError, beating
from walferry.run.moved import accept_moved
from walferry.run.spec import Cluster
from walferry.run.start import hand_over
from walferry.storage import FileStatus, Local, PermissionDeniedError, WebHdfs

OLD, NEW = "zk1:2181", "zk2:2181"
STAGED = {"protect": "stage", "stage": "/copies"}
SERVER = Server("rs", 1, 2)


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

    @property
    def address(self) -> ClusterAddress:
        return self._address

    def servers(self) -> list[Server]:
        return [SERVER]

    def settings(self, server: Server) -> None:
        """They cannot be read."""


@pytest.fixture
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ledger]:
    """Has a planned run; its source has moved, and the old address is another cluster's."""
    with Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}", actor="test") as book:
        source_at(tmp_path, monkeypatch)
        planned(book, spec(tmp_path, OLD))
        yield book


def source_at(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The source's files, and ZooKeepers that know which cluster is where."""
    monkeypatch.setattr(Registry, "ids", {NEW: "A", "other:2181": "C", "target:2181": "B"}, raising=False)
    monkeypatch.setattr(moved, "HBaseClient", Registry)
    monkeypatch.setattr(moved, "files_of", lambda _: Local())
    monkeypatch.setattr(log_folder, "log_files_of", lambda _: Local())
    (root / "source" / "WALs" / SERVER.name).mkdir(parents=True)
    (root / "source" / "hbase.id").write_bytes(znode(pb.ClusterId(cluster_id="A")))


def planned(book: Ledger, given: dict[str, Any], kind: RunKind = "migration", **facts: str) -> None:
    """Open a run whose plan is done."""
    run = book.open_run(given["name"], "me", given, "me", kind)
    book.of(run.run_id).phases.start("plan")
    book.of(run.run_id).phases.finish("plan", facts or {"source_cluster_id": "A", "target_cluster_id": "B"})


def spec(root: Path, zookeeper: str, **more: str) -> dict[str, Any]:
    source = {"zookeeper": zookeeper, "webhdfs": "http://nn:1", "rootdir": f"hdfs://nn:2{root}/source", **more}
    target = {"zookeeper": "target:2181", "webhdfs": "http://nn:3", "rootdir": "hdfs://nn:4/hbase"}
    return {"name": "move", "source": source, "target": target, "tables": ["t"]}


def test_the_same_cluster_at_another_address_is_accepted_and_audited(ledger: Ledger, tmp_path: Path) -> None:
    given = spec(tmp_path, NEW)
    with pytest.raises(UsageError, match=r"with another spec \(source.zookeeper\) than this one"):
        ledger.open_run("move", "me", given, "me")
    accept_moved(ledger, "move", "me", given, "me")
    run = ledger.open_run("move", "me", given, "me")
    assert (run.run_id, run.spec) == ("move-1", given)
    line = next(line for line in ledger.audit_trail() if line.action == "move run")
    assert line.inputs == {"source": given["source"]}
    ledger.verify_audit()


def test_another_cluster_is_refused_by_its_id_in_zookeeper_or_below_its_root(ledger: Ledger, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"^source \(zookeeper changed\) is not the cluster of run move-1: the id in "
                       "ZooKeeper at other:2181/hbase is C, that of the run's source is A"):  # fmt: skip
        accept_moved(ledger, "move", "me", spec(tmp_path, "other:2181"), "me")
    (tmp_path / "source" / "hbase.id").write_bytes(znode(pb.ClusterId(cluster_id="C")))
    with pytest.raises(UsageError, match=r"the id in the root folder hdfs://.* is C"):
        accept_moved(ledger, "move", "me", spec(tmp_path, NEW), "me")
    (tmp_path / "source" / "hbase.id").unlink()
    with pytest.raises(UsageError, match=r"the id in the root folder hdfs://.* is none"):
        accept_moved(ledger, "move", "me", spec(tmp_path, NEW), "me")
    assert ledger.run("move-1").spec == spec(tmp_path, OLD)


def test_a_name_node_that_is_an_observer_is_refused(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(WebHdfs, "behind", lambda files: iter([(files.url, "is an Observer")]))
    with pytest.raises(UsageError, match=r"^source\.webhdfs: http://nn:1 is an Observer, so a log could be missing"):
        accept_moved(ledger, "move", "me", spec(tmp_path, NEW), "me")
    assert ledger.run("move-1").spec == spec(tmp_path, OLD)


def test_a_run_that_a_process_works_on_keeps_its_addresses(ledger: Ledger, tmp_path: Path) -> None:
    with beating(ledger.of("move-1"), "replay", "me"), pytest.raises(RunBusyError):
        accept_moved(ledger, "move", "me", spec(tmp_path, NEW), "me")
    assert ledger.run("move-1").spec == spec(tmp_path, OLD)


def test_nothing_is_asked_while_nothing_has_moved(ledger: Ledger, tmp_path: Path) -> None:
    accept_moved(ledger, "move", "me", spec(tmp_path, OLD), "me")
    accept_moved(ledger, "another", "me", spec(tmp_path, NEW), "me")
    assert ledger.run("move-1").spec == spec(tmp_path, OLD)


@pytest.mark.parametrize(
    ("owner", "tables", "differing"),
    [("mallory", ["t"], ["owner"]), ("mallory", ["u"], ["owner", "spec (tables)"]), ("me", ["u"], ["spec (tables)"])],
)
def test_a_run_that_is_refused_keeps_its_addresses(
    ledger: Ledger, tmp_path: Path, owner: str, tables: list[str], differing: list[str]
) -> None:
    given = spec(tmp_path, NEW) | {"tables": tables}
    with pytest.raises(UsageError) if owner == "me" else nullcontext():
        accept_moved(ledger, "move", owner, given, owner)
    with pytest.raises(UsageError, match="is unfinished and belongs to me") as raised:
        ledger.move_run("move-1", {"source": given["source"]}, owner, given, owner)
    assert raised.value.differing == differing
    assert ledger.run("move-1").spec == spec(tmp_path, OLD)
    assert "move run" not in {line.action for line in ledger.audit_trail()}


def test_a_run_that_is_handed_over_moves_with_its_new_owner(ledger: Ledger, tmp_path: Path) -> None:
    given = spec(tmp_path, NEW)
    assert hand_over(ledger, ledger.run("move-1"), given, "you") == "move-1"
    assert (ledger.run("move-1").owner, ledger.run("move-1").spec) == ("you", given)


def test_an_address_at_which_no_live_server_logs_is_refused(ledger: Ledger, tmp_path: Path) -> None:
    """Its log would look like one without edits."""
    given = spec(tmp_path, NEW, waldir="hdfs://nn:2/nowhere")
    with pytest.raises(UsageError, match="source: /nowhere/WALs has no folder of a live region server"):
        accept_moved(ledger, "move", "me", given, "me")
    assert ledger.run("move-1").spec == spec(tmp_path, OLD)
    (tmp_path / "wal" / "WALs" / SERVER.name).mkdir(parents=True)
    accept_moved(ledger, "move", "me", spec(tmp_path, NEW, waldir=f"hdfs://nn:2{tmp_path}/wal"), "me")


@pytest.mark.parametrize("kind", ["migration", "keep", "stream"])
def test_the_place_of_a_log_that_is_copied_or_sent_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: RunKind
) -> None:
    """Nothing compares a peer's queue with what was not read at the old place."""
    source_at(tmp_path, monkeypatch)
    (tmp_path / "wal" / "WALs" / SERVER.name).mkdir(parents=True)
    before = spec(tmp_path, OLD) | (STAGED if kind == "migration" else {})
    given = {**before, "source": spec(tmp_path, NEW, waldir=f"hdfs://nn:2{tmp_path}/wal")["source"]}
    with Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}", actor="test") as book:
        planned(book, before, kind, cluster_id="A")
        with pytest.raises(UsageError, match="source: the waldir of run move-1 is not set, and may not change"):
            accept_moved(book, "move", "me", given, "me", kind)
        assert book.run("move-1").spec == before
        accept_moved(book, "move", "me", {**before, "source": spec(tmp_path, NEW)["source"]}, "me", kind)
        assert book.run("move-1").spec["source"]["zookeeper"] == NEW


@pytest.mark.parametrize("was", ["http://logs1:9870", None])
def test_a_folder_of_the_same_name_on_another_hdfs_is_another_place_of_a_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, was: str | None
) -> None:
    source_at(tmp_path, monkeypatch)
    (tmp_path / "wal" / "WALs" / SERVER.name).mkdir(parents=True)
    waldir = {"waldir": f"{tmp_path}/wal"}
    before = spec(tmp_path, NEW, **waldir, **({"wal_webhdfs": was} if was else {})) | STAGED
    now = spec(tmp_path, NEW, **waldir, wal_webhdfs="http://logs2:9870") | STAGED
    with Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}", actor="test") as book:
        planned(book, before)
        with pytest.raises(UsageError, match="source: the wal_webhdfs of run move-1 is "):
            accept_moved(book, "move", "me", now, "me")


def test_a_password_that_an_older_walferry_recorded_in_an_address_can_be_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source_at(tmp_path, monkeypatch)
    with Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}", actor="test") as book:
        planned(book, spec(tmp_path, NEW, webhdfs="http://kim:secret@nn:1") | STAGED)
        accept_moved(book, "move", "me", spec(tmp_path, NEW) | STAGED, "me")
        assert book.run("move-1").spec["source"]["webhdfs"] == "http://nn:1"


@pytest.mark.parametrize("apply", ["thrift", "auto"])
def test_a_thrift_server_through_which_edits_are_sent_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, apply: str
) -> None:
    """It tells no id of its cluster."""
    source_at(tmp_path, monkeypatch)
    (tmp_path / "target" / "WALs" / SERVER.name).mkdir(parents=True)
    (tmp_path / "target" / "hbase.id").write_bytes(znode(pb.ClusterId(cluster_id="B")))
    before = spec(tmp_path, NEW) | {"apply": apply}
    before["target"] |= {"thrift": "thrift:9090", "rootdir": f"hdfs://nn:4{tmp_path}/target"}
    now = before | {"target": before["target"] | {"thrift": "another:9090"}}
    with Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}", actor="test") as book:
        planned(book, before)
        if apply == "thrift":
            with pytest.raises(UsageError, match="target: the thrift of run move-1 is thrift:9090, and may not change"):
                accept_moved(book, "move", "me", now, "me")
        else:
            accept_moved(book, "move", "me", now, "me")


def test_the_sources_root_folder_is_no_address_of_a_target_whose_id_may_not_be_read(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hidden(*_: object) -> Iterator[bytes]:
        raise PermissionDeniedError("permission denied: read of hbase.id")

    monkeypatch.setattr(Local, "read", hidden)
    given = spec(tmp_path, OLD)
    taken = {key: given["source"][key] for key in ("webhdfs", "rootdir")}
    with pytest.raises(UsageError, match="the target of run move-1 would have the source's root folder"):
        accept_moved(ledger, "move", "me", given | {"target": given["target"] | taken}, "me")


@pytest.mark.parametrize(
    ("webhdfs", "rootdir", "same"),
    [
        ("http://nn:1", "hdfs://ns/hbase", True),
        ("http://nn:1", "/hbase/", True),
        ("http://nn:1", "hdfs://nn:8020/other", False),
        ("http://b:1;http://nn:1", "hdfs://ns/hbase", True),
        ("http://other:1", "hdfs://nn:8020/hbase", False),  # another HDFS may have the same name
        ("http://other:1", "hdfs://ns/hbase", False),
    ],
)
def test_two_clusters_have_the_same_root_folder_by_the_path_and_the_name_node(
    webhdfs: str, rootdir: str, same: bool
) -> None:
    address = rootdir if rootdir.startswith("hdfs://ns") else "hdfs://nn:8020/hbase"
    one = Cluster(zookeeper="a:1", webhdfs="http://nn:1", rootdir=address)
    assert same_root(one, Cluster(zookeeper="b:1", webhdfs=webhdfs, rootdir=rootdir)) == same


def test_one_server_of_a_runs_tables_that_logs_elsewhere_is_enough(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved_on = Server("rs", 2, 3)
    monkeypatch.setattr(Registry, "servers", lambda _: [SERVER, moved_on])
    monkeypatch.setattr(Registry, "regions", lambda *_: [SimpleNamespace(server=moved_on)], raising=False)
    with pytest.raises(UsageError, match=r"^source: .* has no folder of rs,2,3, which has regions of t"):
        accept_moved(ledger, "move", "me", spec(tmp_path, NEW), "me")


def test_a_source_whose_log_may_not_be_listed_is_refused(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hidden(self: Local, path: str) -> list[FileStatus]:
        raise PermissionDeniedError(f"permission denied: list of {path}")

    monkeypatch.setattr(Local, "list", hidden)
    with pytest.raises(PermissionDeniedError):
        accept_moved(ledger, "move", "me", spec(tmp_path, NEW), "me")
    assert ledger.run("move-1").spec == spec(tmp_path, OLD)


def test_a_plan_that_recorded_no_id_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source_at(tmp_path, monkeypatch)
    with Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}", actor="test") as book:
        planned(book, spec(tmp_path, OLD), version="2.6.3")
        with pytest.raises(UsageError, match="the plan of run move-1 recorded no id"):
            accept_moved(book, "move", "me", spec(tmp_path, NEW), "me")


@pytest.mark.parametrize("side", ["source", "target"])
def test_where_hbase_hides_its_id_zookeepers_counts_and_of_the_target_no_log_is_asked(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, side: str
) -> None:
    class Hidden(Local):
        def read(self, path: str, offset: int = 0, length: int | None = None) -> Iterator[bytes]:
            raise PermissionDeniedError(f"permission denied: read of {path}")

        def list(self, path: str) -> list[FileStatus]:
            raise PermissionDeniedError(f"permission denied: list of {path}")

    monkeypatch.setattr(moved, "files_of", lambda _: Hidden())
    monkeypatch.setattr(Registry, "ids", {NEW: "A" if side == "source" else "B"})
    given = spec(tmp_path, OLD) | {side: spec(tmp_path, OLD)[side] | {"zookeeper": NEW}}
    if side == "target":
        monkeypatch.setattr(log_folder, "log_files_of", lambda _: Hidden())
    accept_moved(ledger, "move", "me", given, "me")
    assert ledger.run("move-1").spec == given
    monkeypatch.setattr(Registry, "ids", {OLD: "another"})
    with pytest.raises(UsageError, match=f"the id in ZooKeeper at {OLD}/hbase is another"):
        accept_moved(ledger, "move", "me", given | {side: given[side] | {"zookeeper": OLD}}, "me")
