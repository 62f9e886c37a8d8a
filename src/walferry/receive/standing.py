"""How a receiver is doing, as its calls leave it and as the ledger shows it."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Collection, Mapping

from walferry.clock import now_ms
from walferry.ledger.received import Receiver as ReceiverRow
from walferry.ledger.received import ReceiverState

KEPT_MS = 600_000
"""for how long the reason of a refused call is shown, whoever is not let in meanwhile"""


class Standing:
    """What a process has done so far. Thread-safe."""

    def __init__(self, server: str) -> None:
        self.server = server
        self._lock = threading.Lock()
        self._since_ms = now_ms()
        self._calls = self._refused = 0
        self._refusal = ""
        self._refusal_ms: int | None = None
        self._call_refused_ms = 0
        self._left_out = Counter[str]()

    def begun(self) -> None:
        """A call has come."""
        with self._lock:
            self._calls += 1

    def refused(self, why: str) -> None:
        """A call was refused."""
        with self._lock:
            self._refused += 1
            self._refusal, self._refusal_ms = why, now_ms()
            self._call_refused_ms = self._refusal_ms

    def shut_out(self, why: str) -> None:
        """A client was not let in. Why a call was refused a while ago is not forgotten for that: anybody can knock."""
        with self._lock:
            if now_ms() - self._call_refused_ms >= KEPT_MS:
                self._refusal, self._refusal_ms = why, now_ms()

    def left_out(self, entries: Mapping[str, int]) -> None:
        """So many entries of each source table were left out, since they are older than what the run is to have."""
        with self._lock:
            self._left_out.update(entries)

    def record_left_out(self, record: Callable[[str, int], None]) -> None:
        """Call `record` with the number of entries of each table that were left out since the last time. Raises what it
        raises: these are recorded the next time."""
        with self._lock:
            tables = list(self._left_out)
        for table in tables:
            with self._lock:
                entries = self._left_out.pop(table)
            try:
                record(table, entries)
            except BaseException:
                self.left_out({table: entries})
                raise

    def row(self, state: ReceiverState, tables: Collection[str], held_bytes: int) -> ReceiverRow:
        """For the ledger."""
        with self._lock:
            return ReceiverRow(
                server=self.server,
                state=state,
                since_ms=self._since_ms,
                at_ms=now_ms(),
                tables=frozenset(tables),
                calls=self._calls,
                refused=self._refused,
                held_bytes=held_bytes,
                last_refusal=self._refusal,
                last_refusal_ms=self._refusal_ms,
            )
