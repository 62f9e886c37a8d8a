"""Attempts that fail for a while are known to the ledger until one succeeds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from unit.migration.filled_ledger import SPEC
from walferry.errors import TransientError
from walferry.ledger import Ledger, RunLedger
from walferry.run.notes import failing as module
from walferry.run.notes.failing import FEW, LONG_SECONDS, Attempts, Failing, failing

ERROR = TransientError("the folder does not answer")


@pytest.fixture
def run(tmp_path: Path) -> Iterator[RunLedger]:
    with Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}", actor="test") as ledger:
        yield ledger.of(ledger.open_run("move", "cli kim", SPEC, "kim").run_id)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds that have passed; a test sets them."""
    now = [0.0]
    monkeypatch.setattr(module, "now_ms", lambda: round(now[0] * 1000))
    monkeypatch.setattr(module, "steady_s", lambda: now[0])
    return now


def test_a_few_failures_in_a_row_are_told_until_an_attempt_succeeds(run: RunLedger, clock: list[float]) -> None:
    attempts = Attempts(run, "keeping")
    for clock[0] in range(FEW - 1):
        attempts.failed(ERROR)
        assert failing(run, "keeping") is None
    attempts.failed(ERROR)
    clock[0] += 50
    attempts.failed(TransientError("it is full"))
    assert failing(run, "keeping") == Failing("keeping", 0, "it is full")
    assert failing(run, "cut") is None
    attempts.succeeded()
    assert failing(run, "keeping") is None
    attempts.failed(ERROR)
    assert failing(run, "keeping") is None, "they are counted anew"


def test_attempts_that_take_long_are_told_after_a_minute(run: RunLedger, clock: list[float]) -> None:
    attempts = Attempts(run, "cut")
    attempts.failed(ERROR)
    clock[0] += LONG_SECONDS
    attempts.failed(ERROR)
    found = failing(run, "cut")
    assert found is not None
    assert found.describe() == "cutting the source's log has failed since 00:00:00 UTC: the folder does not answer"


def test_what_an_earlier_process_met_is_told_until_this_one_succeeds(run: RunLedger, clock: list[float]) -> None:
    earlier, later = Attempts(run, "keeping"), Attempts(run, "keeping")
    for _ in range(FEW):
        earlier.failed(ERROR)
    clock[0] += 100
    for _ in range(FEW):
        later.failed(ERROR)
    assert failing(run, "keeping") == Failing("keeping", 0, str(ERROR)), "it began before"
    Attempts(run, "keeping").succeeded()
    assert failing(run, "keeping") is None


def test_a_ledger_that_does_not_answer_ends_no_attempts(
    run: RunLedger, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise TransientError("the ledger does not answer")

    attempts = Attempts(run, "keeping")
    with monkeypatch.context() as patch:
        patch.setattr(run.notes, "keep", refuse)
        for _ in range(FEW):
            attempts.failed(ERROR)
    assert "the ledger does not answer" in caplog.text
    attempts.failed(ERROR)
    assert failing(run, "keeping") is not None
