"""Beside the replay, each table is compared as a whole, and at once what was written meanwhile."""

from __future__ import annotations

import threading
import time

import pytest

from unit.cutover.test_readiness import TABLE, compare, following, noes, texts
from unit.migration.comparing.compared_ahead import (
    OTHER,
    Comparisons,
    comparing,
    end_phase,
    found_equal,
    run_of,
    wait_until,
)
from walferry import clock
from walferry.clock import now_ms
from walferry.errors import TransientError
from walferry.ledger import Ledger
from walferry.migration.comparing import compare_ahead
from walferry.migration.comparing.compare_ahead import _Pace, look
from walferry.migration.comparing.written_rows import TouchedRows
from walferry.migration.explaining.difference_classes import UNEXPLAINED
from walferry.migration.touching import touched
from walferry.migration.touching.equality import standing_comparison
from walferry.replay.rights import dirty
from walferry.replay.rights.standstill import Standstill
from walferry.run.notes.looks import note_look
from walferry.run.progress.comparing_ahead import left_to_compare, note_comparing_ahead, why_failing


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
    found_equal(run_of(ledger))
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
        assert "comparing fails now and is tried again automatically: a fault of ours" in told["verified"]
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
    expected = "cannot record that the comparison ahead has ended: the ledger did not answer"
    wait_until(lambda: expected in caplog.text)  # the end of the block waits for the thread only briefly


def test_a_cutover_does_not_wait_for_ever_for_what_fails_each_time(book: Ledger, comparisons: Comparisons) -> None:
    ledger = following(book)
    comparisons.failures = [ValueError("a fault of ours") for _ in range(1000)]
    with comparing(ledger):
        wait_until(lambda: why_failing(ledger) and not left_to_compare(ledger))


def test_a_resumed_run_that_is_approved_is_compared_until_the_writes_stop(
    book: Ledger, comparisons: Comparisons
) -> None:
    """Hole: it compared nothing ahead, so that the write stop included all that was written since."""
    ledger = following(book)
    compare(ledger)
    found_equal(run_of(ledger))
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
    found_equal(run_of(ledger))
    touched.end_equality(run_of(ledger), TABLE, "its log is gone")
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
    found_equal(run_of(ledger))
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
    found_equal(run_of(ledger))
    later = clock.now_ms() + age_s * 1000
    monkeypatch.setattr(compare_ahead, "now_ms", lambda: later)
    assert _Pace().of(run_of(ledger), TABLE) is due


def test_what_cannot_be_named_ends_the_claim(book: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = following(book)
    compare(ledger)
    found_equal(run_of(ledger))
    monkeypatch.setattr(compare_ahead, "compare_written", lambda *_: TouchedRows(frozenset(), why="2000 MB of log"))
    look(run_of(ledger), lambda: None, TABLE, Standstill(), threading.Event(), looks=True)  # type: ignore[arg-type,return-value]
    assert standing_comparison(ledger, TABLE) is None
    assert touched.Seen.of(ledger).void == {TABLE: "2000 MB of log"}
