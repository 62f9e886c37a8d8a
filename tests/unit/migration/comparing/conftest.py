"""A ledger, and comparisons that follow at once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from unit.migration.comparing.compared_ahead import Comparisons
from walferry.ledger import Ledger
from walferry.migration.comparing import compare_ahead


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


@pytest.fixture
def comparisons(monkeypatch: pytest.MonkeyPatch) -> Comparisons:
    return Comparisons(monkeypatch)
