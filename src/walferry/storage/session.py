"""The requests of WebHDFS: which count, what they are signed with, and how long each server is waited for."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any
from urllib.parse import urljoin, urlsplit

import requests

from walferry.request_meter import Meter, Service
from walferry.storage.https import verified_by
from walferry.storage.tokens import REST_SECONDS, Tokens

_OF_DATA = {"OPEN", "GETFILECHECKSUM"}
"""what a name node leaves to its data nodes, and HttpFS does itself, which takes as long as it takes"""


class Session(requests.Session):
    """Counts the requests to name nodes, not those to data nodes, and adds the token of a secured HDFS to them."""

    def __init__(
        self,
        name_nodes: Iterable[str],
        meter: Meter | None,
        tokens: Tokens | None,
        answer_s: float | None,
        answers_itself: Callable[[str], bool | None],
    ) -> None:
        """`answer_s`: how long a name node is waited for if there are several, then the next one is asked.

        `answers_itself`: whether what is at an address sends contents and checksums itself; None if it does not tell.
        """
        super().__init__()
        self._answer_s = answer_s
        self._answers_itself = answers_itself
        self._kinds: dict[str, tuple[bool, float]] = {}
        self._name_nodes = {urlsplit(url).netloc for url in name_nodes}
        self._meter = meter
        self._tokens = tokens
        if tokens is not None:
            self.trust_env = False  # a proxy or ~/.netrc would add to the requests, or read them
            self.verify = verified_by()

    def request(  # type: ignore[override]  # the one form in which the package calls it
        self, method: str, url: str, *, params: Mapping[str, Any] | None = None, **kwargs: Any
    ) -> requests.Response:
        name_node = urlsplit(url).netloc in self._name_nodes
        if name_node and self._meter is not None:
            self._meter.request(Service.NAMENODE)
        if not name_node or "delegation=" in url:  # the URL of a redirect has the token
            return super().request(method, url, params=params, **kwargs)
        if self._tokens is None:
            return self._asked(method, url, params, kwargs)
        token = self._tokens.current()
        answer = self._asked(method, url, {**(params or {}), "delegation": token.encoded()}, kwargs)
        if answer.status_code not in (401, 403) or "InvalidToken" not in answer.text:
            return answer
        # Refused before anything was done, so also a change may be sent again.
        token = self._tokens.after(token, "InvalidToken")
        return self._asked(method, url, {**(params or {}), "delegation": token.encoded()}, kwargs)

    def _asked(
        self, method: str, url: str, params: Mapping[str, Any] | None, options: dict[str, Any]
    ) -> requests.Response:
        """The answer of a name node, or of the data node that it names, which has the whole time.

        A gateway names itself for a data node, or does what a data node does; only what has an operation of WebHDFS in
        `params` is asked of a name node.
        """
        operation = (params or {}).get("op")
        if self._answer_s is None or operation is None or (operation in _OF_DATA and self._is_gateway(url)):
            return super().request(method, url, params=params, **options)
        once = {**options, "allow_redirects": False, "timeout": self._answer_s}
        answer = super().request(method, url, params=params, **once)
        if not answer.is_redirect or not options.get("allow_redirects", True):
            return answer
        return super().request(method, urljoin(answer.url, answer.headers["location"]), **options)

    def _is_gateway(self, url: str) -> bool:
        """Whether a request for data goes to a server that does not redirect it."""
        address = url.partition("/webhdfs/v1")[0]
        kind, until = self._kinds.get(address, (False, 0.0))
        if time.monotonic() >= until:
            told = self._answers_itself(address)
            kind, until = bool(told), math.inf if told is not None else time.monotonic() + REST_SECONDS
            self._kinds[address] = kind, until
        return kind
