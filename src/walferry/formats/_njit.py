"""The decorator of kernels that allocate nothing, and their memcpy."""

from __future__ import annotations

from functools import partial
from typing import Any

from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

# Kernels compiled without numba's runtime do not count references, and cannot allocate arrays. With the runtime, each
# call between kernels counts every array up and down, which takes five times as long as the work on a small cell.
kernel = partial(njit, cache=True, nogil=True, _nrt=False)


def _copy_bytes(context, to, to_at, source, at, size):  # type: ignore[no-untyped-def]
    """to[to_at : to_at + size] = source[at : at + size], for uint8 ranges that do not overlap.

    Calls the C library's memcpy: a loop over bytes takes several times as long, for short names and long values alike.
    """
    where = types.intp

    def generate(target, builder, signature, arguments):  # type: ignore[no-untyped-def]
        arrays = [target.make_array(signature.args[i])(target, builder, arguments[i]) for i in (0, 2)]
        pointers = [builder.gep(array.data, [arguments[i]]) for array, i in zip(arrays, (1, 3), strict=True)]
        cgutils.raw_memcpy(builder, *pointers, arguments[4], 1)  # type: ignore[no-untyped-call,call-arg]
        return target.get_dummy_value()

    return types.void(to, where, source, where, where), generate


copy_bytes: Any = intrinsic(_copy_bytes)
