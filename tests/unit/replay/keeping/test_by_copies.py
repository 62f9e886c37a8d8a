"""Which WALs are copied, when, and when the copies go; the files are real, on this machine."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

from unit.formats.wal_builder import TRAILER, header
from unit.migration.filled_ledger import CLUSTER, SPEC
from walferry import clock
from walferry.clock import now_ms
from walferry.cutover import late_edits
from walferry.cutover.ways_out import abort
from walferry.errors import GapError, TransientError, UsageError
from walferry.hbase.address import ClusterAddress
from walferry.hbase.zookeeper import Server
from walferry.ledger import Ledger, LogPosition, SeenFile, WalRange
from walferry.ledger.rows import RunKind
from walferry.migration import report
from walferry.replay.keeping import by_copies, by_peer, protect
from walferry.replay.keeping.retention import Retention
from walferry.replay.rounds.completeness import check_complete
from walferry.run.progress.exposure import exposure_of
from walferry.run.progress.status import status
from walferry.run.run import Run
from walferry.security import OPEN, KerberosUnavailableError
from walferry.storage import Local, PermissionDeniedError
from walferry.wal.copies import with_copies
from walferry.wal.files import Place, WalFile, list_wals
from written import write_anew

TABLE = "shop:orders"
GROUP, LIVE = "rs%2C1%2C2", "WALs/rs,1,2"
CLOSED = header() + TRAILER
ME = ClusterAddress("none:1", user="me")


class Source:
    """A source whose region servers tell no settings, and which has no peers."""

    address = SimpleNamespace(user="me", security=OPEN)

    def servers(self) -> list[object]:
        return []

    def close(self) -> None:
        """Nothing is open."""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    """A run past its start fence, which stands in file 10."""
    monkeypatch.setattr(by_copies, "log_files_of", lambda _: Local())
    source = CLUSTER | {"rootdir": f"hdfs://127.0.0.1:1{tmp_path}/hbase"}
    spec = SPEC | {"source": source, "protect": "stage", "stage": f"{tmp_path}/copies"}
    with Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}", actor="test") as ledger:
        run = Run(ledger, ledger.open_run("move", "test", spec, "test").run_id)
        run.__dict__.update(source=Source(), source_files=with_copies(Local(), run.staged_folders, ME))
        (tmp_path / "hbase" / "WALs").mkdir(parents=True)
        run.ledger.phases.start("plan")
        run.ledger.phases.finish("plan", {})
        protect.protect(run)
        run.ledger.log.set_fence("start", [LogPosition(GROUP, f"{GROUP}.10", 10, 0)])
        yield run


def write(run: Run, folder: str, number: int, content: bytes = CLOSED, *, age: float = 0) -> Path:
    path = Path(f"{run.wal_root}/{folder}/{GROUP}.{number}")
    write_anew(Local(), str(path), [content])
    os.utime(path, (time.time() - age,) * 2)
    return path


def copies(run: Run) -> dict[int, bytes]:
    folder = Path(str(run.staged_folder).removeprefix("file://"))
    return {int(path.name.rpartition(".")[2]): path.read_bytes() for path in sorted(folder.iterdir())}


def applied(run: Run, number: int) -> None:
    name, size = f"{GROUP}.{number}", len(CLOSED)
    run.ledger.log.see_files([SeenFile(name, GROUP, "rs,1,2", number, name, size, True)])
    run.ledger.log.set_ranges([WalRange(name, 0, size, TABLE, 0, 0, None, None, "applied")])


def test_each_log_past_the_fence_is_copied_once_it_is_closed(run: Run) -> None:
    write(run, "oldWALs", 9)
    write(run, "oldWALs", 10, b"")
    write(run, LIVE, 11)
    write(run, LIVE, 12, header())  # its roll is under way
    write(run, LIVE, 13, CLOSED)  # the newest is never taken for closed
    assert by_copies.tend(run) is not None
    assert copies(run) == {10: b"", 11: CLOSED}
    assert by_copies.kept(run) == {f"{GROUP}.10", f"{GROUP}.11"}
    write(run, LIVE, 12)
    by_copies.tend(run)
    assert copies(run).keys() == {10, 11, 12}


def test_the_id_of_a_source_that_hides_its_files_is_that_in_zookeeper(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(self: Local, path: str, offset: int = 0, length: int | None = None) -> Iterator[bytes]:
        if path.endswith("/hbase.id"):
            raise PermissionDeniedError(f"permission denied: read of {path}")
        return real(self, path, offset, length)

    real = Local.read
    monkeypatch.setattr(Local, "read", read)
    run.ledger.phases.start("plan")
    run.ledger.phases.finish("plan", {"source_cluster_id": "planned"})
    write(run, LIVE, 10)
    write(run, LIVE, 11)
    monkeypatch.setattr(Source, "cluster_id", lambda _: "planned", raising=False)
    by_copies.tend(run)
    assert by_copies.kept(run) == {f"{GROUP}.10"}
    monkeypatch.setattr(Source, "cluster_id", lambda _: "another")
    with pytest.raises(by_copies.AnotherClusterError, match="its id is another"):
        by_copies.tend(run)
    monkeypatch.setattr(Source, "cluster_id", away)
    write(run, LIVE, 12)
    by_copies.tend(run)
    assert by_copies.kept(run) == {f"{GROUP}.10", f"{GROUP}.11"}, "the cleaner does not wait for ZooKeeper"


def away(*_: object) -> NoReturn:
    raise KerberosUnavailableError("ZooKeeper wants a login, and no KDC answers")


def test_what_can_be_copied_is_copied_while_zookeeper_does_not_answer(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But nothing says that this is all."""
    before = exposure_of(run.ledger)
    write(run, LIVE, 10)
    write(run, LIVE, 11)
    monkeypatch.setattr(Source, "servers", away)
    with pytest.raises(KerberosUnavailableError):
        by_copies.tend(run)
    assert copies(run) == {10: CLOSED}
    assert by_copies.kept(run) == {f"{GROUP}.10"}
    assert exposure_of(run.ledger) == before


@pytest.mark.parametrize("here", [True, False])
def test_a_place_at_which_servers_do_not_log_is_not_taken_for_the_whole_log(
    run: Run, monkeypatch: pytest.MonkeyPatch, here: bool
) -> None:
    """HBase logs elsewhere since hbase.wal.dir was set, or one server does; what there is is copied."""
    before, one, moved = exposure_of(run.ledger), Server("rs", 1, 2), Server("rs", 2, 3)
    monkeypatch.setattr(Source, "servers", lambda _: [one, moved] if here else [moved])
    monkeypatch.setattr(Source, "settings", lambda *_: {"hbase.wal.dir": "/new"}, raising=False)
    monkeypatch.setattr(Source, "regions", lambda *_: [SimpleNamespace(server=moved)], raising=False)
    monkeypatch.setattr(Source, "address", ClusterAddress("none:1", rootdir=f"hdfs://none:1{run.source_root}"))
    write(run, LIVE if here else "oldWALs", 10)
    if here:
        write(run, LIVE, 11)
    said = f"rs,2,3, which has regions of {TABLE}" if here else "a live region server"
    with pytest.raises(TransientError, match=f"has no folder of {said}; its hbase.wal.dir is /new"):
        by_copies.tend(run)
    assert copies(run) == {10: CLOSED}
    assert exposure_of(run.ledger) == before
    Path(f"{run.wal_root}/WALs/{moved.name}").mkdir()
    by_copies.tend(run)
    assert exposure_of(run.ledger) != before


@pytest.mark.parametrize(("folder", "age", "taken"), [
    (LIVE, 60, True), (LIVE, 1, False), ("WALs/rs,1,2-splitting", 60, True), ("WALs/rs,1,2-splitting", 1, False),
])  # fmt: skip
def test_a_log_whose_writer_broke_is_copied_after_a_while(run: Run, folder: str, age: float, taken: bool) -> None:
    write(run, folder, 11, header(), age=age)
    write(run, LIVE, 12)
    by_copies.tend(run)
    assert (11 in copies(run)) is taken


def test_a_log_that_grew_while_it_was_copied_is_not_final(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """The NameNode lists less than can be read: it is still open."""
    path = write(run, LIVE, 11, header(), age=60)
    write(run, LIVE, 12)
    read = Local.read

    def longer(self: Local, name: str, offset: int = 0, length: int | None = None) -> Iterator[bytes]:
        yield from read(self, name, offset, length)
        if name == str(path):
            yield b"more"

    monkeypatch.setattr(Local, "read", longer)
    by_copies.tend(run)
    assert copies(run) == {}


def test_a_copy_of_another_length_than_the_archived_log_is_made_again(run: Run) -> None:
    write(run, "WALs/rs,1,2-splitting", 11, header(), age=60)
    by_copies.tend(run)
    assert copies(run) == {11: header()}
    os.remove(f"{run.wal_root}/WALs/rs,1,2-splitting/{GROUP}.11")
    write(run, "oldWALs", 11)
    by_copies.tend(run)
    assert copies(run) == {11: CLOSED}


def test_two_processes_may_copy_the_same_logs(run: Run) -> None:
    for number in range(10, 40):
        write(run, "oldWALs", number, CLOSED * 500)
    errors: list[BaseException] = []

    def tend() -> None:
        try:
            by_copies.tend(run)
        except BaseException as error:
            errors.append(error)

    both = [threading.Thread(target=tend) for _ in range(2)]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join()
    assert errors == []
    assert copies(run) == dict.fromkeys(range(10, 40), CLOSED * 500)
    assert len(by_copies.kept(run)) == 30


def test_what_a_killed_process_left_is_no_copy_and_goes(run: Run) -> None:
    folder = Path(str(run.staged_folder).removeprefix("file://"))
    for name, age in (("old", 7200), ("new", 5)):
        (folder / f"{GROUP}.11.{name}.copying").write_bytes(b"half")
        os.utime(folder / f"{GROUP}.11.{name}.copying", (time.time() - age,) * 2)
    write(run, "oldWALs", 11)
    by_copies.tend(run)
    assert sorted(path.name for path in folder.iterdir()) == [f"{GROUP}.11", f"{GROUP}.11.new.copying"]
    assert by_copies.kept(run) == {f"{GROUP}.11"}


def test_a_copy_goes_once_it_is_applied_and_old_and_never_earlier(run: Run) -> None:
    for number in (10, 11):
        write(run, "oldWALs", number)
    by_copies.tend(run)
    applied(run, 10)
    assert by_copies.let_go(run) == []
    assert by_copies.let_go(run, keep_hours=0) == [f"{GROUP}.10"]
    assert copies(run).keys() == {11}
    by_copies.tend(run)
    assert copies(run).keys() == {11}, "it is copied again"
    assert by_copies.kept(run) == {f"{GROUP}.11"}


def test_a_log_of_which_only_the_copy_is_left_is_complete_and_without_it_there_is_a_gap(run: Run) -> None:
    path = write(run, "oldWALs", 10)
    by_copies.tend(run)
    path.unlink()
    check_complete(run, list_wals(run.source_files, run.wal_root))
    Path(f"{run.staged_folder}/{path.name}".removeprefix("file://")).unlink()
    with pytest.raises(GapError, match=r"was copied to .*, and somebody has deleted the copy") as gap:
        check_complete(run, list_wals(run.source_files, run.wal_root))
    assert gap.value.files == [path.name]


def test_a_log_that_was_found_empty_and_vanished_without_a_copy_is_a_gap(run: Run) -> None:
    """Edits came later, nobody copied them, the server died, and the cleaner deleted the log."""
    name = f"{GROUP}.11"
    run.ledger.log.see_files([SeenFile(name, GROUP, "rs,1,2", 11, f"{LIVE}/{name}", 0, False)])
    with pytest.raises(GapError) as gap:
        check_complete(run, [])
    assert gap.value.files == [name]


def test_a_log_past_the_end_fence_that_vanishes_unread_is_no_silence(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a peer it is: the cleaner then deletes only what never held an edit."""
    run.ledger.log.set_fence("end", [LogPosition(GROUP, f"{GROUP}.10", 10, 0)])
    name = f"{GROUP}.11"
    listed = WalFile(name, GROUP, "rs,1,2", 11, f"{run.wal_root}/oldWALs/{name}", Place.ARCHIVED, 0)
    monkeypatch.setattr(late_edits, "list_wals", lambda *_: [listed])
    with pytest.raises(GapError):
        late_edits.look(run)
    monkeypatch.setitem(protect._WAYS, "stage", by_peer)
    assert late_edits.look(run) == []


def test_without_the_folder_nothing_goes_on(run: Run) -> None:
    Path(str(run.staged_folder).removeprefix("file://")).rmdir()
    with pytest.raises(by_copies.StageLostError, match="no longer exists"):
        check_complete(run, [])


def test_an_abort_removes_the_copies_also_beside_a_process_that_copies(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(run, "oldWALs", 10)
    copy = by_copies._copy

    def beside_an_abort(*arguments: Any) -> object:
        abort(run, "enough")
        return copy(*arguments)

    monkeypatch.setattr(by_copies, "_copy", beside_an_abort)
    monkeypatch.setattr("walferry.replay.keeping.objects.restore", lambda *_, **__: ([], []))
    protect.tend(run, by_copies, lambda _: False)
    assert not Path(str(run.staged_folder).removeprefix("file://")).exists()
    assert [item.state for item in run.ledger.objects.all()] == ["removed"]


def test_a_window_reads_the_copies_of_other_runs_that_can_be_reached_and_nobody_else_does(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    whole, spec = run.ledger.whole, run.record.spec
    gone = whole.of(whole.open_run("dead", "test", spec | {"name": "dead"}, "test").run_id).objects
    gone.plan("source", "folder", "ftp://nowhere.example/dead-1")

    def other(kind: RunKind) -> Run:
        its = spec | {"name": f"a_{kind}", "protect": "peer", "stage": None}
        return Run(whole, whole.open_run(f"a_{kind}", "test", its, "test", kind))

    assert run.staged_folders == (run.staged_folder,)
    assert [other(kind).staged_folders for kind in ("migration", "drain", "standby", "copy")] == [()] * 4
    assert other("window").staged_folders == (run.staged_folder,)
    assert "the copies of WALs in ftp://nowhere.example/dead-1 cannot be reached" in caplog.text


def test_a_folder_that_cannot_be_deleted_does_not_keep_a_run_from_ending(
    run: Run, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    users = []

    def dead(url: str, address: SimpleNamespace) -> object:
        users.append((url, address.user))
        raise TransientError("no NameNode answers")

    monkeypatch.setattr("walferry.replay.keeping.objects.open_folder", dead)
    monkeypatch.setattr("walferry.replay.keeping.objects.restore", lambda *_, **__: (["durability"], []))
    told = {"removed": ["durability"], "left": [f"folder {run.staged_folder}"]}
    assert abort(run, "enough") == told
    assert users == [(run.staged_folder, "me")]
    assert "is no longer needed but cannot be deleted; delete it yourself: no NameNode answers" in caplog.text
    assert [item.state for item in run.ledger.objects.all()] == ["made"], "another abort tries again"


def test_who_copies_ends_with_the_run_though_the_folder_does_not_answer(
    run: Run, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def dead(*_: object, **__: object) -> bool:
        raise TransientError("no NameNode answers")

    run.ledger.end("aborted", "me")
    monkeypatch.setattr(Local, "delete", dead)
    assert by_copies.tend(run) is None
    assert "if it is still there, delete it yourself: no NameNode answers" in caplog.text


def test_what_cannot_be_copied_is_named_with_the_time_that_is_left(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without settings of the source, HBase's time to live of 600 s is assumed."""
    write(run, "oldWALs", 10, age=100)
    write(run, "oldWALs", 11, age=200)
    write(run, "oldWALs", 12, age=300)
    copy = by_copies._copy
    monkeypatch.setattr(by_copies, "_copy", lambda stage, file: None if file.number in (10, 11) else copy(stage, file))
    by_copies.tend(run)
    found = exposure_of(run.ledger)
    assert found is not None
    assert (found.file, found.kept_files, found.kept_bytes) == (f"{GROUP}.11", 1, len(CLOSED))
    assert found.ttl_assumed
    assert found.seconds_to_loss(now_ms()) == pytest.approx(400, abs=5)
    monkeypatch.setattr(by_copies, "_copy", copy)
    by_copies.tend(run)
    found = exposure_of(run.ledger)
    assert found is not None
    assert found.file is None
    assert found.seconds_to_loss(now_ms()) == pytest.approx(600, abs=5)


@pytest.mark.parametrize("folder", ["oldWALs", LIVE])
def test_a_log_that_cannot_be_read_keeps_no_other_from_being_copied(
    run: Run, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, folder: str
) -> None:
    """All of its DataNodes may be down: it is the first to be lost, and the others are not."""
    broken = write(run, folder, 10, age=500)
    for number in range(11, 20):
        write(run, "oldWALs", number)
    read = Local.read

    def fails(self: Local, name: str, offset: int = 0, length: int | None = None) -> Iterator[bytes]:
        if name == str(broken):
            raise TransientError("no DataNode has the block")
        return read(self, name, offset, length)

    monkeypatch.setattr(Local, "read", fails)
    with pytest.raises(TransientError, match="no DataNode"):
        by_copies.tend(run)
    assert copies(run).keys() == set(range(11, 20))
    assert by_copies.kept(run) == {f"{GROUP}.{number}" for number in range(11, 20)}
    assert f"{broken} could not be copied and may be lost: no DataNode" in caplog.text
    found = exposure_of(run.ledger)
    assert found is not None
    assert found.file == broken.name
    assert found.seconds_to_loss(now_ms()) == pytest.approx(100, abs=5)


def test_attempts_that_fail_do_not_fill_the_folder(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    write(run, "oldWALs", 10)
    put = Local.write

    def full(self: Local, path: str, chunks: Any, **options: Any) -> None:
        put(self, path, chunks, **options)
        raise TransientError("the quota is used up")

    monkeypatch.setattr(Local, "write", full)
    with pytest.raises(TransientError, match="quota"):
        by_copies.tend(run)
    assert list(Path(str(run.staged_folder).removeprefix("file://")).iterdir()) == []


def test_a_log_that_is_still_being_closed_is_not_lost_soon(run: Run) -> None:
    """Its time to live begins with its close; until then, its modification may be when it was opened."""
    write(run, LIVE, 11, b"", age=5000)
    write(run, LIVE, 12)
    by_copies.tend(run)
    found = exposure_of(run.ledger)
    assert found is not None
    assert found.file == f"{GROUP}.11"
    assert found.seconds_to_loss(now_ms()) == pytest.approx(600, abs=5)


def test_a_status_warns_when_nobody_ever_begins_to_copy(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    began = now_ms()
    monkeypatch.setattr(clock, "now_ms", lambda: began + 301_000)
    facts = status(run.ledger).log
    assert facts is not None
    assert facts.late
    assert facts.time_to_loss_seconds == pytest.approx(299, abs=5)


def test_a_standstill_of_the_copying_is_told_for_good(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    by_copies.tend(run)
    looked = now_ms()
    assert status(run.ledger).standstills == ()
    monkeypatch.setattr(by_copies, "now_ms", lambda: looked + 700_000)
    by_copies.tend(run)
    monkeypatch.setattr(by_copies, "now_ms", lambda: looked + 730_000)
    by_copies.tend(run)
    run.ledger.end("aborted", "me")
    facts = status(run.ledger)
    assert facts.log is None
    (standstill,) = facts.standstills
    assert standstill.until_ms - standstill.from_ms == pytest.approx(700_000, abs=5_000)
    assert standstill.text.startswith("the source's log was not looked at from ")
    assert [line.action for line in run.ledger.audit_trail()].count("log not looked at") == 1
    assert f"WARNING: {standstill.text}" in report.render(report.summary(run.ledger))


def test_before_the_start_fence_nothing_can_be_lost(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    fence = run.ledger.log.fence
    looked = now_ms()
    monkeypatch.setattr(by_copies, "now_ms", lambda: looked + 700_000)
    monkeypatch.setattr(run.ledger.log, "fence", lambda _: [])
    assert by_copies.tend(run) == 1.0
    monkeypatch.setattr(run.ledger.log, "fence", fence)
    monkeypatch.setattr(by_copies, "now_ms", lambda: looked + 1_200_000)
    by_copies.tend(run)
    assert status(run.ledger).standstills == ()


def test_only_a_migration_may_stage(run: Run) -> None:
    ledger = run.ledger.whole
    for kind in ("drain", "standby", "copy", "snapshot"):
        other = Run(ledger, ledger.open_run(f"a_{kind}", "test", run.record.spec | {"name": f"a_{kind}"}, "test", kind))
        with pytest.raises(UsageError, match="protect: stage is only for migrations"):
            by_copies.begin(other)


@pytest.mark.parametrize("failure", [UsageError("no space"), KeyError("no space")])
def test_a_failure_is_tried_again_until_the_end(run: Run, caplog: pytest.LogCaptureFixture, failure: Exception) -> None:
    answers: list[float | Exception | None] = [failure, 7.0, None]
    waits: list[float] = []

    def answer(_: Run) -> float | None:
        given = answers.pop(0)
        if isinstance(given, Exception):
            raise given
        return given

    def wait(seconds: float) -> bool:
        waits.append(seconds)
        return False

    protect.tend(run, SimpleNamespace(tend=answer), wait)
    assert waits == [0.0, protect.AGAIN_SECONDS, 7.0]
    assert "no space" in caplog.text


@pytest.mark.parametrize(("ttl", "seconds"), [(600, 30), (15, 1), (60, 3), (86_400, 30)])
def test_the_source_is_looked_at_well_within_the_time_to_live(ttl: float, seconds: float) -> None:
    assert by_copies.pause_seconds(Retention(ttl).ttl_seconds) == seconds
