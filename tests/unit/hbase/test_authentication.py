"""What becomes of a worker's login when the server refuses its token."""

from __future__ import annotations

import contextlib
import pickle
import socket
import struct
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from walferry.formats.proto import hbase_pb2 as pb
from walferry.hbase import ClusterAddress
from walferry.hbase.authentication import login
from walferry.hbase.errors import LoginRefusedError, may_be_under_way
from walferry.hbase.retry import retry_call
from walferry.hbase.rpc import RpcConnection
from walferry.security import AuthenticationError, Kerberos, Security, handed
from walferry.security.handed import Handed, Issued, Purpose, WorkerLoginError, fingerprint
from walferry.security.token import Token

SECURITY = Security(Kerberos("ferry@EXAMPLE.COM", "none"))
ADDRESS = ClusterAddress("zk:2181", security=SECURITY)
PURPOSE = Purpose("HBase at zk:2181/hbase", SECURITY)
TOKEN = Token(b"identifier", b"its password", "HBASE_AUTH_TOKEN", "cluster")


@dataclass
class Refusing:
    """A server that refuses each login."""

    reason: tuple[str, str]
    seen: list[bytes] = field(default_factory=list)
    """what each connection sent until it was closed"""

    @contextlib.contextmanager
    def serving(self) -> Iterator[RpcConnection]:
        """A connection to it."""
        with socket.create_server(("127.0.0.1", 0)) as listening:
            thread = threading.Thread(target=self._serve, args=(listening,), daemon=True)
            thread.start()
            try:
                port = listening.getsockname()[1]
                yield RpcConnection(f"127.0.0.1:{port}", "ClientService", None, login(ADDRESS))
            finally:
                listening.shutdown(socket.SHUT_RDWR)
                thread.join(10)

    def _serve(self, listening: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                sock, _ = listening.accept()
                with sock, sock.makefile("rb") as received:
                    begun = received.read(10)
                    texts = [struct.pack(">i", len(text)) + text.encode() for text in self.reason]
                    sock.sendall(struct.pack(">i", 1) + b"".join(texts))
                    self.seen.append(begun + received.read())


def ask(connection: RpcConnection) -> object:
    return connection.call("Get", pb.GetClusterStatusRequest(), pb.GetClusterStatusResponse, timeout_s=10)


@pytest.fixture
def in_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handed, "_mine", Handed({PURPOSE: Issued(1, TOKEN)}))


@pytest.mark.usefixtures("in_worker")
@pytest.mark.parametrize(
    "reason",
    [
        ("org.apache.hadoop.security.token.SecretManager$InvalidToken", "Token has expired"),
        ("org.apache.hadoop.security.token.SecretManager$InvalidToken", "Unknown master key for token (id=3)"),
        ("javax.security.sasl.SaslException", "DIGEST-MD5: digest response format violation. Mismatched response."),
    ],
)
def test_a_token_that_is_no_longer_good_is_told_at_once_for_the_driver_to_replace_it(reason: tuple[str, str]) -> None:
    server = Refusing(reason)
    with server.serving() as connection, pytest.raises(WorkerLoginError, match=reason[1][:20]) as raised:
        retry_call(lambda: ask(connection))
    assert server.seen == [b"HBas\x00\x52" + bytes(4)]  # once, closed, and without a request
    told = pickle.loads(pickle.dumps(raised.value))
    assert (told.purpose, told.token) == (PURPOSE, fingerprint(TOKEN))
    assert not may_be_under_way(told)
    assert "its password" not in f"{told!r} {told.facts}"


@pytest.mark.usefixtures("in_worker")
def test_another_refusal_of_a_login_by_token_is_final() -> None:
    server = Refusing(
        ("org.apache.hadoop.hbase.security.AccessDeniedException", "Server is not configured to do DIGEST")
    )
    said = r"does not let ferry@EXAMPLE.COM log in by the token that its driver handed over: AccessDeniedException: Ser"
    with server.serving() as connection, pytest.raises(LoginRefusedError, match=said) as raised:
        ask(connection)
    assert raised.value.sent is False


def test_a_worker_without_a_token_tells_why_its_driver_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Refusing(("", ""))
    monkeypatch.setattr(handed, "_mine", Handed({}))
    with server.serving() as connection, pytest.raises(AuthenticationError, match="its driver has not used"):
        ask(connection)
    monkeypatch.setattr(handed, "_mine", Handed({PURPOSE: Issued(2, lack="permission denied")}))
    with server.serving() as connection, pytest.raises(AuthenticationError, match="permission denied"):
        ask(connection)
    monkeypatch.setattr(handed, "_mine", Handed({PURPOSE: Issued(3, lack="no KDC answers", may_pass=True)}))
    with server.serving() as connection, pytest.raises(WorkerLoginError, match="no KDC answers") as raised:
        retry_call(lambda: ask(connection))
    assert not may_be_under_way(raised.value)
    assert {begun[:6] for begun in server.seen} <= {b""}
