"""Looks at what was written since the whole comparison: which rows, whose turn it is, and what a look says."""

from __future__ import annotations

import threading
from collections.abc import Callable
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from unit.cutover.test_readiness import TABLE, compare, following, noes
from unit.migration.comparing.compared_ahead import OTHER, Comparisons, comparing, found_equal, run_of, wait_until
from unit.migration.repairing.test_known_differences import Clusters
from walferry.errors import TransientError
from walferry.ledger import Ledger, RunLedger
from walferry.migration.comparing import compare_ahead
from walferry.migration.comparing.compare_ahead import _Pace, look
from walferry.migration.comparing.parts import ComparisonStoppedError
from walferry.migration.comparing.written_rows import TouchedRows
from walferry.migration.explaining.accept import accept_named
from walferry.migration.explaining.difference_classes import UNEXPLAINED
from walferry.migration.repairing.known_differences import RepairMeans, StillDiffering
from walferry.replay.rights import dirty
from walferry.replay.rights.standstill import Standstill
from walferry.run.notes.looks import note_look
from walferry.run.run import Run


def test_only_logs_that_hold_a_row_which_still_differs_are_read_again(book: Ledger) -> None:
    """Hole: if many rows were left, all logs were read again by each look."""
    verified: list[set[str]] = []
    run: Any = SimpleNamespace(ledger=SimpleNamespace(log=SimpleNamespace(
        mark_verified=lambda table, files: verified.append(set(files))
    )))  # fmt: skip
    rows = {"wal.1": pa.array([b"a", b"b"], pa.binary()), "wal.2": pa.array([b"c"], pa.binary())}
    found = TouchedRows(frozenset({"wal.1", "wal.2", "wal.3"}), by_file=rows)
    found.keep(run, TABLE, [b"b", b"x"])
    found.keep(run, TABLE)
    assert verified == [{"wal.2", "wal.3"}, {"wal.1", "wal.2", "wal.3"}]


@pytest.fixture
def looked(book: Ledger, monkeypatch: pytest.MonkeyPatch) -> Callable[..., float]:
    """Look at a table of which these rows differ, by these cells and without an explanation."""
    monkeypatch.setattr(compare_ahead, "UNDER_WAY_SECONDS", 0.0)
    clusters = Clusters(monkeypatch)

    def look_at(ledger: RunLedger, differ: dict[bytes, str], looks: bool = True) -> float:
        clusters.kinds = dict.fromkeys(differ, "unexplained")
        found = TouchedRows(frozenset(), rows=len(differ), differing=differ)
        monkeypatch.setattr(compare_ahead, "compare_written", lambda *_: found)
        monkeypatch.setattr(compare_ahead, "differing", lambda run, table, rows: {row: differ[row] for row in rows})
        return look(run_of(ledger), lambda: None, TABLE, Standstill(), threading.Event(), looks=looks)  # type: ignore[arg-type,return-value]

    return look_at


Looked = Callable[..., float]


def test_the_first_look_after_a_whole_comparison_reads_the_log_even_if_it_rests(book: Ledger, looked: Looked) -> None:
    """Otherwise the rows that the comparison found would count as under way."""
    ledger = following(book)
    compare(ledger, "unexplained", age_s=120)
    found_equal(run_of(ledger))
    looked(ledger, {b"0": "cells"}, looks=False)
    assert "comparison" in noes(ledger)


def test_a_row_that_differs_alike_while_the_log_rests_from_being_read_shuts_the_gate(
    book: Ledger, looked: Looked
) -> None:
    ledger = following(book)
    compare(ledger, age_s=120)
    found_equal(run_of(ledger))
    looked(ledger, {})
    looked(ledger, {b"0": "cells"}, looks=False)
    assert not noes(ledger), "it may be under way"
    looked(ledger, {b"0": "cells"}, looks=False)
    assert "verified" in noes(ledger)


def test_waiting_for_the_replay_to_rest_does_not_count_as_looking(
    book: Ledger, looked: Looked, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hole: a repair waited half a minute for a dead server's log to be cut, and rows that differed rested six."""
    ledger = following(book)
    compare(ledger)
    found_equal(run_of(ledger))
    now, waited = [100.0], [7.0]
    monkeypatch.setattr(compare_ahead, "steady_s", lambda: now[0])
    monkeypatch.setattr(Standstill, "waited_s", property(lambda _: waited[0]))

    def settle(run: Run, table: str, rows: object, means: RepairMeans) -> StillDiffering:
        waited[0] += 30.0
        now[0] += 33.0
        return StillDiffering({})

    monkeypatch.setattr(compare_ahead, "repair_differing", settle)
    assert looked(ledger, {b"0": "cells"}) == 3.0


def test_a_look_that_did_not_read_the_log_is_no_turn(
    book: Ledger, looked: Looked, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hole: it takes some milliseconds, too, and a table that had only those was put behind the first one again."""
    ledger = following(book)
    compare(ledger, age_s=120)
    found_equal(run_of(ledger))
    now = iter(range(1000))
    monkeypatch.setattr(compare_ahead, "steady_s", lambda: float(next(now)))
    assert looked(ledger, {}) == 0.0, "no row differs"
    assert looked(ledger, {b"0": "cells"}, looks=False) == 0.0
    assert looked(ledger, {b"0": "cells"}) > 0.0


def test_tables_take_turns_at_having_the_log_read_for_them(
    book: Ledger, comparisons: Comparisons, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hole: the first one of which rows are always under way had every turn, and rows of the others were not mended."""
    monkeypatch.setattr(compare_ahead, "BETWEEN_SECONDS", 0.01)
    monkeypatch.setattr(compare_ahead, "LOOKING_SHARE", 0.5)
    comparisons.took = 0.05
    with comparing(following(book, tables=[{"source": name, "target": name} for name in (TABLE, OTHER)])):
        wait_until(lambda: len(comparisons.read_for) >= 6)
    turns = comparisons.read_for[1:6]
    assert all(before != after for before, after in pairwise(turns)), turns


def test_the_log_is_read_more_often_while_rows_may_hold_edits_that_the_source_has_lost(
    book: Ledger, comparisons: Comparisons, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compare_ahead, "BETWEEN_SECONDS", 0.01)
    ledger = following(book)
    comparisons.took = 600.0
    with comparing(ledger):
        wait_until(lambda: comparisons.made.count(f"written {TABLE}") > 5)
        assert comparisons.read_for == [TABLE], "then it rests for long"
        comparisons.took = 0.01
        comparisons.finds = [UNEXPLAINED]  # the marks stay
        comparisons.marks.append(dirty.DirtyRows.of(run_of(ledger).pair(TABLE).target, b"k", b"m", ledger.run_id, 1, 0))
        wait_until(lambda: len(comparisons.read_for) > 5)


def test_rows_without_an_explanation_stay_a_reason_until_a_look_has_confirmed_them_or_not(
    book: Ledger, looked: Looked
) -> None:
    """Hole: after the first look they counted as under way, and the table as equal."""
    ledger = following(book)
    compare(ledger, "unexplained", age_s=120)
    found_equal(run_of(ledger))
    assert "comparison" in noes(ledger)
    looked(ledger, {b"0": "cells"})
    assert "comparison" in noes(ledger)
    looked(ledger, {})
    assert not noes(ledger)


def test_a_look_that_began_before_a_comparison_ended_says_nothing_about_its_rows(book: Ledger) -> None:
    ledger = following(book)
    compare(ledger, "unexplained", age_s=120)
    note_look(ledger, TABLE, ledger.comparisons.tables()[-1].began_ms + 1)
    assert "comparison" in noes(ledger)


def test_what_a_look_has_found_stands_while_the_table_is_compared_again_and_after_that_failed(
    book: Ledger, looked: Looked, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = following(book, repair="ask", max_comparison_age=600)
    compare(ledger, age_s=120)
    found_equal(run_of(ledger))
    for _ in range(2):
        looked(ledger, {b"a": "cells"})
    assert "verified" in noes(ledger)
    meanwhile: list[dict[str, str]] = []

    def fails(*_: object, parts: object) -> None:
        meanwhile.append(noes(ledger))
        raise TransientError("a server did not answer")

    monkeypatch.setattr(compare_ahead, "compare", fails)
    monkeypatch.setattr(compare_ahead, "Parts", lambda *_, keeps_equality: None)
    monkeypatch.setattr(_Pace, "of", lambda *_: True)
    ahead = compare_ahead._CompareLoop(run_of(ledger), lambda: None, Standstill(), threading.Event(), ())  # type: ignore[arg-type,return-value]
    assert ahead._compare_one(TABLE)
    assert len(meanwhile) == compare_ahead.ATTEMPTS
    assert all("verified" in found for found in (*meanwhile, noes(ledger)))


def test_between_two_parts_of_a_long_comparison_the_other_tables_are_looked_at_until_it_is_over(
    book: Ledger, comparisons: Comparisons, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hole: while one large table was compared, so much was written to the others that they had to be, too."""
    ledger = following(book, tables=[{"source": name, "target": name} for name in (TABLE, OTHER)])
    over, goes_on = threading.Event(), list[bool]()
    monkeypatch.setattr(compare_ahead, "Parts", lambda run, table, between, oldest_ms, keeps_equality: between)

    def in_parts(run: Run, spark: object, table: str, parts: Callable[[], bool]) -> None:
        goes_on.append(parts())
        monkeypatch.setattr(compare_ahead, "MOST_BETWEEN_SECONDS", 0.0)
        goes_on.append(parts())
        over.set()
        goes_on.append(parts())
        raise ComparisonStoppedError("it is over")

    monkeypatch.setattr(compare_ahead, "compare", in_parts)
    ahead = compare_ahead._CompareLoop(run_of(ledger), lambda: None, Standstill(), over, ())  # type: ignore[arg-type,return-value]
    assert not ahead._compare_one(TABLE)
    assert goes_on == [True, True, False]
    assert comparisons.made == [f"written {OTHER}"], "what was written to the table itself is read with its parts"


def test_a_row_that_a_look_found_and_a_person_accepted_is_no_reason_any_more(book: Ledger, looked: Looked) -> None:
    ledger = following(book, repair="ask")
    compare(ledger, age_s=120)
    found_equal(run_of(ledger))
    for _ in range(2):
        looked(ledger, {b"a": "cells"})
    assert "verified" in noes(ledger)
    accept_named(ledger, TABLE, "a", "we know this row", "kim")
    assert not noes(ledger)
