"""Sending and receiving on a socket up to a deadline, a time of `clock.steady_s`."""

from __future__ import annotations

import select
import socket
import struct
from collections.abc import Callable

from walferry.clock import steady_s

LENGTH = struct.Struct(">i")
"""before each frame and each token"""
Receive = Callable[[memoryview, float], int]
"""receives at least one byte into a buffer until the deadline; 0 if the other side has closed"""


def receive_into(sock: socket.socket, view: memoryview, deadline: float) -> int:
    """Receive at least one byte; 0 if the other side has closed. Raises TimeoutError at the deadline."""
    sock.settimeout(left(deadline))
    return sock.recv_into(view)


def receive_all(receive: Receive, length: int, deadline: float) -> bytearray:
    """Receive exactly `length` bytes. Raises TimeoutError at the deadline, ConnectionError if the server closes."""
    buffer = bytearray(length)
    view = memoryview(buffer)
    while view:
        received = receive(view, deadline)
        if not received:
            raise ConnectionError("the server closed the connection")
        view = view[received:]
    return buffer


def send_all(sock: socket.socket, content: bytes, deadline: float) -> None:
    """Send all bytes. Raises TimeoutError at the deadline, when a part of them may have been sent."""
    rest = memoryview(content)
    while rest:
        sock.settimeout(left(deadline))
        rest = rest[sock.send(rest) :]


def await_writable(sock: socket.socket, deadline: float) -> None:
    """Wait until the kernel accepts more bytes, so that sending right after a check does not block."""
    poll = select.poll()
    poll.register(sock, select.POLLOUT)
    if not poll.poll(milliseconds(left(deadline))):
        raise TimeoutError


def drop_unsent_after(sock: socket.socket, deadline: float) -> None:
    """Make the kernel drop unacknowledged bytes at the deadline, even after this process has ended.

    By default the kernel keeps sending for minutes, so that a request may arrive after its caller gave up.
    """
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds(left(deadline)))


def left(deadline: float) -> float:
    """Seconds until the deadline. Raises TimeoutError after it."""
    seconds = deadline - steady_s()
    if seconds <= 0:
        raise TimeoutError
    return seconds


def milliseconds(seconds: float) -> int:
    """At least 1: to a server, 0 means no time-out."""
    return max(1, int(seconds * 1000))
