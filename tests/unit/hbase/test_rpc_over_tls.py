"""RPC through TLS: real handshakes with servers whose certificates are good, and with others."""

from __future__ import annotations

import os
import re
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from unit.hbase.rpc_server import VERSION, delimited, frame, read_handshake, read_request, server, version_answer
from walferry.clock import steady_s
from walferry.embedded.certificates import Authority, Certificate
from walferry.errors import WalferryError, causes
from walferry.formats.proto import hbase_pb2 as pb
from walferry.hbase.authentication import Simple
from walferry.hbase.errors import ConnectionFailedError, RequestTimeoutError, RequestTooBigError, may_be_under_way
from walferry.hbase.rpc import PART_BYTES, RpcConnection
from walferry.hbase.sockets import holds, quiet, receive_all, receive_into
from walferry.hbase.zookeeper_tls import TlsHandler
from walferry.security import Tls
from walferry.security.tls import TlsError, context, encrypted

ADDRESS = "127.0.0.1"
VERSIONS = pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3], ids=["1.2", "1.3"])


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def good(authority: Authority) -> Certificate:
    return authority.issue("good", ADDRESS)


def speaking(certificate: Certificate, version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3) -> ssl.SSLContext:
    """A server's half: of one version of TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate.both)
    context.minimum_version = context.maximum_version = version
    return context


def trusting(authority: Authority) -> Tls:
    return Tls(ca=str(authority.bundle), rpc=True)


def connection_to(address: str, tls: Tls | None) -> RpcConnection:
    return RpcConnection(address, "MasterService", None, Simple("alice"), tls)


def ask_once(address: str, tls: Tls | None) -> None:
    with closing(connection_to(address, tls)) as connection:
        ask(connection)


def ask(connection: RpcConnection, **options: object) -> None:
    answer, _ = connection.call("GetClusterStatus", VERSION, pb.GetClusterStatusResponse, **options)  # type: ignore[arg-type]
    assert answer.cluster_status.hbase_version.version == "2.6.3-hadoop3"


def answering(peer: socket.socket) -> None:
    """Answer every request of a connection."""
    read_handshake(peer)
    for call in range(1, 100):
        if not read_request(peer):
            return
        peer.sendall(version_answer(call))


@VERSIONS
def test_a_connection_is_used_again_although_tickets_have_arrived(
    version: ssl.TLSVersion, authority: Authority, good: Certificate
) -> None:
    opened = 0

    def serve(peer: socket.socket) -> None:
        nonlocal opened
        opened += 1
        answering(peer)

    with (
        server(serve, speaking(good, version)) as address,
        closing(connection_to(address, trusting(authority))) as connection,
    ):
        for _ in range(3):
            ask(connection)
    assert opened == 1


@contextmanager
def pair(authority: Authority, good: Certificate) -> Iterator[tuple[ssl.SSLSocket, socket.socket]]:
    """Both ends of a connection."""
    peers: list[socket.socket] = []
    ended = threading.Event()

    def serve(peer: socket.socket) -> None:
        peers.append(peer)
        ended.wait(10)

    with server(serve, speaking(good)) as address:
        plain = socket.create_connection((ADDRESS, int(address.rpartition(":")[2])), 5)
        with encrypted(plain, trusting(authority), ADDRESS) as sock:
            while not peers:
                time.sleep(0.01)
            yield sock, peers[0]
            ended.set()


def arrived(sock: socket.socket) -> None:
    while not quiet_bytes(sock):
        time.sleep(0.01)


def quiet_bytes(sock: socket.socket) -> bool:
    with socket.socket(fileno=sock.fileno()) as same:
        try:
            return bool(same.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
        except BlockingIOError:
            return False
        finally:
            same.detach()


def test_tickets_are_neither_an_end_nor_an_answer(authority: Authority, good: Certificate) -> None:
    with pair(authority, good) as (sock, peer):
        arrived(sock)  # TLS 1.3 sends its tickets after the handshake
        assert quiet(sock)
        peer.sendall(b"x")
        arrived(sock)
        assert not quiet(sock)


def test_an_end_is_seen_behind_tickets(authority: Authority, good: Certificate) -> None:
    with pair(authority, good) as (sock, peer):
        peer.shutdown(socket.SHUT_RDWR)
        deadline = time.monotonic() + 5
        while quiet(sock) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not quiet(sock)


def test_what_is_decrypted_already_is_not_overlooked(authority: Authority, good: Certificate) -> None:
    """Only the first bytes of a record were read: the kernel has none of the rest."""
    with pair(authority, good) as (sock, peer):
        peer.sendall(b"answer and more")
        view = memoryview(bytearray(6))
        assert receive_into(sock, view, steady_s() + 5) == 6
        assert quiet(sock)
        assert holds(sock)
        assert TlsHandler(Tls()).select([sock], [], [], 0)[0] == [sock], "kazoo does not wait for more"


def test_a_connection_with_bytes_behind_its_answer_is_not_used_again(authority: Authority, good: Certificate) -> None:
    """They came in the answer's own record."""
    opened = 0

    def serve(peer: socket.socket) -> None:
        nonlocal opened
        opened += 1
        read_handshake(peer)
        read_request(peer)
        peer.sendall(version_answer(opened) + b"\0\0\0\1")
        read_request(peer)

    with (
        server(serve, speaking(good)) as address,
        closing(connection_to(address, trusting(authority))) as connection,
    ):
        ask(connection)
        assert not connection.usable()
        ask(connection)
    assert opened == 2


def refused(address: str, tls: Tls | None) -> TlsError:
    with closing(connection_to(address, tls)) as connection, pytest.raises(TlsError) as raised:
        ask(connection)
    assert "\n" not in str(raised.value)
    assert address in str(raised.value)
    return raised.value


CERTIFICATES: dict[str, tuple[Callable[[Authority], Certificate], str]] = {
    "expired": (
        lambda authority: authority.issue("old", ADDRESS, valid=timedelta(minutes=-1)),
        "its certificate has expired, or its authority's; renew it",
    ),
    "other host": (
        lambda authority: authority.issue("other", "127.0.0.2", host="localhost"),
        "its certificate is for another host .*127.0.0.1",
    ),
    "other authority": (
        lambda authority: Authority(authority.bundle.parent, "strangers").issue("stranger", ADDRESS),
        "not of an authority that is trusted here .*; set `ca`",
    ),
}


@VERSIONS
@pytest.mark.parametrize("kind", CERTIFICATES)
def test_a_server_with_a_certificate_that_proves_nothing_gets_no_byte(
    kind: str, version: ssl.TLSVersion, authority: Authority
) -> None:
    served: list[socket.socket] = []
    issue, said = CERTIFICATES[kind]
    with server(served.append, speaking(issue(authority), version)) as address:
        error = refused(address, trusting(authority))
    assert error.sent is False
    assert re.search(said, error.message)
    assert not served


@VERSIONS
def test_a_server_that_wants_a_client_certificate_says_so(
    version: ssl.TLSVersion, authority: Authority, good: Certificate
) -> None:
    context = speaking(good, version)
    context.load_verify_locations(authority.bundle)
    context.verify_mode = ssl.CERT_REQUIRED
    mine, strangers = authority.issue("me"), Authority(authority.bundle.parent, "strangers").issue("stranger")
    with server(answering, context) as address:
        tls = trusting(authority)
        ask_once(address, replace(tls, certificate=str(mine.certificate), key=str(mine.key)))
        for wrong in (
            tls,
            replace(tls, certificate=str(strangers.certificate), key=str(strangers.key)),
        ):
            error = refused(address, wrong)
            assert "it wants a client certificate, or" in error.message
            assert error.sent is False


def test_a_server_without_tls_is_refused_and_sees_no_request(authority: Authority) -> None:
    seen = bytearray()

    def serve(peer: socket.socket) -> None:
        """As HBase does (ServerRpcConnection.processPreamble)."""
        seen.extend(peer.recv(1000))
        words = "Expected HEADER=HBas but received HEADER=\\x16\\x03\\x01\\x02"
        failure = pb.ExceptionResponse(exception_class_name="FatalConnectionException", stack_trace=words)
        peer.sendall(frame(delimited(pb.ResponseHeader(call_id=0xFFFFFFFF, exception=failure))))

    with server(serve) as address:
        assert "it speaks no TLS" in refused(address, trusting(authority)).message
    assert seen[:1] == b"\x16"
    assert b"HBas" not in seen


def under(peer: socket.socket) -> socket.socket:
    """The connection below TLS, for what is none."""
    return socket.socket(fileno=os.dup(peer.fileno()))


@VERSIONS
@pytest.mark.parametrize("damage", [b"HTTP/1.1 502 Bad Gateway\r\n\r\n", b"\x15\x03\x03\x00\x02\x02\x28", bytes(64)])
@pytest.mark.parametrize("answers", ["none", "an exception", "one"])
def test_after_damage_on_the_way_a_request_may_be_under_way(
    damage: bytes, answers: str, version: ssl.TLSVersion, authority: Authority, good: Certificate
) -> None:
    """The server has read it. Nothing says that there is no TLS, or that the server wants another client."""

    def serve(peer: socket.socket) -> None:
        read_handshake(peer)
        read_request(peer)
        if answers != "none":
            failure = pb.ExceptionResponse(exception_class_name="java.io.IOException", stack_trace="busy")
            failed = frame(delimited(pb.ResponseHeader(call_id=1, exception=failure)))
            peer.sendall(version_answer(1) if answers == "one" else failed)
            read_request(peer)
        with under(peer) as plain:
            plain.sendall(damage)
            plain.recv(1)

    with (
        server(serve, speaking(good, version)) as address,
        closing(connection_to(address, trusting(authority))) as connection,
    ):
        if answers != "none":
            with suppress(WalferryError):
                ask(connection)
        with pytest.raises(ConnectionFailedError) as raised:
            ask(connection)
    assert may_be_under_way(raised.value)


def test_a_handshake_that_is_reset_may_pass_and_has_one_cause(authority: Authority) -> None:
    def serve(peer: socket.socket) -> None:
        peer.recv(1)
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    with server(serve) as address, pytest.raises(ConnectionFailedError) as raised:
        ask_once(address, trusting(authority))
    assert raised.value.sent is False
    chain = causes(raised.value)
    assert chain[-1].__cause__ is None
    assert len(chain) < 5


def test_no_library_changes_what_another_connection_checks(authority: Authority, good: Certificate) -> None:
    """urllib3 asks for HTTP in the context that it is given, and may switch its check of the name off."""
    tls = trusting(authority)
    context(tls, "urllib3").check_hostname = False
    context(tls, "urllib3").set_alpn_protocols(["http/1.1"])
    with server(answering, speaking(authority.issue("other", host="other.example"))) as address:
        assert "its certificate is for another host" in refused(address, tls).message


def test_a_name_that_is_no_subject_alternative_name_proves_nothing(authority: Authority) -> None:
    with server(answering, speaking(authority.issue("localhost"))) as address:
        here = f"localhost:{address.rpartition(':')[2]}"
        assert "its certificate is for another host" in refused(here, trusting(authority)).message


def test_while_files_are_replaced_one_by_one_those_from_before_are_used(
    authority: Authority, good: Certificate, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    names = {name: tmp_path / f"mine-{name}.pem" for name in ("ca", "certificate", "key")}
    first, second = authority.issue("first"), authority.issue("second")
    for name, content in (("ca", authority.bundle), ("certificate", first.certificate), ("key", first.key)):
        names[name].write_bytes(content.read_bytes())
    tls = Tls(str(names["ca"]), str(names["certificate"]), str(names["key"]), rpc=True)
    checks = speaking(good)
    checks.load_verify_locations(authority.bundle)
    checks.verify_mode = ssl.CERT_REQUIRED
    shown: list[str] = []

    def serve(peer: socket.socket) -> None:
        assert isinstance(peer, ssl.SSLSocket)
        shown.append(str(peer.getpeercert()))
        answering(peer)

    with server(serve, checks) as address:
        ask_once(address, tls)
        names["certificate"].write_bytes(second.certificate.read_bytes())
        ask_once(address, tls)
        assert "the files from before are used" in caplog.text
        names["key"].write_bytes(second.key.read_bytes())
        ask_once(address, tls)
        names["ca"].write_bytes(b"half")
        ask_once(address, tls)
    assert [("first" in one, "second" in one) for one in shown] == [(True, False)] * 2 + [(False, True)] * 2


def test_a_server_with_tls_only_is_told_to_who_names_none(good: Certificate) -> None:
    with server(answering, speaking(good)) as address:
        assert "speaks TLS only; set `rpc: true`" in refused(address, None).message


def test_a_server_that_breaks_off_is_not_taken_for_one_with_tls() -> None:
    def serve(peer: socket.socket) -> None:
        read_handshake(peer)

    with server(serve) as address, pytest.raises(ConnectionFailedError):
        ask_once(address, None)


def test_a_server_that_takes_both_and_breaks_off_is_not_told_to_take_tls_only(good: Certificate) -> None:
    """As an HBase with `hbase.server.netty.tls.supportplaintext` that stops: it may work again."""
    context, connections = speaking(good), 0

    def serve(peer: socket.socket) -> None:
        nonlocal connections
        connections += 1
        if peer.recv(1, socket.MSG_PEEK) == b"\x16":
            context.wrap_socket(peer, server_side=True).close()
        elif connections == 1:
            read_handshake(peer)
        else:
            peer.recv(6)
            peer.recv(1)  # it waits for more

    with server(serve) as address, pytest.raises(ConnectionFailedError):
        ask_once(address, None)
    assert connections == 2


def test_the_handshake_has_a_deadline(authority: Authority) -> None:
    with socket.create_server((ADDRESS, 0)) as listening:
        connection = connection_to(f"{ADDRESS}:{listening.getsockname()[1]}", trusting(authority))
        with pytest.raises(ConnectionFailedError, match="not answered") as raised:
            ask(connection, timeout_s=0.5)
    assert raised.value.sent is False


def test_a_file_that_cannot_be_used_is_named_and_nothing_is_sent(authority: Authority, good: Certificate) -> None:
    served: list[socket.socket] = []
    locked = authority.issue("locked", password="x")
    tls = trusting(authority)
    with server(served.append, speaking(good)) as address:
        for wrong, said in (
            (replace(tls, ca="/nowhere/ca.pem"), "/nowhere/ca.pem, which"),
            (replace(tls, ca=str(good.key)), f"{good.key}, which .* it has no certificate in PEM form"),
            (replace(tls, certificate=str(locked.certificate), key=str(locked.key)), "without a password"),
        ):
            with pytest.raises(TlsError, match=said) as raised:
                ask_once(address, wrong)
            assert raised.value.sent is False
    assert not served


def test_a_replaced_file_counts_from_the_next_connection_on(authority: Authority, tmp_path: Path) -> None:
    bundle = tmp_path / "ca.pem"
    bundle.write_bytes(authority.bundle.read_bytes())
    tls, others = Tls(ca=str(bundle), rpc=True), Authority(tmp_path / "others")
    with server(answering, speaking(others.issue("good", ADDRESS))) as address:
        assert "set `ca`" in refused(address, tls).message
        replacement = tmp_path / "new.pem"
        replacement.write_bytes(others.bundle.read_bytes())
        replacement.replace(bundle)
        ask_once(address, tls)


def test_a_forbidden_part_never_arrives_and_each_record_is_asked_for(authority: Authority, good: Certificate) -> None:
    received = bytearray()
    ended = threading.Event()

    def serve(peer: socket.socket) -> None:
        read_handshake(peer)
        with suppress(OSError):
            while data := peer.recv(1 << 16):
                received.extend(data)
        ended.set()

    asked = 0

    def may_send() -> None:
        nonlocal asked
        asked += 1
        if asked > 3:
            raise ZeroDivisionError

    with (
        server(serve, speaking(good)) as address,
        closing(connection_to(address, trusting(authority))) as connection,
        pytest.raises(ZeroDivisionError),
    ):
        connection.call("X", VERSION, pb.GetClusterStatusResponse, bytes(PART_BYTES), may_send=may_send)
    assert ended.wait(5)
    assert len(received) <= 3 << 14


def test_what_a_slow_server_has_not_taken_at_the_deadline_was_not_sent(authority: Authority, good: Certificate) -> None:
    asleep = threading.Event()

    def serve(peer: socket.socket) -> None:
        read_handshake(peer)
        asleep.wait(10)

    with (
        server(serve, speaking(good)) as address,
        closing(connection_to(address, trusting(authority))) as connection,
        pytest.raises(RequestTimeoutError, match="could not be sent") as raised,
    ):
        connection.call("X", VERSION, pb.GetClusterStatusResponse, bytes(64 << 20), timeout_s=0.5)
    asleep.set()
    assert raised.value.sent is False


@VERSIONS
def test_a_refusal_that_comes_before_the_request_was_read_is_not_lost(
    version: ssl.TLSVersion, authority: Authority, good: Certificate
) -> None:
    def serve(peer: socket.socket) -> None:
        read_handshake(peer)
        receive_all(lambda view, _: peer.recv_into(view), 1000, 0)
        words = "RPC data length of 30000000 received from 127.0.0.1 is greater than max allowed 300000."
        refusal = pb.ExceptionResponse(exception_class_name="DoNotRetryIOException", stack_trace=words)
        peer.sendall(frame(delimited(pb.ResponseHeader(call_id=1, exception=refusal))))

    with (
        server(serve, speaking(good, version)) as address,
        closing(connection_to(address, trusting(authority))) as connection,
        pytest.raises(RequestTooBigError, match="greater than max allowed"),
    ):
        connection.call("Multi", VERSION, pb.GetClusterStatusResponse, bytes(30_000_000), timeout_s=10)
