"""The permit for one request: whether it went out while nobody else could write to its rows (R13).

HBase knows no fencing token, so a process that is suspended between the last check and the sending sends late, and
nothing can prevent that. It is noticed as soon as the process goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from walferry.apply.writer_protocol import Guard, Rows
from walferry.clock import steady_s
from walferry.errors import TransientError


@dataclass
class Permit:
    """Asks the guard before each part of one request, and afterwards whether that was in time."""

    guard: Guard
    tables: Collection[str]
    seconds: float
    """`Limits.request_seconds`: for as long after an answer of the guard a request is under way without harm"""
    why: str = ""
    """what the rows may hold, if it was not; "": old edits"""
    _asked: float | None = None

    def ask(self) -> None:
        """Raise what the guard raises. Call it right before sending."""
        asked, self._asked = steady_s(), None
        self.guard(self.tables)
        self._asked = asked

    def check(self, rows: Callable[[], Rows]) -> None:
        """After the end of a request that may have been carried out, whatever its outcome.

        If the last answer of the guard is too old and it gives no other, the rows are marked dirty, and its error is
        raised: others may have written to them before this request did.
        """
        if self._asked is None or steady_s() - self._asked <= self.seconds:
            return
        try:
            self.guard(self.tables)
        except TransientError:
            self.guard.mark_dirty(rows(), self.why)
            raise
