"""A phase is done once: not again when it is done, and anew when it was not (R7)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from unit.migration.filled_ledger import SPEC
from walferry.ledger import Ledger
from walferry.run.run import Run


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    with Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}", actor="test") as ledger:
        yield Run(ledger, ledger.open_run("move", "test", SPEC, "test").run_id)


def counted(done: list[int]) -> Callable[[], dict[str, Any]]:
    """Work whose facts tell the how-manieth time it was done."""

    def work() -> dict[str, Any]:
        done.append(len(done) + 1)
        return {"time": done[-1]}

    return work


def test_a_phase_that_is_done_is_not_repeated_and_tells_what_it_told_before(run: Run) -> None:
    done: list[int] = []
    again = Run(run.ledger.whole, run.run_id)
    assert run.once("copy", counted(done), "t") == again.once("copy", counted(done), "t") == {"time": 1}
    assert again.once("copy", counted(done), "other") == {"time": 2}  # of each table, a phase of its own


@pytest.mark.parametrize("end", [ZeroDivisionError, KeyboardInterrupt], ids=["failed", "interrupted"])
def test_a_phase_that_did_not_come_to_its_end_is_done_anew(run: Run, end: type[BaseException]) -> None:
    def stopped() -> dict[str, Any]:
        raise end

    with pytest.raises(end):
        run.once("copy", stopped)
    assert run.ledger.phases.facts("copy") is None
    assert run.once("copy", counted([])) == {"time": 1}


def test_a_phase_that_was_killed_in_its_midst_is_done_anew(run: Run) -> None:
    run.ledger.phases.start("copy")  # and nothing more was written
    assert run.once("copy", counted([])) == {"time": 1}
    assert run.done("copy") == {"time": 1}
