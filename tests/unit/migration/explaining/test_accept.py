"""Rows that differ are accepted together where there is a reason, and one by one where there is none."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from unit.cutover.test_readiness import TABLE, following, noes
from unit.cutover.test_readiness import compare as record
from walferry.cutover.gates import drain_rows
from walferry.errors import UsageError
from walferry.ledger import Difference, LateEdit, Ledger, RangeComparison, RunLedger
from walferry.migration.explaining.accept import accept, accept_named, waiting
from walferry.migration.repairing.repairable import repairable, why_not
from walferry.migration.report import compared_tables
from walferry.run.notes.last_comparison import counts_as_equal
from walferry.run.run import Run


@pytest.fixture
def run(tmp_path: Path) -> Iterator[RunLedger]:
    """A comparison found row 0 without an explanation, and row 1 not in the log."""
    with Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}", actor="test") as ledger:
        run = following(ledger)
        record(run, "unexplained", "not-in-log")
        yield run


def weights(run: RunLedger) -> tuple[int, int, int]:
    (row,) = drain_rows(run, [made for made in run.comparisons.tables() if made.table == TABLE][-1:])
    return row["unexplained"], row["undecided"], row["explained"]


def test_a_row_that_nothing_explains_is_accepted_by_its_name_and_then_shuts_no_gate(run: RunLedger) -> None:
    assert weights(run) == (1, 1, 0)
    assert [item.row for item in accept(run, TABLE, ["0"], "we know this row", "kim")] == [b"0"]
    assert weights(run) == (0, 1, 1)
    assert "comparison" in noes(run)
    assert not counts_as_equal(run, TABLE)
    accept(run, TABLE, None, "a cache", "kim")
    assert weights(run) == (0, 0, 2)
    assert not noes(run)
    assert counts_as_equal(run, TABLE)
    decided = run.comparisons.accepted().keys()
    assert not any(repairable(item, decided) for item in run.comparisons.differences())


def test_all_takes_no_row_that_nothing_explains(run: RunLedger) -> None:
    assert [item.row for item in waiting(run, TABLE)] == [b"1"]
    assert [item.row for item in accept(run, TABLE, None, "a cache", "kim")] == [b"1"]
    assert weights(run) == (1, 0, 1)
    with pytest.raises(UsageError, match="accept them one by one with --row"):
        accept(run, TABLE, None, "the others too", "kim")


def test_a_decision_covers_exactly_the_cells_that_differ(run: RunLedger) -> None:
    accept(run, TABLE, ["0"], "we know this row", "kim")
    (made,) = run.comparisons.tables()
    side = RangeComparison(TABLE, "r1", b"", b"", 5, 9, "01", 5, 9, "01", {})
    run.comparisons.record(made, [side], [Difference(TABLE, b"0", "unexplained", "other cells", "f")])
    assert weights(run) == (1, 0, 0)


def test_a_row_of_which_not_all_cells_are_known_cannot_be_accepted(run: RunLedger) -> None:
    (made,) = run.comparisons.tables()
    side = RangeComparison(TABLE, "r1", b"", b"", 5, 9, "01", 5, 9, "01", {})
    run.comparisons.record(made, [side], [Difference(TABLE, b"0", "unexplained", "2500 cells differ", "")])
    with pytest.raises(UsageError, match=r"row 0 of .* cannot be accepted, because not all .*: 2500 cells differ"):
        accept(run, TABLE, ["0"], "we know this row", "kim")


def test_rows_that_a_look_found_are_accepted_like_those_of_a_comparison_until_the_next_look(run: RunLedger) -> None:
    accept(run, TABLE, ["0"], "we know this row", "kim")
    accept(run, TABLE, None, "a cache", "kim")
    since = [
        Difference(TABLE, b"9", "unexplained", "no explanation", "99"),
        Difference(TABLE, b"8", "not-in-log", "", "88"),
    ]
    run.comparisons.record_look(TABLE, since)
    assert [item.row for item in waiting(run, TABLE)] == [b"8"]
    assert [row.row for row in compared_tables(run)[TABLE].rows_since] == ["8", "9"]
    assert accept_named(run, TABLE, "7", "a row that does not differ", "airflow") == []
    assert [item.row for item in accept_named(run, TABLE, "9", "known", "airflow")] == [b"9"]
    assert accept_named(run, TABLE, "9", "known", "airflow") == [], "asked again"
    assert run.comparisons.accepted()[TABLE, b"9", "99"].reason == "known"
    run.comparisons.record_look(TABLE, [])
    assert not waiting(run, TABLE)


def test_rows_that_a_rejected_bulk_load_may_have_brought_are_not_repaired_without_a_request(run: RunLedger) -> None:
    move = Run(run.whole, run.run_id)
    assert not why_not(move, TABLE, {b"1": "not-in-log"})
    loads = [LateEdit(f"wal.{n}", 9, TABLE, "r", 3, 500, 1, b"row", 600) for n in (1, 2)]
    run.late.found(loads)
    run.late.note_load(loads[0])
    run.late.decide(loads[1:], "reject", "no load", "kim")
    assert not run.late.rejected_loads()
    run.late.decide(loads[:1], "reject", "nobody wants it", "kim")
    assert run.late.rejected_loads() == {TABLE}
    assert "a late bulk load into shop:orders was rejected" in why_not(move, TABLE, {b"1": "not-in-log"})
    assert not why_not(move, TABLE, {b"1": "history-dependent"})


def test_the_row_that_names_how_many_more_differ_is_accepted_by_its_own_cells(run: RunLedger) -> None:
    (made,) = run.comparisons.tables()
    side = RangeComparison(TABLE, "r1", b"", b"", 5, 9, "01", 5, 9, "01", {})
    found = [
        Difference(TABLE, b"1", "unexplained", "no explanation", "f"),
        Difference(TABLE, b"1", "unexplained", "more"),
    ]
    run.comparisons.record(replace(made, differing_rows=30_000), [side], found)
    assert [item.fingerprint for item in accept_named(run, TABLE, "1", "known", "airflow")] == ["f"]
    assert compared_tables(run)[TABLE].unexplained == 29_999


def test_a_table_that_is_not_part_of_the_run_is_no_typing_error_that_passes(run: RunLedger) -> None:
    with pytest.raises(UsageError, match="move-1 has no table 'shop:nope'; its tables: shop:orders"):
        accept_named(run, "shop:nope", "a", "known", "airflow")
