"""Delegation tokens: their coding, who gets a new one when, and that nobody sees one."""

from __future__ import annotations

import base64
import gc
import logging
import os
import stat
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from walferry.errors import TransientError, WalferryError
from walferry.security import Kerberos, Security, handed
from walferry.security.handed import Handed, Issued, Purpose, WorkerLoginError, fingerprint
from walferry.security.token import Token, token_file
from walferry.storage import WebHdfs, tokens
from walferry.storage.tokens import TokenFile, Tokens, hidden

KIM = Security(Kerberos(principal="kim@EXAMPLE.COM", keytab="none"))
FERRY = Security(Kerberos(principal="ferry@EXAMPLE.COM", keytab="none"))
SECRET = Token(
    b"\0\5ferry\5ferry\0\x8a\1\xa2$\xee\xd3\xba\x8a\1\xa2H\xfbW\xba\1\2", b"a password, known", "kind", "service"
)


def test_urls_in_texts_lose_their_tokens() -> None:
    assert (
        hidden("at /a?op=OPEN&delegation=HgAF-_x&offset=1: refused")
        == "at /a?op=OPEN&delegation=(hidden)&offset=1: refused"
    )
    assert hidden("<a href='http://n/?token=HgAF'>") == "<a href='http://n/?token=(hidden)'>"


class Issuer:
    """Stands for the name nodes: gives out tokens."""

    def __init__(self) -> None:
        self.given = 0

    def __call__(self, _: object, url: str) -> tuple[Token, float]:
        self.given += 1
        return replace(SECRET, password=f"{self.given}".encode() + SECRET.password), 3600.0


@pytest.fixture
def issuer(monkeypatch: pytest.MonkeyPatch) -> Issuer:
    issuer = Issuer()
    monkeypatch.setattr(Tokens, "_asked", lambda *args: issuer(*args))
    return issuer


@pytest.mark.parametrize("on_disk", [False, True])
def test_the_file_for_the_library_has_the_newest_token_of_each_name_node(
    on_disk: bool, issuer: Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    if on_disk:
        monkeypatch.delattr(os, "memfd_create", raising=False)
    library = TokenFile()
    monkeypatch.setattr(tokens, "LIBRARY", library)
    one, other, kim = (
        Tokens((url,), who) for url, who in (("http://a:1", FERRY), ("http://b:1", KIM), ("http://a:1", KIM))
    )
    for held in (one, other, kim):
        held.current()
    assert library.has("a:2", one)
    assert library.has("b:2", other)
    assert not library.has("a:2", kim), "the library has one token per name node"
    path = library.path
    assert path is not None
    first = path.read_bytes()
    one.after(one.current(), "InvalidToken")
    assert path.read_bytes() != first
    assert path.read_bytes() == token_file({"a:2": one.current(), "b:2": other.current()})
    if on_disk:
        assert [entry.name for entry in path.parent.iterdir()] == ["tokens"]
        assert [stat.S_IMODE(each.stat().st_mode) for each in (path, path.parent)] == [0o600, 0o700]


def test_a_standby_name_node_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    def asked(_: Tokens, url: str) -> tuple[Token, float]:
        if url == "http://standby:1":
            raise TransientError("standby")
        return SECRET, 3600.0

    monkeypatch.setattr(Tokens, "_asked", asked)
    assert Tokens(("http://standby:1", "http://active:1"), FERRY).current() is SECRET
    with pytest.raises(TransientError, match="standby"):
        Tokens(("http://standby:1",), FERRY).current()


@contextmanager
def server(answer: Callable[[BaseHTTPRequestHandler], None]) -> Iterator[str]:
    """The address of a server that answers all requests so."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer(self)

        do_PUT = do_GET

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        thread = threading.Thread(target=http.serve_forever, args=[0.01])
        thread.start()
        yield f"http://127.0.0.1:{http.server_port}"
        http.shutdown()
        thread.join()


def say(code: int, body: bytes, **headers: str) -> Callable[[BaseHTTPRequestHandler], None]:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        content = body.replace(b"URL", handler.path.encode())
        handler.send_response(code)
        for name, value in {"Content-Length": str(len(content)), **headers}.items():
            handler.send_header(name.replace("_", "-"), value.replace("TOKEN", SECRET.encoded()))
        handler.end_headers()
        handler.wfile.write(content)

    return answer


def hang_in_the_middle(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.send_header("Content-Length", "1000")
    handler.end_headers()
    handler.wfile.write(b"some")
    time.sleep(0.8)


def lead_away_what_changes(handler: BaseHTTPRequestHandler) -> None:
    (ANSWERS["it is missing"] if handler.command == "GET" else ANSWERS["a redirect is refused"])(handler)


ANSWERS: dict[str, Callable[[BaseHTTPRequestHandler], None]] = {
    "it closes": lambda handler: handler.connection.close(),
    "it hangs": lambda handler: time.sleep(0.8),
    "it breaks off in the middle": say(200, b"some", Content_Length="1000"),
    "it hangs in the middle": hang_in_the_middle,
    "a redirect is refused": say(307, b"", Location="http://127.0.0.1:1/webhdfs/v1/a?op=OPEN&delegation=TOKEN"),
    "a redirect has no known scheme": say(307, b"", Location="gopher://nowhere/a?op=OPEN&delegation=TOKEN"),
    "a redirect leads back": say(307, b"", Location="/webhdfs/v1/a?op=OPEN&delegation=TOKEN"),
    "it is missing": say(404, b'{"RemoteException": {"exception": "FileNotFoundException", "message": "no /a"}}'),
    "it is missing, and a change is led away": lead_away_what_changes,
    "a token is refused": say(403, b'{"RemoteException": {"exception": "SecurityException", "message": '
                                   b'"Failed: org.apache.hadoop.SecretManager$InvalidToken: cannot be found"}}'),
    "a proxy shows the URL": say(502, b"<html>cannot get URL</html>"),
    "it wants a login for the URL": say(401, b"<html>log in for URL", Connection="close"),
}  # fmt: skip
SILENT = {"it closes", "it hangs", "it breaks off in the middle", "nobody listens"}
WORK: dict[str, Callable[[WebHdfs], object]] = {
    "list": lambda files: files.list("/a"),
    "read": lambda files: b"".join(files.read("/a")),
    "write": lambda files: files.write("/a", [b"v"]),
    "rename": lambda files: files.rename("/a", "/b"),
    "allows": lambda files: files.allows("/a", "rwx"),
}


@pytest.mark.filterwarnings("ignore:unclosed <socket.socket .closed.:ResourceWarning")
@pytest.mark.parametrize("work", WORK)
@pytest.mark.parametrize("what", [*ANSWERS, "nobody listens"])
def test_neither_an_error_nor_a_log_shows_the_token(
    what: str, work: str, issuer: Issuer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hole: the token is in URLs, which `requests` and `urllib3` put into errors and into the debug log."""
    caplog.set_level(logging.DEBUG)
    monkeypatch.setattr("walferry.storage.webhdfs.ATTEMPTS", 2)
    told = ""
    with server(ANSWERS.get(what, say(200, b""))) as url:
        address = "http://127.0.0.1:1" if what == "nobody listens" else url
        own = Security(Kerberos(principal="ferry@EXAMPLE.COM", keytab=f"{what} {work}"))
        try:
            with closing(WebHdfs(address, "me", timeout_s=0.3, security=own)) as files:
                WORK[work](files)
        except (WalferryError, OSError) as error:
            told = "".join(traceback.format_exception(error)) + repr(error) + repr(vars(error))
    gc.collect()  # urllib3 leaves a response that breaks off to it, here rather than in some other test
    assert told or work == "allows"
    assert "delegation=(hidden)" in caplog.text or what in SILENT, "the requests are in the log"
    for text in (told, caplog.text):
        assert base64.urlsafe_b64encode(SECRET.password)[:12].decode() not in text
        assert SECRET.encoded()[:-12] not in text
        assert "password, known" not in text


@pytest.mark.parametrize("work", sorted(WORK.keys() - {"allows"}))
def test_a_worker_whose_token_is_refused_asks_once_and_lets_its_driver_help(
    work: str, issuer: Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(handler: BaseHTTPRequestHandler) -> None:
        asked.append(handler.path)
        ANSWERS["a token is refused"](handler)

    asked: list[str] = []
    with server(refuse) as url, closing(WebHdfs(url, "me", security=FERRY)) as files:
        purpose = Purpose(f"HDFS at {url}", FERRY)
        monkeypatch.setattr(handed, "_mine", Handed({purpose: Issued(1, SECRET)}))
        with pytest.raises(WorkerLoginError, match="does not take the token of a Spark worker") as raised:
            WORK[work](files)
    assert (raised.value.purpose, raised.value.token) == (purpose, fingerprint(SECRET))
    assert len(asked) == 1
    assert issuer.given == 0


def test_no_error_of_a_login_shows_the_token_that_it_renews(monkeypatch: pytest.MonkeyPatch) -> None:
    login = tokens._Login("http://127.0.0.1:1", FERRY)
    monkeypatch.setattr(login, "_context", lambda: None)
    monkeypatch.setattr(login, "_stepped", lambda _: b"proof")
    with pytest.raises(TransientError, match="does not answer") as raised:
        login.asked("PUT", {"op": "RENEWDELEGATIONTOKEN", "token": SECRET.encoded()})
    assert SECRET.encoded() not in "".join(traceback.format_exception(raised.value))


def test_what_the_chunks_of_a_file_raise_is_raised_as_it_is(issuer: Issuer) -> None:
    def chunks() -> Iterator[bytes]:
        yield b"some"
        raise WalferryError("the source is gone")

    with server(say(307, b"")) as data_node:
        location = f"{data_node}/webhdfs/v1/a?op=CREATE&delegation=TOKEN"
        with server(say(307, b"", Location=location)) as url, pytest.raises(WalferryError, match="the source is gone"):
            WebHdfs(url, "me", security=FERRY).write("/a", chunks())


def test_name_nodes_get_the_token_data_nodes_that_of_the_redirect_and_a_proxy_none(
    issuer: Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    asked: list[tuple[str, str | None]] = []

    def note(then: Callable[[BaseHTTPRequestHandler], None]) -> Callable[[BaseHTTPRequestHandler], None]:
        def answer(handler: BaseHTTPRequestHandler) -> None:
            asked.append((handler.path, handler.headers["Authorization"]))
            then(handler)

        return answer

    with server(note(say(200, b"content"))) as data_node:
        location = f"{data_node}/webhdfs/v1/a?op=OPEN&delegation=of-the-redirect"
        with server(note(say(307, b"", Location=location))) as url:
            assert b"".join(WebHdfs(url, "me", security=FERRY).read("/a")) == b"content"
    (name_node, _), (read, _) = asked
    assert "user.name" not in name_node
    assert "delegation=HgAF" not in read
    assert read.endswith("delegation=of-the-redirect")
    assert [authorization for _, authorization in asked] == [None, None]


@pytest.mark.parametrize(
    ("code", "path", "told"),
    [
        (403, "/conf", "does not show /conf to"),
        (401, "/conf", "is that its HTTP principal"),
        (403, "/webhdfs/v1/", "is that its HTTP principal"),
    ],
)
def test_a_page_that_is_forbidden_is_no_fault_of_the_principal(
    code: int, path: str, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with server(say(code, b"<title>Error User ferry is no administrator</title>")) as url:
        login = tokens._Login(url, FERRY)
        monkeypatch.setattr(login, "_context", lambda: None)
        monkeypatch.setattr(login, "_stepped", lambda _: b"proof")
        with pytest.raises(WalferryError, match=told) as raised:
            login.asked("GET", {}, path)
    assert "no administrator" in str(raised.value)


def test_one_of_several_name_nodes_that_does_not_answer_a_login_is_soon_left_for_the_next_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waits: list[float] = []

    class Login(tokens._Login):
        def asked(self, *_: object) -> dict[str, Any]:
            waits.append(self._answer_s)
            raise TransientError("does not answer")

    monkeypatch.setattr(tokens, "_Login", Login)
    for urls in (("http://a",), ("http://a", "http://b")):
        with pytest.raises(TransientError, match="does not answer"):
            Tokens(urls, FERRY).current()
    assert waits == [60, tokens.ANSWER_SECONDS, tokens.ANSWER_SECONDS]


def test_a_standby_that_is_asked_for_a_token_is_told_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hole: "refused the login of ferry: StandbyException"."""
    body = b'{"RemoteException": {"exception": "StandbyException", "message": "not supported in state standby"}}'
    monkeypatch.setattr(tokens._Login, "_context", lambda _: None)
    monkeypatch.setattr(tokens._Login, "_stepped", lambda *_: b"proof")
    with server(say(403, body)) as url:
        with pytest.raises(
            TransientError, match=r"a standby NameNode .*: name each NameNode of that HDFS, separated by ;"
        ):
            Tokens((url,), FERRY).current()
        with pytest.raises(TransientError, match=r"a standby NameNode .*, and no other one is active now"):
            Tokens((url, url), FERRY).current()
