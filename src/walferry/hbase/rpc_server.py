"""The server's side of HBase's RPC: takes calls from real clients and answers them (rpc.py has the frames).

A connection is read as long as there is room for what it sends: the frames that are read and the calls that are handled
have at most `memory_bytes` together, and what does not fit waits in the kernel, which slows the sender down. Nothing is
received into a buffer but the frame itself.

A connection that owes the rest of a frame, or of its greeting, and sends nothing for `read_seconds` is closed. That
time is counted in looks at the connection, not by a clock: after a process was suspended, it first reads what has
arrived meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import DecodeError

from walferry.clock import steady_s
from walferry.errors import TransientError, UsageError, WalferryError
from walferry.formats.proto import hbase_pb2 as pb
from walferry.hbase.authentication import DIGEST, KERBEROS, LOGIN_ERROR, PREAMBLE, SIMPLE
from walferry.hbase.rpc import CODEC_WITH_TAGS, CONNECTION_CALL_ID, decode_delimited, delimited, encode_frame
from walferry.hbase.sockets import LENGTH

log = logging.getLogger(__name__)

MOST_FRAME_BYTES = (256 << 20) + (1 << 20)
"""HBase's hbase.ipc.max.request.size, which bounds the message and its cells, and some more for the header"""
MOST_CALLS = 1000
"""of a connection at the same time; it is not read further until one of them is answered"""
PIECE_BYTES = 64 << 10
"""of a frame that is thrown away, and the most that its header may have"""
_READ_BYTES = 1 << 20  # of a frame at once; then other connections have their turn
_GREETING_BYTES = 1 << 20
_LOOKS = 4  # at each connection in `read_seconds`
_LAST_BYTES = 1 << 20  # read after a refusal: a close with unread bytes would take the refusal from the client
_ACCEPT_PAUSE_S = 0.5
_IO_EXCEPTION = "java.io.IOException"
_FATAL = "org.apache.hadoop.hbase.ipc.FatalConnectionException"
_DENIED = "org.apache.hadoop.hbase.security.AccessDeniedException"
_TOO_BUSY = "org.apache.hadoop.hbase.CallQueueTooBigException"
_WRONG_CODEC = "org.apache.hadoop.hbase.ipc.UnsupportedCellCodecException"
_WRONG_COMPRESSION = "org.apache.hadoop.hbase.ipc.UnsupportedCompressionCodecException"


@dataclass(frozen=True)
class ReceivedCall:
    """One call of a client. The views are of its frame, which counts as held until the call is answered."""

    service: str
    """as the ConnectionHeader names it: "AdminService" """
    method: str
    parameter: memoryview
    """the encoded request message"""
    cells: memoryview
    """the cell block; empty if there is none"""
    sender: str
    """ "host:port" of the other end"""
    received_s: float
    """`clock.steady_s` when the first bytes of the frame were read"""
    timeout_s: float | None
    """how long the client waits for the answer, from when it began to send; None: it does not say"""


class CallRefusedError(WalferryError):
    """The call is answered with a Java exception; facts `java_class` (default java.io.IOException), `do_not_retry`
    (default False), and `until`: a future of work that goes on with the frame, which counts as held until then. HBase's
    replication repeats the call whatever `do_not_retry` says."""


Handler = Callable[[ReceivedCall], Awaitable[bytes]]
"""The answer to a call: the encoded response message, b"" for an empty one.

A CallRefusedError is answered as the exception that it names, a TransientError as an IOException. Any other error is
logged, and answered as an IOException that says nothing of it. `RpcServer.close` cancels handlers.
"""


class RpcServer:
    """Serves one port; the calls of a connection are handled at the same time, and answered in any order."""

    def __init__(
        self, handle: Handler, *, host: str, port: int, memory_bytes: int, read_seconds: float,
        apart: Mapping[str, int] | None = None,
    ) -> None:  # fmt: skip
        """`memory_bytes`: see the module; one larger frame may pass alone. `apart`: services with memory of their own.
        `read_seconds`: a frame for which there is no room for so long is thrown away, and its call refused with
        CallQueueTooBigException."""
        self.handle = handle
        self._room = _Room(memory_bytes)
        self._apart = {service: _Room(size) for service, size in (apart or {}).items()}
        self.read_seconds = read_seconds
        self._host = host
        self._port = port
        self._listening: socket.socket | None = None
        self._own: list[asyncio.Task[None]] = []
        self._connections: dict[_Connection, asyncio.Task[None]] = {}
        self.calls: set[asyncio.Task[None]] = set()

    @property
    def held_bytes(self) -> int:
        """The bytes of the frames that are read or handled now."""
        return self._room.held + sum(room.held for room in self._apart.values())

    def room_of(self, service: str) -> _Room:
        """The memory that the calls of a service take."""
        return self._apart.get(service, self._room)

    async def start(self) -> int:
        """Listen, and return the port. Raises UsageError if that is not possible."""
        try:
            family, _, _, _, address = socket.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)[0]
            listening = socket.create_server(address[:2], family=family, backlog=512)
        except OSError as error:
            raise UsageError(
                f"cannot listen on {self._host}:{self._port}: {error.strerror}; name an address of this machine and a "
                "port that is free",
                host=self._host,
                port=self._port,
            ) from error
        listening.setblocking(False)
        self._listening = listening
        self._own = [asyncio.create_task(self._accept(listening)), asyncio.create_task(self._look_after())]
        port: int = listening.getsockname()[1]
        return port

    async def close(self) -> None:
        """Accept nothing more, cancel the calls that are handled, and close the connections."""
        ended = [*self._own, *self._connections.values(), *self.calls]
        for task in ended:
            task.cancel()
        await asyncio.gather(*ended, return_exceptions=True)
        if self._listening is not None:
            self._listening.close()

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                sock, address = await loop.sock_accept(listening)
            except OSError as error:
                log.warning("cannot accept connections: %s", error)
                await asyncio.sleep(_ACCEPT_PAUSE_S)
                continue
            connection = _Connection(self, sock, f"{address[0]}:{address[1]}")
            task = asyncio.create_task(connection.serve())
            self._connections[connection] = task
            task.add_done_callback(lambda _, ended=connection: self._connections.pop(ended))  # type: ignore[misc]

    async def _look_after(self) -> None:
        """Close connections that owe bytes and send none."""
        while True:
            await asyncio.sleep(self.read_seconds / _LOOKS)
            for connection, task in list(self._connections.items()):
                if connection.stands_still():
                    log.warning("%s closed: it sent nothing for %g s where more was due",
                                connection.sender, self.read_seconds)  # fmt: skip
                    task.cancel()


class _Room:
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


class _EndedError(Exception):
    """The client has closed the connection; `within`: where more was due."""

    def __init__(self, within: bool) -> None:
        super().__init__()
        self.within = within


class _UnusableError(Exception):
    """What the client sent cannot be read, or is not accepted; `answer` is what it gets before the close."""

    def __init__(self, reason: str, answer: bytes | None = None) -> None:
        super().__init__(reason)
        self.answer = _exception(CONNECTION_CALL_ID, _FATAL, reason, True) if answer is None else answer


class _Connection:
    """One connection of a client."""

    def __init__(self, server: RpcServer, sock: socket.socket, sender: str) -> None:
        self.sender = sender
        self._server = server
        self._sock = sock
        self._loop = asyncio.get_running_loop()
        self._header = pb.ConnectionHeader()
        self._calls: set[asyncio.Task[None]] = set()
        self._sending = asyncio.Lock()
        self._closed = False
        self._due = False
        """more bytes must come: the rest of a frame or of the greeting"""
        self._still = 0
        """how many times in a row `stands_still` saw nothing arrive"""

    def stands_still(self) -> bool:
        """Whether bytes are due and none came between the last looks."""
        self._still = self._still + 1 if self._due else 0
        return self._still > _LOOKS

    async def serve(self) -> None:
        """Read the connection to its end."""
        try:
            _keep_alive(self._sock)
            await self._greet()
            while True:
                await self._next_call()
        except _EndedError as ended:
            if ended.within:
                log.info("%s closed the connection where more was due", self.sender)
        except _UnusableError as unusable:
            log.warning("%s refused: %s", self.sender, unusable)
            await self._part(unusable.answer)
        except OSError as error:
            log.info("the connection of %s broke: %s", self.sender, error)
        finally:
            self._closed = True
            with suppress(OSError):
                self._sock.shutdown(socket.SHUT_RDWR)  # wakes up who sends
            async with self._sending:
                self._sock.close()

    async def _greet(self) -> None:
        """Read what a connection begins with."""
        preamble = await self._read(len(PREAMBLE) + 1, begun=False)
        if not preamble.startswith(PREAMBLE):
            raise _UnusableError(f"it begins with {bytes(preamble)!r}, so it is no client of HBase's RPC")
        method = preamble[-1]
        if method in (KERBEROS, DIGEST):
            reason = (
                "this receiver takes connections without a login only (hbase.security.authentication=simple), "
                "and the client wants to log in"
            )
            raise _UnusableError(reason, LENGTH.pack(LOGIN_ERROR) + _text(_DENIED) + _text(reason))
        if method != SIMPLE:
            raise _UnusableError(f"it asks for the authentication {method}, which HBase does not have")
        (length,) = LENGTH.unpack(await self._read(LENGTH.size))
        if not 0 <= length <= _GREETING_BYTES:
            raise _UnusableError(f"its ConnectionHeader has {length} bytes")
        try:
            self._header = pb.ConnectionHeader.FromString(memoryview(await self._read(length)))
        except DecodeError as error:
            raise _UnusableError(f"its ConnectionHeader cannot be read: {error}") from error

    async def _next_call(self) -> None:
        """Read one call, and begin to handle it."""
        while len(self._calls) >= MOST_CALLS:
            await asyncio.wait(self._calls, return_when=asyncio.FIRST_COMPLETED)
        lead = bytearray(LENGTH.size)
        first = await self._receive(memoryview(lead), due=False)
        received_s = steady_s()
        await self._fill(memoryview(lead)[first:])
        (length,) = LENGTH.unpack(lead)
        if not 0 < length <= MOST_FRAME_BYTES:
            raise _UnusableError(f"it announces a request of {length} bytes; {MOST_FRAME_BYTES} are the most")
        room = self._server.room_of(self._header.service_name)
        if not await room.take(length, received_s + self._server.read_seconds):
            await self._throw_away(length)
            return
        try:
            frame = memoryview(await self._read(length))
            call_id, call = self._call(frame, received_s)
            self._begin(self._handle(call_id, call, room, length))
        except BaseException:
            room.give(length)
            raise

    def _call(self, frame: memoryview, received_s: float) -> tuple[int, ReceivedCall]:
        try:
            header, position = decode_delimited(frame, 0, pb.RequestHeader)
            parameter, position = delimited(frame, position) if header.request_param else (frame[:0], position)
        except DecodeError as error:
            raise _UnusableError(f"a request cannot be read: {error}") from error
        cells = frame[position:]
        if len(cells) != header.cell_block_meta.length:
            raise _UnusableError(
                f"a request announces {header.cell_block_meta.length} bytes of cells and has {len(cells)}"
            )
        service = self._header.service_name
        timeout_s = header.timeout / 1000 if header.timeout else None
        return header.call_id, ReceivedCall(
            service, header.method_name, parameter, cells, self.sender, received_s, timeout_s
        )

    async def _throw_away(self, length: int) -> None:
        """Read a frame for which there is no room, and refuse its call."""
        log.warning("no room within %g s for a request of %d bytes by %s: it is refused",
                    self._server.read_seconds, length, self.sender)  # fmt: skip
        piece = memoryview(await self._read(min(length, PIECE_BYTES)))
        try:
            header, _ = decode_delimited(piece, 0, pb.RequestHeader)
        except DecodeError as error:
            raise _UnusableError(f"a request cannot be read: {error}") from error
        rest = length - len(piece)
        while rest:
            rest -= await self._receive(piece[:rest])
        message = f"the receiver has had no room for these {length} bytes for {self._server.read_seconds:g} s"
        self._begin(self._send(_exception(header.call_id, _TOO_BUSY, message, False)))

    def _begin(self, work: Awaitable[None]) -> None:
        task: asyncio.Task[None] = asyncio.ensure_future(work)
        for calls in (self._calls, self._server.calls):
            calls.add(task)
            task.add_done_callback(calls.discard)

    async def _handle(self, call_id: int, call: ReceivedCall, room: _Room, length: int) -> None:
        until: asyncio.Future[Any] | None = None
        try:
            if len(call.cells):
                _check_readable(self._header)
            answer = encode_frame(pb.ResponseHeader(call_id=call_id), await self._server.handle(call))
        except Exception as error:
            until = error.facts.get("until") if isinstance(error, CallRefusedError) else None
            answer = _refusal(call_id, error, call)
        finally:
            del call
            if until is None:
                room.give(length)
            else:
                until.add_done_callback(lambda _: room.give(length))
        await self._send(answer)

    async def _send(self, answer: bytes) -> None:
        """Send an answer, if the client is still there."""
        async with self._sending:
            if not self._closed:
                with suppress(OSError):  # the reader notices, too
                    await self._loop.sock_sendall(self._sock, answer)

    async def _part(self, answer: bytes) -> None:
        """Send the last answer, and let the client receive it."""
        await self._send(answer)
        piece = memoryview(bytearray(PIECE_BYTES))
        with suppress(OSError, _EndedError):
            self._sock.shutdown(socket.SHUT_WR)
            for _ in range(_LAST_BYTES // PIECE_BYTES):
                await self._receive(piece)

    async def _read(self, length: int, begun: bool = True) -> bytearray:
        """Exactly so many bytes; `begun`: the client may not close before the first."""
        content = bytearray(length)
        await self._fill(memoryview(content), begun)
        return content

    async def _fill(self, view: memoryview, begun: bool = True) -> None:
        while view:
            count = await self._receive(view[:_READ_BYTES], begun=begun)
            view, begun = view[count:], True
            if view:
                await asyncio.sleep(0)  # bytes that are there already are received without any wait

    async def _receive(self, view: memoryview, due: bool = True, begun: bool | None = None) -> int:
        """At least one byte. `due`: the client owes it; `begun`: and has sent some of it, by default if it is due."""
        self._due = due
        try:
            count = await self._loop.sock_recv_into(self._sock, view)
        finally:
            self._due, self._still = False, 0
        if not count:
            raise _EndedError(due if begun is None else begun)
        return count


def _keep_alive(sock: socket.socket) -> None:
    """Have the kernel notice within some minutes that the machine at the other end is gone."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_KEEPIDLE"):  # Linux
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 60)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 20)


def _check_readable(header: pb.ConnectionHeader) -> None:
    """Raise CallRefusedError unless cells of the connection come with their tags and without compression."""
    codec, compressor = header.cell_block_codec_class, header.cell_block_compressor_class
    if codec != CODEC_WITH_TAGS:
        raise CallRefusedError(
            f"the cells are sent by {codec or 'no codec'}, so their tags would be lost: set "
            f"hbase.replication.rpc.codec to {CODEC_WITH_TAGS} at the source",
            java_class=_WRONG_CODEC,
            do_not_retry=True,
        )
    if compressor:
        raise CallRefusedError(
            f"the cells are compressed by {compressor}, which the receiver does not read: remove "
            "hbase.client.rpc.compressor from the settings of the source's region servers",
            java_class=_WRONG_COMPRESSION,
            do_not_retry=True,
        )


def _refusal(call_id: int, error: Exception, call: ReceivedCall) -> bytes:
    """The answer to a call whose handler has failed."""
    match error:
        case CallRefusedError(facts=facts):
            java_class, final = facts.get("java_class", _IO_EXCEPTION), facts.get("do_not_retry", False)
            return _exception(call_id, java_class, error.message, final)
        case TransientError():
            return _exception(call_id, _IO_EXCEPTION, error.message, False)
    log.error("%s.%s by %s failed", call.service, call.method, call.sender, exc_info=error)
    return _exception(call_id, _IO_EXCEPTION, "internal error of the receiver", False)


def _exception(call_id: int, java_class: str, message: str, do_not_retry: bool) -> bytes:
    failure = pb.ExceptionResponse(exception_class_name=java_class, stack_trace=message, do_not_retry=do_not_retry)
    return encode_frame(pb.ResponseHeader(call_id=call_id, exception=failure), None)


def _text(text: str) -> bytes:
    """A string as Hadoop writes it."""
    encoded = text.encode()
    return LENGTH.pack(len(encoded)) + encoded
