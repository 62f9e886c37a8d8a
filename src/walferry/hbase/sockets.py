"""Sending and receiving on a socket, with TLS or without, up to a deadline, a time of `clock.steady_s`."""

from __future__ import annotations

import select
import socket
import ssl
import struct
from collections.abc import Callable

from walferry.clock import steady_s

LENGTH = struct.Struct(">i")
"""before each frame and each token"""
LAST_WORD_SECONDS = 1.0
RECORD_BYTES = 16 << 10
"""the most that a record of TLS has"""
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


def send_some(sock: socket.socket, content: memoryview, deadline: float) -> int:
    """Send what the kernel takes at once, and return how many bytes that is; with TLS, one record.

    Raises TimeoutError at the deadline: then a part of a record may have been sent, and the connection is of no use.
    """
    sock.settimeout(left(deadline))
    # OpenSSL would go on until all records are sent, however long the other side takes for them.
    return sock.send(content[:RECORD_BYTES] if isinstance(sock, ssl.SSLSocket) else content)


def send_all(sock: socket.socket, content: bytes, deadline: float) -> None:
    """Send all bytes. Raises TimeoutError at the deadline, when a part of them may have been sent."""
    rest = memoryview(content)
    while rest:
        rest = rest[send_some(sock, rest, deadline) :]


def holds(sock: socket.socket) -> bool:
    """Whether bytes have been decrypted that `quiet` does not see."""
    return isinstance(sock, ssl.SSLSocket) and sock.pending() > 0


def quiet(sock: socket.socket) -> bool:
    """Whether nothing has arrived: no bytes, and not the end. It may take one byte off that should not be there."""
    poll = select.poll()  # select() cannot handle descriptors above 1023
    poll.register(sock, select.POLLIN)
    if not poll.poll(0):
        return True
    if not isinstance(sock, ssl.SSLSocket):
        return False
    sock.settimeout(0)
    try:
        sock.recv(1)
    except ssl.SSLWantReadError:
        return True  # it was for TLS itself: a ticket, a new key
    except OSError:
        pass
    return False


def last_word(sock: socket.socket, error: OSError) -> OSError:
    """What the other side has said by TLS before it closed, for an error of sending; the error if it said nothing.

    With TLS 1.3 a server refuses a client's certificate after the handshake.
    """
    if isinstance(sock, ssl.SSLSocket):
        try:
            sock.settimeout(LAST_WORD_SECONDS)
            sock.recv(1)
        except ssl.SSLError as said:
            return said
        except OSError:
            pass
    return error


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
