"""The token of one identity at one service: made by a login, replaced in time, or handed to this process."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, replace

from walferry.background import begun
from walferry.errors import WalferryError, is_transient
from walferry.security import handed
from walferry.security.handed import Handed, Issued, Purpose, WorkerLoginError
from walferry.security.token import Token

LONGEST_USE_SECONDS = 6 * 3600.0
"""a token is replaced after this time at the latest; by default HDFS lets one live for a day, HBase for a week"""
RETRY_SECONDS = 60.0
"""pause after a login that failed while the old token is still good"""
WAIT_SECONDS = 30.0
"""how long a job's start waits for logins"""
FAILED_SECONDS = 5.0
"""pause between two such waits for a service; shorter than any pause before work is begun again"""
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Held:
    token: Token
    due: float
    """when to replace it, by time.monotonic()"""
    end: float
    """when the service refuses it"""


class HeldToken:
    """The current token for a purpose; threads share it. In a worker it is the one that the driver has handed over."""

    def __init__(self, purpose: Purpose, make: Callable[[], tuple[Token, float]]) -> None:
        """`make` logs in, and returns a new token and how many seconds it lives."""
        self.purpose = purpose
        self._make = make
        self._held: _Held | None = None
        self._lock = threading.Lock()
        self._login: Future[_Held] | None = None
        self._lack: tuple[float, Issued] | None = None

    def current(self) -> Token:
        """The token. It is replaced in the background once half of its life is over.

        Raises the errors of `make` if there is no good token and the login for one fails, those of `Handed.token` in a
        worker.
        """
        if (mine := handed.mine()) is not None:
            return mine.token(self.purpose)
        held = self._held
        now = time.monotonic()
        if held is not None and now < held.due:
            return held.token
        login = self._begun(held)
        return held.token if held is not None and now < held.end else login.result().token

    @property
    def held(self) -> Token | None:
        """The token; None before the first login."""
        if (mine := handed.mine()) is not None:
            return mine.issued[self.purpose].token if self.purpose in mine.issued else None
        held = self._held
        return None if held is None else held.token

    def after(self, refused: Token, reason: str) -> Token:
        """The token that replaces one that the service refused. Raises the errors of `current`; WorkerLoginError in a
        worker, unless it has been handed another one since."""
        if handed.mine() is not None:
            if (other := self.current()) != refused:
                return other
            raise handed.refused(self.purpose, refused, reason)
        self.discard(handed.fingerprint(refused))
        return self.current()

    def discard(self, refused: str) -> None:
        """Replace the token that has this fingerprint."""
        with self._lock:
            if self._held is not None and handed.fingerprint(self._held.token) == refused:
                self._held = None

    def issued(self, number: int, login: Future[Token] | None, until: float) -> Issued:
        """What a job gets: the result of a login, or, without one, what the last job got."""
        if login is None:
            assert self._lack is not None
            return self._lack[1]
        try:
            return Issued(number, login.result(max(0.0, until - time.monotonic())))
        except TimeoutError:
            lack = Issued(number, lack=f"the driver got no answer within {WAIT_SECONDS:g} s", may_pass=True)
        except WalferryError as error:
            lack = Issued(number, lack=str(error), may_pass=is_transient(error))
        self._lack = time.monotonic(), lack
        return lack

    @property
    def failed_lately(self) -> bool:
        """Whether a job got no token just now."""
        return self._lack is not None and time.monotonic() - self._lack[0] < FAILED_SECONDS

    def _begun(self, old: _Held | None) -> Future[_Held]:
        """The login that replaces `old`: one for all threads that want it, also if it fails."""
        with self._lock:
            if self._login is None or (self._login.done() and self._held is old):
                self._login = begun(lambda: self._replaced(old), "log in")
            return self._login

    def _replaced(self, old: _Held | None) -> _Held:
        try:
            token, life = self._make()
        except WalferryError as error:
            with self._lock:
                if old is not None and self._held is old and time.monotonic() < old.end:
                    self._held = replace(old, due=time.monotonic() + RETRY_SECONDS)
                    _log.warning("%s; the old token is used on", error)
            raise
        now = time.monotonic()
        self._held = held = _Held(token, now + min(LONGEST_USE_SECONDS, life / 2), now + life)
        return held


_known: dict[Purpose, HeldToken] = {}
_knowing = threading.Lock()


def register(token: HeldToken) -> None:
    """Have `to_hand_over` hand over this token, too, unless there is one for its purpose."""
    with _knowing:
        _known.setdefault(token.purpose, token)


def to_hand_over() -> Handed:
    """A token for each service that this process, a driver, has a client for. It may log in to them, but waits only for
    WAIT_SECONDS: a service that is away must not stop work that does without it."""
    with _knowing:
        known = list(_known.values())
    number = time.monotonic_ns()
    until = time.monotonic() + WAIT_SECONDS
    asked = {one: None if one.failed_lately else begun(one.current, "log in") for one in known}
    return Handed({one.purpose: one.issued(number, login, until) for one, login in asked.items()})


def discard(refused: WorkerLoginError) -> None:
    """Let the token that a worker was refused be replaced before the next one is handed over."""
    with _knowing:
        holder = _known.get(refused.facts["purpose"])
    if holder is not None and refused.facts["token"] is not None:
        holder.discard(refused.facts["token"])
