"""HBase's Thrift server, through happybase: independent reads, and ordinary writes."""

from __future__ import annotations

from typing import Any

import happybase
from Hbase_thrift import Hbase
from thriftpy2.protocol import TBinaryProtocol
from thriftpy2.thrift import TClient
from thriftpy2.transport import TSaslClientTransport, TSocket, TTransportException

from walferry.errors import UsageError, WalferryError
from walferry.hbase.address import ClusterAddress
from walferry.hbase.errors import ConnectionFailedError, LoginRefusedError
from walferry.hbase.sockets import LENGTH
from walferry.security import handed
from walferry.security.kerberos import AuthenticationError, Kerberos
from walferry.security.sasl import GssapiExchange
from walferry.security.tickets import identity

TIMEOUT_SECONDS = 60.0
_BAD_STATUS = "Bad status"
"""thriftpy2 says so if the server sends anything but OK and COMPLETE during the login"""


def connect(address: ClusterAddress) -> happybase.Connection:
    """An open connection. Raises UsageError if the address names no Thrift server, ConnectionFailedError if the server
    does not answer, and AuthenticationError if a secured one does not let this identity in."""
    if address.thrift is None:
        raise UsageError(f"the address of the cluster at {address.zookeeper} names no Thrift server; add `thrift`")
    kerberos = address.hbase_kerberos
    if kerberos is not None and handed.mine() is not None:
        raise AuthenticationError(
            f"the Thrift server at {address.thrift} takes tickets only, which Spark's workers do not have; use "
            "`apply: rpc`",
            server=address.thrift,
            principal=kerberos.principal,
            sent=False,
        )
    host, _, port = address.thrift.rpartition(":")
    timeout = int(TIMEOUT_SECONDS * 1000)
    if kerberos is None:
        connection = happybase.Connection(host, int(port), timeout=timeout, autoconnect=False)
    else:
        connection = _Secured(kerberos, host, int(port), timeout)
    try:
        connection.open()
    except (TTransportException, OSError, WalferryError) as error:
        connection.close()
        if isinstance(error, WalferryError):
            raise
        if _BAD_STATUS in str(error) and kerberos is not None:
            raise LoginRefusedError(
                f"HBase's Thrift server at {address.thrift} does not let {identity(kerberos)} log in: {error}; "
                "its log says why",
                server=address.thrift,
                principal=kerberos.principal,
                reason=str(error),
                sent=False,
            ) from error
        message = f"HBase's Thrift server at {address.thrift} does not answer: {error}"
        raise ConnectionFailedError(message, thrift=address.thrift, sent=False) from error
    return connection


class _Secured(happybase.Connection):  # type: ignore[misc]
    """A connection that logs in with SASL (TSaslTransport), which Hadoop's Thrift servers do per connection."""

    def __init__(self, kerberos: Kerberos, host: str, port: int, timeout: int) -> None:
        self._kerberos = kerberos
        super().__init__(host, port, timeout=timeout, autoconnect=False)

    def _refresh_thrift_client(self) -> None:
        socket = TSocket(host=self.host, port=self.port, socket_timeout=self.timeout)  # type: ignore[no-untyped-call]
        self.transport = TSaslClientTransport(self._login, "GSSAPI", socket)  # type: ignore[no-untyped-call]
        protocol = TBinaryProtocol(self.transport, decode_response=False)  # type: ignore[no-untyped-call]
        self.client = TClient(Hbase, protocol)

    def open(self) -> None:
        """Open it. Raises AuthenticationError if the server ends the login before it has proved who it is."""
        super().open()
        if not self._exchange.complete:
            raise AuthenticationError(
                f"the Thrift server at {self.host}:{self.port} ended the login before its time; is it HBase's?",
                server=f"{self.host}:{self.port}",
                principal=self._kerberos.principal,
                sent=False,
            )

    def _login(self) -> _Login:
        server = f"{self.host}:{self.port}"
        assert self._kerberos.service is not None  # `hbase_kerberos`
        self._exchange = GssapiExchange(self._kerberos, self._kerberos.service, self.host, server)
        return _Login(self._exchange)


class _Login:
    """The exchange with the methods that thriftpy2 calls, which are those of Cyrus SASL's client."""

    def __init__(self, exchange: GssapiExchange) -> None:
        self._exchange = exchange

    def start(self, mechanism: str) -> tuple[bool, str, bytes]:
        return True, mechanism, self._exchange.step(None)

    def step(self, challenge: bytes) -> tuple[bool, bytes]:
        return True, self._exchange.step(challenge)

    def encode(self, message: bytes) -> tuple[bool, bytes]:
        """What is sent: the message itself, which gets its length then, or its length and the wrapped message."""
        if not self._exchange.wraps:
            return True, message
        wrapped = self._exchange.wrap(message)
        return True, LENGTH.pack(len(wrapped)) + wrapped

    def decode(self, piece: bytes) -> tuple[bool, bytes]:
        return True, self._exchange.unwrap(piece[LENGTH.size :])

    def getError(self) -> Any:
        return None  # errors are raised
