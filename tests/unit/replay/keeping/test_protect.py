"""What keeps the source's log is tended as long as a replay goes on."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from unit.migration.filled_ledger import SPEC
from walferry.errors import TransientError
from walferry.ledger import Ledger
from walferry.replay.keeping import protect
from walferry.run.notes.failing import FEW, failing


def test_the_log_is_kept_in_a_thread_until_the_block_ends_though_attempts_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks, last = list[int](), threading.Event()
    told = list[bool]()

    def tend(run: Any) -> float:
        looks.append(threading.get_ident())
        told.append(failing(run.ledger, "keeping") is not None)
        if len(looks) <= FEW:
            raise TransientError("the source did not answer")
        if len(looks) == FEW + 2:
            last.set()
        return 0.01

    monkeypatch.setattr(protect, "AGAIN_SECONDS", 0.01)
    monkeypatch.setattr(protect, "way_of", lambda run: SimpleNamespace(tend=tend))
    with Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}", actor="test") as ledger:
        run: Any = SimpleNamespace(ledger=ledger.of(ledger.open_run("move", "test", SPEC, "test").run_id))
        with protect.tended(run):
            assert last.wait(20)
    assert told[: FEW + 2] == [False] * FEW + [True, False], "the ledger says so while it fails for a while"
    assert threading.get_ident() not in looks
    assert "protection" not in {thread.name for thread in threading.enumerate()}
