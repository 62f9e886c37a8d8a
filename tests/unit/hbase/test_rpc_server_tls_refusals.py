"""The server's side of the RPC by TLS: clients that are not let in, and handshakes that fail."""

from __future__ import annotations

import logging
import shutil
import ssl
import subprocess
import time
from contextlib import closing, suppress
from dataclasses import replace
from datetime import timedelta

import pytest

from rpc_serving import Served, await_true, echo, ended, greeting, serving
from unit.hbase.tls_client import (
    ADDRESS,
    METHOD,
    PARAMETER,
    VERSIONS,
    Client,
    client_context,
    inside,
    length_of,
)
from walferry.embedded.certificates import Authority
from walferry.formats.proto import hbase_pb2 as pb
from walferry.hbase.errors import AccessDeniedError
from walferry.hbase.rpc import encode_request
from walferry.hbase.rpc_server import ReceivedCall
from walferry.security import Tls
from walferry.security.accepting_tls import ServerTls
from walferry.security.tls import TlsError


def test_a_plain_client_is_told_to_speak_tls_and_is_named(shared: Served, caplog: pytest.LogCaptureFixture) -> None:
    before = len(shared.shut_out)
    with (
        closing(shared.connection()) as connection,
        pytest.raises(AccessDeniedError, match=r"set hbase\.client\.netty\.tls\.enabled to true at the source"),
    ):
        connection.call(METHOD, PARAMETER, pb.CellBlockMeta)
    (told,) = shared.shut_out[before:]
    assert told.startswith("127.0.0.1:")
    assert "speaks TLS only (`receive.tls`)" in told
    assert told.partition(" may not call: ")[2] in caplog.text


@pytest.mark.parametrize("method", [b"\x50", b"\x51"], ids=["simple", "kerberos"])
def test_nothing_that_a_plain_client_asks_for_is_handled(ours: ServerTls, method: bytes) -> None:
    calls: list[ReceivedCall] = []

    async def handle(call: ReceivedCall) -> bytes:
        calls.append(call)
        return b""

    request = encode_request(1, METHOD, PARAMETER, [], 1000)
    with serving(handle, tls=ours) as served, served.plain() as sock:
        sock.sendall(greeting().replace(b"\x50", method, 1) + request)
        assert ended(sock)
        assert not calls


def test_a_plain_client_that_asks_for_principals_first_is_told_the_same(shared: Served) -> None:
    with shared.plain() as sock:
        sock.sendall(b"Security preamble")
        assert b"speaks TLS only" in sock.recv(1 << 16)


def test_what_is_neither_is_no_client_and_is_not_shown(shared: Served, caplog: pytest.LogCaptureFixture) -> None:
    before = len(shared.shut_out)
    with shared.plain() as sock:
        sock.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert ended(sock)
    assert "so it is no client of HBase's RPC" in caplog.text
    assert len(shared.shut_out) == before


@VERSIONS
def test_a_client_with_tls_where_none_is_spoken_is_told_apart(mine: Tls, version: ssl.TLSVersion) -> None:
    with serving(echo) as served:
        with pytest.raises(ssl.SSLError):
            inside(served, mine, version)
        with pytest.raises(TlsError, match="it speaks no TLS at that port"):
            length_of(served, mine)
        assert len(served.shut_out) == 2
        assert all("it speaks TLS, and this receiver does not: set `receive.tls`" in one for one in served.shut_out)


def strangers(authority: Authority, kind: str) -> Tls:
    folder = authority.bundle.parent
    if kind == "none":
        return Tls(str(authority.bundle), rpc=True)
    made = (
        Authority(folder / "others").issue("stranger")
        if kind == "stranger"
        else authority.issue("old", valid=timedelta(minutes=-1))
    )
    return Tls(str(authority.bundle), str(made.certificate), str(made.key), rpc=True)


@VERSIONS
@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("none", "it shows no certificate, and `receive.tls.ca` demands one: set hbase.rpc.tls.keystore.location"),
        ("stranger", "no authority of `receive.tls.ca`, "),
        ("expired", "certificate has expired; renew it at the source"),
    ],
)
def test_a_client_without_a_good_certificate_is_not_let_in_and_named(
    shared: Served, authority: Authority, version: ssl.TLSVersion, kind: str, said: str
) -> None:
    before = len(shared.shut_out)

    def ask() -> None:
        with inside(shared, strangers(authority, kind), version) as sock:
            sock.sendall(greeting() + encode_request(1, METHOD, PARAMETER, [], 1000))
            sock.recv(1)

    with pytest.raises(ssl.SSLError, match=r"(?i)alert"):  # so the client's log has a reason, too
        ask()
    await_true(lambda: len(shared.shut_out) > before)
    assert said in shared.shut_out[-1]
    assert "\n" not in shared.shut_out[-1]
    assert shared.server.held_bytes == 0


@VERSIONS
def test_a_client_that_does_not_accept_the_certificate_is_named(
    shared: Served, mine: Tls, authority: Authority, version: ssl.TLSVersion
) -> None:
    before = len(shared.shut_out)
    others = Authority(authority.bundle.parent, "others")
    with pytest.raises(ssl.SSLCertVerificationError):
        inside(shared, replace(mine, ca=str(others.bundle)), version)
    await_true(lambda: len(shared.shut_out) > before)
    assert (
        "it does not accept the certificate of this receiver (unknown ca): its hbase.rpc.tls.truststore"
        in (shared.shut_out[-1])
    )


def test_a_client_without_a_cipher_in_common_is_named(shared: Served, mine: Tls) -> None:
    context = client_context(mine)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers("AES128-SHA256")  # by RSA, and the server's key is of another kind
    before = len(shared.shut_out)
    with pytest.raises(ssl.SSLError):
        context.wrap_socket(shared.plain(), server_hostname=ADDRESS)
    await_true(lambda: len(shared.shut_out) > before)
    assert "or no cipher, in common with this receiver" in shared.shut_out[-1]


def test_a_client_that_ends_the_handshake_for_whatever_reason_is_named(shared: Served, mine: Tls) -> None:
    before = len(shared.shut_out)
    client = Client(shared, mine)
    with client.sock:
        client.sock.sendall(client.hello())
        assert client.sock.recv(1)
        client.sock.sendall(bytes.fromhex("15 0303 0002 02 50"))  # an alert: internal error
        assert ended(client.sock)
    await_true(lambda: len(shared.shut_out) > before)
    assert "its TLS handshake fails (TLSV1_ALERT_INTERNAL_ERROR)" in shared.shut_out[-1]


def test_garbage_after_the_first_words_ends_the_connection_and_is_not_shown(
    shared: Served, mine: Tls, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    before = len(shared.shut_out)
    client = Client(shared, mine)
    with client.sock:
        client.sock.sendall(client.hello() + b"garbage" * 5000)
        assert ended(client.sock)
    (line,) = [record.message for record in caplog.records]
    assert "its TLS handshake fails" in line
    assert len(shared.shut_out) == before


@pytest.mark.parametrize("trickle", [False, True], ids=["silent", "byte by byte"])
def test_a_handshake_that_does_not_end_is_ended(
    ours: ServerTls, mine: Tls, trickle: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with serving(echo, tls=ours, read_seconds=0.4) as served:
        client = Client(served, mine)
        with client.sock:
            hello = client.hello()
            began = time.monotonic()
            client.sock.sendall(hello[:20])
            with suppress(ConnectionError):
                for byte in hello[20:200] if trickle else b"":
                    time.sleep(0.05)
                    client.sock.sendall(bytes([byte]))
                    if "closed" in caplog.text:
                        break
            assert ended(client.sock)
            assert time.monotonic() - began < 5
        assert "closed: its TLS handshake has not ended within 0.4 s" in caplog.text
        assert length_of(served, mine) == 5


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no program that asks for a renegotiation")
def test_a_renegotiation_is_refused_at_once(ours: ServerTls) -> None:
    with serving(echo, tls=replace(ours, ca=None)) as served:
        client = subprocess.Popen(
            ["openssl", "s_client", "-connect", f"{ADDRESS}:{served.port}", "-tls1_2"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, bufsize=0,
        )  # fmt: skip
        with client:
            assert client.stdin is not None
            assert client.stdout is not None
            said = b""
            while b"Verify return code" not in said:
                said += client.stdout.read(1)
            client.stdin.write(b"R\n")
            assert b"no renegotiation" in client.stdout.read()
