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
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import DecodeError

from walferry.errors import TransientError, UsageError, WalferryError
from walferry.formats.proto import hbase_pb2 as pb
from walferry.hbase.authentication import DIGEST, KERBEROS, PREAMBLE, SIMPLE
from walferry.hbase.rpc import CODEC_WITH_TAGS, decode_delimited, delimited, encode_frame
from walferry.hbase.rpc_stream import (
    LOOKS,
    MOST_FRAME_BYTES,
    PIECE_BYTES,
    EndedError,
    Room,
    Stream,
    UnusableError,
    exception_frame,
    login_refused,
    not_let_in,
)
from walferry.hbase.rpc_tls import HANDSHAKE
from walferry.hbase.sockets import LENGTH
from walferry.security.accepting import Service
from walferry.security.accepting_tls import ServerTls

log = logging.getLogger(__name__)

MOST_CALLS = 1000
"""of a connection at the same time; it is not read further until one of them is answered"""
_GREETING_BYTES = 1 << 20
_OTHER_PREAMBLE = b"Securi"
"""of a client that asks which of several principals the server has"""
_ACCEPT_PAUSE_S = 0.5
_IO_EXCEPTION = "java.io.IOException"
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
        apart: Mapping[str, int] | None = None, login: Service | None = None, tls: ServerTls | None = None,
        shut_out: Callable[[str], object] = lambda reason: None,
    ) -> None:  # fmt: skip
        """`memory_bytes`: see the module; one larger frame may pass alone. `apart`: services with memory of their own.
        `read_seconds`: a frame for which there is no room for so long is thrown away, and its call refused with
        CallQueueTooBigException. `login`: clients must log in to this service; what they wrap has memory of its own, as
        much as the frames, and so have those of services `apart`, which processes of the login's own service may call.
        None: nobody logs in. `tls`: clients must speak TLS; None: they must not. `shut_out` is told of each client that
        is not let in, and why."""
        self.login = login
        self.tls = tls
        self.shut_out = shut_out
        self._wrapped = {service: Room(size) for service, size in ({"": memory_bytes} | dict(apart or {})).items()}
        self.handle = handle
        self._room = Room(memory_bytes)
        self._apart = {service: Room(size) for service, size in (apart or {}).items()}
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
        return sum(room.held for room in (self._room, *self._apart.values(), *self._wrapped.values()))

    def is_apart(self, service: str) -> bool:
        """Whether a service has memory of its own."""
        return service in self._apart

    def wrapped_of(self, service: str) -> Room:
        """The memory that pieces take that its clients have wrapped."""
        return self._wrapped.get(service, self._wrapped[""])

    def room_of(self, service: str) -> Room:
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
            await asyncio.sleep(self.read_seconds / LOOKS)
            for connection, task in list(self._connections.items()):
                if connection.stands_still():
                    log.warning("%s closed: %s", connection.sender, connection.fault.format(self.read_seconds))
                    task.cancel()


class _Connection:
    """One connection of a client."""

    def __init__(self, server: RpcServer, sock: socket.socket, sender: str) -> None:
        self.sender = sender
        self._server = server
        self._stream = Stream(sock, sender, server.wrapped_of(""), server.read_seconds)
        self._header = pb.ConnectionHeader()
        self._calls: set[asyncio.Task[None]] = set()

    def stands_still(self) -> bool:
        """Whether bytes are due and none came between the last looks."""
        return self._stream.stands_still()

    @property
    def fault(self) -> str:
        """Of a connection that stands still, with a place for the seconds."""
        return self._stream.fault

    async def serve(self) -> None:
        """Read the connection to its end."""
        try:
            self._stream.keep_alive()
            await self._greet()
            while True:
                await self._next_call()
        except EndedError as ended:
            if ended.within:
                log.info("%s closed the connection where more was due", self.sender)
        except UnusableError as unusable:
            log.warning("%s refused: %s", self.sender, unusable)
            if unusable.login:
                self._server.shut_out(f"{self.sender} may not call: {unusable}")
            await self._stream.part(unusable.answer)
        except OSError as error:
            log.info("the connection of %s broke: %s", self.sender, error)
        except Exception:
            log.exception("the connection of %s is closed", self.sender)
        finally:
            await self._stream.close()

    async def _greet(self) -> None:
        """Read what a connection begins with."""
        preamble = await self._preamble()
        if preamble == _OTHER_PREAMBLE:
            raise not_let_in(
                "Expected HEADER=HBas but received HEADER=Secu: the source has several principals in "
                "hbase.regionserver.kerberos.principal, and a receiver knows one only"
            )  # HBase's clients take the first words for those of a server that does not know this preamble
        if not preamble.startswith(PREAMBLE):
            raise UnusableError(f"it begins with {bytes(preamble)!r}, so it is no client of HBase's RPC")
        method = preamble[-1]
        if method not in (SIMPLE, KERBEROS, DIGEST):
            raise UnusableError(f"it asks for the authentication {method}, which HBase does not have")
        if method == KERBEROS and self._server.login is not None:
            await self._stream.log_in(self._server.login)
        elif method != SIMPLE:
            raise login_refused(
                "this receiver knows no principal (`receive.login`), and the client wants to log in"
                if self._server.login is None
                else "this receiver takes no tokens: log in by Kerberos"
            )
        elif self._server.login is not None:
            raise not_let_in(
                "this receiver takes connections with a login only (`receive.login`), and the client does not log in"
            )
        (length,) = LENGTH.unpack(await self._stream.read(LENGTH.size))
        if not 0 <= length <= _GREETING_BYTES:
            raise UnusableError(f"its ConnectionHeader has {length} bytes")
        try:
            self._header = pb.ConnectionHeader.FromString(memoryview(await self._stream.read(length)))
        except DecodeError as error:
            raise UnusableError(f"its ConnectionHeader cannot be read: {error}") from error
        service = self._header.service_name
        if self._header.rpc_crypto_cipher_transformation and self._stream.encrypts:  # which waits for an answer
            raise not_let_in(
                "it wants AES, which a receiver does not have: set hbase.rpc.crypto.encryption.aes.enabled to false at "
                "the source"
            )
        login, client = self._server.login, self._stream.client
        if login is not None and not (login.accepts(client) or self._server.is_apart(service)):
            raise not_let_in(
                f"{client} may call {service} for its own processes only: name it in `receive.login.senders`"
            )
        self._stream.room = self._server.wrapped_of(service)

    async def _preamble(self) -> bytearray:
        """The first words of HBase's RPC, inside TLS if the server speaks it."""
        begun = await self._stream.read(len(PREAMBLE) + 1, begun=False)
        tls = self._server.tls
        if begun[0] == HANDSHAKE:
            if tls is None:
                raise UnusableError(
                    "it speaks TLS, and this receiver does not: set `receive.tls`, or hbase.client.netty.tls.enabled "
                    "to false at the source",
                    login=True,
                )
            await self._stream.shake_hands(tls, bytes(begun))
            return await self._stream.read(len(PREAMBLE) + 1)
        if tls is not None and begun.startswith((PREAMBLE, _OTHER_PREAMBLE)):
            raise not_let_in(
                "this receiver speaks TLS only (`receive.tls`), and the client does not: set "
                "hbase.client.netty.tls.enabled to true at the source"
            )
        return begun

    async def _next_call(self) -> None:
        """Read one call, and begin to handle it."""
        while len(self._calls) >= MOST_CALLS:
            await asyncio.wait(self._calls, return_when=asyncio.FIRST_COMPLETED)
        lead = bytearray(LENGTH.size)
        first = await self._stream.receive(memoryview(lead), due=False)
        received_s = self._stream.came_s
        await self._stream.fill(memoryview(lead)[first:])
        (length,) = LENGTH.unpack(lead)
        if not 0 < length <= MOST_FRAME_BYTES:
            raise UnusableError(f"it announces a request of {length} bytes; {MOST_FRAME_BYTES} are the most")
        room = self._server.room_of(self._header.service_name)
        if not await room.take(length, received_s + self._server.read_seconds):
            await self._throw_away(length)
            return
        try:
            frame = memoryview(await self._stream.read(length))
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
            raise UnusableError(f"a request cannot be read: {error}") from error
        cells = frame[position:]
        if len(cells) != header.cell_block_meta.length:
            raise UnusableError(
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
        piece = memoryview(await self._stream.read(min(length, PIECE_BYTES)))
        try:
            header, _ = decode_delimited(piece, 0, pb.RequestHeader)
        except DecodeError as error:
            raise UnusableError(f"a request cannot be read: {error}") from error
        rest = length - len(piece)
        while rest:
            rest -= await self._stream.receive(piece[:rest])
        message = f"the receiver has had no room for these {length} bytes for {self._server.read_seconds:g} s"
        self._begin(self._stream.send(exception_frame(header.call_id, _TOO_BUSY, message, False)))

    def _begin(self, work: Awaitable[None]) -> None:
        task: asyncio.Task[None] = asyncio.ensure_future(work)
        for calls in (self._calls, self._server.calls):
            calls.add(task)
            task.add_done_callback(calls.discard)

    async def _handle(self, call_id: int, call: ReceivedCall, room: Room, length: int) -> None:
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
        await self._stream.send(answer)


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
            return exception_frame(call_id, java_class, error.message, final)
        case TransientError():
            return exception_frame(call_id, _IO_EXCEPTION, error.message, False)
    log.error("%s.%s by %s failed", call.service, call.method, call.sender, exc_info=error)
    return exception_frame(call_id, _IO_EXCEPTION, "internal error of the receiver", False)
