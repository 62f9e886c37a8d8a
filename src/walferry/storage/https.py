"""HTTPS of WebHDFS: `tls` of a cluster for the library `requests`, and what is said when a server is refused."""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterable
from typing import Any
from urllib.parse import urlsplit

import requests
from requests.adapters import HTTPAdapter

from walferry.security.tls import Tls, TlsError, context, refusal

_LIBRARY = "urllib3"
_PLAIN = "if that is right, write http:// in `webhdfs`, or webhdfs:// for a path"


def prepare(session: requests.Session, urls: Iterable[str], tls: Tls | None, connections: int = 10) -> None:
    """Let a session check the servers of https URLs as `tls` says; without one, as `requests` does.

    `connections`: the size of each server's pool, and the number of pools. Raises TlsError for a file that cannot be
    used.
    """
    secure = [url.startswith("https:") for url in urls]
    session.mount("http://", _Refused() if all(secure) else HTTPAdapter(connections, connections))
    if tls is None or not any(secure):
        session.mount("https://", HTTPAdapter(connections, connections))
        return
    session.mount("https://", _Checked(tls, connections))
    session.trust_env, session.verify = False, True  # the environment would add authorities, or a proxy


def verified_by() -> bool | str:
    """What checks a server's certificate without `tls` where `requests` must not follow the environment."""
    return os.environ.get("REQUESTS_CA_BUNDLE") or True


def refused(error: BaseException, chain: Iterable[BaseException], url: str) -> TlsError | None:
    """The error to raise for one of an HTTP library, and its causes; None if it may pass by itself.

    The server is the one of the error's request, for example a data node that a name node named; else that of `url`.
    """
    asked = getattr(getattr(error, "request", None), "url", None)
    server = urlsplit(str(asked or url)).netloc
    for cause in chain:
        for one in (cause, *cause.args):  # urllib3 has the cause as an argument
            if isinstance(one, TlsError):
                return one
            if isinstance(one, ssl.SSLError) and (found := refusal(one, server, _PLAIN)) is not None:
                return found
    return None


class _Checked(HTTPAdapter):
    """Connections whose servers `tls` checks, and nothing else."""

    def __init__(self, tls: Tls, connections: int) -> None:
        context(tls, _LIBRARY)
        self._tls = tls
        super().__init__(connections, connections)

    def build_connection_pool_key_attributes(self, request: Any, verify: Any, cert: Any = None) -> Any:
        """A server's connections of now: those with files that were replaced since are not used again."""
        server, _ = super().build_connection_pool_key_attributes(request, verify, cert)
        return server, {"ssl_context": context(self._tls, _LIBRARY)}

    def cert_verify(self, conn: Any, url: str, verify: Any, cert: Any) -> None:
        """Add none of the authorities that `requests` brings."""


class _Refused(HTTPAdapter):
    """No connections: servers that https ones name must speak TLS, too."""

    def send(self, request: requests.PreparedRequest, *_: Any, **__: Any) -> requests.Response:
        """Raises TlsError."""
        server = urlsplit(str(request.url)).netloc
        raise TlsError(
            f"{server} speaks no TLS, and a server that does has named it; nothing was sent there. See "
            "dfs.http.policy, or what is between walferry and the name node",
            server=server,
            reason="it speaks no TLS",
            principal=None,
        )
