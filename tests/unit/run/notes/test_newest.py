"""Whatever is newer than all that was ever there is a client's, and a table with cells of the future opens late."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from walferry import clock
from walferry.ledger import LateEdit, Ledger, RunLedger
from walferry.run.notes import newest
from walferry.run.notes.newest import clients_from, keeps_closed, newest_of, note_newest

NOW = 1_800_000_000_000
SKEW = clock.CLOCKS_APART_MS


@pytest.fixture
def book(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}", actor="test") as ledger:
        yield ledger


@pytest.fixture
def run(book: Ledger, monkeypatch: pytest.MonkeyPatch) -> RunLedger:
    monkeypatch.setattr(newest, "now_ms", lambda: NOW)
    book.open_run("move", "me", {"tables": [{"source": "t", "target": "t"}]}, "me")
    return book.of("move-1")


def test_a_look_raises_the_newest_timestamp_and_never_lowers_it(run: RunLedger) -> None:
    assert newest_of(run, "t") is None
    note_newest(run, "t", 50, NOW, whole=False)
    note_newest(run, "t", 40, NOW, whole=False)
    assert newest_of(run, "t") == 50
    note_newest(run, "t", 60, NOW, whole=False)
    assert newest_of(run, "t") == 60


def test_a_whole_reading_forgets_what_is_gone_but_nothing_that_was_found_since_it_began(run: RunLedger) -> None:
    note_newest(run, "t", 50, NOW, whole=True)
    note_newest(run, "t", 20, NOW, whole=True)
    assert newest_of(run, "t") == 50, "the other one may have found it later"
    note_newest(run, "t", 20, NOW + 1, whole=True)
    assert newest_of(run, "t") == 20


def test_what_clients_write_to_the_open_target_is_never_taken_for_what_was_there_before(run: RunLedger) -> None:
    note_newest(run, "t", NOW - 7, NOW, whole=True)
    assert clients_from(run, "t") is None
    run.phases.start("open_target")
    run.phases.finish("open_target", {"at_ms": NOW})
    note_newest(run, "t", NOW + 9, NOW + 1, whole=True)
    assert clients_from(run, "t") == NOW


def test_cells_of_a_clock_that_is_ahead_are_told_from_those_of_clients(run: RunLedger) -> None:
    note_newest(run, "t", NOW + SKEW, NOW, whole=True)
    run.phases.start("open_target")
    run.phases.finish("open_target", {"at_ms": NOW})
    assert clients_from(run, "t") == NOW + SKEW + 1


def test_late_edits_that_are_applied_after_the_opening_are_told_from_what_clients_write(run: RunLedger) -> None:
    note_newest(run, "t", NOW - 7, NOW, whole=True)
    run.phases.start("open_target")
    run.phases.finish("open_target", {"at_ms": NOW})
    late = LateEdit("wal.1", 9, "t", "r", 3, NOW + 500, 1, b"row", NOW + 600)
    run.late.found([late])
    assert clients_from(run, "t") == NOW
    run.late.decide([late], "apply", "", "me")
    assert clients_from(run, "t") == NOW + 500 + SKEW + 1
    assert clients_from(run, "other") == NOW


def test_a_table_with_cells_of_the_future_stays_closed_and_says_so(run: RunLedger) -> None:
    assert keeps_closed(run, "t", NOW) == "the newest timestamp of t is unknown: compare the table again"
    note_newest(run, "t", NOW + SKEW, NOW, whole=True)
    assert not keeps_closed(run, "t", NOW)
    note_newest(run, "t", NOW + SKEW + 1, NOW, whole=False)
    assert keeps_closed(run, "t", NOW).startswith(
        f"t has cells with timestamps in the future, up to {NOW + SKEW + 1} ("
    )
    note_newest(run, "t", NOW * 1000, NOW, whole=False)
    assert f"up to {NOW * 1000}: clients' writes" in keeps_closed(run, "t", NOW)
