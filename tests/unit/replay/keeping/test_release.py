"""An abort beside a process that is just making something leaves nothing behind, whoever is faster or killed."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from unit.migration.filled_ledger import SPEC
from unit.replay.memory_zookeeper import MemoryZooKeeper
from walferry.apply.bulk_loader import staging_folder
from walferry.cutover.ways_out import abort
from walferry.errors import TransientError
from walferry.hbase.errors import ConnectionFailedError, RequestTimeoutError, ServerGoneError, ZooKeeperError
from walferry.ledger import Ledger
from walferry.replay.keeping import by_peer, objects, protect
from walferry.replay.keeping.objects import release
from walferry.run import heartbeat
from walferry.run.heartbeat import NOTE, beating
from walferry.run.run import Run, RunEndedError
from walferry.security import OPEN
from walferry.storage import Local
from walferry.wal import copies


class Source:
    """A source on which replication peers can be added and removed."""

    def __init__(self) -> None:
        self.there: set[str] = set()
        self.before_add: Callable[[], object] = lambda: None
        self.after_add: Callable[[], object] = lambda: None

    def peers(self) -> dict[str, tuple[bool, str]]:
        return dict.fromkeys(self.there, (False, ""))

    def add_peer(self, peer: str, endpoint: str, *, enabled: bool) -> None:
        self.before_add()
        self.there.add(peer)
        self.after_add()

    def remove_peer(self, peer: str) -> bool:
        known = peer in self.there
        self.there.discard(peer)
        return known

    def close(self) -> None:
        """Nothing is open."""


@pytest.fixture
def source() -> Source:
    return Source()


@pytest.fixture
def run(tmp_path: Path, source: Source, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    monkeypatch.setattr(by_peer, "_await_queues", lambda run, peer: [])
    with Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}", actor="test") as ledger:
        run = Run(ledger, ledger.open_run("move", "test", SPEC, "test").run_id)
        run.__dict__["source"] = source
        run.ledger.phases.start("plan")
        run.ledger.phases.finish("plan", {})
        yield run


@pytest.mark.parametrize("moment", ["before_add", "after_add"])
def test_a_peer_that_is_added_beside_an_abort_does_not_stay(run: Run, source: Source, moment: str) -> None:
    setattr(source, moment, lambda: abort(run, "enough"))
    with pytest.raises(RunEndedError, match="was aborted while peer"):
        protect.protect(run)
    assert source.there == set()
    assert {item.state for item in run.ledger.objects.all()} == {"removed"}


def test_a_peer_of_a_process_that_was_killed_beside_an_abort_goes_with_the_next_one(run: Run, source: Source) -> None:
    source.before_add = lambda: abort(run, "enough")

    def killed() -> None:
        raise KeyboardInterrupt

    source.after_add = killed
    run.ledger.phases.fail = lambda *_, **__: None  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        protect.protect(run)
    assert source.there == {run.peer}
    abort(run, "enough")
    assert source.there == set()


def test_what_a_killed_process_had_only_planned_goes_with_the_first_abort(run: Run) -> None:
    """kill -9 just before a peer is added: nobody took the phase back, and its last sign of life is a second old."""
    with beating(run.ledger, "protect", "test"):
        sign, _ = run.ledger.notes.named(NOTE)["protect"]
    run.ledger.phases.start("protect")
    run.ledger.objects.plan("source", "peer", run.peer)
    run.ledger.notes.keep(NOTE, sign, "protect")  # by this process
    release(run, aborted=True)
    assert [item.state for item in run.ledger.objects.all()] == ["planned"], "it may be about to make it"

    killed = subprocess.Popen([sys.executable, "-c", ""])
    killed.wait()
    run.ledger.notes.keep(NOTE, sign | {"pid": killed.pid}, "protect")
    abort(run, "enough")
    assert [item.state for item in run.ledger.objects.all()] == ["removed"]


def test_a_process_elsewhere_is_waited_for_until_it_is_silent(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    run.ledger.phases.start("protect")
    run.ledger.objects.plan("source", "peer", run.peer)
    run.ledger.notes.keep(NOTE, {"pid": 1 << 22, "machine": "elsewhere"}, "protect")
    assert release(run, aborted=True) == {"removed": [], "left": [f"peer {run.peer} at the source"]}
    monkeypatch.setattr(heartbeat, "SILENT_SECONDS", 0)
    assert release(run, aborted=True) == {"removed": [f"peer {run.peer} at the source"], "left": []}


def test_what_was_planned_and_never_made_is_removed_once_nobody_can_make_it_any_more(run: Run, source: Source) -> None:
    run.ledger.objects.plan("source", "peer", run.peer)
    abort(run, "enough")
    assert [item.state for item in run.ledger.objects.all()] == ["removed"]


def test_what_cannot_be_removed_keeps_nothing_else(
    run: Run, source: Source, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(peer: str) -> bool:
        raise TransientError(f"{peer} stays")

    deleted: list[str] = []

    def delete_snapshot(name: str) -> bool:
        deleted.append(name)
        return True

    source.__dict__["delete_snapshot"] = delete_snapshot

    def restore(*_: object, **__: object) -> tuple[list[str], list[str]]:
        deleted.append("durability")
        return [], []

    monkeypatch.setattr(objects, "restore", restore)
    protect.protect(run)
    run.ledger.objects.plan("source", "snapshot", "snap")
    run.ledger.objects.made("source", "snapshot", "snap")
    with monkeypatch.context() as patch:
        patch.setattr(source, "remove_peer", fails)
        with pytest.raises(TransientError, match="stays"):
            abort(run, "enough")
    assert deleted == ["snap", "durability"]
    assert f"run {run.run_id} could not remove peer {run.peer} at the source: repeat this" in caplog.text
    assert {item.kind: item.state for item in run.ledger.objects.all()} == {"peer": "made", "snapshot": "removed"}
    abort(run, "enough")
    assert source.there == set()


SILENCE = [
    ConnectionFailedError("connection refused"),
    RequestTimeoutError("no answer"),
    ServerGoneError("not the active master"),
    ZooKeeperError("no answer"),
]


@pytest.mark.parametrize("error", SILENCE)
def test_a_cluster_that_does_not_answer_is_asked_once(
    run: Run, source: Source, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: TransientError
) -> None:
    """A master that is gone would cost over two minutes for each object; folders and the other cluster are apart."""
    asked: list[str] = []

    def delete_at(cluster: str, name: str) -> bool:
        asked.append(f"{name} at {cluster}")
        if cluster == "source":
            raise error
        return True

    monkeypatch.setattr(objects, "restore", lambda *_, **__: ([], []))
    source.__dict__ |= {
        "delete_snapshot": lambda name: delete_at("source", name),
        "address": SimpleNamespace(user="me", security=OPEN),
    }
    there = SimpleNamespace(delete_snapshot=lambda name: delete_at("target", name), close=lambda: None)
    run.__dict__["target"] = there
    (tmp_path / "copies").mkdir()
    for cluster, kind, name in (
        ("source", "snapshot", "one"),
        ("source", "snapshot", "two"),
        ("source", "folder", f"file://{tmp_path}/copies"),
        ("target", "snapshot", "three"),
    ):
        run.ledger.objects.plan(cluster, kind, name)  # type: ignore[arg-type]
        run.ledger.objects.made(cluster, kind, name)  # type: ignore[arg-type]
    with pytest.raises(type(error)):
        abort(run, "enough")
    assert len(asked) == 2
    assert "three at target" in asked
    assert not (tmp_path / "copies").exists()
    left = {item.name for item in run.ledger.objects.all() if item.state == "made"}
    assert left == {"one", "two"}


def test_a_target_that_does_not_answer_is_not_asked_for_durability(
    run: Run, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def silent(name: str) -> bool:
        raise RequestTimeoutError("the master does not answer")

    asked: list[str] = []

    def restore(*_: object, **__: object) -> tuple[list[str], list[str]]:
        asked.append("durability")
        return [], []

    monkeypatch.setattr(objects, "restore", restore)
    run.__dict__["target"] = SimpleNamespace(delete_snapshot=silent, close=lambda: None)
    run.ledger.objects.plan("target", "snapshot", "one")
    run.ledger.objects.made("target", "snapshot", "one")
    with pytest.raises(RequestTimeoutError):
        abort(run, "enough")
    assert asked == []
    assert f"could not remove snapshot one at the target, DURABILITY of the tables of run {run.run_id}" in caplog.text


def test_readonly_is_lifted_first_also_where_something_else_cannot_be_removed_now(
    run: Run, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []

    def delete_snapshot(name: str) -> bool:
        done.append(name)
        raise TransientError(f"snapshot {name} cannot be deleted now")

    monkeypatch.setattr(objects, "restore", lambda *_, **__: ([], []))
    source.__dict__ |= {
        "delete_snapshot": delete_snapshot,
        "table_exists": lambda table: True,
        "set_read_only": lambda table, read_only: done.append(f"{table} {read_only}"),
    }
    for kind, name in (("snapshot", "one"), ("snapshot", "two"), ("read-only table", "shop:orders")):
        run.ledger.objects.plan("source", kind, name)  # type: ignore[arg-type]
        run.ledger.objects.made("source", kind, name)  # type: ignore[arg-type]
    with pytest.raises(TransientError, match="one cannot be deleted now"):
        abort(run, "enough")
    assert done == ["shop:orders False", "one", "two"]


def test_the_user_in_a_folders_url_deletes_it(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it was created: under another name HDFS may refuse it."""
    users: list[str | None] = []

    def opened(url: str, *, user: str | None, security: object) -> tuple[Local, str]:
        users.append(user)
        return Local(), "/nowhere/move-1"

    monkeypatch.setattr(copies, "open_file_system", opened)
    monkeypatch.setattr(objects, "restore", lambda *_, **__: ([], []))
    run.source.__dict__["address"] = SimpleNamespace(user="me", security=OPEN)
    for name in ("webhdfs://you@host:1/a", "webhdfs://host:1/b"):
        run.ledger.objects.plan("source", "folder", name)
    abort(run, "enough")
    assert users == [None, "me"]


@pytest.mark.parametrize("holder", ["run move-1 (me)", "run other-1 (you)", None])
def test_the_files_that_another_run_has_staged_for_the_same_table_stay(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, holder: str | None
) -> None:
    monkeypatch.setattr(objects, "restore", lambda *_, **__: ([], []))
    monkeypatch.setattr(Run, "target_root", str(tmp_path))
    folder = staging_folder(str(tmp_path), "shop:orders")
    Local().write(f"{folder}/0/file", [b"cells"])
    files, zk = Local(), MemoryZooKeeper().session()
    run.__dict__ |= {"target_files": files, "target": SimpleNamespace(zk=zk, close=lambda: None)}
    if holder is not None:
        zk.ensure_path("/walferry/leases/shop%3Aorders")
        zk.create("/walferry/leases/shop%3Aorders/holder", json.dumps({"number": 1, "holder": holder}).encode())
    run.ledger.objects.plan("target", "staging folder", folder)
    run.ledger.objects.made("target", "staging folder", folder)
    abort(run, "enough")
    assert (files.status(folder) is not None) == (holder == "run other-1 (you)")
    assert [item.state for item in run.ledger.objects.all()] == ["removed"]
