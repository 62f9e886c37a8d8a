"""A worker's login by a token, and the protection of what follows, against the JDK's own server, which HBase uses."""

from __future__ import annotations

import base64
import struct
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from walferry.embedded import jars
from walferry.security import AuthenticationError, Kerberos, Qop
from walferry.security.digest import DigestExchange
from walferry.security.token import Token

SERVER = "rs1.example:16020"
TOKEN = Token(b"\0\1identifier\xff", b"a password, known\xfe", "HBASE_AUTH_TOKEN", "cluster")
ALL = "auth-conf,auth-int,auth"
CHALLENGE = (
    b'realm="default",nonce="OA6MG9tEQGm2hh",qop="auth-conf,auth-int,auth",charset=utf-8,'
    b'cipher="3des,rc4,des,rc4-56,rc4-40",algorithm=md5-sess'
)
Layer = Callable[[bytes], bytes]


class Java:
    """The server's half."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin
        assert process.stdout
        self._to, self._from = process.stdin, process.stdout

    def begun(self, offered: str = ALL, realm: str = "default") -> bytes:
        return self._told("b", f"{offered}\n{realm}".encode())

    def step(self, response: bytes | None) -> bytes:
        assert response is not None
        return self._told("s", response)

    def wrap(self, message: bytes) -> bytes:
        return self._told("w", message)

    def unwrap(self, token: bytes) -> bytes:
        return self._told("u", token)

    def state(self) -> str:
        return self._told("?", b"").decode()

    def _told(self, order: str, text: bytes) -> bytes:
        self._to.write(order.encode() + struct.pack(">i", len(text)) + text)
        self._to.flush()
        done, length = struct.unpack(">?i", self._from.read(5))
        answer = self._from.read(length)
        if not done:
            raise ConnectionRefusedError(answer.decode())
        return answer


@pytest.fixture(scope="module")
def java() -> Iterator[Java]:
    program = str(Path(__file__).with_name("DigestServer.java"))
    names = [base64.b64encode(part).decode() for part in (TOKEN.identifier, TOKEN.password)]
    command = [jars.java(), program, *names]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        yield Java(process)
        assert process.stdin
        process.stdin.close()  # then it ends


def exchange_of(qop: Qop | None = None, token: Token = TOKEN) -> DigestExchange:
    exchange = DigestExchange(Kerberos("ferry@EXAMPLE.COM", qop=qop), token, SERVER)
    assert exchange.step(None) == b""
    return exchange


def logged_in(java: Java, qop: Qop | None = None, offered: str = ALL, realm: str = "default") -> DigestExchange:
    exchange = exchange_of(qop)
    proof = java.step(exchange.step(java.begun(offered, realm)))
    assert not exchange.complete
    assert exchange.step(proof) is None
    assert exchange.complete
    return exchange


@pytest.mark.parametrize(
    ("qop", "offered", "chosen"),
    [
        (None, ALL, "auth"),
        (None, "auth-conf,auth-int", "auth-int"),
        (None, "auth-conf", "auth-conf"),
        ("auth-int", ALL, "auth-int"),
        ("auth-conf", ALL, "auth-conf"),
    ],
)
def test_a_token_logs_in_with_the_protection_that_is_wanted_or_the_least_that_is_offered(
    java: Java, qop: Qop | None, offered: str, chosen: str
) -> None:
    exchange = logged_in(java, qop, offered)
    assert java.state() == f"true {chosen}"
    assert (exchange.qop, exchange.wraps) == (chosen, chosen != "auth")


def test_a_protection_that_is_not_offered_is_refused(java: Java) -> None:
    with pytest.raises(AuthenticationError, match="it offers the protection auth, not auth-conf; set `qop`"):
        exchange_of("auth-conf").step(java.begun("auth"))


def test_a_realm_may_have_what_must_be_quoted(java: Java) -> None:
    logged_in(java, "auth-int", realm='com,"ma\\=')


@pytest.mark.parametrize("qop", ["auth-int", "auth-conf"])
@given(messages=st.lists(st.tuples(st.booleans(), st.binary(min_size=1, max_size=300)), max_size=12))
def test_messages_of_any_size_pass_both_ways(java: Java, qop: Qop, messages: list[tuple[bool, bytes]]) -> None:
    exchange = logged_in(java, qop)
    for ours, message in messages:
        if ours:
            assert java.unwrap(exchange.wrap(memoryview(message))) == message
        else:
            assert exchange.unwrap(java.wrap(message)) == message


@pytest.mark.parametrize("qop", ["auth-int", "auth-conf"])
def test_a_message_of_megabytes_passes_both_ways(java: Java, qop: Qop) -> None:
    exchange, message = logged_in(java, qop), bytes(range(256)) * 12_000
    assert java.unwrap(exchange.wrap(message)) == message
    assert exchange.unwrap(java.wrap(message)) == message


def test_what_is_private_does_not_show(java: Java) -> None:
    exchange, message = logged_in(java, "auth-conf"), b"row" * 20
    assert message not in exchange.wrap(message)


def changed(place: int) -> Callable[[Layer], list[bytes]]:
    def tokens(wrap: Layer) -> list[bytes]:
        token = bytearray(wrap(b"message"))
        token[place] ^= 1
        return [bytes(token)]

    return tokens


def repeated(wrap: Layer) -> list[bytes]:
    return 2 * [wrap(b"one")]


def left_out(wrap: Layer) -> list[bytes]:
    return [wrap(b"one"), wrap(b"two")][1:]


def renumbered(wrap: Layer) -> list[bytes]:
    wrap(b"one")
    return [wrap(b"two")[:-4] + bytes(4)]


def cut_off(wrap: Layer) -> list[bytes]:
    return [wrap(b"message")[1:]]


def empty(wrap: Layer) -> list[bytes]:
    return [b""]


@pytest.mark.parametrize("qop", ["auth-int", "auth-conf"])
@pytest.mark.parametrize(
    "sent", [*(changed(place) for place in (0, -16, -7, -5, -1)), repeated, left_out, renumbered, cut_off, empty]
)
def test_what_was_changed_repeated_or_left_out_is_refused(
    java: Java, qop: Qop, sent: Callable[[Layer], list[bytes]]
) -> None:
    exchange = logged_in(java, qop)
    *good, wrong = sent(java.wrap)
    for token in good:
        exchange.unwrap(token)
    with pytest.raises(AuthenticationError, match="was changed on the way, or is not its own"):
        exchange.unwrap(wrong)


def test_what_is_not_encrypted_is_refused(java: Java, monkeypatch: pytest.MonkeyPatch) -> None:
    exchange = logged_in(java, "auth-conf")
    token = java.wrap(b"message")
    plain = exchange._received._crypted(token[:-6]) + token[-6:]  # type: ignore[misc]
    assert plain.startswith(b"message")
    exchange = logged_in(java, "auth-conf")
    with pytest.raises(AuthenticationError):
        exchange.unwrap(plain)


def test_a_server_that_does_not_know_the_token_is_not_believed(java: Java) -> None:
    for proof in (b"", b'rspauth=""', b"rspauth=" + 32 * b"0", b'realm="default"', b"rspauth=\xff"):
        exchange = exchange_of()
        java.step(exchange.step(java.begun()))
        with pytest.raises(AuthenticationError, match="does not prove that it knows the token"):
            exchange.step(proof)
        assert not exchange.complete


def test_a_token_with_another_password_is_refused_by_the_server(java: Java) -> None:
    for token in (Token(TOKEN.identifier, b"guess", "", ""), Token(b"other", TOKEN.password, "", "")):
        response = exchange_of(token=token).step(java.begun())
        with pytest.raises(ConnectionRefusedError, match="Mismatched response"):
            java.step(response)


def test_a_challenge_is_read_however_it_is_written() -> None:
    written = b'  nonce = "a,b=\\"c\\\\" ,, REALM="default",later="x,y", algorithm=md5-sess,'
    response = exchange_of().step(written)
    assert response is not None
    assert b'realm="default",nonce="a,b=\\"c\\\\",nc=00000001,' in response
    assert b"qop=auth" in response.split(b",")
    assert b"charset" not in response


@pytest.mark.parametrize(
    ("challenge", "said"),
    [
        (b"", "no realm"),
        (b"realm", "not one of DIGEST-MD5"),
        (b'realm="default', "not one of DIGEST-MD5"),
        (b'realm="default"nonce="x"', "not one of DIGEST-MD5"),
        (CHALLENGE.replace(b"realm", b"kingdom"), "no realm"),
        (CHALLENGE.replace(b"nonce", b"once"), "no nonce"),
        (CHALLENGE.replace(b",algorithm=md5-sess", b""), "no algorithm"),
        (CHALLENGE.replace(b"md5-sess", b"md5"), "wants the algorithm md5, not md5-sess"),
        (CHALLENGE.replace(b"rc4,", b""), "offers the ciphers 3des,des,rc4-56,rc4-40, not rc4"),
        (CHALLENGE.replace(b"cipher", b"cypher"), "offers the ciphers none, not rc4"),
        (CHALLENGE.replace(b"auth", b"oath"), "offers the protection none, not auth-conf"),
    ],
)
def test_a_challenge_that_cannot_be_met_is_told(challenge: bytes, said: str) -> None:
    with pytest.raises(AuthenticationError, match=said) as raised:
        exchange_of("auth-conf").step(challenge)
    assert (raised.value.server, raised.value.principal, raised.value.sent) == (SERVER, "ferry@EXAMPLE.COM", False)


@given(st.binary(max_size=80) | st.lists(st.sampled_from([*CHALLENGE.split(b","), b'"', b"=", b"\\"])).map(b",".join))
def test_any_other_text_is_told_too(challenge: bytes) -> None:
    exchange = exchange_of("auth-conf")
    try:
        assert exchange.step(challenge)
    except AuthenticationError:
        return
    assert exchange.qop == "auth-conf"


def test_nobody_sees_the_password(java: Java) -> None:
    exchange = logged_in(java, "auth-int")
    with pytest.raises(AuthenticationError) as raised:
        exchange.unwrap(b"x" * 20)
    shown = f"{exchange!r} {raised.value!r} {raised.value.facts} {exchange_of().step(java.begun())!r}"
    for form in (TOKEN.password, base64.b64encode(TOKEN.password)):
        assert form.decode(errors="replace") not in shown
        assert repr(form)[2:-1] not in shown
