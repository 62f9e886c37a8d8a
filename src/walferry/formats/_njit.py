"""How kernels that allocate nothing are compiled."""

from __future__ import annotations

from functools import partial

from numba import njit

# Without numba's runtime, arrays are not reference-counted: with it, each call of a kernel by another one counts every
# array up and down, which takes five times as long as the work on a small cell. Such a kernel cannot make an array.
kernel = partial(njit, cache=True, nogil=True, _nrt=False)
