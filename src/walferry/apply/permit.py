"""The permit for one request: whether it was sent while nobody else could write to its rows (R13).

HBase knows no fencing token. A process that is suspended between the last check and the sending therefore sends late,
and nothing can prevent that. The process notices as soon as it resumes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from walferry.apply.writer_protocol import Guard, Rows
from walferry.clock import steady_s
from walferry.errors import TransientError


@dataclass
class Permit:
    """Asks the guard before each part of one request, and checks afterwards whether the request was in time."""

    guard: Guard
    tables: Collection[str]
    seconds: float
    """`WriteLimits.request_seconds`: for this long after the guard was asked, a request may be under way without
    harm"""
    why: str = ""
    """what the rows may hold if the request was not in time; "": old edits"""
    _asked: float | None = None

    def ask(self) -> None:
        """Ask the guard, and raise its errors. Call this right before sending."""
        asked, self._asked = steady_s(), None
        self.guard(self.tables)
        self._asked = asked

    def check(self, rows: Callable[[], Rows]) -> None:
        """Check a finished request that the target may have carried out, whatever its outcome.

        If the guard's last confirmation has expired and cannot be renewed, mark the rows dirty and raise the guard's
        error: others may have written to the rows before this request did.
        """
        if self._asked is None or steady_s() - self._asked <= self.seconds:
            return
        try:
            self.guard(self.tables)
        except TransientError:
            self.guard.mark_dirty(rows(), self.why)
            raise
