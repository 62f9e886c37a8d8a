"""How many bytes each work item of a job has read so far, told to the driver while its tasks still run.

Spark brings what a task counted when it ends, and one task may take a whole WAL group. So a worker sends its count to
the driver as a datagram, once a second. A datagram that is lost, or that the network does not let through, costs a line
of the log: the counts steer nothing.
"""

from __future__ import annotations

import secrets
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

EVERY_SECONDS = 1.0
_COUNT = struct.Struct(">16sIQ")
"""a secret of the job, the item's number, its bytes so far"""


@dataclass(frozen=True)
class Collector:
    """Where a job's counts go: the driver's address, and the secret that it knows them by. Travels to the executors."""

    host: str
    port: int
    secret: bytes = field(repr=False)


@contextmanager
def collecting(host: str) -> Iterator[tuple[Collector, dict[int, int]]]:
    """Collect counts on an address of this host; the dict has the bytes of each item number that has told any."""
    family, kind, _, _, address = socket.getaddrinfo(host, 0, type=socket.SOCK_DGRAM)[0]
    counts: dict[int, int] = {}
    with socket.socket(family, kind) as receiver:
        receiver.bind(address)
        receiver.settimeout(0.2)
        collector = Collector(host, receiver.getsockname()[1], secrets.token_bytes(16))
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


class _Count:
    """The count of the item that this worker process has at hand."""

    def __init__(self, collector: Collector, item: int) -> None:
        self._collector = collector
        self._item = item
        self._bytes = 0
        self._told = 0.0
        self._socket: socket.socket | None = None

    def add(self, size: int) -> None:
        self._bytes += size
        if time.monotonic() - self._told >= EVERY_SECONDS:
            self.tell()

    def tell(self) -> None:
        self._told = time.monotonic()
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


_current: _Count | None = None


@contextmanager
def counting(collector: Collector | None, item: int) -> Iterator[None]:
    """Let `count_bytes` count for this item; with no collector nothing is counted."""
    global _current
    _current = None if collector is None else _Count(collector, item)
    try:
        yield
    finally:
        if _current is not None:
            _current.tell()
            _current.close()
        _current = None


def count_bytes(size: int) -> None:
    """The item at hand has read so many bytes more."""
    if _current is not None:
        _current.add(size)
