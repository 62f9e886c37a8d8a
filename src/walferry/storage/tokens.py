"""Delegation tokens of a secured HDFS: one Kerberos login at a name node, then a token with every request.

A token is good at all name nodes of an HDFS and for every protocol. Whoever knows its password is its owner, so
neither log, error nor repr shows it; WebHDFS wants it in URLs, which `hidden` cuts out.
"""

from __future__ import annotations

import atexit
import base64
import logging
import os
import re
import shutil
import tempfile
import threading
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import requests
import urllib3

from walferry.background import made_once
from walferry.errors import TransientError, WalferryError, causes
from walferry.security import AuthenticationError, Security, handed
from walferry.security.handed import Purpose, WorkerLoginError
from walferry.security.held_token import HeldToken, register
from walferry.security.sasl import GssapiExchange, named
from walferry.security.tickets import credentials, library, told
from walferry.security.token import Token, token_file
from walferry.storage.addresses import said_of_standby
from walferry.storage.https import prepare, refused, verified_by

DEFAULT_LIFE_SECONDS = 24 * 3600.0
"""assumed when a name node does not tell"""
SPNEGO = "1.3.6.1.5.5.2"
ANSWER_SECONDS = 10.0
"""how long one of several name nodes is waited for: while it does not answer, another one may be active"""
REST_SECONDS = 300.0
"""how long what failed is not tried again: access to data nodes, and the name nodes' pages"""

_CHECK_PRINCIPAL = "is that its HTTP principal (dfs.web.authentication.kerberos.principal), and in the right realm?"
_log = logging.getLogger(__name__)
_PASSING = {"RetriableException", "SafeModeException", "ServerNotActiveException"}
_JSON = {"Accept": "application/json"}
_SECRET = re.compile(r"\b((?:delegation|token)=)[^&\s\"'<>)]+")
TITLE = re.compile(r"<title>\s*(?:Error \d+\s*)?(.*?)\s*</title>", re.DOTALL)
"""what a page of a server of Hadoop's says of an error"""
_URL_LOGGERS = (
    "urllib3.connectionpool", "urllib3.connection", "urllib3.poolmanager", "urllib3.util.retry", "hdfs.client", "httpx",
)  # fmt: skip
"""the libraries' loggers that write URLs or pages"""


def hidden(text: str) -> str:
    """The text without the tokens in its URLs."""
    return _SECRET.sub(r"\1(hidden)", text)


class Tokens:
    """The current token of one identity at one HDFS; threads share it. In a worker its driver has made it."""

    def __init__(self, urls: tuple[str, ...], security: Security) -> None:
        """`urls`: the HTTP addresses of the HDFS's name nodes; `security`: who logs in, and how https is checked."""
        for name in _URL_LOGGERS:
            logging.getLogger(name).addFilter(_hide)
        self.security = security
        self._urls = urls
        self.token = HeldToken(Purpose(f"HDFS at {';'.join(urls)}", security), self._made)
        self._written: Token | None = None

    def current(self) -> Token:
        """The token; the library's file has it, too.

        Raises AuthenticationError, KerberosUnavailableError and TransientError if there is no good token and the login
        for one fails.
        """
        token = self.token.current()
        if token is not self._written:
            self._written = token
            try:
                LIBRARY.write()
            except OSError as error:
                _log.warning("the new token for direct access to HDFS cannot be written: %s", error)
        return token

    @property
    def held(self) -> Token | None:
        """The token; None before the first login."""
        return self.token.held

    def after(self, refused: Token, reason: str) -> Token:
        """The token that replaces one that a name node refused. Raises the errors of `current`; in a worker
        WorkerLoginError."""
        self.token.after(refused, reason)
        return self.current()

    def refused(self, reason: str) -> WorkerLoginError:
        """The error for this worker's token, which HDFS does not take."""
        return handed.refused(self.token.purpose, self.token.current(), reason)

    def _made(self) -> tuple[Token, float]:
        """A new token, of the first name node that gives one, and how many seconds it lives."""
        refusal: TransientError | None = None
        for url in self._urls:
            try:
                return self._asked(url)
            except TransientError as error:
                refusal = error
        raise refusal or TransientError("no name node to log in to was given")

    def _asked(self, url: str) -> tuple[Token, float]:
        """A token of the name node at `url`, and how many seconds it lives."""
        login = _Login(url, self.security, several=len(self._urls) > 1)
        # Only its renewer can renew a token, and only renewing tells how long it lives. The name node turns a principal
        # into the user's short name by its own rules.
        answer = login.asked("GET", {"op": "GETDELEGATIONTOKEN", "renewer": login.principal})
        found = answer.get("Token")
        if not found:
            raise login.refused("it has no tokens", "if it is not secured, name no Kerberos identity for it")
        try:
            token = Token.decoded(found["urlString"])
        except ValueError:
            raise login.refused("its token cannot be read", "is that a name node of HDFS?") from None
        try:
            renewed = login.asked("PUT", {"op": "RENEWDELEGATIONTOKEN", "token": found["urlString"]})
            return token, (int(renewed["long"]) - token.issued_ms) / 1000
        except (WalferryError, LookupError, ValueError) as error:
            _log.info("%s does not tell how long its tokens live: %s", url, error)
            return token, DEFAULT_LIFE_SECONDS


@made_once
def tokens_of(urls: tuple[str, ...], security: Security) -> Tokens:
    """The one holder of this process for name nodes and an identity; workers get its token, too."""
    tokens = Tokens(urls, security)
    register(tokens.token)
    return tokens


class _Login:
    """Requests to one name node that prove the identity by SPNEGO (RFC 4559)."""

    def __init__(self, url: str, security: Security, *, several: bool = False) -> None:
        """`several`: whether the HDFS has other name nodes, one of which is asked if this one does not answer soon."""
        kerberos = security.kerberos
        assert kerberos is not None, "without Kerberos there is no login"
        self._url = url
        self._tls = security.tls
        self._several = several
        self._answer_s = ANSWER_SECONDS if several else 60.0
        self._kerberos = kerberos
        parts = urlsplit(url)
        self._host = parts.hostname or ""
        self._server = f"{self._host}:{parts.port}" if parts.port else self._host
        self._service = kerberos.service_principal("HTTP", self._host)
        self._told = partial(told, kerberos, self._server, self._service)
        self.principal = kerberos.principal or str(self._credentials().name)

    def asked(self, method: str, query: dict[str, str], path: str = "/webhdfs/v1/") -> dict[str, Any]:
        """The answer to a request; no message, no cause of an error has the query."""
        context = self._context()
        failure: WalferryError | None = None
        try:
            with requests.Session() as session:
                # Neither a proxy nor ~/.netrc: they would get, or replace, the proof.
                session.trust_env = False
                session.verify = verified_by()
                prepare(session, [self._url], self._tls)
                answer = session.request(
                    method, f"{self._url}{path}", params=query, timeout=(10, self._answer_s), allow_redirects=False,
                    headers=_JSON | {"Authorization": f"Negotiate {base64.b64encode(self._stepped(context)).decode()}"},
                )  # fmt: skip
        except (requests.RequestException, urllib3.exceptions.HTTPError, ConnectionError) as error:
            chain = causes(error)
            failure = refused(error, chain, self._url) or TransientError(
                f"WebHDFS at {self._url} does not answer (login of {self.principal}): {hidden(str(chain[-1]))}; is it "
                "up?",
                url=self._url,
                failover=True,
            )
        if failure is not None:
            raise failure
        return self._content(answer, context, path)

    def refused(self, reason: str, to_do: str) -> AuthenticationError:
        """The error for a login that the name node does not take."""
        reason = hidden(reason)
        return AuthenticationError(
            f"WebHDFS at {self._url} refuses the login of {self.principal} as {self._service}: {reason}; {to_do}",
            server=self._server, service_principal=self._service, principal=self.principal, reason=reason,
        )  # fmt: skip

    def _content(self, answer: requests.Response, context: Any, path: str) -> dict[str, Any]:
        try:
            content = answer.json()
        except ValueError:
            content = None
        if answer.ok and isinstance(content, dict):
            scheme, _, proof = answer.headers.get("WWW-Authenticate", "").partition(" ")
            if scheme.lower() == "negotiate" and proof:
                self._stepped(context, base64.b64decode(proof))  # the name node proves who it is, too
            return content
        remote = content.get("RemoteException", {}) if isinstance(content, dict) else {}
        title = TITLE.search(answer.text)
        said = str(remote.get("message") or (title[1] if title else "")).partition("\n")[0]
        reason = f"{remote.get('exception') or answer.status_code}{': ' if said else ''}{said}"
        if remote.get("exception") == "StandbyException":
            message = said_of_standby(self._url, f"login of {self.principal}", self._several)
            raise TransientError(message, url=self._url, failover=True)
        if answer.status_code >= 500 or remote.get("exception") in _PASSING:
            raise TransientError(
                f"WebHDFS at {self._url} refused the login of {self.principal}: {hidden(reason)}",
                url=self._url,
                failover=True,
            )
        if answer.status_code == 401 or path.startswith("/webhdfs/"):
            raise self.refused(reason, _CHECK_PRINCIPAL)
        raise TransientError(f"{self._url} does not show {path} to {self.principal}: {hidden(reason)}", url=self._url)

    def _credentials(self) -> Any:
        return credentials(self._kerberos, self._server, self._service)

    def _context(self) -> Any:
        gss = library()
        # First the ticket itself, by Kerberos alone: SPNEGO hides why there is none.
        GssapiExchange(self._kerberos, "HTTP", self._host, self._server).step(None)
        with self._told():
            return gss.SecurityContext(
                name=named(self._service),
                creds=self._credentials(),
                usage="initiate",
                mech=gss.OID.from_int_seq(SPNEGO),
                flags=[gss.RequirementFlag.mutual_authentication],
            )

    def _stepped(self, context: Any, proof: bytes | None = None) -> bytes:
        with self._told():
            return context.step(proof) or b""


def page_of(url: str, user: str, security: Security, path: str, query: dict[str, str]) -> dict[str, Any]:
    """A JSON page of the server at `url`; `user` asks for it, or the identity of `security`.

    Raises TransientError, TlsError and, with an identity, the errors of `Tokens.current`.
    """
    if security.kerberos is not None:
        return _Login(url, security, several=True).asked("GET", query, path)
    try:
        with requests.Session() as session:
            prepare(session, [url], security.tls)
            answer = session.get(
                f"{url}{path}", params={**query, "user.name": user}, headers=_JSON, timeout=ANSWER_SECONDS
            )
            answer.raise_for_status()
            content = answer.json()
    except requests.exceptions.JSONDecodeError as error:
        raise TransientError(f"{url}{path} has no JSON", url=url) from error
    except (requests.RequestException, urllib3.exceptions.HTTPError, ConnectionError) as error:
        chain = causes(error)
        failure = refused(error, chain, url) or TransientError(f"{url}{path} cannot be read: {chain[-1]}", url=url)
        raise failure from error
    if not isinstance(content, dict):
        raise TransientError(f"{url}{path} is no page of a server of Hadoop's", url=url)
    return content


def settings_of(url: str, user: str, security: Security) -> dict[str, str]:
    """All settings of the server at `url` (/conf, ConfServlet). Raises LookupError for a page without any, and the
    errors of `page_of`."""
    page = page_of(url, user, security, "/conf", {"format": "json"})
    try:
        return {one["key"]: str(one["value"]) for one in page["properties"]}
    except TypeError as error:
        raise LookupError(f"{url} does not show its configuration") from error


class TokenFile:
    """The file in which `hdfs-native` looks for a token at each new connection; one for this process.

    On Linux it is only in memory: Spark's workers, and what is killed, would leave one on the disk. Elsewhere it is in
    a folder that only this user may enter.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tokens: dict[str, Tokens] = {}
        self.path: Path | None = None

    def has(self, service: str, tokens: Tokens) -> bool:
        """Put the tokens of an identity into the file, for a service; whether they, not another's, now are there.

        `service` is "host:port" as in the URL that the library is given, or "ha-hdfs:name".
        """
        with self._lock:
            known = self._tokens.setdefault(service, tokens)
        self.write()
        return known.security.kerberos == tokens.security.kerberos

    def write(self) -> None:
        """Write the current tokens, each for its services; a reader finds the old file or the new one."""
        with self._lock:
            tokens = {service: one.held for service, one in self._tokens.items() if one.held is not None}
            if not tokens:
                return
            put = _put_in_memory if hasattr(os, "memfd_create") else _put_on_disk
            self.path = put(token_file(tokens), self.path)
            # Only the library sees this: `os.environ`, which PySpark gives its child processes, stays unchanged.
            os.putenv("HADOOP_TOKEN_FILE_LOCATION", str(self.path))


def _put_in_memory(content: bytes, before: Path | None) -> Path:
    """An open file without a name that only this process's user can open, in place of the one before."""
    new = os.memfd_create("tokens")
    with os.fdopen(os.dup(new), "wb") as file:
        file.write(content)
    if before is None:
        return Path(f"/proc/self/fd/{new}")
    os.dup2(new, int(before.name), inheritable=False)
    os.close(new)
    return before


def _put_on_disk(content: bytes, before: Path | None) -> Path:
    if before is None:
        folder = tempfile.mkdtemp(prefix="walferry-")
        atexit.register(_removed, folder, os.getpid())
        before = Path(folder, "tokens")
    new = before.with_name(f"new-{os.getpid()}")
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(content)
    return new.replace(before)


LIBRARY = TokenFile()


def _removed(folder: str, process: int) -> None:
    if os.getpid() == process:  # a forked one also comes here
        shutil.rmtree(folder, ignore_errors=True)


class _Hide(logging.Filter):
    """Cuts tokens out of log lines."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Let every line pass."""
        text = record.getMessage()
        if (safe := hidden(text)) != text:
            record.msg, record.args = safe, ()
        return True


_hide = _Hide()
