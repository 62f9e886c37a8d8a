"""Repeated calls are bounded, visible, and only made where they make sense."""

from __future__ import annotations

import logging

import pytest

from walferry.errors import TransientError, WalferryError
from walferry.hbase import retry
from walferry.hbase.errors import ServerBusyError, ZooKeeperError
from walferry.hbase.retry import pause_s, retry_call
from walferry.security.handed import WorkerLoginError


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "_FIRST_PAUSE_S", 0.0001)


class Failing:
    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.calls = 0

    def __call__(self) -> str:
        self.calls += 1
        if self.errors:
            raise self.errors.pop(0)
        return "done"


def test_a_transient_failure_is_tried_again_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    call = Failing(TransientError("first"), TransientError("second"))
    with caplog.at_level(logging.WARNING):
        assert retry_call(call, attempts=5) == "done"
    assert [record.getMessage() for record in caplog.records] == [
        "attempt 1 of 5: first",
        "attempt 2 of 5: second",
    ]


def test_a_failure_that_lasts_is_logged_ever_more_rarely(caplog: pytest.LogCaptureFixture) -> None:
    """Hole: when a server died, each of its regions logged a line every few seconds for a minute."""
    call = Failing(*(TransientError(f"number {n}") for n in range(1, 20)))
    with caplog.at_level(logging.WARNING):
        assert retry_call(call, attempts=20) == "done"
    assert [record.getMessage().partition(":")[0].split()[1] for record in caplog.records] == ["1", "2", "4", "8", "16"]


def test_the_last_attempts_error_is_raised() -> None:
    call = Failing(*(TransientError(f"number {n}") for n in range(1, 9)))
    with pytest.raises(TransientError, match="number 3"):
        retry_call(call, attempts=3)
    assert call.calls == 3


@pytest.mark.parametrize(
    "error",
    [WalferryError("final"), ValueError(), ZooKeeperError("kazoo tried"), WorkerLoginError("its driver must help")],
)
def test_what_is_not_repeatable_is_raised_at_once(error: Exception) -> None:
    call = Failing(error)
    with pytest.raises(type(error)):
        retry_call(call)
    assert call.calls == 1


def test_whoever_hears_of_a_failure_may_end_the_attempts() -> None:
    def give_up(error: TransientError, attempt: int) -> None:
        if attempt == 2:
            raise WalferryError("no use") from error

    call = Failing(*(TransientError("again") for _ in range(9)))
    with pytest.raises(WalferryError, match="no use"):
        retry_call(call, on_failure=give_up)
    assert call.calls == 2


def test_pauses_grow_and_stay_bounded_and_are_longer_for_a_busy_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "_FIRST_PAUSE_S", 0.1)
    assert pause_s(None, 1) < 0.2 < pause_s(None, 4) < 1 < pause_s(None, 30) <= 6
    assert pause_s(ServerBusyError("busy"), 1) > 2 * pause_s(None, 1)
