"""Logs in to ZooKeeper with Kerberos: kazoo's SASL, with the exchange of walferry's other clients.

kazoo takes mechanisms from pure-sasl, whose own GSSAPI has only the default ticket cache of the process.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import AuthFailedError, ConnectionDropped

from walferry.errors import WalferryError
from walferry.security import handed
from walferry.security.kerberos import Kerberos, KerberosUnavailableError
from walferry.security.sasl import GssapiExchange
from walferry.security.tickets import library

MOST_CUT_OFF = 3
"""logins in a row, with whichever servers"""
_MECHANISM = "WALFERRY-GSSAPI"
"""known to this process only: ZooKeeper's packets name no mechanism"""


def sasl_options(kerberos: Kerberos, refused: Callable[[WalferryError], None]) -> dict[str, Any] | None:
    """For `KazooClient`; None without a login. kazoo only says that a login failed: `refused` gets the reason.

    A worker never logs in: ZooKeeper knows no tokens, and what a worker reads there is open to all.
    """
    if kerberos.zookeeper_service is None or handed.mine() is not None:
        return None
    library()  # which says what is missing
    from puresasl.mechanisms import mechanisms

    mechanisms[_MECHANISM] = _Mechanism
    return {"mechanism": _MECHANISM, "service": kerberos.zookeeper_service, "kerberos": kerberos, "refused": refused}


def be_patient(client: KazooClient, logged_in: Callable[[], None], turned_away: Callable[[], None]) -> None:
    """Let kazoo go on to the next server, with its session, if a login was cut off or no KDC answered.

    kazoo itself gives its session up then, since a server that refuses a ticket closes the connection, too. `logged_in`
    is called after each login, `turned_away` when the servers have closed the connection too often.
    """
    connection = client._connection
    login, cut_off = connection._authenticate_with_sasl, 0

    def patient(host: str, timeout: float) -> None:
        nonlocal cut_off
        try:
            login(host, timeout)
        except AuthFailedError as error:
            cut_off += 1
            if cut_off < MOST_CUT_OFF and isinstance(error.__cause__, (ConnectionDropped, KerberosUnavailableError)):
                raise ConnectionDropped(f"the login at {host} was cut off: {error.__cause__}") from error
            if not isinstance(error.__cause__, WalferryError):
                turned_away()
            raise
        cut_off = 0
        logged_in()

    connection._authenticate_with_sasl = patient


class _Mechanism:
    """One login, as pure-sasl calls it. ZooKeeper wraps nothing afterwards."""

    name = _MECHANISM
    has_initial_response = True

    def __init__(self, sasl: Any, kerberos: Kerberos, refused: Callable[[WalferryError], None], **_: Any) -> None:
        self._refused = refused
        self._login = (kerberos, sasl.service, sasl.host, f"ZooKeeper at {sasl.host}")
        self._exchange: GssapiExchange | None = None

    @property
    def complete(self) -> bool:
        return self._exchange is not None and self._exchange.complete

    def process(self, challenge: bytes | None = None) -> bytes:
        try:
            if self._exchange is None:
                self._exchange = GssapiExchange(*self._login, layers=False)
            return self._exchange.step(challenge)
        except WalferryError as error:
            self._refused(error)
            raise

    def dispose(self) -> None:
        self._exchange = None
