"""What keeps the source's log is tended as long as a replay goes on."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from walferry.errors import TransientError
from walferry.replay.keeping import protect


def test_the_log_is_kept_in_a_thread_until_the_block_ends_though_an_attempt_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks, third = list[int](), threading.Event()

    def tend(_: object) -> float:
        looks.append(threading.get_ident())
        if len(looks) == 1:
            raise TransientError("the source did not answer")
        if len(looks) == 3:
            third.set()
        return 0.01

    monkeypatch.setattr(protect, "AGAIN_SECONDS", 0.01)
    monkeypatch.setattr(protect, "way_of", lambda run: SimpleNamespace(tend=tend))
    run: Any = SimpleNamespace()
    with protect.tended(run):
        assert third.wait(20)
    assert threading.get_ident() not in looks
    assert "protection" not in {thread.name for thread in threading.enumerate()}
