"""What a broker's listener speaks, where the client only sees that its connections are closed.

Only what an answer proves is told: a connection that is closed may be a broker that is starting.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
import time

from walferry.streams.kafka.settings import KafkaSettings

_WAIT_S = 3.0
"""for all brokers together"""
_CLIENT = b"walferry"
_SASL_HANDSHAKE = 17
_ILLEGAL_SASL_STATE = 34
"""the answer of a listener without a login (Kafka's protocol guide, error codes)"""
_LONGEST_ANSWER = 10_000


def misfit(settings: KafkaSettings) -> str | None:
    """How the listener of a broker differs from what security.protocol says, and what to do; None if nothing shows it.

    It asks on connections of its own, without a login. It waits at most 3 s for the brokers.
    """
    protocol = str(settings.client.get("security.protocol", "plaintext")).lower()
    with_tls, with_login = protocol.endswith("ssl"), protocol.startswith("sasl_")
    deadline = time.monotonic() + _WAIT_S
    for broker in settings.bootstrap.split(","):
        host, _, port = broker.rpartition(":")
        address = (host.strip("[]"), int(port))
        if not with_tls and _speaks_tls(address, deadline):
            return (
                f"security.protocol is {protocol}, and the listener wants TLS: set it to "
                f"{'sasl_ssl' if with_login else 'ssl or sasl_ssl'}, or bootstrap to another listener"
            )
        mechanisms = _login(address, deadline, with_tls=with_tls)
        if not with_login and mechanisms:
            return (
                f"security.protocol is {protocol}, and the listener wants a login ({', '.join(mechanisms)}): set it to "
                f"{'sasl_ssl' if with_tls else 'sasl_plaintext'}, with sasl.mechanism, sasl.username and sasl.password"
            )
        if with_tls and _login(address, deadline, with_tls=False) is not None:
            return f"security.protocol is {protocol}, and the listener has no TLS: set it to " + (
                "sasl_plaintext, or bootstrap to another listener" if with_login
                else "plaintext or sasl_plaintext, or bootstrap to another listener"
            )  # fmt: skip
    return None


def _connected(address: tuple[str, int], deadline: float) -> socket.socket:
    return socket.create_connection(address, timeout=max(0.1, deadline - time.monotonic()))


def _tls(connection: socket.socket) -> ssl.SSLSocket:
    """Whose certificate it is does not matter: nothing that is worth protecting is sent."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context.wrap_socket(connection)


def _speaks_tls(address: tuple[str, int], deadline: float) -> bool:
    with contextlib.suppress(OSError), _connected(address, deadline) as connection, _tls(connection):
        return True
    return False


def _login(address: tuple[str, int], deadline: float, *, with_tls: bool) -> list[str] | None:
    """The mechanisms of login that a listener takes, none if it takes no login; None without an answer of Kafka's."""
    mechanism = b"NONE"
    request = struct.pack(f">hhih{len(_CLIENT)}sh{len(mechanism)}s", _SASL_HANDSHAKE, 1, 1, len(_CLIENT), _CLIENT,
                          len(mechanism), mechanism)  # fmt: skip
    try:
        with _connected(address, deadline) as plain, _tls(plain) if with_tls else plain as connection:
            connection.sendall(struct.pack(">i", len(request)) + request)
            (length,) = struct.unpack(">i", _exactly(connection, 4))
            if not 0 < length < _LONGEST_ANSWER:
                return None
            answer = _exactly(connection, length)
        number, code, count = struct.unpack_from(">ihi", answer)
        if number != 1:
            return None
        mechanisms, at = [], 10
        for _ in range(0 if code == _ILLEGAL_SASL_STATE else count):
            (length,) = struct.unpack_from(">h", answer, at)
            mechanisms.append(answer[at + 2 : at + 2 + length].decode())
            at += 2 + length
    except (OSError, struct.error, UnicodeDecodeError):
        return None
    return mechanisms


def _exactly(connection: socket.socket, count: int) -> bytes:
    """So many bytes. Raises OSError if the connection ends before."""
    received = b""
    while len(received) < count:
        more = connection.recv(count - len(received))
        if not more:
            raise ConnectionResetError("the broker closed the connection")
        received += more
    return received
