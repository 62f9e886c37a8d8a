"""Whether a cutover may begin: every question has its answer, and each no its reason and a way on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from unit.migration.filled_ledger import FILE, GROUP, SPEC, compared
from walferry import clock
from walferry.cutover.answer import Answer, Reason
from walferry.cutover.conditions import named
from walferry.cutover.readiness import note_answers, readiness
from walferry.ledger import (
    Difference,
    Ledger,
    LogPosition,
    QuarantineItem,
    RangeComparison,
    Round,
    RunLedger,
    SeenFile,
    notes,
)
from walferry.ledger.rows import DifferenceKind
from walferry.migration.report import compared_tables
from walferry.migration.sides.fragile_rows import RowSpan, RowSpans
from walferry.migration.sides.store_files import NO_STORES
from walferry.migration.touching import equality
from walferry.migration.touching.equality import Equality
from walferry.run.notes.looks import note_look
from walferry.run.notes.newest import note_newest
from walferry.run.notes.spot_check import SpotCheck, note_spot_check
from walferry.run.progress.comparing_ahead import end_comparing, note_comparing_ahead
from walferry.run.progress.write_stop import expected_write_stop, note_comparing

TABLE = "shop:orders"
UP_TO_COPY = ("plan", "protect", "fence", "snapshot", "copy", "clone", "check_copy")
AGREE = [(named("schema"), Answer("the families of both sides agree")), (named("rows"), Answer("none"))]


@pytest.fixture
def book(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}", actor="test") as ledger:
        yield ledger


def following(book: Ledger, **more: Any) -> RunLedger:
    """A run that follows its log closely: everything speaks for its cutover."""
    run = book.of(book.open_run("move", "cli kim", SPEC | more, "kim").run_id)
    for phase in UP_TO_COPY:
        subject = TABLE if phase in ("snapshot", "copy", "clone") else ""
        run.phases.start(phase, subject)
        run.phases.finish(phase, {}, subject)
    run.phases.start("replay")
    now = clock.now_ms()
    run.rounds.record(Round(1, now - 3_000, now, 1, 1_000, 3, 7, 3_000, 0))
    return run


def compare(
    run: RunLedger,
    *kinds: DifferenceKind,
    age_s: int = 60,
    took_s: int = 2,
    uncompared: int = 0,
    table: str = TABLE,
) -> None:
    began = clock.now_ms() - age_s * 1000
    side = RangeComparison(table, "r1", b"", b"", 5, 9, "01", 5, 9, "01", {}, uncompared=uncompared)
    found = [Difference(table, b"%d" % n, kind, "detail", f"{n:x}") for n, kind in enumerate(kinds)]
    made = replace(compared(table, len(kinds)), began_ms=began, ended_ms=began + 60_000)
    run.comparisons.record(made, [side], found)
    note_comparing(run, table, took_s)
    note_newest(run, table, began, began, whole=True)


def noes(run: RunLedger) -> dict[str, str]:
    """The reasons against a cutover, by condition; nothing speaks against it at the clusters."""
    found = readiness(run, AGREE)
    against = {one.name: "; ".join(map(str, one.reasons)) for one in found.conditions if one.reasons}
    assert {one.name for one in found.conditions if one.answer != "yes"} == against.keys()
    assert found.may_begin == (not against)
    return against


def texts(run: RunLedger) -> dict[str, str]:
    return {one.name: one.text for one in readiness(run).conditions}


def test_a_run_that_follows_closely_may_be_cut_over(book: Ledger) -> None:
    run = following(book)
    assert noes(run) == {}
    text = texts(run)
    assert text["lag"].endswith("at most 30 s (`max_lag`)")
    assert text["comparison"].endswith("`walferry verify move` now avoids that")
    note_comparing_ahead(run, ["shop:orders"])
    assert noes(run) == {"comparison": "shop:orders is being compared, or about to be: wait for it"}
    note_comparing_ahead(run, ["shop:orders"], ["shop:orders"])
    assert noes(run) == {"comparison": "what was written to shop:orders meanwhile is being compared: wait for it"}
    end_comparing(run)
    assert noes(run) == {}


def test_each_no_names_its_reason_and_what_to_do(book: Ledger) -> None:
    run = following(book)
    now = clock.now_ms()
    run.rounds.record(Round(2, now - 99_000, now, 1, 1_000, 3, 7, 99_000, 0))
    book.set_paused(run.run_id, True, "kim")
    run.log.set_fence("start", [LogPosition(GROUP, FILE, 10, 0)])
    run.log.see_files([SeenFile(FILE, GROUP, "rs,1,2", 10, f"/hbase/WALs/{FILE}", 1_000, sealed=True)])
    run.log.mark_missing(FILE)
    run.quarantine.put([QuarantineItem(FILE, 5, 7, TABLE, "r1", 4, "damaged cell", b"x")])
    found = noes(run)
    assert found.keys() == {"pause", "lag", "log", "quarantine"}
    assert found["pause"] == "the run is paused: `walferry resume move`"
    assert found["lag"] == "the lag is above 30 s: wait; `walferry status move` shows what the lag consists of"
    assert found["log"].startswith(f"WAL file {FILE} is missing at the source and was not applied: put it into")
    assert "walferry quarantine list move-1" in found["quarantine"]


def test_before_the_copy_is_checked_and_after_the_approval_no_cutover_may_begin(book: Ledger) -> None:
    run = following(book)
    run.phases.reopen("clone", TABLE)
    assert noes(run)["phases"] == f"the target is not complete yet: clone {TABLE} is not done: wait for it"
    run.phases.start("clone", TABLE)
    run.phases.finish("clone", {}, TABLE)
    run.phases.start("approve")
    run.phases.finish("approve", {"by": "kim"})
    assert noes(run) == {"phases": "the cutover has begun: kim approved it: `walferry status move` shows how far it is"}
    book.of(run.run_id).end("aborted", "kim", "enough")
    assert noes(run)["phases"] == "the run has ended as aborted: start a new run"


@pytest.mark.parametrize("wish", [{}, {"max_comparison_age": 100}], ids=["", "of an age"])
@pytest.mark.parametrize(
    ("kinds", "reason", "way_on"),
    [
        ([], "", ""),
        (["in-flight", "left-out"], "", ""),
        (
            ["unexplained", "in-flight", "unexplained"],
            "differing rows: 2 without an explanation",
            "`walferry repair move` makes them equal, `walferry verify move` compares again",
        ),
        (["not-in-log"], "differing rows: 1 without a decision", f"`walferry accept move --table {TABLE} --all"),
    ],
)
def test_rows_that_a_comparison_cannot_explain_are_a_reason_whatever_the_spec_wants(
    book: Ledger, wish: dict[str, Any], kinds: list[DifferenceKind], reason: str, way_on: str
) -> None:
    """Hole: unless the spec wanted a recent comparison, the cutover was offered although 400 rows differed."""
    run = following(book, **wish)
    compare(run, *kinds)
    assert reason in noes(run).get("comparison", "")
    assert way_on in noes(run).get("comparison", "")
    assert bool(reason) == ("comparison" in noes(run))
    run.comparisons.accept(run.comparisons.undecided(), "known", "kim")
    assert ("comparison" in noes(run)) == (bool(reason) and kinds != ["not-in-log"])
    compare(run)
    assert noes(run) == {}, "a newer one counts instead"


def test_a_table_without_a_comparison_is_no_reason_unless_the_spec_wants_one(book: Ledger) -> None:
    tables = [{"source": name, "target": name} for name in (TABLE, "shop:customers")]
    run = following(book, tables=tables)
    compare(run)
    assert "comparison" not in noes(run)
    text = texts(run)
    assert text["comparison"].startswith("shop:customers has not been compared in this run; ")


def test_a_comparison_must_not_be_older_than_the_spec_allows(book: Ledger) -> None:
    run = following(book, max_comparison_age=100)
    assert noes(run)["comparison"] == f"{TABLE} has not been compared in this run: `walferry verify move`"
    compare(run, age_s=101)
    assert noes(run)["comparison"].startswith(f"the comparison of {TABLE} began on 20")
    assert noes(run)["comparison"].endswith("more than 100 s ago (`max_comparison_age`): `walferry verify move`")
    compare(run, age_s=50)
    assert noes(run) == {}
    text = texts(run)
    assert text["comparison"].endswith(": 5 rows, no unexplained difference")


def test_a_reason_stays_the_same_while_nothing_changes(book: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hole: a comparison that was too old grew older each time that the gate was asked, and each time it was logged and
    kept once more."""
    run = following(book, max_comparison_age=100)
    compare(run, age_s=101)
    first, now = noes(run), clock.now_ms()
    monkeypatch.setattr(clock, "now_ms", lambda: now + 2_000)
    assert first.keys() == {"comparison"}
    assert noes(run) == first


def test_cells_that_were_not_compared_are_a_reason(book: Ledger) -> None:
    """Hole: they shut the last gate, and make `walferry verify` fail, but the first gate took them for equal."""
    run = following(book)
    compare(run, uncompared=3)
    assert "5 rows, 3 cells expired while they were read: `walferry report move`" in noes(run)["comparison"]
    compare(run, "unexplained", uncompared=3)
    assert "1 without an explanation; 3 cells expired while they were read" in noes(run)["comparison"]
    compare(run)
    assert noes(run) == {}


def test_what_only_the_clusters_know_is_unknown_until_the_gate_has_looked(book: Ledger) -> None:
    run = following(book)
    found = readiness(run)
    assert not found.may_begin
    assert {one.name: one.looked_ms for one in found.conditions if one.answer == "unknown"} == {
        "schema": None,
        "rows": None,
    }
    note_answers(run, AGREE)
    assert readiness(run).may_begin
    lacks = Reason("family f is only at the source", "alter one side")
    note_answers(run, [(named("schema"), Answer("families differ", (lacks,))), AGREE[1]])
    (schema,) = (one for one in readiness(run).conditions if one.name == "schema")
    assert [(reason.why, reason.to_do) for reason in schema.reasons] == [(lacks.why, lacks.to_do)]
    assert not readiness(run).may_begin


def test_what_the_clusters_answered_has_its_time_which_is_of_the_last_minute_while_the_gate_is_asked(
    book: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hole: while a person was asked for the approval, for days maybe, the answer before that was shown as of now."""
    run = following(book)
    now = 1_700_000_000_000
    looked = []
    for after_s in (0, 59, 61):
        monkeypatch.setattr(clock, "now_ms", lambda at=now + after_s * 1000: at)
        monkeypatch.setattr(notes, "now_ms", clock.now_ms)
        note_answers(run, AGREE)
        by_name = {one.name: one.looked_ms for one in readiness(run).conditions}
        assert by_name["lag"] == now + after_s * 1000, "the ledger is asked now"
        looked.append(by_name["schema"])
    assert looked == [now, now, now + 61_000]


def test_the_expected_write_stop_is_what_its_steps_took_in_this_run(
    book: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = following(book)
    assert expected_write_stop(run).describe().startswith(f"unknown: {TABLE} has not been compared")
    compare(run, "unexplained", took_s=2)
    short = expected_write_stop(run)
    assert short.seconds is not None
    now = clock.now_ms()
    for number, took in ((2, 5_000), (3, 1_000)):  # rounds of 3, 5 and 1 s
        run.rounds.record(Round(number, now - took, now, 1, 1_000, 3, 7, 3_000, 0))
    compare(run, "unexplained", took_s=7)
    longer = expected_write_stop(run)
    assert longer.seconds is not None
    assert longer.least is not None
    assert longer.most is not None
    assert longer.seconds - short.seconds == pytest.approx(5, abs=0.2), "the comparison"
    assert longer.least == pytest.approx(longer.seconds - 2, abs=0.5), "a round of 1 s instead of 3"
    assert longer.most == pytest.approx(longer.seconds + 2, abs=0.5), "a round of 5 s instead of 3"
    compare(run, took_s=7)
    without = expected_write_stop(run)
    assert without.seconds is not None
    assert without.seconds < longer.seconds - 6, "what is clean is not compared again before the target opens"


@pytest.mark.parametrize(("wish", "more_s"), [("confirm", 0), ("readonly", 7)])
def test_with_readonly_rows_with_markers_are_read_again_in_the_stop_and_that_is_told(
    book: Ledger, wish: str, more_s: int
) -> None:
    run = following(book, write_stop=wish)
    compare(run, took_s=7)
    short, told = readiness(run).write_stop, opening(run)
    of = run.comparisons.tables()[-1].attempt
    marked = Equality(TABLE, of, RowSpans((RowSpan(b"a", b"g", marked=True),)), NO_STORES, "")
    run.notes.keep(equality._NOTE, marked.as_json(), TABLE)
    assert opening(run) == told, "a marker of a column or a family hides the same after a flush"
    by_version = replace(marked, fragile=RowSpans((RowSpan(b"a", b"g", marked=True, by_version=True),)))
    run.notes.keep(equality._NOTE, by_version.as_json(), TABLE)
    longer = readiness(run).write_stop
    assert short.most is not None
    assert longer.most is not None
    assert longer.most - short.most == pytest.approx(more_s, abs=0.5)
    assert "READONLY" not in told
    assert ("READONLY flushes" in opening(run)) == bool(more_s)


def opening(run: RunLedger) -> str:
    return texts(run)["opening"]


def test_a_table_with_cells_of_the_future_makes_the_write_stop_longer_and_is_no_reason_against_it(book: Ledger) -> None:
    run = following(book)
    compare(run, took_s=7)
    short = expected_write_stop(run)
    assert not noes(run)
    note_newest(run, TABLE, clock.now_ms() * 1000, clock.now_ms(), whole=False)
    longer = expected_write_stop(run)
    assert short.seconds is not None
    assert longer.seconds is not None
    assert longer.seconds >= short.seconds + 7
    assert not noes(run)
    told = texts(run)
    assert told["opening"].startswith(f"the target opens only after the whole comparison: {TABLE} has cells with")


def test_what_only_the_second_reader_found_stays_a_reason_although_the_looks_find_it_equal(book: Ledger) -> None:
    run = following(book)
    compare(run, "unexplained")
    made = run.comparisons.tables()[-1]
    note_look(run, TABLE, made.ended_ms + 1)
    assert "comparison" not in noes(run), "the looks have read the row again"
    found = SpotCheck(comparison=made.attempt, rows=9, differing=(b"0".hex(),))
    note_spot_check(run, TABLE, found, "verify")
    assert "1 without an explanation: " in noes(run)["comparison"]
    assert not compared_tables(run)[TABLE].equal_since, "nor does the board leave out its alarm"
