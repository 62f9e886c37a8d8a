"""Beside the replay: each table as a whole, at once what was written meanwhile, and again what differed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from unit.cutover.test_readiness import TABLE, compare, following, noes, texts
from unit.migration.repairing.test_known_differences import Clusters
from walferry import clock
from walferry.clock import now_ms
from walferry.errors import TransientError
from walferry.ledger import Ledger, RunLedger
from walferry.ledger.rows import DifferenceKind
from walferry.migration.comparing import compare_ahead
from walferry.migration.comparing.compare_ahead import _Pace, look
from walferry.migration.comparing.parts import ComparisonStoppedError
from walferry.migration.comparing.written_rows import TouchedRows
from walferry.migration.explaining.accept import accept_named
from walferry.migration.explaining.explain import UNEXPLAINED
from walferry.migration.repairing.known_differences import Means, Settled
from walferry.migration.sides.fragile_rows import NONE
from walferry.migration.touching import claims, touched
from walferry.migration.touching.claims import Begun, standing_comparison
from walferry.replay.rights import dirty
from walferry.replay.rights.standstill import Standstill
from walferry.run.notes.looks import note_look
from walferry.run.progress.comparing_ahead import left_to_compare, note_comparing_ahead, why_failing
from walferry.run.run import Run

OTHER = "shop:customers"


@pytest.fixture
def book(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ledger]:
    for name, seconds in (
        ("LOOK_SECONDS", 0.01),
        ("BETWEEN_SECONDS", 3600.0),
        ("AGAIN_SECONDS", 0.0),
        ("RETRY_SECONDS", 0.01),
    ):
        monkeypatch.setattr(compare_ahead, name, seconds)
    with Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}", actor="test") as ledger:
        yield ledger


class Comparisons:
    """In place of both kinds of comparison: what was compared, in order, and what is to be found."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made: list[str] = []
        self.finds: list[DifferenceKind] = []
        self.may_look = threading.Event()
        self.may_look.set()
        self.failures: list[Exception] = []
        monkeypatch.setattr(compare_ahead, "compare", self.whole)
        monkeypatch.setattr(compare_ahead, "look", self.written)
        monkeypatch.setattr(compare_ahead, "Parts", lambda *_, claims: None)
        monkeypatch.setattr(touched, "look", lambda _: None)
        self.marks: list[dirty.DirtyRows] = []
        monkeypatch.setattr(dirty, "marks_of", lambda _: list(self.marks))
        self.counts = True
        self.read_for: list[str] = []
        """the tables for which the log was read"""
        self.took = 0.0

    def whole(self, run: Run, spark: object, table: str, parts: object) -> None:
        self.made.append(f"whole {table}")
        if table == TABLE:
            compare(run.ledger, *self.finds)
        else:
            compare(run.ledger, table=table)
        if self.counts:
            claim(run, table)
        dirty.compared(run, run.ledger.comparisons.tables()[-1], self.marks, equal=False)
        if not self.finds:
            self.marks.clear()

    def written(self, run: Run, spark: object, table: str, *_: object, looks: bool) -> float:
        self.made.append(f"written {table}")
        assert self.may_look.wait(10)
        if self.failures:
            raise self.failures.pop()
        if looks:
            self.read_for.append(table)
        return self.took if looks else 0.0


def claim(run: Run, table: str = TABLE) -> None:
    """What touches the table after its newest comparison is known."""
    made = [one for one in run.ledger.comparisons.tables() if one.table == table][-1]
    known, claimed = touched.Seen.of(run.ledger).known(table), claims._claimed(run.ledger, table)
    assert claims.keep_whole(run, Begun(known, [], "rules", claimed), made, NONE)


@pytest.fixture
def comparisons(monkeypatch: pytest.MonkeyPatch) -> Comparisons:
    return Comparisons(monkeypatch)


def run_of(ledger: RunLedger) -> Run:
    return Run(ledger.whole, ledger.run_id)


@contextmanager
def comparing(ledger: RunLedger) -> Iterator[None]:
    with compare_ahead.compared_ahead(run_of(ledger), lambda: None, Standstill()):  # type: ignore[arg-type,return-value]
        yield


def wait_until(true: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 10
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def end_phase(ledger: RunLedger, name: str) -> None:
    ledger.phases.start(name)
    ledger.phases.finish(name, {"by": "kim"})


def test_the_cutover_waits_until_what_was_written_during_the_whole_comparison_is_compared(
    book: Ledger, comparisons: Comparisons
) -> None:
    """Hole: it was offered at the end of the whole comparison, and what had been written until then was compared in the
    write stop: 56 s under load."""
    ledger = following(book)
    comparisons.may_look.clear()
    with comparing(ledger):
        wait_until(lambda: comparisons.made == [f"whole {TABLE}", f"written {TABLE}"])
        assert noes(ledger) == {"comparison": f"what was written to {TABLE} meanwhile is being compared: wait for it"}
        comparisons.may_look.set()
        wait_until(lambda: not noes(ledger))


@pytest.mark.parametrize("killed", [True, False], ids=["before the first look", "later"])
def test_a_process_that_goes_on_shuts_the_gate_only_for_what_was_left(
    killed: bool, book: Ledger, comparisons: Comparisons
) -> None:
    """While a person is asked for the approval, the process that follows may be killed and started again."""
    ledger = following(book)
    compare(ledger)
    claim(run_of(ledger))
    if killed:
        note_comparing_ahead(ledger, [TABLE], [TABLE])
    comparisons.may_look.clear()
    with comparing(ledger):
        wait_until(lambda: comparisons.made == [f"written {TABLE}"])
        assert bool(noes(ledger)) == killed
        comparisons.may_look.set()
        wait_until(lambda: not noes(ledger))


def test_every_table_is_looked_at_after_the_last_whole_comparison(book: Ledger, comparisons: Comparisons) -> None:
    ledger = following(book, tables=[{"source": name, "target": name} for name in (TABLE, OTHER)])
    with comparing(ledger):
        wait_until(lambda: not left_to_compare(ledger))
    assert comparisons.made == [
        f"whole {TABLE}", f"written {TABLE}", f"whole {OTHER}", f"written {TABLE}", f"written {OTHER}",
    ]  # fmt: skip


def test_a_look_that_fails_is_repeated(book: Ledger, comparisons: Comparisons) -> None:
    """Hole: nothing was compared ahead any more."""
    ledger = following(book)
    comparisons.failures = [TransientError("a server did not answer")]
    with comparing(ledger):
        wait_until(lambda: not left_to_compare(ledger))
    assert comparisons.made == [f"whole {TABLE}", f"written {TABLE}", f"written {TABLE}"]


def test_an_error_that_nobody_expected_ends_an_attempt_and_not_the_comparing(
    book: Ledger, comparisons: Comparisons
) -> None:
    """Hole: nothing was compared any more, and nobody was told."""
    ledger = following(book)
    comparisons.failures = [ValueError("a fault of ours") for _ in range(1000)]
    with comparing(ledger):
        wait_until(lambda: why_failing(ledger))
        told = texts(ledger)
        assert "nothing is compared now, which is tried again by itself: a fault of ours" in told["verified"]
        comparisons.failures.clear()
        wait_until(lambda: not why_failing(ledger))
        assert not left_to_compare(ledger)


def test_a_ledger_that_is_away_when_the_replay_ends_is_one_line(
    book: Ledger, comparisons: Comparisons, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Hole: a traceback of the thread's, on the terminal of whoever runs the command."""

    def away(*_: object) -> None:
        raise TransientError("the ledger did not answer")

    with comparing(following(book)):
        wait_until(lambda: comparisons.made)
        for name in ("end_comparing", "note_failing", "note_comparing_ahead"):
            monkeypatch.setattr(compare_ahead, name, away)
    assert "nothing is compared ahead any more is not recorded: the ledger did not answer" in caplog.text


def test_a_cutover_does_not_wait_for_ever_for_what_fails_each_time(book: Ledger, comparisons: Comparisons) -> None:
    ledger = following(book)
    comparisons.failures = [ValueError("a fault of ours") for _ in range(1000)]
    with comparing(ledger):
        wait_until(lambda: why_failing(ledger) and not left_to_compare(ledger))


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


def test_a_resumed_run_that_is_approved_is_compared_until_the_writes_stop(
    book: Ledger, comparisons: Comparisons
) -> None:
    """Hole: it compared nothing ahead, so that the write stop included all that was written since."""
    ledger = following(book)
    compare(ledger)
    claim(run_of(ledger))
    end_phase(ledger, "approve")
    with comparing(ledger):
        wait_until(lambda: len(comparisons.made) > 3)
    assert set(comparisons.made) == {f"written {TABLE}"}


def test_once_writes_have_stopped_nothing_is_compared_ahead(book: Ledger, comparisons: Comparisons) -> None:
    ledger = following(book)
    note_comparing_ahead(ledger, [TABLE])
    end_phase(ledger, "write_stop")
    with comparing(ledger):
        assert not left_to_compare(ledger)
        time.sleep(0.05)
    assert not comparisons.made


def test_a_table_whose_comparisons_do_not_count_is_compared_again_until_one_does(
    book: Ledger, comparisons: Comparisons
) -> None:
    ledger = following(book)
    comparisons.counts = False
    with comparing(ledger):
        wait_until(lambda: len(comparisons.made) > compare_ahead.ATTEMPTS)
        assert comparisons.made[: compare_ahead.ATTEMPTS] == [f"whole {TABLE}"] * compare_ahead.ATTEMPTS
        comparisons.counts = True
        end_phase(ledger, "approve")  # the next look comes at once
        wait_until(lambda: standing_comparison(ledger, TABLE) is not None)


def test_a_table_is_compared_as_a_whole_again_when_its_claim_has_ended(book: Ledger, comparisons: Comparisons) -> None:
    ledger = following(book)
    compare(ledger)
    claim(run_of(ledger))
    touched.end_claim(run_of(ledger), TABLE, "its log is gone")
    with comparing(ledger):
        wait_until(lambda: not left_to_compare(ledger))
    assert comparisons.made == [f"whole {TABLE}", f"written {TABLE}"]
    assert standing_comparison(ledger, TABLE) is not None


def test_a_table_of_dirty_rows_is_compared_as_a_whole_at_first_and_once_what_differed_was_repaired(
    book: Ledger, comparisons: Comparisons, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compare_ahead, "BETWEEN_SECONDS", 0.01)
    ledger = following(book)
    compare(ledger)
    claim(run_of(ledger))
    with comparing(ledger):
        wait_until(lambda: comparisons.made)
        assert f"whole {TABLE}" not in comparisons.made
        comparisons.finds = [UNEXPLAINED]
        comparisons.marks.append(dirty.DirtyRows.of(run_of(ledger).pair(TABLE).target, b"k", b"m", ledger.run_id, 1, 0))
        wait_until(lambda: f"whole {TABLE}" in comparisons.made)
        wait_until(lambda: not left_to_compare(ledger))
        looks = comparisons.made.count(f"written {TABLE}")
        wait_until(lambda: comparisons.made.count(f"written {TABLE}") > looks + 2)
        assert comparisons.made.count(f"whole {TABLE}") == 1, "the row still differs"
        comparisons.finds = []
        note_look(ledger, TABLE, now_ms(), 1, 1, {})
        wait_until(lambda: not comparisons.marks)
        looks = comparisons.made.count(f"written {TABLE}")
        wait_until(lambda: comparisons.made.count(f"written {TABLE}") > looks + 2)
    assert comparisons.made.count(f"whole {TABLE}") == 2


def test_the_clusters_rest_between_whole_comparisons(book: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    run, pace, now = run_of(following(book)), _Pace(), [100.0]
    monkeypatch.setattr(compare_ahead, "steady_s", lambda: now[0])
    pace.took(20)
    assert not pace.is_due(run, [TABLE])
    assert pace.is_due(run, [TABLE], rests=False), "rows may hold edits that the source has lost"
    now[0] += 20
    assert pace.is_due(run, [TABLE])
    monkeypatch.setattr(compare_ahead, "AGAIN_SECONDS", 60.0)
    pace.failed(TABLE)
    assert not pace.is_due(run, [TABLE])
    now[0] += 60
    assert pace.is_due(run, [TABLE])


@pytest.mark.parametrize(("age_s", "due"), [(200, False), (400, True)])
def test_a_comparison_is_renewed_before_it_is_too_old_for_the_gate(
    book: Ledger, age_s: int, due: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = following(book, max_comparison_age=600)
    compare(ledger)
    claim(run_of(ledger))
    later = clock.now_ms() + age_s * 1000
    monkeypatch.setattr(compare_ahead, "now_ms", lambda: later)
    assert _Pace().of(run_of(ledger), TABLE) is due


def test_what_cannot_be_named_ends_the_claim(book: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = following(book)
    compare(ledger)
    claim(run_of(ledger))
    monkeypatch.setattr(compare_ahead, "compare_written", lambda *_: TouchedRows(frozenset(), why="2000 MB of log"))
    look(run_of(ledger), lambda: None, TABLE, Standstill(), threading.Event(), looks=True)  # type: ignore[arg-type,return-value]
    assert standing_comparison(ledger, TABLE) is None
    assert touched.Seen.of(ledger).void == {TABLE: "2000 MB of log"}


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
    claim(run_of(ledger))
    looked(ledger, {b"0": "cells"}, looks=False)
    assert "comparison" in noes(ledger)


def test_a_row_that_differs_alike_while_the_log_rests_from_being_read_shuts_the_gate(
    book: Ledger, looked: Looked
) -> None:
    ledger = following(book)
    compare(ledger, age_s=120)
    claim(run_of(ledger))
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
    claim(run_of(ledger))
    now, waited = [100.0], [7.0]
    monkeypatch.setattr(compare_ahead, "steady_s", lambda: now[0])
    monkeypatch.setattr(Standstill, "waited_s", property(lambda _: waited[0]))

    def settle(run: Run, table: str, rows: object, means: Means) -> Settled:
        waited[0] += 30.0
        now[0] += 33.0
        return Settled({})

    monkeypatch.setattr(compare_ahead, "settle", settle)
    assert looked(ledger, {b"0": "cells"}) == 3.0


def test_a_look_that_did_not_read_the_log_is_no_turn(
    book: Ledger, looked: Looked, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hole: it takes some milliseconds, too, and a table that had only those was put behind the first one again."""
    ledger = following(book)
    compare(ledger, age_s=120)
    claim(run_of(ledger))
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
    claim(run_of(ledger))
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
    claim(run_of(ledger))
    for _ in range(2):
        looked(ledger, {b"a": "cells"})
    assert "verified" in noes(ledger)
    meanwhile: list[dict[str, str]] = []

    def fails(*_: object, parts: object) -> None:
        meanwhile.append(noes(ledger))
        raise TransientError("a server did not answer")

    monkeypatch.setattr(compare_ahead, "compare", fails)
    monkeypatch.setattr(compare_ahead, "Parts", lambda *_, claims: None)
    monkeypatch.setattr(_Pace, "of", lambda *_: True)
    ahead = compare_ahead._Ahead(run_of(ledger), lambda: None, Standstill(), threading.Event(), ())  # type: ignore[arg-type,return-value]
    assert ahead._compare_one(TABLE)
    assert len(meanwhile) == compare_ahead.ATTEMPTS
    assert all("verified" in found for found in (*meanwhile, noes(ledger)))


def test_between_two_parts_of_a_long_comparison_the_other_tables_are_looked_at_until_it_is_over(
    book: Ledger, comparisons: Comparisons, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hole: while one large table was compared, so much was written to the others that they had to be, too."""
    ledger = following(book, tables=[{"source": name, "target": name} for name in (TABLE, OTHER)])
    over, goes_on = threading.Event(), list[bool]()
    monkeypatch.setattr(compare_ahead, "Parts", lambda run, table, between, oldest_ms, claims: between)

    def in_parts(run: Run, spark: object, table: str, parts: Callable[[], bool]) -> None:
        goes_on.append(parts())
        monkeypatch.setattr(compare_ahead, "MOST_BETWEEN_SECONDS", 0.0)
        goes_on.append(parts())
        over.set()
        goes_on.append(parts())
        raise ComparisonStoppedError("it is over")

    monkeypatch.setattr(compare_ahead, "compare", in_parts)
    ahead = compare_ahead._Ahead(run_of(ledger), lambda: None, Standstill(), over, ())  # type: ignore[arg-type,return-value]
    assert not ahead._compare_one(TABLE)
    assert goes_on == [True, True, False]
    assert comparisons.made == [f"written {OTHER}"], "what was written to the table itself is read with its parts"


def test_a_row_that_a_look_found_and_a_person_accepted_is_no_reason_any_more(book: Ledger, looked: Looked) -> None:
    ledger = following(book, repair="ask")
    compare(ledger, age_s=120)
    claim(run_of(ledger))
    for _ in range(2):
        looked(ledger, {b"a": "cells"})
    assert "verified" in noes(ledger)
    accept_named(ledger, TABLE, "a", "we know this row", "kim")
    assert not noes(ledger)
