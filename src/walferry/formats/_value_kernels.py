"""Numba kernels around decompression libraries: they prepare many small values for one call."""

from __future__ import annotations

import numpy as np

from walferry.formats._njit import copy_bytes, kernel

STARTS, SIZES, PLACES, LENGTHS = range(4)
"""rows of `values`, int64[4, n]: where compressed values are in `raw`, and their places in `out`"""

ZSTD_MAGIC = 0x28B52FFD
RLE_BLOCK = 1


@kernel()
def uint32_at(buffer, at):  # type: ignore[no-untyped-def]
    value = np.int64(0)
    for i in range(4):
        value = (value << 8) | np.int64(buffer[at + i])
    return value


@kernel()
def put_values(plain, values, out):  # type: ignore[no-untyped-def]
    """Copy the plain values, concatenated in `plain`, to their places in `out`."""
    at = np.int64(0)
    for i in range(values.shape[1]):
        copy_bytes(out, values[PLACES, i], plain, at, values[LENGTHS, i])
        at += values[LENGTHS, i]


@kernel()
def zstd_content_size(raw, at, end):  # type: ignore[no-untyped-def]
    """The plain size of the ZSTD frame in `raw[at:end]`, from its header (RFC 8878, 3.1.1.1).

    -1 if the header has no size, or if the bytes are not exactly one frame. When frames of many values are concatenated
    to one stream, extra or missing bytes of one frame would spoil the next.
    """
    if at + 6 > end or uint32_at(raw, at) != ZSTD_MAGIC:
        return np.int64(-1)
    descriptor = np.int64(raw[at + 4])
    single = (descriptor >> 5) & 1
    width = (1 << (descriptor >> 6)) if descriptor >> 6 else single
    start = at + 5 + (1 - single)
    if descriptor & 0x0B or not width or start + width > end:  # a dictionary, a reserved bit
        return np.int64(-1)
    size = np.int64(0)
    for b in range(width):
        size |= np.int64(raw[start + b]) << (8 * b)
    checksum = np.int64(descriptor & 4)
    if zstd_blocks_end(raw, start + width, end) + checksum != end:
        return np.int64(-1)
    return size + 256 if width == 2 else size


@kernel()
def zstd_blocks_end(raw, at, end):  # type: ignore[no-untyped-def]
    """The end of the last block from `at` on, from the block headers (RFC 8878, 3.1.1.2); past `end` if none."""
    while at + 3 <= end:
        head = np.int64(raw[at]) | np.int64(raw[at + 1]) << 8 | np.int64(raw[at + 2]) << 16
        at += 4 if (head >> 1) & 3 == RLE_BLOCK else 3 + (head >> 3)
        if head & 1:
            return at
    return end + 8


@kernel()
def gather_zstd(raw, values, frames):  # type: ignore[no-untyped-def]
    """Copy the ZSTD frames of all values to `frames`, if each frame's header states the size that its value needs.

    Returns how many bytes were copied, or -1: one of the values must be decompressed separately.
    """
    filled = np.int64(0)
    for i in range(values.shape[1]):
        at = values[STARTS, i]
        end = at + values[SIZES, i]
        made = np.int64(0)
        if end - at >= 4 and uint32_at(raw, at) == ZSTD_MAGIC:  # one bare frame
            made = zstd_content_size(raw, at, end)
            copy_bytes(frames, filled, raw, at, end - at)
            filled += end - at
            at = end
        while at < end:
            if at + 4 > end:
                return np.int64(-1)
            block_end = made + uint32_at(raw, at)
            at += 4
            while made < block_end:
                if at + 4 > end:
                    return np.int64(-1)
                size = uint32_at(raw, at)
                at += 4
                if size > end - at:
                    return np.int64(-1)
                plain = zstd_content_size(raw, at, at + size)
                if plain <= 0 or plain > block_end - made:
                    return np.int64(-1)
                copy_bytes(frames, filled, raw, at, size)
                filled += size
                made += plain
                at += size
        if made != values[LENGTHS, i]:
            return np.int64(-1)
    return filled
