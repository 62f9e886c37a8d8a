"""How many bytes each work item of a job has read so far, reported to the driver while its tasks are running.

Spark reports a task's counts only when it ends, and one task may read a whole WAL group. So a worker sends its count to
the driver in a datagram, once a second. The counts are only for the log's progress lines: a lost or blocked datagram
does no harm.
"""

from __future__ import annotations

import secrets
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

EVERY_SECONDS = 1.0
_COUNT = struct.Struct(">16sIQ")
"""the job's secret, the item's number, its bytes so far"""


@dataclass(frozen=True)
class CountReceiver:
    """Where a job's counts go: the driver's address, and the job's secret. Sent to the executors."""

    host: str
    port: int
    secret: bytes = field(repr=False)


@contextmanager
def collecting(host: str) -> Iterator[tuple[CountReceiver, dict[int, int]]]:
    """Collect counts on an address of this host; the dict maps an item's number to its bytes, once it reported any."""
    family, kind, _, _, address = socket.getaddrinfo(host, 0, type=socket.SOCK_DGRAM)[0]
    counts: dict[int, int] = {}
    with socket.socket(family, kind) as receiver:
        receiver.bind(address)
        receiver.settimeout(0.2)
        collector = CountReceiver(host, receiver.getsockname()[1], secrets.token_bytes(16))
        ended = threading.Event()

        def receive() -> None:
            while not ended.is_set():
                try:
                    secret, item, size = _COUNT.unpack(receiver.recv(_COUNT.size + 1))
                except (TimeoutError, struct.error):
                    continue
                if secrets.compare_digest(secret, collector.secret):
                    counts[item] = max(size, counts.get(item, 0))

        thread = threading.Thread(target=receive, name="byte counts", daemon=True)
        thread.start()
        try:
            yield collector, counts
        finally:
            ended.set()
            thread.join()


class _ItemCount:
    """The count of this worker process's current item."""

    def __init__(self, collector: CountReceiver, item: int) -> None:
        self._collector = collector
        self._item = item
        self._bytes = 0
        self._sent = 0.0
        self._socket: socket.socket | None = None

    def add(self, size: int) -> None:
        self._bytes += size
        if time.monotonic() - self._sent >= EVERY_SECONDS:
            self.send()

    def send(self) -> None:
        self._sent = time.monotonic()
        count = _COUNT.pack(self._collector.secret, self._item, self._bytes)
        try:
            if self._socket is None:
                address = (self._collector.host, self._collector.port)
                family, kind, _, _, where = socket.getaddrinfo(*address, type=socket.SOCK_DGRAM)[0]
                self._socket = socket.socket(family, kind)
                self._socket.connect(where)
            self._socket.send(count)
        except OSError:
            pass  # the driver shows fewer bytes

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()


class _Current(threading.local):
    add: Callable[[int], None] | None = None


_current = _Current()
"""what counts the bytes of the item that this thread works on"""


@contextmanager
def counting(collector: CountReceiver | None, item: int) -> Iterator[None]:
    """Make `count_bytes` in this thread count for this item; without a collector nothing is counted."""
    count = None if collector is None else _ItemCount(collector, item)
    _current.add = None if count is None else count.add
    try:
        yield
    finally:
        _current.add = None
        if count is not None:
            count.send()
            count.close()


@contextmanager
def counting_here(counts: dict[int, int], item: int) -> Iterator[None]:
    """Make `count_bytes` in this thread add to the item's count in the driver itself."""

    def add(size: int) -> None:
        counts[item] = counts.get(item, 0) + size

    _current.add = add
    try:
        yield
    finally:
        _current.add = None


def count_bytes(size: int) -> None:
    """Add to the bytes that the current item has read."""
    if _current.add is not None:
        _current.add(size)
