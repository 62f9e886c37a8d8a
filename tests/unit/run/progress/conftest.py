"""A run of a fresh ledger."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from unit.migration.filled_ledger import SPEC
from walferry import clock
from walferry.ledger import (
    Ledger,
    RunLedger,
)


@pytest.fixture
def book(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}", actor="test") as ledger:
        yield ledger


@pytest.fixture
def run(book: Ledger) -> RunLedger:
    """A run from the shell."""
    return book.of(book.open_run("move", "cli kim", SPEC, "kim").run_id)


@pytest.fixture
def still(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock stands still, so that a lag is the same when it is looked at twice on a slow machine."""
    now = clock.now_ms()
    monkeypatch.setattr(clock, "now_ms", lambda: now)
