"""How a connection to HBase proves who it is. Only SIMPLE is implemented; SASL (Kerberos, tokens) belongs here."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from typing import Protocol


class Authenticate(Protocol):
    """How a connection proves who it is. Kerberos and tokens would be further implementations."""

    auth_byte: int  # org.apache.hadoop.hbase.security.AuthMethod

    def handshake(self, sock: socket.socket) -> None:
        """Authenticate after the preamble, before the ConnectionHeader. Raises ConnectionFailedError."""
        ...


@dataclass(frozen=True)
class Simple:
    """SIMPLE: the server believes the user name in the ConnectionHeader."""

    auth_byte: int = 80

    def handshake(self, sock: socket.socket) -> None:
        """Do nothing: SIMPLE has no handshake."""
