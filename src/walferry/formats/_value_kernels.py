"""Numba kernels around libraries that decompress: many small values in one call, or with one check."""

from __future__ import annotations

import numpy as np

from walferry.formats._njit import copy_bytes, kernel

STARTS, SIZES, PLACES, LENGTHS = range(4)
"""rows of `values`, int64[4, n]: where compressed values are in `raw`, and where they belong in `out`"""

GZ_LEAST_BYTES = 18
ZSTD_MAGIC = 0x28B52FFD


@kernel()
def uint32_at(buffer, at):  # type: ignore[no-untyped-def]
    value = np.int64(0)
    for i in range(4):
        value = (value << 8) | np.int64(buffer[at + i])
    return value


@kernel()
def claims_lengths(raw, values):  # type: ignore[no-untyped-def]
    """Whether each gzip member's own length, its last four bytes, is its value's."""
    for i in range(values.shape[1]):
        end = values[STARTS, i] + values[SIZES, i]
        if values[SIZES, i] < GZ_LEAST_BYTES:
            return False
        length = np.int64(0)
        for b in range(4):
            length |= np.int64(raw[end - 4 + b]) << (8 * b)
        if length != values[LENGTHS, i]:
            return False
    return True


@kernel()
def put_values(plain, values, out):  # type: ignore[no-untyped-def]
    """Copy the plain values, one after the other in `plain`, to their places."""
    at = np.int64(0)
    for i in range(values.shape[1]):
        copy_bytes(out, values[PLACES, i], plain, at, values[LENGTHS, i])
        at += values[LENGTHS, i]


@kernel()
def zstd_content_size(raw, at, end):  # type: ignore[no-untyped-def]
    """How many bytes the ZSTD frame at `at` makes, by its header (RFC 8878, 3.1.1.1); -1 when it does not say."""
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
    return size + 256 if width == 2 else size


@kernel()
def gather_zstd(raw, values, frames):  # type: ignore[no-untyped-def]
    """Copy the ZSTD frames of all values to `frames`, if each says that it makes what its block lacks.

    Returns how many bytes were copied, or -1: one of them must be looked at by itself.
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
                if plain <= 0 or made + plain > block_end:
                    return np.int64(-1)
                copy_bytes(frames, filled, raw, at, size)
                filled += size
                made += plain
                at += size
        if made != values[LENGTHS, i]:
            return np.int64(-1)
    return filled
