"""HBase's RPC: frames, connections, one answer per call.

Wire format (org.apache.hadoop.hbase.ipc: RpcConnection, ServerRpcConnection, IPCUtil), lengths int32
big-endian, "delimited" = protobuf varint length + message:

    connection  a login (authentication.py) | length ConnectionHeader; with TLS, all of it inside
    request     length | delimited RequestHeader | delimited parameter | cell block
    response    length | delimited ResponseHeader | delimited result (unless an exception) | cell block
"""

from __future__ import annotations

import contextlib
import getpass
import random
import socket
import ssl
import struct
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import TypeVar

from google.protobuf.message import DecodeError, Message

from walferry.clock import steady_s
from walferry.errors import WalferryError
from walferry.formats.proto import hbase_pb2 as pb
from walferry.hbase.authentication import (
    LOGIN_ERROR,
    MAX_FRAME_BYTES,
    PREAMBLE,
    Authenticate,
    Channel,
    Simple,
    UnwrappedError,
    login_error,
)
from walferry.hbase.errors import (
    ConnectionFailedError,
    LoginRefusedError,
    RequestTimeoutError,
    RequestTooBigError,
    remote_error,
)
from walferry.hbase.sockets import (
    LENGTH,
    await_writable,
    drop_unsent_after,
    last_word,
    left,
    milliseconds,
    quiet,
    receive_all,
)
from walferry.request_meter import Meter, Service
from walferry.security.kerberos import AuthenticationError, KerberosUnavailableError, Qop
from walferry.security.tls import PROBES_SECONDS, Tls, TlsError, encrypted, refusal, wants_tls

# Keeps tags; HBase's default KeyValueCodec drops them.
CODEC_WITH_TAGS = "org.apache.hadoop.hbase.codec.KeyValueCodecWithTags"
CONNECT_TIMEOUT_S = 10.0
LOGIN_ATTEMPTS = 3
PART_BYTES = 512 << 10  # of a request, sent between two checks that it may still be sent
_NO_LINGER = struct.pack("ii", 1, 0)
CONNECTION_CALL_ID = 0xFFFFFFFF  # -1: the server refuses the connection itself
_LOGIN_REQUIRED = "Authentication is required"

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
        authenticate: Authenticate | None = None,
        tls: Tls | None = None,
    ) -> None:
        """With `tls`, nothing is sent before a handshake in which the server has proved who it is."""
        self.server = server
        self.service = service
        self._codec = codec
        self._authenticate = authenticate or Simple(getpass.getuser())
        self._tls = tls
        self._lock = threading.Lock()
        self._channel: Channel | None = None
        self._answered = False
        self._fresh = True
        """nothing has been answered since the connection was opened"""
        self._encrypted = False
        """the TLS handshake of the connection is over"""
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
                channel = self._connected(deadline)
                self._call_id = (self._call_id + 1) & 0x7FFFFFFF
                frame = encode_request(self._call_id, method, request, blocks, milliseconds(left(deadline)))
                try:
                    self._send(channel, frame, deadline, may_send)
                except (ConnectionError, ssl.SSLError) as broken:
                    # A server that finds a request too long answers and closes before it has read the whole request.
                    # One that wants a client certificate says so with TLS.
                    with contextlib.suppress(ConnectionError, TimeoutError, DecodeError):
                        self._answer(channel, method, response_type, deadline)
                    raise broken
                answer = self._answer(channel, method, response_type, deadline)
                self._answered = True
                return answer
            except TimeoutError as error:
                self._abort()
                raise RequestTimeoutError(self._late(method, timeout_s), **self._facts(method, self._sent)) from error
            except (OSError, DecodeError) as error:
                self.close()
                raise self._broken(error, method, deadline) from error
            except KerberosUnavailableError as error:
                raise ConnectionFailedError(error.message, **self._facts(method, False)) from error
            except AuthenticationError as error:
                self.close()
                error.facts["sent"] = self._sent  # false at the login, not at an answer that is not protected
                raise
            except (ConnectionFailedError, RequestTooBigError):
                self.close()  # after RequestTooBigError the server closes its side too
                raise

    def close(self) -> None:
        """Close the socket; the next call connects again."""
        if self._channel is not None:
            self._channel.sock.close()
            self._channel = None

    def _abort(self) -> None:
        """Close the socket and make the kernel drop the bytes that it has not delivered."""
        if self._channel is not None:
            with contextlib.suppress(OSError):
                self._channel.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
        self.close()

    def usable(self) -> bool:
        """False if the server has closed the idle connection, or sent something unrequested."""
        if self._channel is None:
            return True
        return not self._channel.pending and quiet(self._channel.sock)

    @property
    def qop(self) -> Qop | None:
        """The protection that the open connection has; None without a login or a connection."""
        return None if self._channel is None else self._channel.qop

    def _connected(self, deadline: float) -> Channel:
        if self._channel is not None and not self.usable():
            self.close()
        if self._channel is None:
            self._channel = self._connect(deadline)
            self._fresh = True
        return self._channel

    def _connect(self, deadline: float) -> Channel:
        """A connection that has logged in. A login that is refused is tried again: a server takes two tickets that were
        made in the same moment for one that is replayed."""
        for attempt in range(1, LOGIN_ATTEMPTS + 1):
            try:
                return self._logged_in(deadline)
            except LoginRefusedError:
                if attempt == LOGIN_ATTEMPTS:
                    raise
            time.sleep(min(random.uniform(0, 0.2), left(deadline)))
        raise AssertionError

    def _logged_in(self, deadline: float) -> Channel:
        host, _, port = self.server.rpartition(":")
        timeout = min(CONNECT_TIMEOUT_S, left(deadline))
        # Unlike a call's time-out, one in here proves that the server did nothing.
        try:
            sock = socket.create_connection((host, int(port)), timeout=timeout)
        except TimeoutError as error:
            raise OSError(f"no connection within {timeout:.0f} s") from error
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            until = steady_s() + timeout
            self._encrypted = False
            if self._tls is not None:
                sock.settimeout(left(until))
                sock = encrypted(sock, self._tls, host)
                self._encrypted = True
            channel = self._authenticate.open(sock, self.server, until)
            user = None if channel.user is None else pb.UserInformation(effective_user=channel.user)
            header = pb.ConnectionHeader(
                user_info=user, service_name=self.service, cell_block_codec_class=self._codec
            ).SerializeToString()
            rest = memoryview(LENGTH.pack(len(header)) + header)
            while rest:
                rest = rest[channel.send(rest, until) :]
        except TimeoutError as error:
            sock.close()
            raise OSError(f"the login was not answered within {timeout:.0f} s") from error
        except OSError as error:
            said = last_word(sock, error)
            sock.close()
            if said is error:
                raise
            raise said from error
        except BaseException:
            sock.close()
            raise
        return channel

    def _send(self, channel: Channel, frame: bytes, deadline: float, may_send: Callable[[], None]) -> None:
        """Send a frame in parts, each checked right before it is sent, so that no part is sent late after a pause."""
        rest = memoryview(frame)
        while rest:
            await_writable(channel.sock, deadline)
            try:
                may_send()
            except BaseException:
                self._abort()
                raise
            drop_unsent_after(channel.sock, deadline)
            self._sent = len(rest) <= PART_BYTES
            rest = rest[channel.send(rest[:PART_BYTES], deadline) :]

    def _answer(self, channel: Channel, method: str, response_type: type[M], deadline: float) -> tuple[M, bytes]:
        frame = memoryview(self._frame(channel, method, deadline))
        header, position = decode_delimited(frame, 0, pb.ResponseHeader)
        self._fresh = False
        if header.call_id not in (self._call_id, CONNECTION_CALL_ID):
            raise ConnectionFailedError(
                f"{self.server} answered call {header.call_id} instead of call {self._call_id}",
                **self._facts(method, True),
            )
        if header.HasField("exception"):
            raise self._raised(header, method)
        response, position = decode_delimited(frame, position, response_type)
        block = bytes(frame[position : position + header.cell_block_meta.length])
        return response, block

    def _frame(self, channel: Channel, method: str, deadline: float) -> bytearray:
        """The next frame. Raises what the server says instead of it if it refuses the connection."""
        try:
            (length,) = LENGTH.unpack(receive_all(channel.receive, LENGTH.size, deadline))
        except UnwrappedError as unwrapped:
            # Anybody on the way may have sent it, so it tells nothing of the request.
            raise AuthenticationError(
                f"{self.server} answered without the agreed protection; somebody is between it and this machine, or "
                f"it refuses the connection: {_said(unwrapped.frame)}",
                **self._facts(method, self._sent),
            ) from None
        if length == LOGIN_ERROR and channel.user is None and self._fresh:
            reason = login_error(channel.receive, deadline)
            raise LoginRefusedError(
                f"{self.server} refuses the connection after the login: {reason}; its log says why",
                **self._facts(method, self._sent),
                reason=reason,
            )
        if not 0 < length <= MAX_FRAME_BYTES:
            raise ConnectionFailedError(
                f"{self.server} answered {self.service}.{method} with a frame of {length} bytes; "
                "is that the RPC port of an HBase server?",
                **self._facts(method, True),
            )
        return receive_all(channel.receive, length, deadline)

    def _raised(self, header: pb.ResponseHeader, method: str) -> WalferryError:
        failure = header.exception
        if header.call_id == CONNECTION_CALL_ID:
            self.close()
        if _LOGIN_REQUIRED in failure.stack_trace and isinstance(self._authenticate, Simple):
            return AuthenticationError(
                f"{self.server} lets nobody in without Kerberos; add `security` to the cluster's connection: a "
                "principal, and a keytab or a ticket cache",
                **self._facts(method, True),
            )
        return remote_error(
            failure.exception_class_name,
            failure.stack_trace,
            server=self.server,
            method=f"{self.service}.{method}",
            do_not_retry=failure.do_not_retry,
        )

    def _broken(self, error: Exception, method: str, deadline: float) -> WalferryError:
        """The error for a connection that could not be opened, or broke."""
        plain = "if that is right, leave `rpc` out of the cluster's `tls`"
        refused = refusal(error, self.server, plain, established=self._encrypted) if self._tls is not None else None
        if refused is not None:
            refused.facts["sent"] = self._sent and not self._fresh  # a server first looks at the certificate
            return refused
        if self._tls is None and self._fresh and self._wants_tls(error, deadline):
            return TlsError(
                f"{self.server} speaks TLS only; set `rpc: true` in the cluster's `tls`, and `ca` to its authority",
                **self._facts(method, self._sent),
                reason="it speaks TLS only",
                principal=None,
            )
        never = "" if self._answered else "; is that the RPC port of an HBase server?"
        return ConnectionFailedError(
            f"the connection to {self.server} failed at {self.service}.{method}: {error}{never}",
            **self._facts(method, self._sent),
        )

    def _wants_tls(self, error: Exception, deadline: float) -> bool:
        closed = isinstance(error, ConnectionError) and not isinstance(error, ConnectionRefusedError)
        if not closed or deadline - steady_s() < PROBES_SECONDS:
            return False
        host, _, port = self.server.rpartition(":")
        return wants_tls(host, int(port), PREAMBLE + b"\0")

    def _late(self, method: str, timeout_s: float) -> str:
        if self._sent:
            return (
                f"{self.server} did not answer {self.service}.{method} within {timeout_s:g} s; "
                "whether it carried out the call is unknown; restart the server if it hangs"
            )
        return (
            f"{self.service}.{method} could not be sent to {self.server} within {timeout_s:g} s: "
            "this process was suspended or too busy"
        )

    def _facts(self, method: str, sent: bool) -> dict[str, object]:
        return {"server": self.server, "method": f"{self.service}.{method}", "sent": sent}


class ConnectionPool:
    """Connections of one user to many servers; no two calls share a connection at the same time."""

    def __init__(
        self, authenticate: Authenticate | None = None, meter: Meter | None = None, tls: Tls | None = None
    ) -> None:
        self._authenticate = authenticate
        self._tls = tls
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
            connection = idle.pop() if idle else RpcConnection(*key, self._authenticate, self._tls)
        try:
            return connection.call(
                method, request, response_type, cell_block, timeout_s=timeout_s, since=since, may_send=may_send
            )
        finally:
            with self._lock:
                self._idle[key].append(connection)

    def qop(self) -> Qop | None:
        """The protection that servers agreed to lately; None without a login."""
        with self._lock:
            return next((one.qop for idle in self._idle.values() for one in idle if one.qop is not None), None)

    def close(self) -> None:
        """Close the idle connections."""
        with self._lock:
            for connections in self._idle.values():
                for connection in connections:
                    connection.close()
            self._idle.clear()


def _said(frame: bytes) -> str:
    """The exception in a plain frame, for people."""
    try:
        header, _ = decode_delimited(memoryview(frame), 0, pb.ResponseHeader)
    except DecodeError:
        return "it cannot be read"
    failure = header.exception
    name = failure.exception_class_name.rpartition(".")[2]
    return f"{name}: {failure.stack_trace.partition(chr(10))[0]}" if name else "it is no exception"


def encode_request(
    call_id: int, method: str, request: Message | bytes, cell_block: Sequence[Buffer], timeout_ms: int
) -> bytes:
    """One request frame."""
    header = pb.RequestHeader(call_id=call_id, method_name=method, request_param=True, timeout=timeout_ms)
    if block_bytes := sum(len(buffer) for buffer in cell_block):
        header.cell_block_meta.length = block_bytes
    return encode_frame(header, request if isinstance(request, bytes) else request.SerializeToString(), cell_block)


def encode_frame(header: Message, body: bytes | None, cell_block: Sequence[Buffer] = ()) -> bytes:
    """A frame of a request or an answer; without a body, that of an exception."""
    head = header.SerializeToString()
    parts = [varint(len(head)), head, *(() if body is None else (varint(len(body)), body)), *cell_block]
    return b"".join([LENGTH.pack(sum(len(part) for part in parts)), *parts])


def encode_field(number: int, content: bytes) -> bytes:
    """Encode a protobuf field that holds bytes or a message."""
    return varint(number << 3 | 2) + varint(len(content)) + content


def varint(value: int) -> bytes:
    """Encode a number as protobuf does."""
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
    content, position = delimited(frame, position)
    return message_type.FromString(content), position


def delimited(frame: memoryview, position: int) -> tuple[memoryview, int]:
    """What is at `position` after its varint length, and the position after it. Raises as `decode_delimited`."""
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
    return frame[position : position + length], position + length
