"""Values decompressed slowly, as the formats' descriptions say it."""

from __future__ import annotations

import zlib
from collections.abc import Callable

import pyarrow as pa

from fuzz.cursor import BadError, Cursor, ShortError


def gz(data: bytes, length: int) -> bytes:
    member = zlib.decompressobj(31)
    try:
        plain = member.decompress(data, length + 1)
    except zlib.error:
        raise BadError from None
    if not member.eof or member.unused_data or len(plain) != length:
        raise BadError
    return plain


def none(data: bytes, length: int) -> bytes:
    if len(data) != length:
        raise BadError
    return data


def in_blocks(chunk: Callable[[bytes, int], bytes]) -> Callable[[bytes, int], bytes]:
    """A value in Hadoop's block stream, whose chunks are decompressed by `chunk`, given the most that one may make."""

    def value(data: bytes, length: int) -> bytes:
        plain, at = b"", 0
        while at < len(data):
            end = len(plain) + int.from_bytes(data[at : at + 4], "big")
            at += 4
            if end > length:
                raise BadError
            while len(plain) < end:
                size = int.from_bytes(data[at : at + 4], "big")
                made = chunk(data[at + 4 : at + 4 + size], end - len(plain))
                if at + 4 + size > len(data) or not 0 < len(made) <= end - len(plain):
                    raise BadError
                plain += made
                at += 4 + size
        if at != len(data) or len(plain) != length:
            raise BadError
        return plain

    return value


def snappy(data: bytes, most: int) -> bytes:
    """A raw block of Snappy."""
    cursor = Cursor(data, 0, len(data), [])
    try:
        length = cursor.varint()
        if length > most:
            raise BadError
        out = bytearray()
        while cursor.at < len(data):
            (tag,) = cursor.take(1)
            size, kind = (tag >> 2) + 1, tag & 3
            if kind == 0:
                if size > 60:
                    size = int.from_bytes(cursor.take(size - 60), "little") + 1
                out += cursor.take(size)
            else:
                if kind == 1:
                    size, offset = (tag >> 2 & 7) + 4, tag >> 5 << 8 | cursor.take(1)[0]
                else:
                    offset = int.from_bytes(cursor.take(2 if kind == 2 else 4), "little")
                copy(out, offset, size)
            if len(out) > length:
                raise BadError
    except ShortError:
        raise BadError from None
    if len(out) != length:
        raise BadError
    return bytes(out)


def lz4(data: bytes, most: int) -> bytes:
    """A raw block of LZ4."""
    cursor = Cursor(data, 0, len(data), [])
    out = bytearray()
    try:
        while True:
            (token,) = cursor.take(1)
            out += cursor.take(lz4_length(cursor, token >> 4))
            if cursor.at == len(data):
                break
            offset = int.from_bytes(cursor.take(2), "little")
            size = lz4_length(cursor, token & 15) + 4
            if len(out) + size > most:
                raise BadError
            copy(out, offset, size)
    except ShortError:
        raise BadError from None
    if len(out) > most:
        raise BadError
    return bytes(out)


def lz4_length(cursor: Cursor, length: int) -> int:
    if length == 15:
        more = 255
        while more == 255:
            (more,) = cursor.take(1)
            length += more
    return length


def copy(out: bytearray, offset: int, size: int) -> None:
    """Repeat what is `offset` bytes back."""
    if not 0 < offset <= len(out):
        raise BadError
    for _ in range(size):
        out.append(out[-offset])


def is_one_frame(data: bytes) -> bool:
    """Whether a ZSTD frame ends where its bytes do (RFC 8878, 3.1.1)."""
    if len(data) < 6 or data[:4] != b"\x28\xb5\x2f\xfd":
        return False
    flags = data[4]
    single = flags >> 5 & 1
    at = 6 - single + (0, 1, 2, 4)[flags & 3] + (single, 2, 4, 8)[flags >> 6]
    last = 0
    while not last:
        if at + 3 > len(data):
            return False
        head = int.from_bytes(data[at : at + 3], "little")
        last, kind, size = head & 1, head >> 1 & 3, head >> 3
        at += 3 + (1 if kind == 1 else size)
    return at + (4 if flags & 4 else 0) == len(data)


def zstd(data: bytes, most: int) -> bytes:
    if not is_one_frame(data):
        raise BadError
    try:
        with pa.CompressedInputStream(pa.BufferReader(data), "zstd") as stream:
            plain = stream.read(most + 1)
    except OSError:
        raise BadError from None
    if len(plain) > most:
        raise BadError
    return bytes(plain)


VALUES = {1: gz, 2: none, 3: in_blocks(snappy), 4: in_blocks(lz4), 6: in_blocks(zstd)}
