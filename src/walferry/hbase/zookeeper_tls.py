"""Reaches ZooKeeper by TLS: kazoo, with the checks of walferry's other clients.

kazoo's own would trust the machine's authorities beside the named one, and it does not tell why a server is refused.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionDropped
from kazoo.handlers.threading import SequentialThreadingHandler

from walferry.errors import WalferryError
from walferry.hbase.sockets import holds
from walferry.security.tls import Tls, TlsError, encrypted, refusal

_PLAIN = "if that is right, leave `zookeeper` out of the cluster's `tls`"


class TlsHandler(SequentialThreadingHandler):  # type: ignore[misc]
    """What kazoo's connections are made with."""

    def __init__(self, tls: Tls) -> None:
        super().__init__()
        self._tls = tls

    def create_connection(self, address: tuple[Any, ...], hostname: str, timeout: float, **_: Any) -> socket.socket:
        """A connection after its handshake. Raises TlsError, OSError."""
        try:
            sock = encrypted(socket.create_connection(address[:2], timeout), self._tls, hostname)
        except ssl.SSLError as error:
            raise refusal(error, f"ZooKeeper at {hostname}:{address[1]}", _PLAIN) or error from None
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return sock

    def select(self, readers: list[Any], *others: Any, **options: Any) -> tuple[list[Any], list[Any], list[Any]]:
        """As select.select; what is decrypted already can be read, too, which the system does not know."""
        ready = [one for one in readers if isinstance(one, socket.socket) and holds(one)]
        if ready:
            return ready, [], []
        found: tuple[list[Any], list[Any], list[Any]] = super().select(readers, *others, **options)
        return found


def tell(client: KazooClient, refused: Callable[[WalferryError], None]) -> None:
    """Let `refused` know why a server and this client do not come together; kazoo goes on to the next server."""
    connection = client._connection
    connect = connection._connect

    def told(host: str, address: str, port: int) -> Any:
        try:
            return connect(host, address, port)
        except TlsError as error:
            refused(error)
            raise ConnectionDropped(error.message) from error
        except ConnectionDropped as error:
            found = error.__context__ and refusal(error.__context__, f"ZooKeeper at {host}:{port}", established=True)
            if found:
                refused(found)
            raise

    connection._connect = told
