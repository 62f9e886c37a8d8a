"""Bytes that are taken one after the other, and what was taken."""

from __future__ import annotations

from dataclasses import dataclass


class BadError(Exception):
    """Bytes that no HBase writes."""


class ShortError(Exception):
    """The bytes end inside something."""


@dataclass(frozen=True)
class Part:
    """`data[start:end]` is a "magic", "header", "varint", "int32", "int64", "index", "literal", "count", "bytes"."""

    kind: str
    start: int
    end: int


class Cursor:
    """Takes bytes one after the other."""

    def __init__(self, data: bytes, at: int, limit: int, parts: list[Part]) -> None:
        self.data = data
        self.at = at
        self.limit = limit
        self.parts = parts

    def take(self, size: int, kind: str = "bytes") -> bytes:
        if size < 0:
            raise BadError
        if size > self.limit - self.at:
            raise ShortError
        self.at += size
        if size:
            self.parts.append(Part(kind, self.at - size, self.at))
        return self.data[self.at - size : self.at]

    def varint(self, kind: str = "varint") -> int:
        value = 0
        for i in range(10):
            if self.at + i >= self.limit:
                raise ShortError
            byte = self.data[self.at + i]
            value |= (byte & 0x7F) << (7 * i)
            if byte < 0x80:
                self.parts.append(Part(kind, self.at, self.at + i + 1))
                self.at += i + 1
                value &= (1 << 64) - 1
                return value - (1 << 64) if value >> 63 else value
        raise BadError


def varint(value: int) -> bytes:
    """Protobuf's varint of a number of at most 64 bits."""
    value &= (1 << 64) - 1
    out = b""
    while value > 0x7F:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])
