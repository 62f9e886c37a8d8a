"""Moving byte ranges about."""

from __future__ import annotations

import numpy as np
from numba import njit


def gather(buffer: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Copy `buffer[start:end]` of every range, one behind the other, into one new uint8 array."""
    out = np.empty(int((ends - starts).sum()), np.uint8)
    _copy_ranges(buffer, starts.astype(np.int64), ends.astype(np.int64), out)
    return out


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator, unused-ignore]
def _copy_ranges(buffer: np.ndarray, starts: np.ndarray, ends: np.ndarray, out: np.ndarray) -> None:
    position = 0
    for i in range(len(starts)):
        for j in range(starts[i], ends[i]):
            out[position] = buffer[j]
            position += 1
