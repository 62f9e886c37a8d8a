"""The part of a file that a reader has in memory."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from walferry.formats.cells import Bytes


class FileBytes:
    """The part of a file that is in memory: `data[:filled]`, whose first byte is at file offset `base`.

    `chunks` are the file's bytes from `base` on. Readers keep views of `data`, so reading more allocates a new array
    and never overwrites an old one.
    """

    def __init__(self, chunks: Iterable[bytes], base: int, size: int) -> None:
        self._chunks = iter(chunks)
        self._pending = memoryview(b"")
        self.size = max(size, 64)
        """of the next array, unless the kept bytes need a larger one"""
        self.data: Bytes = np.empty(self.size, np.uint8)
        self.base = base
        self.filled = 0
        self.finished = False  # data[:filled] reaches the end of the file
        self.last = b""  # the last 8 bytes seen
        self.length = base  # file offset after them
        self._fill()

    def need(self, filled: int) -> None:
        """Read until `data` has at least `filled` bytes, or the file ends."""
        if filled > len(self.data):
            self._move(0, filled)

    def advance(self, at: int) -> None:
        """Drop the bytes before `at` and read on; adds at least one byte unless the file ends."""
        left = self.filled - at
        self._move(at, left + left // 2)

    def drain(self) -> None:
        """Read the rest of the file without keeping it."""
        self._see(self._pending)
        while self._next_chunk():
            self._see(self._pending)
        self._pending = memoryview(b"")

    def _move(self, at: int, size: int) -> None:
        kept = self.data[at : self.filled]
        self.data = np.empty(max(self.size, size), np.uint8)
        self.data[: len(kept)] = kept
        self.filled = len(kept)
        self.base += at
        del kept  # frees the old array, unless a batch has a view of it
        self._fill()

    def _fill(self) -> None:
        while self.filled < len(self.data):
            if not self._pending and not self._next_chunk():
                self.finished = True
                return
            taken = self._pending[: len(self.data) - self.filled]
            self.data[self.filled : self.filled + len(taken)] = np.frombuffer(taken, np.uint8)
            self.filled += len(taken)
            self._pending = self._pending[len(taken) :]
            self._see(taken)

    def _next_chunk(self) -> bool:
        for chunk in self._chunks:
            if len(chunk):
                self._pending = memoryview(chunk)
                return True
        return False

    def _see(self, seen: memoryview) -> None:
        self.last = (self.last + seen[-8:].tobytes())[-8:]
        self.length += len(seen)
