from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from unit.ledger.entries import run as run
from walferry.ledger import Ledger


@pytest.fixture
def ledger_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'ledger.db'}"


@pytest.fixture
def ledger(ledger_url: str) -> Iterator[Ledger]:
    with Ledger.open(ledger_url, actor="tester") as opened:
        yield opened
