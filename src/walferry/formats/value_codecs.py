"""Decompresses the single values of WALs with value compression (HBase: CompressionContext.ValueCompressor).

Each value is compressed by itself. GZ: one gzip member. NONE: the bytes. Snappy, LZ4 and ZSTD: Hadoop's
BlockCompressorStream, all integers big-endian,

    block* = int32 its plain length | chunk*, until they make that length; chunk = int32 its length | bytes

where a chunk is a raw Snappy or LZ4 block, or a ZSTD frame. An empty block follows a value that is longer than the
codec's buffer. Hadoop's native ZStandardCodec writes one bare ZSTD frame instead.
"""

from __future__ import annotations

import threading
import zlib
from collections.abc import Callable
from dataclasses import dataclass

import cramjam
import numpy as np
import zstandard

from walferry.formats import _value_kernels as kernels
from walferry.formats.cells import Bytes, Int64s

ALGORITHMS = ("LZO", "GZ", "NONE", "SNAPPY", "LZ4", "BZIP2", "ZSTD", "LZMA", "BROTLI")
"""indexed by WALHeader.value_compression_algorithm (Compression.Algorithm)"""

_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_SMALL_BYTES = 4096
"""values with a lower average size are decompressed together"""
_Into = Callable[[memoryview, memoryview], int]
"""decompresses into the beginning of the second argument; returns the number of bytes, or raises its library's error"""
_Together = Callable[[Bytes, Int64s, int], Bytes | None]
"""(`raw`, `values` (`_value_kernels`), total plain bytes) -> the concatenated plain values; None if one of the values
must be decompressed separately"""
_ERRORS = (cramjam.DecompressionError, zlib.error, zstandard.ZstdError)


@dataclass(frozen=True)
class ValueCodec:
    """How the values of a file are compressed.

    `max_ratio`: the most plain bytes that one compressed byte can yield.
    """

    max_ratio: int
    into: _Into
    """returns a number other than the length of the second argument if the value has another length"""
    together: _Together | None = None

    def decompress_all(self, raw: Bytes, values: Int64s, out: Bytes) -> int:
        """Decompress values from `raw` to their places in `out`; `values` has both positions (`_value_kernels`).

        Returns the number of the first value that cannot be decompressed, or -1.
        """
        total = int(values[kernels.LENGTHS].sum())
        if self.together is not None and total <= _SMALL_BYTES * values.shape[1]:
            try:
                plain = self.together(raw, values, total)
            except _ERRORS:
                plain = None
            if plain is not None:
                kernels.put_values(plain, values, out)
                return -1
        data, room = raw.data, out.data
        for number, (start, size, to, length) in enumerate(values.T.tolist()):
            if not self.decompress(data[start : start + size], room[to : to + length]):
                return number
        return -1

    def decompress(self, data: memoryview, to: memoryview) -> bool:
        """Decompress `data` into `to`, which has the value's length. False if `data` is not a value of that length."""
        try:
            return self.into(data, to) == len(to)
        except _ERRORS:
            return False


def _gz(data: memoryview, to: memoryview) -> int:
    member = zlib.decompressobj(wbits=31)
    plain = member.decompress(data, len(to) + 1)
    if not member.eof or member.unused_data or len(plain) > len(to):
        return -1
    to[: len(plain)] = plain
    return len(plain)


def _gz_together(raw: Bytes, values: Int64s, total: int) -> Bytes | None:
    # Reads each member like `_gz`, into room allocated once. The length that a member's last bytes state may be wrong.
    data, member_of = raw.data, zlib.decompressobj
    plain = []
    for at, size, _, length in values.T.tolist():
        member = member_of(31)
        made = member.decompress(data[at : at + size], length + 1)
        if not member.eof or member.unused_data or len(made) != length:
            return None
        plain.append(made)
    return np.frombuffer(b"".join(plain), np.uint8)


def _none(data: memoryview, to: memoryview) -> int:
    if len(data) == len(to):
        to[:] = data
    return len(data)


def _lz4(data: memoryview, to: memoryview) -> int:
    return int(cramjam.lz4.decompress_block_into(data, to, output_len=len(to)))


def _snappy(data: memoryview, to: memoryview) -> int:
    return int(cramjam.snappy.decompress_raw_into(data, to))


class _Zstd(threading.local):
    """Keeps one decompressor per thread: creating one takes many times as long as using it."""

    def __init__(self) -> None:
        self.decompressor = zstandard.ZstdDecompressor()


_zstd_of_thread = _Zstd()


def _zstd(data: memoryview, to: memoryview) -> int:
    if zstandard.frame_content_size(data) > len(to):  # the library would allocate that much at once
        return -1
    plain = _zstd_of_thread.decompressor.decompress(data, max_output_size=len(to), allow_extra_data=False)
    to[: len(plain)] = plain
    return len(plain)


def _zstd_or_blocks(data: memoryview, to: memoryview) -> int:
    return _zstd(data, to) if data[:4] == _ZSTD_MAGIC else _in_blocks(_zstd)(data, to)


def _zstd_together(raw: Bytes, values: Int64s, total: int) -> Bytes | None:
    frames = np.empty(int(values[kernels.SIZES].sum()), np.uint8)
    filled = kernels.gather_zstd(raw, values, frames)
    plain = np.empty(total, np.uint8)
    if filled < 0 or cramjam.zstd.decompress_into(frames.data[:filled], plain.data) != total:
        return None
    return plain


def _in_blocks(chunk_into: _Into) -> _Into:
    """Make the decompressor of a whole value from the decompressor of a chunk."""

    def into(data: memoryview, to: memoryview) -> int:
        at = filled = 0
        while at < len(data):
            end = filled + int.from_bytes(data[at : at + 4], "big")
            at += 4
            if end > len(to):
                return -1
            while filled < end:
                size = int.from_bytes(data[at : at + 4], "big")
                at += 4
                if size == 0 or at + size > len(data):
                    return -1
                made = chunk_into(data[at : at + size], to[filled:end])
                if made <= 0:
                    return -1
                filled += made
                at += size
        return filled if at == len(data) else -1

    return into


# Most that compressed bytes can yield: deflate 1,032 bytes from one, an LZ4 sequence 255 from one, a Snappy element 64
# from three, a ZSTD block (of at least four bytes) 128 KiB.
CODECS = {
    "GZ": ValueCodec(1032, _gz, _gz_together),
    "NONE": ValueCodec(1, _none),
    "SNAPPY": ValueCodec(22, _in_blocks(_snappy)),
    "LZ4": ValueCodec(255, _in_blocks(_lz4)),
    "ZSTD": ValueCodec(1 << 15, _zstd_or_blocks, _zstd_together),
}
