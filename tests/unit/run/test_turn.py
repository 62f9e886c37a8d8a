"""Of several processes that began a phase, the last one may work on it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from unit.moments.keep_ledger import opened
from walferry.ledger import Ledger
from walferry.run.run import LogRun, RunEndedError
from walferry.run.turn import TakenOverError, Turn


@pytest.fixture
def run(tmp_path: Path) -> Iterator[LogRun]:
    """A run whose phase `keep` this process has begun."""
    with Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}", actor="test") as book:
        run_id = opened(book).record.run_id
        book.of(run_id).phases.start("keep")
        with LogRun(book, run_id) as run:
            yield run


def test_the_process_that_began_last_may_go_on_and_the_one_before_may_not(run: LogRun) -> None:
    first = Turn(run, "keep")
    first.require()
    run.ledger.phases.start("keep")
    Turn(run, "keep").require()
    with pytest.raises(TakenOverError, match="another process has taken over moments-1: this one ends"):
        first.require()


def test_an_overtaken_process_is_overtaken_also_after_the_run_has_ended(run: LogRun) -> None:
    turn = Turn(run, "keep")
    run.ledger.phases.start("keep")
    run.ledger.end("aborted", "kim", "no longer needed")
    with pytest.raises(TakenOverError):
        turn.require()


def test_once_the_run_has_ended_nobody_may_go_on(run: LogRun) -> None:
    turn = Turn(run, "keep")
    run.ledger.end("aborted", "kim", "no longer needed")
    with pytest.raises(RunEndedError, match="run moments-1 has ended as aborted"):
        turn.require()
