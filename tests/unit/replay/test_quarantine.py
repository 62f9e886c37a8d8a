"""What is refused is put away with the record that its piece was read (R5), so that a kill loses nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import Connection

from unit.migration.filled_ledger import SPEC
from walferry.apply.by_row import RowTask
from walferry.apply.index import FileIndex
from walferry.apply.outcomes import FileReport, Refusal, TableTally, Withheld
from walferry.apply.region_events import RegionEvent
from walferry.errors import UsageError
from walferry.formats.markers import Marker
from walferry.ledger import Hold, Ledger, QuarantineItem, SeenFile
from walferry.refusals import ANY_REGION, ANY_TABLE, RefusalKind
from walferry.replay.log.lineage import changes, created, refusals_of, trace
from walferry.replay.quarantine import (
    _hold_again,
    _mark_applied,
    _passed_over,
    _unread,
    check_release,
    release,
)
from walferry.replay.record_reports import item_of, record_reports
from walferry.replay.rights.lease import LeaseLostError
from walferry.run.run import Run
from walferry.storage import Local

TABLE, OTHER = "shop:orders", "shop:users"
FILE = "rs%2C1%2C2.10"


def held(connection: Connection) -> None:
    """The fence while the leases are held."""


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    """A run of two tables that has seen one file."""
    spec = SPEC | {"tables": [{"source": table, "target": table} for table in (TABLE, OTHER)]}
    with Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}", actor="test") as ledger:
        run = ledger.open_run("move", "test", spec, "test").run_id
        ledger.of(run).log.see_files([SeenFile(FILE, "rs%2C1%2C2", "rs,1,2", 10, f"/{FILE}", 100, sealed=True)])
        yield Run(ledger, run)


def report() -> FileReport:
    """A file of which one edit of one table was refused."""
    refusal = Refusal(FILE, 20, 30, TABLE, "r1", 4, "no such family", b"edit", write_time=1)
    tallies = tuple(TableTally(table, 2, 3, 1, 2) for table in (TABLE, OTHER))
    return FileReport(FILE, 100, True, tallies, (refusal,), (Withheld(FILE, TABLE, "r1", 20),))


def applied(run: Run) -> list[str]:
    return [r.table for r in run.ledger.log.ranges(state="applied")]


def test_a_file_with_a_refused_edit_is_applied_for_the_other_table_only(run: Run) -> None:
    record_reports(run, [report()], held)
    (item,) = run.ledger.quarantine.items("held")
    assert (item.table, item.start, item.data) == (TABLE, 20, b"edit")
    assert run.ledger.quarantine.holds() == [Hold(FILE, TABLE, "r1", 0, item.quarantine_id)]
    assert applied(run) == [OTHER]


@pytest.mark.parametrize(
    "failure",
    [KeyboardInterrupt(), LeaseLostError("another process has taken it", table=TABLE, number=3)],
    ids=["killed", "succeeded by another process"],
)
def test_of_a_piece_that_is_not_recorded_nothing_is_held_and_its_repetition_holds_it_once(
    run: Run, failure: BaseException
) -> None:
    """Hole: a process that had lost its leases put items and holds into the ledger that belonged to its successor."""

    def end(connection: Connection) -> None:
        raise failure

    seen = run.ledger.log.files()
    with pytest.raises(type(failure)):
        record_reports(run, [replace(report(), length=seen[0].length + 20)], end)
    assert run.ledger.log.files() == seen
    assert (run.ledger.quarantine.items(), run.ledger.quarantine.holds()) == ([], [])
    assert run.ledger.log.ranges() == []
    record_reports(run, [report()], held)  # the piece is repeated as a whole
    assert len(run.ledger.quarantine.items("held")) == 1
    assert applied(run) == [OTHER]


def test_damage_holds_all_tables_of_the_run(run: Run) -> None:
    damage = Refusal(FILE, 20, -1, ANY_TABLE, ANY_REGION, 0, "damaged", b"", RefusalKind.DAMAGE)
    tallies = tuple(TableTally(table, 0, 0, 0, 0) for table in (TABLE, OTHER))
    record_reports(run, [FileReport(FILE, 100, False, tallies, (damage,), ())], held)
    assert {(hold.table, hold.region) for hold in run.ledger.quarantine.holds()} == {
        (TABLE, ANY_REGION),
        (OTHER, ANY_REGION),
    }
    assert applied(run) == []
    assert [r.state for r in run.ledger.log.ranges()] == ["sealed", "sealed"]


def test_an_item_is_released_only_by_the_name_of_its_own_run(run: Run) -> None:
    record_reports(run, [report()], held)
    (item,) = run.ledger.quarantine.items()
    other = Run(run.ledger.whole, run.ledger.whole.open_run("other", "test", SPEC, "test").run_id)
    with pytest.raises(UsageError, match=f"run other-1 has no quarantine item {item.quarantine_id}"):
        release(other, item.quarantine_id, "accept", "a mistake")
    assert run.ledger.quarantine.items() == [item]
    assert release(run, item.quarantine_id, "accept", "known").state == "released"


def refused(run: Run, kind: RefusalKind, reason: str = "whatever it says") -> int:
    """The id of an item of that kind, of one region."""
    item = QuarantineItem(FILE, 20, 30, TABLE, "r1", 4, reason, b"edit", kind)
    (number,) = run.ledger.quarantine.put([item])
    run.ledger.quarantine.hold([Hold(FILE, TABLE, "r1", 0, number)])
    return number


def test_the_kind_of_a_refusal_decides_which_ways_out_there_are(run: Run) -> None:
    marker = refused(run, RefusalKind.NOT_IN_LOG)
    for resolution in ("retry", "rpc"):
        with pytest.raises(UsageError, match="cannot be retried"):
            check_release(run, marker, resolution)
    check_release(run, marker, "reread")
    plain = refused(run, RefusalKind.REFUSED, "not in the log: lineage: as the target says")
    check_release(run, plain, "retry")
    check_release(run, plain, "accept")


def test_a_broken_lineage_that_is_refused_once_more_is_still_one(run: Run) -> None:
    broken = refused(run, RefusalKind.LINEAGE)
    refusal = Refusal(FILE, 20, 30, TABLE, ANY_REGION, 4, "truncated", b"", RefusalKind.LINEAGE)
    _hold_again(run, run.ledger.quarantine.holds(), refusal, held)
    again = run.ledger.quarantine.items()[-1]
    assert again.quarantine_id != broken
    assert again.kind is RefusalKind.LINEAGE
    with pytest.raises(UsageError, match="began a new history"):
        check_release(run, again.quarantine_id, "accept")


def test_what_nobody_looked_at_while_a_whole_table_waited_is_refused_before_its_edits_are_applied(run: Run) -> None:
    load = Refusal(FILE, 40, 50, TABLE, "r1", 5, "a bulk load", b"", RefusalKind.NOT_IN_LOG)
    damaged = Refusal(FILE, 90, -1, ANY_TABLE, ANY_REGION, 0, "damaged", b"", RefusalKind.DAMAGE)
    report = FileReport(FILE, 100, True, (), (load, damaged), ())
    opened = RegionEvent(Marker.REGION_OPEN, FILE, 60, TABLE, "r9", 2, 1)
    index = FileIndex(report)
    breaks = refusals_of(created([opened], True))
    task = RowTask(route=None, files=())  # type: ignore[arg-type]
    found = _passed_over(breaks, [index], task, [])
    assert {(refusal.start, refusal.kind) for refusal in found} == {
        (60, RefusalKind.LINEAGE), (40, RefusalKind.NOT_IN_LOG),
    }  # fmt: skip
    (number,) = run.ledger.quarantine.put([item_of(load)])
    (known,) = run.ledger.quarantine.items()
    assert known.quarantine_id == number
    assert [refusal.start for refusal in _passed_over(breaks, [index], task, [known])] == [60]
    assert _passed_over(breaks, [index], replace(task, held=frozenset({"r1", ANY_REGION})), []) == []
    assert _passed_over(breaks, [index], replace(task, cut_off={FILE: 30}), []) == []


def index(*events: RegionEvent) -> FileIndex:
    """What the file turns out to hold once somebody reads it."""
    report = FileReport(FILE, 100, True, (TableTally(TABLE, 2, 3, 1_000, 2_000),), (), (), events)
    return FileIndex(report)


def test_what_waited_as_a_whole_counts_its_entries_once_they_are_applied(run: Run) -> None:
    run.__dict__["wal_files"] = Local()
    damaged = Refusal(FILE, 90, -1, ANY_TABLE, ANY_REGION, 0, "damaged", b"", RefusalKind.DAMAGE)
    record_reports(run, [replace(report(), complete=False, refusals=(damaged,))], held)
    waiting = [r for r in run.ledger.log.ranges() if r.table == TABLE]
    assert [(r.state, r.entries, r.first_write_ms, r.last_write_ms) for r in waiting] == [("sealed", 0, None, None)]
    assert _unread(run, TABLE) == {FILE}
    assert run.ledger.log.last_edit_ms() is None

    flushed = RegionEvent(Marker.FLUSH, FILE, 60, TABLE, "r9", 20, 1_500, frozenset({"f/f1"}))
    told = changes({}, trace({}, [flushed], lambda table: ["f"]), [TABLE], {})
    _mark_applied(run, TABLE, [index(flushed)], {FILE}, told, held)
    (still,) = [r for r in run.ledger.log.ranges() if r.table == TABLE]
    assert (still.state, still.entries, still.cells) == ("sealed", 2, 3), "another item holds it"
    assert _unread(run, TABLE) == set(), "what it tells of regions is not taken in twice"
    assert run.ledger.regions.known([TABLE], ["r9"])[TABLE, "r9"].store_files == {"f/f1"}

    _mark_applied(run, TABLE, [index()], set(), {}, held)
    (done,) = [r for r in run.ledger.log.ranges() if r.table == TABLE]
    assert (done.state, done.entries, done.cells) == ("applied", 2, 3)
    assert (done.first_write_ms, done.last_write_ms) == (1_000, 2_000)
    assert run.ledger.log.last_edit_ms() == 2_000
