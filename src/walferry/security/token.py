"""Delegation tokens of Hadoop and HBase, and their coding.

Whoever knows a token's password is its owner, so no repr and no error shows it.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass, field, replace

LIBRARY_KIND = "HDFS_DELEGATION_TOKEN"
"""the kind of token that Hadoop's RPC takes; a token of WebHDFS differs only in this label, which is not signed"""


@dataclass(frozen=True)
class Token:
    """One delegation token (org.apache.hadoop.security.token.Token)."""

    identifier: bytes = field(repr=False)
    password: bytes = field(repr=False)
    kind: str
    service: str

    @classmethod
    def decoded(cls, url_string: str) -> Token:
        """The token of a `urlString`. Raises ValueError for other text."""
        try:
            data = base64.urlsafe_b64decode(url_string + "=" * (-len(url_string) % 4))
            identifier, data = _taken(data)
            password, data = _taken(data)
            kind, data = _taken(data)
            service, data = _taken(data)
            if data:
                raise ValueError
            return cls(identifier, password, kind.decode(), service.decode())
        except (ValueError, IndexError):
            raise ValueError("not a delegation token") from None  # the cause may show its bytes

    def packed(self) -> bytes:
        """Its bytes, as Token.write writes them: four fields, each after its length."""
        fields = (self.identifier, self.password, self.kind.encode(), self.service.encode())
        return b"".join(_vint(len(one)) + one for one in fields)

    def encoded(self) -> str:
        """Its `urlString`."""
        return base64.urlsafe_b64encode(self.packed()).decode().rstrip("=")

    @property
    def owner(self) -> str:
        """The user that HDFS takes its bearer for."""
        owner, _ = _taken(self.identifier[1:])
        return owner.decode()

    @property
    def issued_ms(self) -> int:
        """When the name node issued it, by its own clock.

        AbstractDelegationTokenIdentifier: version byte | owner | renewer | real user | vlong issue date | …
        """
        data = self.identifier[1:]
        for _ in ("owner", "renewer", "real user"):
            _, data = _taken(data)
        return _vlong(data)[0]


def token_file(tokens: dict[str, Token]) -> bytes:
    """The content of a token file (Credentials.writeTokenStorageToStream, format 0) with a token for each service."""
    labelled = [replace(token, kind=LIBRARY_KIND, service=service) for service, token in tokens.items()]
    entries = [_vint(len(token.service.encode())) + token.service.encode() + token.packed() for token in labelled]
    return b"HDTS\0" + _vint(len(entries)) + b"".join(entries) + _vint(0)  # no secrets beside the tokens


def _taken(data: bytes) -> tuple[bytes, bytes]:
    """The field at the start of the data, after its length, and the rest. Raises ValueError past the end."""
    length, rest = _vlong(data)
    if not 0 <= length <= len(rest):
        raise ValueError("a length is wrong")
    return rest[:length], rest[length:]


def _vlong(data: bytes) -> tuple[int, bytes]:
    """The number at the start of the data, and the rest (WritableUtils.readVLong; not for negative numbers)."""
    first = data[0] - 256 if data[0] > 127 else data[0]
    if first >= -112:
        return first, data[1:]
    size = -112 - first
    if len(data) <= size:
        raise ValueError("a number is cut off")
    return int.from_bytes(data[1 : 1 + size], "big"), data[1 + size :]


def _vint(number: int) -> bytes:
    """A length (WritableUtils.writeVInt)."""
    if number < 128:
        return bytes([number])
    digits = number.to_bytes((number.bit_length() + 7) // 8, "big")
    return bytes([144 - len(digits)]) + digits  # -112 - len
