"""How often a call is retried, and after which pauses."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from typing import TypeVar

import tenacity

from walferry.errors import TransientError
from walferry.hbase.errors import ServerBusyError, ZooKeeperError
from walferry.security.handed import WorkerLoginError

_log = logging.getLogger(__name__)
T = TypeVar("T")

ATTEMPTS = 8  # about 10 s: outlasts a master that steps down, a connection that breaks
FAILOVER_ATTEMPTS = 32  # over two minutes: outlasts a dead master's session (90 s by default), and another's start
REGION_ATTEMPTS = 20  # over a minute: outlasts the recovery of a crashed region server's regions, a region's move
_DEADLINE_S = 150  # a server that hangs: two full time-outs and part of a third
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 5.0
_BUSY_FACTOR = 5


def repeatable(error: BaseException) -> bool:
    """Whether another attempt may succeed. ZooKeeper's errors are final here: kazoo has already retried. So is a token
    that was refused: only the driver can repeat the work with another one."""
    return isinstance(error, TransientError) and not isinstance(error, (ZooKeeperError, WorkerLoginError))


def pause_s(error: BaseException | None, attempt: int) -> float:
    """Seconds to wait after the failed attempt number `attempt` (from 1); longer if the server is busy."""
    pause: float = min(_FIRST_PAUSE_S * 2 ** (attempt - 1), _LONGEST_PAUSE_S)
    if isinstance(error, ServerBusyError):
        pause *= _BUSY_FACTOR
    return pause * random.uniform(0.8, 1.2)


def retry_call(
    call: Callable[[], T],
    *,
    attempts: int = ATTEMPTS,
    on_failure: Callable[[TransientError, int], None] = lambda error, attempt: None,
) -> T:
    """Call until the call succeeds, at most `attempts` times; only errors that are `repeatable` are retried.

    No attempt starts later than 150 s after the first. Only failures of attempts 1, 2, 4, 8 and 16 are logged: when a
    server dies, many callers wait for each of its regions. `on_failure` is called with every failure that will be
    retried and the number of its attempt. It may forget a stale location, or raise if another attempt cannot succeed.
    """

    def failed(state: tenacity.RetryCallState) -> None:
        assert state.outcome is not None
        error = state.outcome.exception()
        if isinstance(error, TransientError):
            if state.attempt_number.bit_count() == 1:
                _log.warning("attempt %d of %d: %s", state.attempt_number, attempts, error)
            on_failure(error, state.attempt_number)

    def wait(state: tenacity.RetryCallState) -> float:
        assert state.outcome is not None
        return pause_s(state.outcome.exception(), state.attempt_number)

    return tenacity.Retrying(
        stop=tenacity.stop_after_attempt(attempts) | tenacity.stop_before_delay(_DEADLINE_S),
        wait=wait,
        retry=tenacity.retry_if_exception(repeatable),
        before_sleep=failed,
        reraise=True,
    )(call)
