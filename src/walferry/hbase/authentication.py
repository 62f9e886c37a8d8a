"""How a connection to HBase proves who it is, and how its bytes travel afterwards.

A connection begins with "HBas" 00 and an octet for the method (AuthMethod). With SIMPLE the plain stream follows at
once. With KERBEROS and DIGEST tokens follow (HBaseSaslRpcClient, ServerRpcConnection.saslReadAndProcess), lengths and
status int32 big-endian:

    client  length token            (the length may be 0)
    server  status; 0: length token; 1: the names of an exception and its message, each with its length

Nothing follows the last token: the client's with KERBEROS, the server's with DIGEST. If integrity or privacy was
agreed, the plain stream then travels in pieces, each as length and wrapped token.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from walferry.errors import WalferryError
from walferry.hbase.address import ClusterAddress
from walferry.hbase.errors import LoginRefusedError
from walferry.hbase.sockets import LENGTH, Receive, holds, receive_all, receive_into, send_all, send_some
from walferry.security import handed
from walferry.security.digest import DigestExchange
from walferry.security.handed import Handed, Purpose
from walferry.security.kerberos import AuthenticationError, Qop
from walferry.security.sasl import Exchange, GssapiExchange
from walferry.security.tickets import identity
from walferry.security.token import Token

MAX_FRAME_BYTES = 1 << 30
"""above hbase.ipc.max.request.size and any real answer; an HTTP server's "HTTP" reads as a length of 1.2 GB"""
PREAMBLE = b"HBas\x00"
SIMPLE, KERBEROS, DIGEST = 80, 81, 82  # org.apache.hadoop.hbase.security.AuthMethod
_SUCCESS = 0
LOGIN_ERROR = 1  # SaslStatus.ERROR; also what a server sends instead of its first answer
_GO_ON_SIMPLE = -88  # SaslUtil.SWITCH_TO_SIMPLE_AUTH
_INVALID_TOKEN = "InvalidToken:"  # it has expired, or its master key is gone (AuthenticationTokenSecretManager)
_WRONG_PASSWORD = "Mismatched response"  # DigestMD5Server's: the server has another password for the identifier
_MOST_TOKENS = 10
_LONGEST_TOKEN = 1 << 20


class Channel(Protocol):
    """The bytes of one connection after it was opened, in order; `sock` is for waiting and for time-outs."""

    sock: socket.socket
    user: str | None
    """whom the ConnectionHeader names; None where the login has said it: a server takes a name for impersonation"""
    qop: Qop | None
    """the protection that was agreed; None without a login"""

    def send(self, part: memoryview, deadline: float) -> int:
        """Send the beginning of `part`, and return how many of its bytes are on their way.

        Raises TimeoutError at the deadline: then part of a token may have been sent, and the connection is of no use.
        """
        ...

    def receive(self, view: memoryview, deadline: float) -> int:
        """Receive at least one byte into `view`; 0 if the server has closed."""
        ...

    @property
    def pending(self) -> bool:
        """Whether bytes have arrived that `sock` no longer shows."""
        ...


class Authenticate(Protocol):
    """How connections are opened: one object for all connections to a cluster, used by many threads."""

    def open(self, sock: socket.socket, server: str, deadline: float) -> Channel:
        """Prove to the service at `server`, "host:port", who this is. Raises AuthenticationError, WorkerLoginError,
        OSError."""
        ...


@dataclass(frozen=True)
class Simple:
    """SIMPLE: the server believes the user name in the ConnectionHeader."""

    user: str

    def open(self, sock: socket.socket, server: str, deadline: float) -> Channel:
        """No login: only the preamble."""
        send_all(sock, PREAMBLE + bytes([SIMPLE]), deadline)
        return PlainChannel(sock, self.user)


@dataclass(frozen=True)
class Sasl:
    """KERBEROS, SASL's GSSAPI with a ticket for the server; in a worker DIGEST, DIGEST-MD5 with its driver's token."""

    purpose: Purpose
    """what the tokens of the cluster's HBase are for"""

    def open(self, sock: socket.socket, server: str, deadline: float) -> Channel:
        """Log in, and agree on the protection.

        Raises LoginRefusedError if the server does not accept the ticket, WorkerLoginError if it no longer accepts the
        token, the errors of `Handed.token`.
        """
        mine = handed.mine()
        attempt = self._by_ticket(server) if mine is None else self._by_token(server, mine)
        exchange = attempt.exchange
        send_all(sock, PREAMBLE + bytes([attempt.method]) + _counted(exchange.step(None) or b""), deadline)
        for _ in range(_MOST_TOKENS):
            answer = self._answer(sock, server, deadline, attempt.refused)
            token = exchange.step(answer)
            if token is not None:
                send_all(sock, _counted(token), deadline)
            if exchange.complete:
                return SaslChannel(sock, exchange) if exchange.wraps else PlainChannel(sock, None, exchange.qop)
        raise attempt.refused(f"its login has no end after {_MOST_TOKENS} tokens")

    def _by_ticket(self, server: str) -> _Attempt:
        kerberos = self.purpose.kerberos
        assert kerberos.service is not None  # `purpose_of`
        exchange = GssapiExchange(kerberos, kerberos.service, server.rpartition(":")[0], server)
        advice = "its log says why (often its clock differs by minutes, or its keytab has an old key)"
        return _Attempt(KERBEROS, exchange, partial(self._refused, server, "", advice))

    def _by_token(self, server: str, mine: Handed) -> _Attempt:
        token = mine.token(self.purpose)
        exchange = DigestExchange(self.purpose.kerberos, token, server)
        return _Attempt(DIGEST, exchange, partial(self._token_refused, server, token))

    def _answer(
        self, sock: socket.socket, server: str, deadline: float, refused: Callable[[str], WalferryError]
    ) -> bytes:
        receive = partial(receive_into, sock)
        status = _int(receive, deadline)
        if status == LOGIN_ERROR:
            raise refused(login_error(receive, deadline))
        length = _int(receive, deadline) if status == _SUCCESS else -1
        if length == _GO_ON_SIMPLE:
            raise AuthenticationError(
                f"{server} wants no Kerberos (hbase.security.authentication=simple); if that is right, leave "
                "`security` out of the cluster's connection, or, where HDFS is secured, set its `service` to none",
                server=server,
                principal=self.purpose.kerberos.principal,
                sent=False,
            )
        if not 0 <= length <= _LONGEST_TOKEN:
            raise refused(f"it answers {status}, {length}; is that the RPC port of an HBase server?")
        return bytes(receive_all(receive, length, deadline))

    def _token_refused(self, server: str, token: Token, reason: str) -> WalferryError:
        if reason.startswith(_INVALID_TOKEN) or _WRONG_PASSWORD in reason:
            return handed.refused(self.purpose, token, reason)
        return self._refused(server, " by the token that its driver handed over", "its log says why", reason)

    def _refused(self, server: str, how: str, advice: str, reason: str) -> LoginRefusedError:
        return LoginRefusedError(
            f"{server} does not let {identity(self.purpose.kerberos)} log in{how}: {reason}; {advice}",
            server=server,
            principal=self.purpose.kerberos.principal,
            reason=reason,
            sent=False,
        )


@dataclass(frozen=True)
class _Attempt:
    """How one connection logs in."""

    method: int
    exchange: Exchange
    refused: Callable[[str], WalferryError]
    """the error for a reason of the server"""


def purpose_of(address: ClusterAddress) -> Purpose | None:
    """What the tokens of the cluster's HBase are for; None if it is not secured."""
    if address.hbase_kerberos is None:
        return None
    return Purpose(f"HBase at {address.cluster}", address.security)


def login(address: ClusterAddress) -> Authenticate:
    """How to log in to a cluster's servers."""
    purpose = purpose_of(address)
    return Simple(address.user) if purpose is None else Sasl(purpose)


class PlainChannel:
    """The stream as it is: SIMPLE, or a login without protection of what follows."""

    def __init__(self, sock: socket.socket, user: str | None, qop: Qop | None = None) -> None:
        self.sock = sock
        self.user = user
        self.qop = qop

    @property
    def pending(self) -> bool:
        """As `Channel.pending`."""
        return holds(self.sock)

    def send(self, part: memoryview, deadline: float) -> int:
        """As `Channel.send`: what the kernel takes at once."""
        return send_some(self.sock, part, deadline)

    def receive(self, view: memoryview, deadline: float) -> int:
        """As `Channel.receive`."""
        return receive_into(self.sock, view, deadline)


class SaslChannel:
    """The stream in wrapped pieces: a piece is the whole part of one `send`, whatever the server's pieces are."""

    def __init__(self, sock: socket.socket, exchange: Exchange) -> None:
        self.sock = sock
        self.user: str | None = None
        self.qop = exchange.qop
        self._exchange = exchange
        self._arrived = memoryview(b"")
        self._accepted = False

    @property
    def pending(self) -> bool:
        """Whether part of a piece has not been received."""
        return bool(self._arrived) or holds(self.sock)

    def send(self, part: memoryview, deadline: float) -> int:
        """As `Channel.send`: all of it, as one token."""
        send_all(self.sock, _counted(self._exchange.wrap(part)), deadline)
        return len(part)

    def receive(self, view: memoryview, deadline: float) -> int:
        """As `Channel.receive`. Raises AuthenticationError for a piece that is not the server's next one."""
        if not self._arrived:
            self._arrived = memoryview(self._piece(deadline))
        count = min(len(view), len(self._arrived))
        view[:count] = self._arrived[:count]
        self._arrived = self._arrived[count:]
        return count

    def _piece(self, deadline: float) -> bytes:
        receive = partial(receive_into, self.sock)
        length = _int(receive, deadline)
        if length == LOGIN_ERROR and not self._accepted:
            return LENGTH.pack(length) + _strings(receive, deadline)
        if not 0 < length <= MAX_FRAME_BYTES:
            raise ConnectionError(f"the server sent a piece of {length} bytes")
        token = bytes(receive_all(receive, length, deadline))
        try:
            piece = self._exchange.unwrap(token)
        except AuthenticationError as error:
            if not self._accepted:
                raise UnwrappedError(token) from error
            raise
        self._accepted = True
        return piece


class UnwrappedError(Exception):
    """Instead of its first wrapped piece the server sent a plain frame, which 2.2 does to refuse a connection."""

    def __init__(self, frame: bytes) -> None:
        super().__init__()
        self.frame = frame


def login_error(receive: Receive, deadline: float) -> str:
    """The reason that follows LOGIN_ERROR."""
    return _reason(_strings(receive, deadline))


def _strings(receive: Receive, deadline: float) -> bytes:
    """The name of an exception and its message, each with its length before it."""
    both = b""
    for _ in range(2):
        length = _int(receive, deadline)
        if not 0 <= length <= _LONGEST_TOKEN:
            raise ConnectionError(f"the server sent a text of {length} bytes")
        both += LENGTH.pack(length) + receive_all(receive, length, deadline)
    return both


def _reason(strings: bytes) -> str:
    """One line of what `_strings` read: the exception's last name and its message."""
    (length,) = LENGTH.unpack_from(strings)
    name, message = strings[LENGTH.size :][:length], strings[2 * LENGTH.size + length :]
    kind = name.decode(errors="replace").rpartition(".")[2].rpartition("$")[2]
    return f"{kind}: {message.decode(errors='replace').partition(chr(10))[0]}"


def _int(receive: Receive, deadline: float) -> int:
    number: int = LENGTH.unpack(receive_all(receive, LENGTH.size, deadline))[0]
    return number


def _counted(token: bytes) -> bytes:
    return LENGTH.pack(len(token)) + token
