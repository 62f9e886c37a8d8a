"""The rows that applied WAL files have written, as far as this process knows them."""

from __future__ import annotations

import threading

MOST_BYTES = 256 << 20
"""of packed rows that are kept; the oldest are dropped"""


class KnownRows:
    """Packed rows (`apply.written`) by file and table. The oldest are dropped: read the file to get them again."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most = most_bytes
        self._lock = threading.Lock()
        self._tables: frozenset[str] = frozenset()
        self._of: dict[tuple[str, str], bytes] = {}
        self._bytes = 0

    @property
    def tables(self) -> frozenset[str]:
        """The tables whose rows are collected as files are applied."""
        return self._tables

    def collect(self, table: str) -> None:
        """From now on, also collect the rows of a table."""
        with self._lock:
            self._tables |= {table}

    def keep(self, file: str, table: str, packed: bytes) -> None:
        """Keep the rows of a table: every row for which the file holds edits."""
        with self._lock:
            self._bytes += len(packed) - len(self._of.pop((file, table), b""))
            self._of[file, table] = packed
            while self._bytes > self._most:
                self._bytes -= len(self._of.pop(next(iter(self._of))))

    def of(self, file: str, table: str) -> bytes | None:
        """The rows of a table in a file; None if they are not known."""
        with self._lock:
            return self._of.get((file, table))
