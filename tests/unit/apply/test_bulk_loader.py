"""Which region each of the sorted cells is written for."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pytest

from walferry.apply.bulk_loader import _by_region
from walferry.errors import TransientError
from walferry.formats.cells import Bytes, Int64s, cell_starts, encode_cell
from walferry.hbase.descriptors import Region

ROWS = [b"%02d" % number for number in range(30)]


def cells(size: int) -> Iterator[tuple[Bytes, Int64s]]:
    for at in range(0, len(ROWS), size):
        buffer = np.frombuffer(b"".join(encode_cell(row, b"f", b"q", 1, 4) for row in ROWS[at : at + size]), np.uint8)
        yield buffer, cell_starts(buffer)
        yield buffer, cell_starts(buffer)[:0]


def regions(*borders: bytes) -> list[Region]:
    return [Region(start, start.decode(), "t", start, end, None, 1) for start, end in pairwise(borders)]


def rows_by_region(found: list[Region], size: int) -> dict[str, list[bytes]]:
    placed = {}
    for region, mine in _by_region(found, cells(size), "t"):
        placed[region.encoded] = [
            buffer[at + 14 : at + 16].tobytes() for buffer, positions in mine for at in positions.tolist()
        ]
    return placed


@pytest.mark.parametrize("size", [1, 7, 30])
def test_each_row_goes_to_the_region_that_holds_it(size: int) -> None:
    found = rows_by_region(regions(b"", b"03", b"031", b"10", b"20", b""), size)
    assert found == {"": ROWS[:3], "03": [b"03"], "031": ROWS[4:10], "10": ROWS[10:20], "20": ROWS[20:]}


@pytest.mark.parametrize(
    "found",
    [regions(b"", b"10", b"20"), [*regions(b"", b"10"), *regions(b"20", b"")], regions(b"10", b"")],
    ids=["none at the end", "a hole", "none at the beginning"],
)
@pytest.mark.parametrize("size", [1, 7, 30])
def test_rows_that_no_region_holds_are_an_error(size: int, found: list[Region]) -> None:
    with pytest.raises(TransientError, match="no region for some rows of t"):
        rows_by_region(found, size)
