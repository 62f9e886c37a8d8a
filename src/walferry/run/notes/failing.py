"""What a process of the run tries again and again in vain, for the run's state and the gate to the cutover."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from walferry.clock import now_ms, shown_utc, steady_s
from walferry.ledger import RunLedger

log = logging.getLogger(__name__)

Work = Literal["keeping", "cut"]
"""copying the source's log (`protect: stage`, `walferry keep`); cutting it for the replay's next round"""

FEW = 3
"""failures in a row, from which on the ledger says so"""
LONG_SECONDS = 60.0
"""or, if each attempt takes its time, so long after the first of them"""
_NOTE = "failing"
_WHAT: Mapping[Work, str] = {"keeping": "keeping the source's log", "cut": "cutting the source's log"}
_TO_DO: Mapping[Work, str] = {
    "keeping": "mend what it names before the source deletes logs without a copy (`walferry status {name}` tells "
    "when); it is tried again all the time",
    "cut": "mend what it names; it is tried again for some minutes, then the replay fails",
}


@dataclass(frozen=True)
class Failing:
    """Work of which no attempt has succeeded for a while."""

    work: Work
    since_ms: int
    reason: str
    """what the last attempt met"""

    def describe(self) -> str:
        """The failures as a sentence."""
        return f"{_WHAT[self.work]} has failed since {shown_utc(self.since_ms)}: {self.reason}"

    def to_do(self, name: str) -> str:
        """What a person can do about it for the run of this name."""
        return _TO_DO[self.work].format(name=name)


class Attempts:
    """Attempts at some work, one after the other, by one process: the ledger knows of failures that last, until an
    attempt succeeds."""

    def __init__(self, ledger: RunLedger, work: Work) -> None:
        self._ledger = ledger
        self._work = work
        self._failures = 0
        self._since = (0, 0.0)
        self._noted = True
        """a process that worked on the run before may have noted it"""

    def succeeded(self) -> None:
        """The last attempt has. Raises the ledger's errors."""
        if self._noted:
            self._ledger.notes.drop(_NOTE, self._work)
        self._failures, self._noted = 0, False

    def failed(self, error: Exception) -> None:
        """The last attempt has. The ledger's own errors are only logged."""
        if not self._failures:
            self._since = now_ms(), steady_s()
        self._failures += 1
        if self._failures < FEW and steady_s() - self._since[1] < LONG_SECONDS:
            return
        try:
            before = self._ledger.notes.get(_NOTE, self._work)
            since_ms = self._since[0] if before is None else before["since_ms"]
            self._ledger.notes.keep(_NOTE, {"since_ms": since_ms, "reason": str(error)}, self._work)
        except Exception as unwritten:  # which must not end the attempts
            log.warning("the ledger does not take that %s fails: %s", _WHAT[self._work], unwritten)
        self._noted = True


def failing(ledger: RunLedger, work: Work) -> Failing | None:
    """What fails for a while now."""
    note = ledger.notes.get(_NOTE, work)
    return None if note is None else Failing(work, note["since_ms"], note["reason"])
