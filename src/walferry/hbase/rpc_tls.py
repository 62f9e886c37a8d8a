"""TLS of one connection that a server has accepted, as bytes: what comes, what goes, and what is inside.

It holds what has come and is not read yet, which is at most what `came` was given once and a record, and what is to be
sent, which is at most what `write` was given since `to_send`, wrapped. Nothing of it waits for the network.
"""

from __future__ import annotations

import ssl
from typing import Any, cast

HANDSHAKE = 0x16
"""the first byte of a connection with TLS; no other protocol of HBase's begins with it"""


class TlsBytes:
    """The server's side. Raises ssl.SSLError for what is no TLS, or was changed on the way."""

    def __init__(self, context: ssl.SSLContext, begun: bytes) -> None:
        """`begun`: what has come already."""
        self.ended = False
        """whether the client has said that it sends no more"""
        self._came, self._to_send = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._came, self._to_send, server_side=True)
        self.came(begun)

    def came(self, content: bytes) -> None:
        """Take what has come."""
        self._came.write(content)

    def shake_hands(self) -> bool:
        """Go on with the handshake; whether it is over."""
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        return True

    def read_into(self, view: memoryview) -> int:
        """As much of what is inside as has come whole and fits; 0: more must come, or the client has `ended`."""
        count = 0
        while count < len(view):
            try:
                got: int = cast(Any, self._tls).read(len(view) - count, view[count:])  # typeshed lacks that form
            except ssl.SSLWantReadError:
                break
            if not got:
                self.ended = True
                break
            count += got
        return count

    def write(self, content: memoryview) -> None:
        """Wrap bytes."""
        while content:
            content = content[self._tls.write(content) :]

    @property
    def has_to_send(self) -> bool:
        """Whether `to_send` has something."""
        return self._to_send.pending > 0

    def to_send(self) -> bytes:
        """What is to be sent now: what was wrapped, and what TLS itself says."""
        return self._to_send.read()
