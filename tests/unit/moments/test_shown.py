"""What is shown of a run that keeps moments: its state, what a loss would cost, its bases."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from unit.moments.keep_ledger import STATES as REACHED
from unit.moments.keep_ledger import TABLES, base, brought_to, keep, opened
from walferry.clock import now_ms
from walferry.ledger import Ledger, RunLedger
from walferry.run.notes.kept_moments import end_trouble, note_trouble, troubles_of
from walferry.run.progress.state import state_of
from walferry.run.progress.states import OF_KEEPING, STATES, StateName
from walferry.run.progress.status import status, status_line


@pytest.fixture
def run(tmp_path: Path) -> Iterator[RunLedger]:
    with Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}", actor="tester") as book:
        yield opened(book)


@pytest.mark.parametrize("name", REACHED)
def test_each_state_is_shown_as_such(run: RunLedger, name: StateName) -> None:
    brought_to(run, name)
    now = status(run)
    assert (now.state, now.kind) == (name, "keep")
    assert (now.moments is None) == (name == "aborted")
    assert now.lag_unknown in ("a run of kind keep follows no log", "the run has ended")
    assert status_line(now)


def test_a_loss_of_more_than_a_minute_is_red_or_of_three_passes_if_those_take_longer(run: RunLedger) -> None:
    keep(run, 65)
    assert (state_of(run).name, state_of(run).colour) == ("exposed", "red")
    assert "would cost 1 min " in state_of(run).cause
    run.whole.open_run("moments", run.record.owner, run.record.spec | {"tail_seconds": 30}, "kim", "keep")
    assert state_of(run).name == "following"


def test_the_moments_begin_with_the_oldest_base_of_a_table(run: RunLedger) -> None:
    keep(run, 1)
    run.bases.record(base(TABLES[0], now_ms()))
    moments = status(run).moments
    assert moments is not None
    first = run.bases.there(TABLES[0])[0]
    assert moments.since_ms[TABLES[0]] == first.complete_ms
    assert (moments.bases, moments.copied_bases, moments.folder_bytes) == (3, 0, 5_100)
    assert "3 bases of 2 tables, any moment since " in moments.text
    assert status_line(status(run)).startswith("keep: Bases: 3; Folder: 0.0MB; Time: ")


def test_a_table_without_a_new_base_is_told_with_the_reason_from_its_first_failure_on(run: RunLedger) -> None:
    keep(run, 1, TABLES[:1])
    assert "no base yet of shop:customers" in state_of(run).cause
    note_trouble(run, "shop:customers", "it is disabled", gone=False)
    before = troubles_of(run)["shop:customers"].since_ms
    note_trouble(run, "shop:customers", "it is still disabled", gone=False)
    assert troubles_of(run)["shop:customers"].since_ms == before
    assert "no new base of shop:customers: it is still disabled" in state_of(run).cause
    end_trouble(run, "shop:customers")
    assert troubles_of(run) == {}


def test_the_docs_table_of_its_states_is_the_codes() -> None:
    lines = (Path(__file__).parents[3] / "docs" / "board.md").read_text(encoding="utf-8").splitlines()
    first = lines.index("| state of a run that keeps moments | cause | next step |") + 2
    rows = [f"| {name} | {kind.cause} | {kind.next_step} |" for name, kind in OF_KEEPING.items()]
    assert lines[first : lines.index("", first)] == rows
    assert all(kind.colour == STATES[name].colour for name, kind in OF_KEEPING.items())
