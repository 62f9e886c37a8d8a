"""HBase's RPC: frames, connections, one answer per call.

Wire format (org.apache.hadoop.hbase.ipc: RpcConnection, ServerRpcConnection, IPCUtil), lengths int32
big-endian, "delimited" = protobuf varint length + message:

    connection  "HBas" 00 auth | length ConnectionHeader
    request     length | delimited RequestHeader | delimited parameter | cell block
    response    length | delimited ResponseHeader | delimited result (unless an exception) | cell block
"""

from __future__ import annotations

import contextlib
import getpass
import select
import socket
import struct
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import TypeVar

from google.protobuf.message import DecodeError, Message

from walferry.clock import steady_s
from walferry.formats.proto import hbase_pb2 as pb
from walferry.hbase.authentication import Authenticate, Simple
from walferry.hbase.errors import ConnectionFailedError, RequestTimeoutError, RequestTooBigError, remote_error
from walferry.request_meter import Meter, Service

# Keeps tags; HBase's default KeyValueCodec drops them.
CODEC_WITH_TAGS = "org.apache.hadoop.hbase.codec.KeyValueCodecWithTags"
CONNECT_TIMEOUT_S = 10.0
# Above hbase.ipc.max.request.size and any real answer; an HTTP server's "HTTP" reads as a length of 1.2 GB.
MAX_FRAME_BYTES = 1 << 30
PART_BYTES = 512 << 10  # of a request, sent between two checks that it may still be sent
_PREAMBLE = b"HBas\x00"
_LENGTH = struct.Struct(">i")
_NO_LINGER = struct.pack("ii", 1, 0)
_CONNECTION_CALL_ID = 0xFFFFFFFF  # -1: the server refuses the connection itself

Buffer = bytes | bytearray | memoryview
M = TypeVar("M", bound=Message)


class RpcConnection:
    """One connection to one service of one server ("host:port"); one call at a time, from any thread.

    A connection that missed a deadline or broke is closed, and the next call connects again: a late answer to an
    abandoned call cannot be mistaken for another call's answer.
    """

    def __init__(
        self,
        server: str,
        service: str,
        codec: str | None = CODEC_WITH_TAGS,
        user: str | None = None,
        authenticate: Authenticate | None = None,
    ) -> None:
        self.server = server
        self.service = service
        self._codec = codec
        self._user = user or getpass.getuser()
        self._authenticate = authenticate or Simple()
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._answered = False
        self._sent = False
        self._call_id = 0

    def call(
        self,
        method: str,
        request: Message | bytes,
        response_type: type[M],
        cell_block: Buffer | Sequence[Buffer] = b"",
        *,
        timeout_s: float = 60,
        since: float | None = None,
        may_send: Callable[[], None] = lambda: None,
    ) -> tuple[M, bytes]:
        """Send one request and wait for its answer: the message and its cell block (b"" if none).

        The request is a message, or its encoded bytes.

        `timeout_s` bounds the whole call, counted from `since` (of `clock.steady_s`; default: now). After that nothing
        is sent, however long this process was suspended. The request tells the server how much of `timeout_s` is left;
        the server drops a call that waited longer in its queue. `may_send` is called right before each part of the
        request is sent. If it raises, the connection is closed without sending the rest, and the server never runs the
        call. Raises `walferry.hbase.errors`; their fact `sent` is False if the end of the request was not sent.
        """
        blocks = [cell_block] if isinstance(cell_block, (bytes, bytearray, memoryview)) else cell_block
        deadline = (steady_s() if since is None else since) + timeout_s
        with self._lock:
            self._sent = False
            try:
                sock = self._connected(deadline)
                self._call_id = (self._call_id + 1) & 0x7FFFFFFF
                frame = encode_request(self._call_id, method, request, blocks, _milliseconds(_left(deadline)))
                try:
                    self._send(sock, frame, deadline, may_send)
                except ConnectionError as broken:
                    # A server that finds a request too long answers and closes before it has read the whole request.
                    with contextlib.suppress(OSError, DecodeError):
                        self._answer(sock, method, response_type, deadline)
                    raise broken
                answer = self._answer(sock, method, response_type, deadline)
                self._answered = True
                return answer
            except TimeoutError as error:
                self._abort()
                what = (
                    f"{self.server} did not answer {self.service}.{method} within {timeout_s:g} s; "
                    "whether it carried out the call is unknown; restart the server if it hangs"
                    if self._sent
                    else f"{self.service}.{method} could not be sent to {self.server} within {timeout_s:g} s: "
                    "this process was suspended or too busy"
                )
                raise RequestTimeoutError(what, **self._facts(method, self._sent)) from error
            except (OSError, DecodeError) as error:
                self.close()
                never = "" if self._answered else "; is that the RPC port of an HBase server?"
                raise ConnectionFailedError(
                    f"the connection to {self.server} failed at {self.service}.{method}: {error}{never}",
                    **self._facts(method, self._sent),
                ) from error
            except (ConnectionFailedError, RequestTooBigError):
                self.close()  # after RequestTooBigError the server closes its side too
                raise

    def close(self) -> None:
        """Close the socket; the next call connects again."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _abort(self) -> None:
        """Close the socket and make the kernel drop the bytes that it has not delivered."""
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
        self.close()

    def usable(self) -> bool:
        """False if the server has closed the idle connection, or sent something unrequested."""
        if self._socket is None:
            return True
        poll = select.poll()  # select() cannot handle descriptors above 1023
        poll.register(self._socket, select.POLLIN)
        return not poll.poll(0)

    def _connected(self, deadline: float) -> socket.socket:
        if self._socket is not None and not self.usable():
            self.close()
        if self._socket is None:
            self._socket = self._connect(deadline)
        return self._socket

    def _connect(self, deadline: float) -> socket.socket:
        host, _, port = self.server.rpartition(":")
        timeout = min(CONNECT_TIMEOUT_S, _left(deadline))
        try:
            sock = socket.create_connection((host, int(port)), timeout=timeout)
        except TimeoutError as error:
            # Unlike a call's time-out, this one proves that the server did nothing.
            raise OSError(f"no connection within {timeout:.0f} s") from error
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            sock.sendall(_PREAMBLE + bytes([self._authenticate.auth_byte]))
            self._authenticate.handshake(sock)
            header = pb.ConnectionHeader(
                user_info=pb.UserInformation(effective_user=self._user),
                service_name=self.service,
                cell_block_codec_class=self._codec,
            ).SerializeToString()
            sock.sendall(_LENGTH.pack(len(header)) + header)
        except BaseException:
            sock.close()
            raise
        return sock

    def _send(self, sock: socket.socket, frame: bytes, deadline: float, may_send: Callable[[], None]) -> None:
        """Send a frame in parts, each checked right before it is sent, so that no part is sent late after a pause."""
        rest = memoryview(frame)
        while rest:
            _await_writable(sock, deadline)
            try:
                may_send()
            except BaseException:
                self._abort()
                raise
            _limit(sock, deadline)
            _drop_unsent_after(sock, deadline)
            self._sent = len(rest) <= PART_BYTES
            rest = rest[sock.send(rest[:PART_BYTES]) :]

    def _answer(self, sock: socket.socket, method: str, response_type: type[M], deadline: float) -> tuple[M, bytes]:
        (length,) = _LENGTH.unpack(_receive(sock, _LENGTH.size, deadline))
        if not 0 < length <= MAX_FRAME_BYTES:
            raise ConnectionFailedError(
                f"{self.server} answered {self.service}.{method} with a frame of {length} bytes; "
                "is that the RPC port of an HBase server?",
                **self._facts(method, True),
            )
        frame = memoryview(_receive(sock, length, deadline))
        header, position = decode_delimited(frame, 0, pb.ResponseHeader)
        if header.call_id not in (self._call_id, _CONNECTION_CALL_ID):
            raise ConnectionFailedError(
                f"{self.server} answered call {header.call_id} instead of call {self._call_id}",
                **self._facts(method, True),
            )
        if header.HasField("exception"):
            failure = header.exception
            if header.call_id == _CONNECTION_CALL_ID:
                self.close()
            raise remote_error(
                failure.exception_class_name,
                failure.stack_trace,
                server=self.server,
                method=f"{self.service}.{method}",
                do_not_retry=failure.do_not_retry,
            )
        response, position = decode_delimited(frame, position, response_type)
        block = bytes(frame[position : position + header.cell_block_meta.length])
        return response, block

    def _facts(self, method: str, sent: bool) -> dict[str, object]:
        return {"server": self.server, "method": f"{self.service}.{method}", "sent": sent}


class ConnectionPool:
    """Connections of one user to many servers; no two calls share a connection at the same time."""

    def __init__(self, user: str, authenticate: Authenticate | None = None, meter: Meter | None = None) -> None:
        self._user = user
        self._authenticate = authenticate
        self._meter = meter
        self._lock = threading.Lock()
        self._idle: defaultdict[tuple[str, str, str | None], list[RpcConnection]] = defaultdict(list)

    def call(
        self,
        server: str,
        service: str,
        method: str,
        request: Message | bytes,
        response_type: type[M],
        cell_block: Buffer | Sequence[Buffer] = b"",
        *,
        codec: str | None = None,
        timeout_s: float = 60,
        since: float | None = None,
        may_send: Callable[[], None] = lambda: None,
    ) -> tuple[M, bytes]:
        """`RpcConnection.call` on an idle or a new connection. Without a `codec` there are no cell blocks."""
        key = (server, service, codec)
        if self._meter is not None:
            self._meter.request(Service.REGION_SERVERS)
        with self._lock:
            idle = self._idle[key]
            connection = idle.pop() if idle else RpcConnection(*key, self._user, self._authenticate)
        try:
            return connection.call(
                method, request, response_type, cell_block, timeout_s=timeout_s, since=since, may_send=may_send
            )
        finally:
            with self._lock:
                self._idle[key].append(connection)

    def close(self) -> None:
        """Close the idle connections."""
        with self._lock:
            for connections in self._idle.values():
                for connection in connections:
                    connection.close()
            self._idle.clear()


def encode_request(
    call_id: int, method: str, request: Message | bytes, cell_block: Sequence[Buffer], timeout_ms: int
) -> bytes:
    """One request frame."""
    header = pb.RequestHeader(call_id=call_id, method_name=method, request_param=True, timeout=timeout_ms)
    if block_bytes := sum(len(buffer) for buffer in cell_block):
        header.cell_block_meta.length = block_bytes
    head = header.SerializeToString()
    body = request if isinstance(request, bytes) else request.SerializeToString()
    parts = [_varint(len(head)), head, _varint(len(body)), body, *cell_block]
    return b"".join([_LENGTH.pack(sum(len(part) for part in parts)), *parts])


def encode_field(number: int, content: bytes) -> bytes:
    """Encode a protobuf field that holds bytes or a message."""
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def decode_delimited(frame: memoryview, position: int, message_type: type[M]) -> tuple[M, int]:
    """The message at `position` after its varint length, and the position after it.

    Raises protobuf's DecodeError if the frame ends before the message does.
    """
    length = shift = 0
    while True:
        if position >= len(frame) or shift > 28:
            raise DecodeError("the frame ends inside a length")
        byte = frame[position]
        position += 1
        length |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
    if length > len(frame) - position:
        raise DecodeError(f"the frame has a message of {length} bytes where {len(frame) - position} remain")
    return message_type.FromString(frame[position : position + length]), position + length


def _receive(sock: socket.socket, length: int, deadline: float) -> bytearray:
    """Receive exactly `length` bytes. Raises TimeoutError at the deadline, ConnectionError if the server closes."""
    buffer = bytearray(length)
    view = memoryview(buffer)
    while view:
        _limit(sock, deadline)
        received = sock.recv_into(view)
        if not received:
            raise ConnectionError("the server closed the connection")
        view = view[received:]
    return buffer


def _await_writable(sock: socket.socket, deadline: float) -> None:
    """Wait until the kernel accepts more bytes, so that sending right after a check does not block."""
    poll = select.poll()
    poll.register(sock, select.POLLOUT)
    if not poll.poll(_milliseconds(_left(deadline))):
        raise TimeoutError


def _limit(sock: socket.socket, deadline: float) -> None:
    sock.settimeout(_left(deadline))


def _drop_unsent_after(sock: socket.socket, deadline: float) -> None:
    """Make the kernel drop unacknowledged bytes at the deadline, even after this process has ended.

    By default the kernel keeps sending for minutes, so that a request may arrive after its caller gave up.
    """
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _milliseconds(_left(deadline)))


def _left(deadline: float) -> float:
    """Seconds until the deadline. Raises TimeoutError after it."""
    left = deadline - steady_s()
    if left <= 0:
        raise TimeoutError
    return left


def _milliseconds(seconds: float) -> int:
    """At least 1: to a server, 0 means no time-out."""
    return max(1, int(seconds * 1000))
