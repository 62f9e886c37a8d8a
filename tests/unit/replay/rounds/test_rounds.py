"""Which files a round asks for and which it reads (R1): they are real, the source's answers are given."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

import pytest
from pyspark.sql import SparkSession

from unit.apply.guards import Guard
from unit.formats.wal_builder import entry, header
from unit.migration.filled_ledger import CLUSTER, SPEC
from walferry.apply.route import Route
from walferry.errors import GapError
from walferry.formats.cells import encode_cell
from walferry.hbase.address import ClusterAddress
from walferry.hbase.zookeeper import Server
from walferry.ledger import Hold, Ledger, LogPosition, QuarantineItem, SeenFile, WalRange
from walferry.ledger.rows import RangeState
from walferry.replay.keeping.by_peer import PeerChangedError, require
from walferry.replay.log.cut import as_listed, record_seen
from walferry.replay.rounds import completeness, rounds
from walferry.replay.rounds.completeness import NotQueuedError, check_complete
from walferry.replay.rounds.rounds import _pending, mark_overtaken
from walferry.run.run import Run
from walferry.storage import Local
from walferry.wal.files import WalFile, list_wals
from write_limits import write_limits

TABLE = "shop:orders"
SERVER = Server("rs", 1, 2)
GROUP = "rs%2C1%2C2"


@dataclass
class Source:
    """What the source says of its servers, and of the run's peer and its queue."""

    alive: list[Server] = field(default_factory=lambda: [SERVER])
    peer: tuple[bool, str] | None = (False, "")
    queue: list[str] = field(default_factory=list)

    def servers(self) -> list[Server]:
        return self.alive

    def peers(self) -> dict[str, tuple[bool, str]]:
        return {} if self.peer is None else {"walferry_move_1": self.peer}

    def peer_queues(self, peer_id: str) -> dict[str, set[str]]:
        return {SERVER.name: set(self.queue)} if peer_id in self.peers() else {}

    def close(self) -> None:
        """Nothing is open."""


@pytest.fixture
def source() -> Source:
    return Source()


@pytest.fixture
def run(tmp_path: Path, source: Source) -> Iterator[Run]:
    """A run whose start fence stands in file 10; its source's files are on this machine."""
    spec = SPEC | {"source": CLUSTER | {"rootdir": f"hdfs://127.0.0.1:1{tmp_path}"}}
    with Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}", actor="test") as ledger:
        run = Run(ledger, ledger.open_run("move", "test", spec, "test").run_id)
        run.__dict__.update(source=source, wal_files=Local())
        (tmp_path / "WALs").mkdir()
        ledger.of(run.run_id).objects.plan("source", "peer", run.peer)
        ledger.of(run.run_id).objects.made("source", "peer", run.peer)
        ledger.of(run.run_id).objects.plan("source", "peer", run.peer)
        ledger.of(run.run_id).objects.made("source", "peer", run.peer)
        ledger.of(run.run_id).log.set_fence("start", [LogPosition(GROUP, f"{GROUP}.10", 10, 0)])
        yield run


def write(run: Run, *numbers: int) -> None:
    """Let these files stand in the archive."""
    for number in numbers:
        Local().write(f"{run.source_root}/oldWALs/{GROUP}.{number}", [b"ten bytes!"])


def see(run: Run, number: int, *, length: int = 10, sealed: bool = True) -> str:
    """Let the ledger have seen a file; its name."""
    name = f"{GROUP}.{number}"
    path = f"{run.source_root}/oldWALs/{name}"
    run.ledger.log.see_files([SeenFile(name, GROUP, SERVER.name, number, path, length, sealed)])
    return name


def listed(run: Run) -> list[WalFile]:
    return list_wals(run.wal_files, run.source_root)


def test_a_file_that_the_ledger_saw_is_missed_though_the_peer_has_let_go_of_it(run: Run) -> None:
    write(run, 10)
    see(run, 10)
    lost = see(run, 11)
    with pytest.raises(GapError, match=lost) as gap:
        check_complete(run, listed(run))
    assert gap.value.files == [lost]
    assert [file.name for file in run.ledger.log.files() if file.state == "missing"] == [lost]


def test_once_clients_use_the_target_a_gap_is_no_reason_to_start_over(run: Run) -> None:
    see(run, 10)
    with pytest.raises(GapError, match="if it is lost, abort this run and start over"):
        check_complete(run, listed(run))
    run.ledger.phases.start("open_target")
    run.ledger.phases.finish("open_target", {"at_ms": 5})
    with pytest.raises(GapError, match="`walferry verify move` names the rows that differ") as gap:
        check_complete(run, listed(run))
    assert "start over" not in str(gap.value)


def test_a_file_that_only_the_queue_of_the_peer_names_is_missed_too(run: Run, source: Source) -> None:
    write(run, 10)
    source.queue = [f"{GROUP}.9", f"{GROUP}.10", f"{GROUP}.11"]  # the first is in the snapshot
    with pytest.raises(GapError) as gap:
        check_complete(run, listed(run))
    assert gap.value.files == [f"{GROUP}.11"]


def test_a_file_that_was_applied_may_go(run: Run, source: Source) -> None:
    write(run, 11)
    applied = see(run, 10)
    run.ledger.log.set_ranges([WalRange(applied, 0, 10, TABLE, 0, 0, None, None, "applied")])
    source.queue = [applied]
    check_complete(run, listed(run))


def test_a_file_that_only_one_of_two_tables_has_is_still_missed(tmp_path: Path, run: Run) -> None:
    second = SPEC | {"name": "two", "tables": [TABLE, "shop:carts"], "source": run.record.spec["source"]}
    run = Run(run.ledger.whole, run.ledger.whole.open_run("two", "test", second, "test").run_id)
    run.__dict__.update(source=Source(), wal_files=Local())
    run.source.peers = lambda: {run.peer: (False, "")}  # type: ignore[method-assign]
    run.ledger.objects.plan("source", "peer", run.peer)
    run.ledger.objects.made("source", "peer", run.peer)
    run.ledger.log.set_fence("start", [LogPosition(GROUP, f"{GROUP}.10", 10, 0)])
    lost = see(run, 10)
    states: dict[str, RangeState] = {TABLE: "applied", "shop:carts": "sealed"}
    run.ledger.log.set_ranges([WalRange(lost, 0, 10, t, 0, 0, None, None, s) for t, s in states.items()])
    with pytest.raises(GapError, match=lost):
        check_complete(run, listed(run))
    run.ledger.log.set_ranges([WalRange(lost, 0, 10, "shop:carts", 0, 0, None, None, "applied")])
    check_complete(run, listed(run))


def test_a_file_that_came_behind_the_listing_is_not_missed(run: Run, source: Source) -> None:
    write(run, 10)
    before = listed(run)
    write(run, 11)
    source.queue = [f"{GROUP}.11"]
    check_complete(run, before)


@pytest.mark.parametrize(
    ("length", "sealed", "alive", "later"),
    [(10, False, [], False), (0, True, [], False), (0, False, [SERVER], False), (0, False, [], True)],
    ids=["it held bytes", "it was closed", "its server lives", "its server wrote another one behind it"],
)
def test_only_the_last_open_file_of_a_dead_server_may_be_gone_as_empty(
    run: Run, source: Source, length: int, sealed: bool, alive: list[Server], later: bool
) -> None:
    lost = see(run, 10, length=length, sealed=sealed)
    if later:
        write(run, 11)
        see(run, 11)
    source.alive = alive
    with pytest.raises(GapError) as gap:
        check_complete(run, listed(run))
    assert gap.value.files == [lost]


def test_an_empty_file_that_went_with_its_server_leaves_no_gap(run: Run, source: Source) -> None:
    see(run, 10, length=0, sealed=False)
    source.alive = []
    check_complete(run, listed(run))
    assert run.ledger.log.gaps() == []


@pytest.mark.parametrize("content", [b"", header()], ids=["without a byte", "with a header"])
def test_a_log_of_a_server_that_died_at_once_may_go_before_its_turn(run: Run, source: Source, content: bytes) -> None:
    """HBase archives it, and its cleaner deletes it: no queue names it yet. A long backlog may be applied meanwhile."""
    write(run, 11)
    source.queue = [f"{GROUP}.11"]
    other = replace(SERVER, port=9)
    name = f"rs%2C9%2C{other.start_code}.10"
    Local().write(f"{run.source_root}/oldWALs/{name}", [content])
    seen = listed(run)
    record_seen(run, seen, sealed={file.name for file in seen})
    check_complete(run, seen)
    assert [file.name for file in _pending(run, seen)] == [f"{GROUP}.11"]
    Local().delete(f"{run.source_root}/oldWALs/{name}")
    check_complete(run, listed(run))
    assert name not in {gap.file for gap in run.ledger.log.gaps()}


def test_a_log_that_holds_an_edit_is_not_passed_over_because_no_queue_names_it(run: Run) -> None:
    place = f"{run.source_root}/oldWALs/{GROUP}.10"
    Local().write(place, [header() + entry([encode_cell(b"r", b"f", b"q", 1, 4)], 1)])
    check_complete(run, listed(run))
    assert [file.name for file in _pending(run, listed(run))] == [f"{GROUP}.10"]


def test_a_log_that_a_queue_names_is_missed_though_it_was_empty_when_it_was_seen(run: Run, source: Source) -> None:
    """HBase names a log in the queue before the first edit goes into it, and keeps it then."""
    lost = see(run, 10, length=0, sealed=False)
    source.alive, source.queue = [], [lost]
    with pytest.raises(GapError, match="HBase keeps it for the peer walferry_move_1, so somebody removed it"):
        check_complete(run, listed(run))


def test_what_another_run_saw_in_a_log_that_is_gone_counts(run: Run, source: Source) -> None:
    lost = see(run, 10, length=0, sealed=False)
    source.alive = []
    watch = run.ledger.whole.open_run("watch", "w", {"source": run.record.spec["source"], "tables": []}, "w", "watch")
    place = f"{run.source_root}/WALs/{SERVER.name}/{lost}"
    run.ledger.whole.of(watch.run_id).log.see_files([SeenFile(lost, GROUP, SERVER.name, 10, place, 300, False)])
    with pytest.raises(GapError):
        check_complete(run, listed(run))


def test_a_missing_log_that_is_put_back_is_no_gap_any_more(run: Run, source: Source) -> None:
    write(run, 10)
    lost = see(run, 11)
    source.queue = [lost]
    aside = f"{run.source_root}/corrupt/{lost}"
    Local().write(aside, [b"ten bytes!"])
    with pytest.raises(GapError, match=f"moved it to {aside}") as gap:
        check_complete(run, listed(run))
    assert f"put it into {run.source_root}/oldWALs and run again" in str(gap.value)
    write(run, 11)
    seen = listed(run)
    record_seen(run, seen, sealed={file.name for file in seen})
    check_complete(run, seen)
    assert lost in [file.name for file in _pending(run, seen)]
    assert {file.state for file in run.ledger.log.files()} == {"sealed"}


@pytest.mark.parametrize(("peer", "what"), [(None, "removed"), ((True, ""), "enabled")])
def test_nothing_is_applied_while_no_peer_keeps_the_log(
    run: Run, source: Source, peer: tuple[bool, str] | None, what: str
) -> None:
    source.peer = peer
    with pytest.raises(PeerChangedError, match=f"was {what} at the source"):
        check_complete(run, listed(run))


def test_an_older_peer_may_have_been_removed_but_not_enabled(run: Run, source: Source) -> None:
    newest = f"{run.peer}_R1"
    run.ledger.objects.plan("source", "peer", newest)
    run.ledger.objects.made("source", "peer", newest)
    source.peers = lambda: {newest: (False, "")}  # type: ignore[method-assign]
    require(run)
    source.peers = lambda: {run.peer: (True, ""), newest: (False, "")}  # type: ignore[method-assign]
    with pytest.raises(PeerChangedError, match=f"peer {run.peer} was enabled"):
        require(run)


def test_a_file_is_read_again_until_each_of_its_tables_is_applied_or_waits(tmp_path: Path) -> None:
    other = "shop:users"
    spec = SPEC | {"tables": [{"source": table, "target": table} for table in (TABLE, other)]}
    with Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}", actor="test") as ledger:
        run = Run(ledger, ledger.open_run("move", "test", spec, "test").run_id)
        new, done, half, waits, killed, unsent = (see(run, number) for number in range(10, 16))
        refused = QuarantineItem(waits, 0, 9, other, "r1", 1, "refused", b"")
        (item,) = ledger.of(run.run_id).quarantine.put([refused])
        # Holds come first: without ranges they are of a batch that was killed.
        holds = [(waits, other), (killed, TABLE), (killed, other)]
        ledger.of(run.run_id).quarantine.hold([Hold(file, table, "r1", 0, item) for file, table in holds])
        states = {(done, TABLE): "applied", (done, other): "verified", (half, TABLE): "applied"}
        states |= {(waits, TABLE): "applied", (waits, other): "sealed"}
        states |= {(unsent, TABLE): "applied", (unsent, other): "sealed"}
        for (file, table), state in states.items():
            ledger.of(run.run_id).log.set_ranges([WalRange(file, 0, 10, table, 0, 0, None, None, state)])  # type: ignore[arg-type]
        listed = [as_listed(file) for file in ledger.of(run.run_id).log.files()]
        assert [file.name for file in _pending(run, listed)] == [new, half, killed, unsent]


def test_an_open_log_that_held_an_entry_when_it_was_seen_is_missed_when_it_goes_with_its_server(
    run: Run, source: Source
) -> None:
    """The NameNode lists it with length 0, as it does one without a byte."""
    place = f"{run.source_root}/WALs/{SERVER.name}/{GROUP}.10"
    Local().write(place, [header() + entry([encode_cell(b"r", b"f", b"q", 1, 4)], 1)])
    (file,) = listed(run)
    record_seen(run, [replace(file, length=0)], sealed=())
    record_seen(run, [replace(file, length=0)], sealed=())
    Local().delete(place)
    source.alive = []
    with pytest.raises(GapError) as gap:
        check_complete(run, listed(run))
    assert gap.value.files == [file.name]


def test_before_the_end_fence_nothing_may_be_missing_and_what_is_past_it_may(run: Run, source: Source) -> None:
    write(run, 10)
    lost, past = see(run, 11), see(run, 12)
    source.queue = [f"{GROUP}.13"]
    run.ledger.log.set_fence("end", [LogPosition(GROUP, past, 12, 0)])
    with pytest.raises(GapError) as gap:
        check_complete(run, listed(run), to_end_fence=True)
    assert gap.value.files == [lost]
    write(run, 11)
    check_complete(run, listed(run), to_end_fence=True)
    with pytest.raises(GapError):
        check_complete(run, listed(run))


def test_the_drain_does_not_begin_while_a_file_is_missing(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    lost = see(run, 10)
    monkeypatch.setattr(rounds, "applying", lambda run: nullcontext())
    monkeypatch.setattr(rounds, "shared_by_workers", lambda *_: None)
    monkeypatch.setattr(rounds, "apply_released", lambda *_: None)
    monkeypatch.setattr(rounds, "lease_check_of", lambda *_: None)
    monkeypatch.setattr(rounds, "begin_batch", lambda *_: pytest.fail("something was applied"))
    monkeypatch.setattr(run, "once", lambda phase, work: work())
    run.ledger.log.set_fence("end", [LogPosition(GROUP, f"{GROUP}.11", 11, 0)])
    with pytest.raises(GapError, match=lost):
        rounds.drain(run, cast(SparkSession, None))


@pytest.fixture
def open_log(run: Run) -> str:
    """The log that the server writes to; its name."""
    Local().write(f"{run.source_root}/WALs/{SERVER.name}/{GROUP}.12", [header()])
    return f"{GROUP}.12"


def test_a_log_that_is_being_written_and_is_in_no_queue_of_the_peer_stops_the_round(
    run: Run, source: Source, open_log: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hole: a queue was removed by hand, and what its server wrote then turned up after newer edits, or never."""
    monkeypatch.setattr(completeness, "LOOK_SECONDS", 0)
    with pytest.raises(NotQueuedError, match=f"WAL {open_log} is in no queue of the peer {run.peer}") as raised:
        check_complete(run, listed(run))
    assert raised.value.facts["files"] == [open_log]
    check_complete(run, listed(run), to_end_fence=True)  # it is past that fence
    source.queue = [open_log]
    check_complete(run, listed(run))


@pytest.mark.parametrize("meanwhile", ["it was put into the queue", "it was rolled", "its server died"])
def test_a_log_that_was_just_begun_or_closed_may_be_in_no_queue_for_a_moment(
    meanwhile: str, run: Run, source: Source, open_log: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sleep(_: float) -> None:
        if meanwhile == "its server died":
            source.alive = []
        elif meanwhile == "it was rolled":
            Local().write(f"{run.source_root}/WALs/{SERVER.name}/{GROUP}.13", [header()])
            source.queue = [f"{GROUP}.13"]
        else:
            source.queue = [open_log]

    monkeypatch.setattr("walferry.replay.rounds.completeness.time.sleep", sleep)
    check_complete(run, listed(run))


@pytest.mark.parametrize(("cells", "marked"), [(3, 1), (0, 0)], ids=["with edits", "without an edit"])
def test_a_file_that_turns_up_after_newer_ones_of_its_group_were_applied_makes_their_tables_dirty(
    cells: int, marked: int, run: Run
) -> None:
    newer, late, unrelated = see(run, 12), see(run, 11), see(run, 13)
    run.ledger.log.set_ranges([WalRange(newer, 0, 10, TABLE, 5, cells, 1, 1, "applied")])
    files = {file.name: as_listed(file) for file in run.ledger.log.files()}
    guard = Guard()
    here = ClusterAddress("127.0.0.1:1")
    route = Route(here, "/hbase", (1, 2), here, {TABLE: "there:orders"}, guard, write_limits())
    mark_overtaken(run, route, [files[unrelated]])
    assert guard.dirty == []
    mark_overtaken(run, route, [files[late], files[unrelated]])
    assert guard.dirty == [{"there:orders": (b"", b"")}] * marked
