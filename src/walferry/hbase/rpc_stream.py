"""The bytes of one connection that a server has accepted, and the refusals that it can end with.

After a login that has agreed on integrity or privacy, both sides send pieces: int32 length and wrapped token. A frame
may be in several pieces, and a piece may have several frames. With TLS all of it is inside.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections import deque
from contextlib import suppress

from walferry.clock import steady_s
from walferry.errors import WalferryError
from walferry.formats.proto import hbase_pb2 as pb
from walferry.hbase.authentication import LOGIN_ERROR
from walferry.hbase.rpc import CONNECTION_CALL_ID, encode_frame
from walferry.hbase.rpc_tls import TlsBytes
from walferry.hbase.sockets import LENGTH
from walferry.security.accepting import MOST_REASON, ServerLogin, Service
from walferry.security.accepting_tls import ServerTls
from walferry.security.kerberos import AuthenticationError

log = logging.getLogger(__name__)

MOST_FRAME_BYTES = (256 << 20) + (1 << 20)
"""HBase's hbase.ipc.max.request.size, which bounds the message and its cells, and some more for the header"""
PIECE_BYTES = 64 << 10
"""of a frame that is thrown away, and the most that its header may have"""
LOOKS = 4
"""at each connection in the time after which one that owes bytes is closed"""
_READ_BYTES = 1 << 20  # of a frame at once; then other connections have their turn
_TLS_BYTES = 64 << 10
"""decrypted or encrypted at once; a connection holds as much of what has come, and no more"""
_LAST_BYTES = 1 << 20  # read after a refusal: a close with unread bytes would take the refusal from the client
_MOST_TOKENS = 10
_LONGEST_TOKEN = 64 << 10
_IN_THREAD_BYTES = 64 << 10
"""a larger piece is unwrapped beside the event loop"""
_FATAL = "org.apache.hadoop.hbase.ipc.FatalConnectionException"
_SASL = "javax.security.sasl.SaslException"
_DENIED = "org.apache.hadoop.hbase.security.AccessDeniedException"


class Room:
    """Memory that frames share; who waits longest gets it first."""

    def __init__(self, size: int) -> None:
        self.held = 0
        self._size = size
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    async def take(self, size: int, deadline: float) -> bool:
        """Wait for room until the deadline, of `clock.steady_s`; whether there was any."""
        place = (size, asyncio.get_running_loop().create_future())
        self._waiting.append(place)
        self._let_in()
        granted = place[1]
        try:
            while not granted.done() and (rest := deadline - steady_s()) > 0:
                await asyncio.wait({granted}, timeout=rest)
        except BaseException:
            self._leave(place)
            raise
        if granted.done():
            return True
        self._leave(place)
        return False

    def give(self, size: int) -> None:
        """Give room back."""
        self.held -= size
        self._let_in()

    def _leave(self, place: tuple[int, asyncio.Future[None]]) -> None:
        if place[1].done():
            self.give(place[0])
        else:
            self._waiting.remove(place)
            self._let_in()

    def _let_in(self) -> None:
        while self._waiting and (not self.held or self.held + self._waiting[0][0] <= self._size):
            size, granted = self._waiting.popleft()
            self.held += size
            granted.set_result(None)


class EndedError(Exception):
    """The client has closed the connection; `within`: where more was due."""

    def __init__(self, within: bool) -> None:
        super().__init__()
        self.within = within


class UnusableError(Exception):
    """What the client sent cannot be read, or is not accepted; `answer` is what it gets before the close. `login`: it
    is a client of HBase's RPC that may not come in."""

    def __init__(self, reason: str, answer: bytes | None = None, login: bool = False) -> None:
        super().__init__(reason)
        self.login = login
        self.answer = exception_frame(CONNECTION_CALL_ID, _FATAL, reason, True) if answer is None else answer


def login_refused(reason: str, java_class: str = _DENIED, told: str | None = None) -> UnusableError:
    """A login that fails; the client is told the reason, or another text."""
    return UnusableError(reason, LENGTH.pack(LOGIN_ERROR) + _text(java_class) + _text(told or reason), login=True)


def not_let_in(reason: str) -> UnusableError:
    """A client that is not let in, as it is told outside of a login."""
    return UnusableError(reason, exception_frame(CONNECTION_CALL_ID, _DENIED, reason, True), login=True)


def exception_frame(call_id: int, java_class: str, message: str, do_not_retry: bool) -> bytes:
    failure = pb.ExceptionResponse(exception_class_name=java_class, stack_trace=message, do_not_retry=do_not_retry)
    return encode_frame(pb.ResponseHeader(call_id=call_id, exception=failure), None)


def _text(text: str) -> bytes:
    """A string as Hadoop writes it."""
    encoded = text.encode()
    return LENGTH.pack(len(encoded)) + encoded


class Stream:
    """The bytes of one connection, in both directions."""

    def __init__(self, sock: socket.socket, sender: str, wrapped: Room, room_s: float) -> None:
        """`sender`: the other end, "host:port"; `wrapped`: memory for pieces that are being unwrapped, and for how many
        seconds one waits for it."""
        self.sender = sender
        self.room = wrapped
        self.came_s = steady_s()
        """when the bytes that were read last began to come (`clock.steady_s`): of a piece, its first one"""
        self._sock, self._room_s = sock, room_s
        self._taken: Room | None = None
        self._loop = asyncio.get_running_loop()
        self._sending = asyncio.Lock()
        self._closed = False
        self._tls: TlsBytes | None = None
        self._login: ServerLogin | None = None
        self._arrived = memoryview(b"")
        """what was unwrapped and not read yet"""
        self._wrapped = 0
        """bytes of the piece that it was in, which are taken of `_taken`"""
        self._due = False
        """more bytes must come: the rest of a frame or of the greeting"""
        self._still = 0
        """how many times in a row `stands_still` saw nothing arrive"""
        self.fault = "it sent nothing for {:g} s where more was due"
        """of a connection that stands still, for so many seconds"""

    def stands_still(self) -> bool:
        """Whether bytes are due and none came between the last looks."""
        self._still = self._still + 1 if self._due else 0
        return self._still > LOOKS

    async def close(self) -> None:
        """Close the connection, once nobody sends any more."""
        self._closed = True
        self._give_wrapped()
        with suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)  # wakes up who sends
        async with self._sending:
            self._sock.close()

    def keep_alive(self) -> None:
        """Have the kernel notice within some minutes that the machine at the other end is gone."""
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if hasattr(socket, "TCP_KEEPIDLE"):  # Linux
            self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 60)
            self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 20)

    @property
    def client(self) -> str:
        """The principal that has logged in; "" without a login."""
        return "" if self._login is None else self._login.client

    @property
    def encrypts(self) -> bool:
        """Whether what is sent is encrypted by the login."""
        return self._login is not None and self._login.encrypts

    async def shake_hands(self, server: ServerTls, begun: bytes) -> None:
        """Have the client, which has sent `begun`, and all that follows inside TLS.

        The handshake as a whole must end within the time in which another connection must send something.
        """
        tls = TlsBytes(server.context(), begun)
        fault, self.fault = self.fault, "its TLS handshake has not ended within {:g} s"
        self._due, self._still = True, 0
        try:
            while not tls.shake_hands():
                await self._loop.sock_sendall(self._sock, tls.to_send())
                if not (content := await self._loop.sock_recv(self._sock, _TLS_BYTES)):
                    raise EndedError(within=True)
                tls.came(content)
            await self._loop.sock_sendall(self._sock, tls.to_send())
        except ssl.SSLError as error:
            with suppress(OSError):
                await self._loop.sock_sendall(self._sock, tls.to_send())  # an alert
            reason, speaks_tls = server.refusal(error)
            raise UnusableError(reason, b"", login=speaks_tls) from error
        finally:
            self._due, self._still, self.fault = False, 0, fault
        self._tls = tls

    async def log_in(self, service: Service) -> None:
        """Have the client prove who it is (HBaseSaslRpcServer)."""
        login: ServerLogin | None = None
        for _ in range(_MOST_TOKENS):
            (length,) = LENGTH.unpack(await self.read(LENGTH.size))
            if not 0 <= length <= _LONGEST_TOKEN:
                raise UnusableError(f"its login has a token of {length} bytes")
            token = bytes(await self.read(length))
            try:
                login = login or service.login()
                answer = login.step(token)
            except WalferryError as error:  # the client is not told why
                raise login_refused(error.message, _SASL, "GSS initiate failed") from error
            if answer is not None:
                await self.send(LENGTH.pack(0) + LENGTH.pack(len(answer)) + answer)
            if login.complete:
                break
        else:
            raise login_refused(f"its login has no end after {_MOST_TOKENS} tokens")
        self._login = login
        if not (service.accepts(login.client) or service.is_own(login.client)):
            raise not_let_in(
                f"{login.client[:MOST_REASON]} may not send to this receiver: `receive.login.senders` does not have it"
            )
        log.info("%s has logged in as %s", self.sender, login.client)

    async def send(self, answer: bytes) -> None:
        """Send an answer, if the client is still there; b"": only what TLS itself has to say."""
        async with self._sending:
            if not self._closed:
                if answer and self._login is not None and self._login.wraps:
                    answer = await asyncio.to_thread(self._login.wrap, answer)
                    answer = LENGTH.pack(len(answer)) + answer
                with suppress(OSError):  # the reader notices, too
                    if self._tls is None:
                        await self._loop.sock_sendall(self._sock, answer)
                    else:
                        await self._send_inside(self._tls, memoryview(answer))

    async def _send_inside(self, tls: TlsBytes, answer: memoryview) -> None:
        while answer or tls.has_to_send:
            if answer:
                tls.write(answer[:_TLS_BYTES])
                answer = answer[_TLS_BYTES:]
            await self._loop.sock_sendall(self._sock, tls.to_send())

    async def part(self, answer: bytes) -> None:
        """Send the last answer, and let the client receive it."""
        await self.send(answer)
        piece = memoryview(bytearray(PIECE_BYTES))
        with suppress(OSError, EndedError, UnusableError):
            self._sock.shutdown(socket.SHUT_WR)
            for _ in range(_LAST_BYTES // PIECE_BYTES):
                await self._receive_plain(piece, due=True, begun=True)

    async def read(self, length: int, begun: bool = True) -> bytearray:
        """Exactly so many bytes; `begun`: the client may not close before the first."""
        content = bytearray(length)
        await self.fill(memoryview(content), begun)
        return content

    async def fill(self, view: memoryview, begun: bool = True) -> None:
        while view:
            count = await self.receive(view[:_READ_BYTES], begun=begun)
            view, begun = view[count:], True
            if view:
                await asyncio.sleep(0)  # bytes that are there already are received without any wait

    async def receive(self, view: memoryview, due: bool = True, begun: bool | None = None) -> int:
        """At least one byte. `due`: the client owes it; `begun`: and has sent some of it, by default if it is due."""
        begun = due if begun is None else begun
        if self._login is None or not self._login.wraps:
            count = await self._receive_plain(view, due, begun)
            self.came_s = steady_s()
            return count
        while not self._arrived:  # a piece may be empty
            self._give_wrapped()
            self._arrived = memoryview(await self._unwrapped(self._login, due, begun))
        count = min(len(view), len(self._arrived))
        view[:count], self._arrived = self._arrived[:count], self._arrived[count:]
        if not self._arrived:
            self._give_wrapped()
        return count

    async def _unwrapped(self, login: ServerLogin, due: bool, begun: bool) -> bytes:
        """The content of the next piece, which is an int32 length and a token."""
        lead = bytearray(LENGTH.size)
        view = memoryview(lead)
        view = view[await self._receive_plain(view, due, begun) :]
        self.came_s = steady_s()
        while view:
            view = view[await self._receive_plain(view, due=True, begun=True) :]
        (length,) = LENGTH.unpack(lead)
        if not 0 < length <= MOST_FRAME_BYTES:
            raise UnusableError(f"it announces a piece of {length} bytes; {MOST_FRAME_BYTES} are the most")
        if not await self.room.take(length, steady_s() + self._room_s):
            raise UnusableError(f"no room within {self._room_s:g} s for a piece of {length} bytes")
        self._taken, self._wrapped = self.room, length
        token = bytearray(length)
        view = memoryview(token)
        while view:
            view = view[await self._receive_plain(view[:_READ_BYTES], due=True, begun=True) :]
        try:
            if length < _IN_THREAD_BYTES:
                return login.unwrap(bytes(token))
            return await asyncio.to_thread(login.unwrap, bytes(token))
        except AuthenticationError as error:
            raise UnusableError(error.message) from error

    def _give_wrapped(self) -> None:
        if self._taken is not None:
            self._taken.give(self._wrapped)
            self._taken = None

    async def _receive_plain(self, view: memoryview, due: bool, begun: bool) -> int:
        self._due = due
        try:
            if self._tls is None:
                count = await self._loop.sock_recv_into(self._sock, view)
            else:
                count = await self._receive_inside(self._tls, view)
        finally:
            self._due, self._still = False, 0
        if not count:
            raise EndedError(begun)
        return count

    async def _receive_inside(self, tls: TlsBytes, view: memoryview) -> int:
        try:
            while not (count := tls.read_into(view)) and not tls.ended:
                if tls.has_to_send:  # TLS's own answer
                    await self.send(b"")
                if not (content := await self._loop.sock_recv(self._sock, _TLS_BYTES)):
                    return 0
                self._still = 0
                tls.came(content)
        except ssl.SSLError as error:
            raise UnusableError(f"what it sent is no TLS, or was changed on the way ({error.reason})", b"") from error
        return count
