"""What a server says during a login and after it, and how the bytes of a call are protected. The server is one of the
tests' own, with HBase's bytes: a real one refuses in few of these ways."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from security.acceptor import Acceptor
from walferry.embedded.kdc import Kdc
from walferry.formats.proto import hbase_pb2 as pb
from walferry.hbase.authentication import Sasl
from walferry.hbase.errors import AccessDeniedError, LoginRefusedError, RequestTimeoutError, may_be_under_way
from walferry.hbase.rpc import PART_BYTES, RpcConnection
from walferry.security import AuthenticationError, Kerberos, Qop, Security
from walferry.security.handed import Purpose

REQUEST = pb.GetClusterStatusRequest()
ANSWER = pb.GetClusterStatusResponse(
    cluster_status=pb.ClusterStatus(hbase_version=pb.HBaseVersionFileContent(version="2.6.3"))
)
Serve = Callable[["Session"], None]


@pytest.fixture(scope="module")
def keytab(kdc: Kdc) -> Path:
    kdc.keytab(["hbase/localhost"])
    return kdc.keytab(["ferry"])


class Session:
    """The server's side of one connection."""

    def __init__(self, sock: socket.socket, acceptor: Acceptor) -> None:
        self.sock = sock
        self.acceptor = acceptor
        self.plain = b""

    def read(self, length: int) -> bytes:
        found = b""
        while len(found) < length:
            more = self.sock.recv(length - len(found))
            if not more:
                raise ConnectionError
            found += more
        return found

    def counted(self) -> bytes:
        (length,) = struct.unpack(">i", self.read(4))
        return self.read(length)

    def log_in(self) -> None:
        assert self.read(6) == b"HBas\x00\x51"
        while not self.acceptor.chosen:
            answer = self.acceptor.answer(self.counted())
            if not self.acceptor.chosen:
                self.sock.sendall(struct.pack(">ii", 0, len(answer)) + answer)

    def frame(self) -> bytes:
        """The next length and content of the stream, which may be wrapped."""
        while len(self.plain) < 4 or len(self.plain) < 4 + struct.unpack_from(">i", self.plain)[0]:
            self.plain += self.piece()
        length = 4 + struct.unpack_from(">i", self.plain)[0]
        found, self.plain = self.plain[:length], self.plain[length:]
        return found

    def piece(self) -> bytes:
        if self.acceptor.chosen[0] == 1:
            return self.sock.recv(1 << 16) or self.read(1)
        piece: bytes = self.acceptor.context.unwrap(self.counted()).message
        return piece

    def wrapped(self, content: bytes) -> bytes:
        if self.acceptor.chosen[0] == 1:
            return content
        token: bytes = self.acceptor.context.wrap(content, self.acceptor.chosen[0] == 4).message
        return struct.pack(">i", len(token)) + token


@contextlib.contextmanager
def connected(
    kdc: Kdc, keytab: Path, serve: Serve, qop: Qop | None = None, offered: int = 7
) -> Iterator[RpcConnection]:
    """A connection to a server that serves each connection so."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    sock, _ = listening.accept()
                    with sock, contextlib.suppress(ConnectionError):
                        serve(Session(sock, Acceptor(kdc, 7)))

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        security = Security(Kerberos(f"ferry@{kdc.realm}", str(keytab), qop=qop))
        connection = RpcConnection(
            f"localhost:{listening.getsockname()[1]}", "MasterService", None, Sasl(Purpose("HBase", security))
        )
        try:
            yield connection
        finally:
            connection.close()
            listening.shutdown(socket.SHUT_RDWR)
            thread.join(10)


def framed(header: pb.ResponseHeader, answer: pb.GetClusterStatusResponse | None = None) -> bytes:
    messages = [message.SerializeToString() for message in (header, answer) if message is not None]
    body = b"".join(bytes([len(message)]) + message for message in messages)
    return struct.pack(">i", len(body)) + body


def ask(connection: RpcConnection, cell_block: bytes = b"", **more: object) -> str:
    answer, _ = connection.call(
        "GetClusterStatus",
        REQUEST,
        pb.GetClusterStatusResponse,
        cell_block,
        timeout_s=10,
        **more,  # type: ignore[arg-type]
    )
    return answer.cluster_status.hbase_version.version


REFUSAL = pb.ResponseHeader(
    call_id=0xFFFFFFFF,
    exception=pb.ExceptionResponse(
        exception_class_name="org.apache.hadoop.hbase.security.AccessDeniedException",
        stack_trace="not you",
        do_not_retry=True,
    ),
)


@pytest.mark.parametrize("qop", ["auth", "auth-int", "auth-conf"])
def test_a_call_names_nobody_and_its_stream_is_wrapped_as_agreed(kdc: Kdc, keytab: Path, qop: Qop) -> None:
    seen: list[bytes] = []

    def serve(session: Session) -> None:
        session.log_in()
        seen.append(session.frame())
        for call_id in (1, 2):
            seen.append(session.frame())
            answer = framed(pb.ResponseHeader(call_id=call_id), ANSWER)
            session.sock.sendall(session.wrapped(answer[:7]) + session.wrapped(answer[7:]))

    with connected(kdc, keytab, serve, qop) as connection:
        assert [ask(connection, bytes(3 * PART_BYTES)), ask(connection)] == ["2.6.3", "2.6.3"]
    header = pb.ConnectionHeader.FromString(seen[0][4:])
    assert (header.service_name, header.HasField("user_info")) == ("MasterService", False)
    assert len(seen[1]) > 3 * PART_BYTES
    assert seen[1].endswith(bytes(3 * PART_BYTES))


def test_answers_that_share_a_piece_or_come_unasked_make_a_connection_unusable(kdc: Kdc, keytab: Path) -> None:
    done = threading.Event()

    def serve(session: Session) -> None:
        session.log_in()
        session.frame()
        session.frame()
        session.sock.sendall(session.wrapped(2 * framed(pb.ResponseHeader(call_id=1), ANSWER)))
        done.wait(20)  # or its end would make it unusable

    with connected(kdc, keytab, serve, "auth-int") as connection:
        assert ask(connection) == "2.6.3"
        assert not connection.usable()
        done.set()


def test_a_refusal_of_the_connection_is_told(kdc: Kdc, keytab: Path) -> None:
    def serve(session: Session) -> None:
        session.log_in()
        session.frame()
        session.sock.sendall(session.wrapped(framed(REFUSAL)))

    with connected(kdc, keytab, serve, "auth-int") as connection, pytest.raises(AccessDeniedError, match="not you"):
        ask(connection)


def test_a_refusal_that_is_not_protected_is_told_and_never_taken_for_the_outcome_of_the_request(
    kdc: Kdc, keytab: Path
) -> None:
    def serve(session: Session) -> None:
        session.log_in()
        session.frame()
        session.frame()
        session.sock.sendall(framed(REFUSAL))

    with (
        connected(kdc, keytab, serve, "auth-int") as connection,
        pytest.raises(AuthenticationError, match="it refuses the connection: AccessDeniedException: not you") as told,
    ):
        ask(connection)
    assert may_be_under_way(told.value)


def test_after_an_answer_that_was_changed_the_request_may_be_under_way(kdc: Kdc, keytab: Path) -> None:
    def serve(session: Session) -> None:
        session.log_in()
        session.frame()
        for call_id in (1, 2):
            session.frame()
            answer = session.wrapped(framed(pb.ResponseHeader(call_id=call_id), ANSWER))
            session.sock.sendall(answer if call_id == 1 else answer[:-1] + bytes([answer[-1] ^ 1]))

    with connected(kdc, keytab, serve, "auth-conf") as connection:
        ask(connection)
        with pytest.raises(AuthenticationError, match="was changed on the way") as told:
            ask(connection)
    assert may_be_under_way(told.value)


def test_an_answer_without_the_agreed_protection_is_never_taken(kdc: Kdc, keytab: Path) -> None:
    def serve(session: Session) -> None:
        session.log_in()
        session.frame()
        session.sock.sendall(framed(pb.ResponseHeader(call_id=1), ANSWER))

    with (
        connected(kdc, keytab, serve, "auth-int") as connection,
        pytest.raises(AuthenticationError, match="somebody is between it and this machine"),
    ):
        ask(connection)


def failure(name: str, message: str) -> bytes:
    return b"".join(struct.pack(">i", len(text)) + text.encode() for text in (name, message))


@pytest.mark.parametrize("qop", ["auth", "auth-conf"])
def test_a_failure_that_follows_the_last_token_is_told(kdc: Kdc, keytab: Path, qop: Qop) -> None:
    def serve(session: Session) -> None:
        session.log_in()
        session.sock.sendall(
            struct.pack(">i", 1) + failure("javax.security.sasl.SaslException", "Problem with callback handler")
        )

    with (
        connected(kdc, keytab, serve, qop) as connection,
        pytest.raises(LoginRefusedError, match="after the login: SaslException: Problem with callback handler"),
    ):
        ask(connection)


def test_a_login_that_is_refused_is_tried_again_and_then_told(kdc: Kdc, keytab: Path) -> None:
    refusals = 0

    def serve(session: Session) -> None:
        nonlocal refusals
        session.read(6)
        session.counted()
        if refusals < 2:
            refusals += 1
            session.sock.sendall(
                struct.pack(">i", 1) + failure("javax.security.sasl.SaslException", "GSS initiate failed\n\tat a.b.C")
            )
        else:
            session.sock.sendall(struct.pack(">ii", 0, -88))

    with connected(kdc, keytab, serve) as connection:
        with pytest.raises(AuthenticationError, match="wants no Kerberos") as raised:
            ask(connection)
        assert raised.value.sent is False
        refusals = -10
        with pytest.raises(LoginRefusedError) as told:
            ask(connection)
    assert "does not let ferry@EXAMPLE.COM log in: SaslException: GSS initiate failed; its log says why" in str(
        told.value
    )
    assert refusals == -7


def test_what_may_no_longer_be_sent_is_not_wrapped_either(kdc: Kdc, keytab: Path) -> None:
    arrived: list[int] = []

    def serve(session: Session) -> None:
        session.log_in()
        session.frame()
        try:
            while True:
                arrived.append(len(session.piece()))
        finally:
            arrived.append(-1)

    asked = 0

    def may_send() -> None:
        nonlocal asked
        asked += 1
        if asked == 3:
            raise LookupError("no more")

    with connected(kdc, keytab, serve, "auth-conf") as connection:
        with pytest.raises(LookupError):
            ask(connection, bytes(5 * PART_BYTES), may_send=may_send)
        while -1 not in arrived:
            time.sleep(0.01)
    assert sum(arrived[:-1]) <= 2 * PART_BYTES


def test_a_token_that_cannot_be_sent_whole_before_the_deadline_ends_the_connection(kdc: Kdc, keytab: Path) -> None:
    done = threading.Event()

    def serve(session: Session) -> None:
        session.log_in()
        done.wait(20)  # reads nothing more

    with connected(kdc, keytab, serve, "auth-conf") as connection:
        with pytest.raises(RequestTimeoutError):
            connection.call(
                "GetClusterStatus", REQUEST, pb.GetClusterStatusResponse, bytes(64 * PART_BYTES), timeout_s=1
            )
        assert connection._channel is None
        done.set()
