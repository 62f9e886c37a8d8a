"""Varints, as protobuf's own library writes them."""

from __future__ import annotations

import numpy as np
from google.protobuf.internal.encoder import _VarintBytes
from hypothesis import example, given
from hypothesis import strategies as st

from walferry.formats._cell_kernels import OK
from walferry.formats._protobuf_kernels import put_varint, varint_at, varint_size

NUMBERS = st.integers(0, 2**63 - 1)


@given(NUMBERS)
@example(0)
@example(127)
@example(128)
@example(16_383)
@example(16_384)
@example(2**63 - 1)
def test_a_number_is_written_as_protobuf_writes_it_and_read_back(number: int) -> None:
    out = np.zeros(12, np.uint8)
    end = put_varint(out, 1, np.int64(number))
    assert out[1:end].tobytes() == _VarintBytes(number)
    assert varint_size(np.int64(number)) == end - 1
    assert varint_at(out, 1, end) == (OK, number, end)
