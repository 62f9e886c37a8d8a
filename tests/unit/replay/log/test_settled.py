"""What of other runs a window has to agree with: what they recorded, and nothing that was only meant to be applied."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import pytest

from unit.migration.filled_ledger import CLUSTER, SPEC
from walferry.errors import UsageError
from walferry.ledger import Hold, Ledger, LogPosition, QuarantineItem, Round, RunLedger, RunRecord, SeenFile, WalRange
from walferry.ledger.rows import RunKind, RunState
from walferry.replay.log.settled import OverlappingRunError, appliers, look_at_others, require_no_overlap
from walferry.replay.windows.window import open_window
from walferry.run.cluster_ids import on_source
from walferry.run.run import Run
from walferry.run.spec import ResolvedSpec
from walferry.wal.files import Place, WalFile

HOUR = 3_600_000
TABLE = "shop:orders"
TARGET = "shop:orders"
GROUP = "rs%2C1%2C2"
LISTED = [WalFile(f"{GROUP}.{n}", GROUP, "rs,1,2", n, f"/oldWALs/{n}", Place.ARCHIVED, 10) for n in (HOUR, 2 * HOUR)]
FIRST, SECOND = (file.name for file in LISTED)


class Target:
    """The target, of which only the id is asked."""

    def cluster_id(self) -> str:
        return "target"

    def close(self) -> None:
        """Nothing is open."""


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}", actor="test") as ledger:
        yield ledger


def window(ledger: Ledger, start: int, end: int) -> Run:
    """The run of a window of hours."""
    edges = {"from": iso(start * HOUR), "to": iso(end * HOUR)}
    run = Run(ledger, open_window(ledger, ResolvedSpec.model_validate(SPEC | {"window": edges}), "test"))
    run.__dict__["target"] = Target()
    return run


def iso(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat()


def lease(ledger: Ledger, run: RunRecord, number: int) -> RunLedger:
    """Let the run have had the lease, as one does that applies."""
    ledger.of(run.run_id).leases.take(f"target {TARGET}", "test", number)
    return ledger.of(run.run_id)


def applied(part: RunLedger, file: WalFile, first_ms: int, last_ms: int) -> None:
    """Let a run have applied a file with edits written from `first_ms` to `last_ms`."""
    seen = SeenFile(file.name, file.group, file.server, file.number, file.path, file.length, True)
    part.log.see_files([seen])
    part.log.set_ranges([WalRange(file.name, 0, 10, TABLE, 2, 2, first_ms, last_ms, "applied")])


def run_of(ledger: Ledger, kind: RunKind) -> RunRecord:
    return ledger.open_run(kind, "test", SPEC, "test", kind)


def holds(run: Run, file: str, write_time: int) -> bool:
    return look_at_others(run, appliers(run), LISTED).holds(file, TABLE, write_time)


@pytest.mark.parametrize("state", ["aborted", "failed"])
def test_a_window_that_was_not_finished_counts_for_nothing(ledger: Ledger, state: RunState) -> None:
    other = window(ledger, 1, 2)
    lease(ledger, other.record, 1)
    other.ledger.end(state, "test", "enough")
    mine = window(ledger, 0, 1)
    others = look_at_others(mine, appliers(mine), LISTED)
    assert (others.runs, others.settled, others.gone) == ((), {}, ())


def test_of_a_window_that_was_finished_only_its_own_times_count(ledger: Ledger) -> None:
    other = window(ledger, 1, 2)
    applied(lease(ledger, other.record, 1), LISTED[0], HOUR, 3 * HOUR)
    other.ledger.end("done", "test")
    mine = window(ledger, 0, 1)
    assert holds(mine, FIRST, 2 * HOUR - 1)
    assert not holds(mine, FIRST, 2 * HOUR)
    assert not holds(mine, SECOND, 2 * HOUR - 1)
    later = window(ledger, 3, 4)
    assert not look_at_others(later, appliers(later), LISTED).runs


def test_what_another_run_has_applied_of_a_file_that_is_gone_is_named(ledger: Ledger) -> None:
    other = window(ledger, 1, 2)
    gone = WalFile(f"{GROUP}.{HOUR + 1}", GROUP, "rs,1,2", HOUR + 1, "/oldWALs/gone", Place.ARCHIVED, 10)
    applied(lease(ledger, other.record, 1), gone, HOUR + 1, HOUR + 2)
    other.ledger.end("done", "test")
    mine = window(ledger, 0, 1)
    assert look_at_others(mine, appliers(mine), LISTED).gone[0].name == gone.name


def test_what_a_run_has_applied_and_folded_since_is_gone_for_the_windows_that_it_reaches_into(ledger: Ledger) -> None:
    drain = lease(ledger, run_of(ledger, "drain"), 1)
    gone = [
        WalFile(f"{GROUP}.{n}", GROUP, "rs,1,2", n, f"/oldWALs/{n}", Place.ARCHIVED, 10)
        for n in (HOUR // 4, HOUR // 2, HOUR * 3 // 4)
    ]
    for file in (*gone, *LISTED):
        applied(drain, file, file.number, file.number + 9)
    drain.log.fold([file.name for file in LISTED])
    assert [file.name for file in drain.log.files()] == [gone[0].name, FIRST, SECOND]
    mine, later = window(ledger, 0, 1), window(ledger, 3, 4)
    assert [file.name for file in look_at_others(mine, appliers(mine), LISTED).gone] == [gone[0].name]
    assert look_at_others(later, appliers(later), LISTED).gone == ()


def test_of_a_drain_what_it_applied_counts_and_what_it_holds_back_does_not(ledger: Ledger) -> None:
    drain = lease(ledger, record := run_of(ledger, "drain"), 1)
    for file in LISTED:
        applied(drain, file, file.number, file.number + 9)
    held = WalFile(f"{GROUP}.{3 * HOUR}", GROUP, "rs,1,2", 3 * HOUR, "/oldWALs/held", Place.ARCHIVED, 10)
    drain.log.see_files([SeenFile(held.name, GROUP, held.server, held.number, held.path, 10, True)])
    drain.log.set_ranges([WalRange(held.name, 0, 10, TABLE, 1, 1, held.number, held.number, "sealed")])
    (item,) = drain.quarantine.put([QuarantineItem(held.name, 0, 9, TABLE, "r1", 1, "refused", b"")])
    drain.quarantine.hold([Hold(held.name, TABLE, "r1", 0, item)])
    ledger.of(record.run_id).end("aborted", "test", "enough")
    mine = window(ledger, 0, 1)
    others = look_at_others(mine, appliers(mine), [*LISTED, held])
    assert [part.held for part in others.settled[held.name, TABLE]] == [frozenset({"r1"})]
    assert [part.held for part in others.settled[SECOND, TABLE]] == [frozenset()]


def test_what_came_with_a_snapshot_counts_and_what_a_migration_never_came_to_does_not(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = lease(ledger, run_of(ledger, "migration"), 1)
    part.log.set_fence("start", [LogPosition(GROUP, SECOND, 2 * HOUR, 0)])
    monkeypatch.setattr("walferry.ledger.objects.now_ms", lambda: 5 * HOUR // 2)
    part.objects.plan("source", "snapshot", "walferry-move-1-default.t")
    # A kill came after the snapshot was made: its phase was done hours later, and tells nothing of the snapshot's time.
    monkeypatch.setattr("walferry.ledger.phases.now_ms", lambda: 9 * HOUR)
    for phase in ("snapshot", "clone"):
        part.phases.start(phase, TABLE)
        part.phases.finish(phase, {}, TABLE)
    part.end("aborted", "test", "enough")
    mine = window(ledger, 0, 1)
    assert holds(mine, FIRST, 4 * HOUR), "it is before the start fence"
    assert holds(mine, SECOND, 2 * HOUR), "it was written before the snapshot"
    assert not holds(mine, SECOND, 3 * HOUR)


@pytest.mark.parametrize("planned", ["source", "another"])
def test_a_run_is_on_the_cluster_that_its_plan_has_found_wherever_that_was(ledger: Ledger, planned: str) -> None:
    """A migration at the old addresses, and at those of today one on what was there before."""
    address = CLUSTER | {"zookeeper": "old:2181"} if planned == "source" else CLUSTER
    spec = SPEC | {"source": address, "target": address}
    record = ledger.open_run("before", "test", spec, "test", "migration")
    part = ledger.of(record.run_id)
    part.phases.start("plan")
    ids = {"source_cluster_id": planned, "target_cluster_id": "target" if planned == "source" else planned}
    part.phases.finish("plan", ids)
    part.objects.plan("target", "table", TARGET)
    part.objects.made("target", "table", TARGET)
    mine = window(ledger, 0, 1)
    mine.__dict__["source"] = SimpleNamespace(cluster_id=lambda: "source", close=lambda: None)
    others = ledger.runs()
    if planned == "source":
        assert appliers(mine) == [record]
        assert look_at_others(mine, [record], LISTED).gone == ()
        assert {other.run_id for other in on_source(mine, others)} == {record.run_id, mine.run_id}
    else:
        assert appliers(mine) == []
        with pytest.raises(UsageError, match="applied edits of another source"):
            look_at_others(mine, [record], LISTED)
        assert [other.run_id for other in on_source(mine, others)] == [mine.run_id]


def test_edits_of_another_table_in_the_same_target_table_are_refused(ledger: Ledger) -> None:
    spec = SPEC | {"tables": [{"source": "shop:carts", "target": TARGET}]}
    lease(ledger, ledger.open_run("other", "test", spec, "test", "drain"), 1)
    mine = window(ledger, 0, 1)
    with pytest.raises(UsageError, match="applied edits of shop:carts to shop:orders"):
        look_at_others(mine, appliers(mine), LISTED)


def test_of_two_windows_that_overlap_the_one_that_began_first_goes_on(ledger: Ledger) -> None:
    first, second = window(ledger, 0, 2), window(ledger, 1, 3)
    lease(ledger, first.record, 1)
    with pytest.raises(OverlappingRunError, match=f"run {first.run_id} has not finished") as refusal:
        require_no_overlap(second, appliers(second))
    assert refusal.value.facts["run"] == first.run_id
    lease(ledger, second.record, 2)  # it got the lease, and only then saw the other one
    with pytest.raises(OverlappingRunError):
        require_no_overlap(second, appliers(second))
    require_no_overlap(first, appliers(first))
    first.ledger.end("aborted", "test", "enough")
    require_no_overlap(second, appliers(second))


def test_windows_side_by_side_do_not_overlap(ledger: Ledger) -> None:
    lease(ledger, window(ledger, 0, 1).record, 1)
    mine = window(ledger, 1, 2)
    require_no_overlap(mine, appliers(mine))


def test_a_window_waits_until_a_drain_has_passed_it(ledger: Ledger) -> None:
    drain = lease(ledger, run_of(ledger, "drain"), 1)
    drain.phases.start("fence")
    drain.phases.finish("fence", {"groups": 1, "before": {}, "at_ms": HOUR})
    before = window(ledger, 0, 1)
    require_no_overlap(before, appliers(before))
    after = window(ledger, 1, 2)
    with pytest.raises(OverlappingRunError, match="has not finished"):
        require_no_overlap(after, appliers(after))
    drain.rounds.record(Round(1, HOUR, 2 * HOUR + 5, 1, 1, 1, 1, 5, 0))
    require_no_overlap(after, appliers(after))
    # What a batch has applied of a table is recorded with its end; until then no window can take it into account.
    drain.batches.begin("{}", [], 1, lambda connection: None)
    with pytest.raises(OverlappingRunError, match="has not finished"):
        require_no_overlap(before, appliers(before))
