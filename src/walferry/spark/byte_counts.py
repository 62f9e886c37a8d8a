"""Counts the bytes that each work item of a job has read, and reports them to the driver while the job's tasks run.

Spark reports a task's counts only at the task's end, and one task may read a whole WAL group. So each worker sends its
count to the driver in a datagram, once a second. The counts are only for progress lines in the log: a lost or blocked
datagram does no harm.
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

from walferry.background import beside

EVERY_SECONDS = 1.0
_COUNT = struct.Struct(">16sIQ")
"""the job's secret, the item's number, its bytes so far"""


@dataclass(frozen=True)
class CountReceiver:
    """The driver's address for a job's counts, and the job's secret. Sent to the executors."""

    host: str
    port: int
    secret: bytes = field(repr=False)


@contextmanager
def collecting(host: str) -> Iterator[tuple[CountReceiver, dict[int, int]]]:
    """Collect counts on an address of this host. The dict maps an item's number to its bytes, once it has reported."""
    family, kind, _, _, address = socket.getaddrinfo(host, 0, type=socket.SOCK_DGRAM)[0]
    counts: dict[int, int] = {}
    with socket.socket(family, kind) as receiver:
        receiver.bind(address)
        receiver.settimeout(0.2)
        collector = CountReceiver(host, receiver.getsockname()[1], secrets.token_bytes(16))

        def receive(ended: threading.Event) -> None:
            while not ended.is_set():
                try:
                    secret, item, size = _COUNT.unpack(receiver.recv(_COUNT.size + 1))
                except (TimeoutError, struct.error):
                    continue
                if secrets.compare_digest(secret, collector.secret):
                    counts[item] = max(size, counts.get(item, 0))

        with beside(receive, "byte counts"):
            yield collector, counts


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
            pass  # the driver just shows fewer bytes

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()


class _Current(threading.local):
    add: Callable[[int], None] | None = None


_current = _Current()
"""counts the bytes of the item that this thread works on"""


@contextmanager
def counting(collector: CountReceiver | None, item: int) -> Iterator[None]:
    """Make `count_bytes` in this thread count for `item`; without a collector it counts nothing."""
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
    """Make `count_bytes` in this thread add to the item's count directly, in the driver's process."""

    def add(size: int) -> None:
        counts[item] = counts.get(item, 0) + size

    _current.add = add
    try:
        yield
    finally:
        _current.add = None


def count_bytes(size: int) -> None:
    """Add `size` to the bytes that the current item has read."""
    if _current.add is not None:
        _current.add(size)
