"""At which numbers past rows are read, and when an answer is not to be trusted."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from walferry.formats.cells import encode_cell
from walferry.formats.proto import hbase_pb2 as pb
from walferry.hbase.calls import Calls
from walferry.hbase.descriptors import Region
from walferry.hbase.errors import RegionNotServedError, RequestTimeoutError, ScannerLostError
from walferry.hbase.past_rows import HeldReadPoint, PastRow, hold_read_points, points_of, rows_at, still_held

SERVER = "127.0.0.1,16020,17"
REGION = Region(b"t,,1.e.", "e", "t", b"", b"", None, 1)
PAST = st.builds(
    lambda row, first, more: PastRow(row, first, first + more), st.binary(), st.integers(0, 60), st.integers(0, 20)
)


class Pool:
    """A server with one row, whose scanner has an id; fails with these errors: by "open", "rows", "renew"."""

    def __init__(self, **errors: Exception) -> None:
        self._errors = errors
        self.asked: list[str] = []

    def call(self, _: str, __: str, ___: str, request: pb.ScanRequest, *____: Any, **_____: Any) -> tuple[Any, bytes]:
        kind = "renew" if request.renew else "rows" if request.scan.mvcc_read_point else "open"
        self.asked.append(kind)
        if kind in self._errors:
            raise self._errors[kind]
        if kind == "open":
            return pb.ScanResponse(mvcc_read_point=8, scanner_id=5, ttl=60000), b""
        return pb.ScanResponse(cells_per_result=[1]), encode_cell(b"row", b"f", b"q", 1, 4, b"v", ())


def answered(pool: Pool, *past: PastRow, **more: Any) -> list[list[bytes | None] | None]:
    client = cast(Calls, SimpleNamespace(pool=pool, timeout_s=5.0))
    (held,) = hold_read_points(client, [(SERVER, REGION)], attempts=1)
    assert isinstance(held, HeldReadPoint)
    return rows_at(client, [(held, past)], attempts=1, **more)


@given(st.lists(PAST, max_size=30))
def test_each_row_is_read_at_a_number_of_its_own_and_at_no_more_numbers_than_needed(asked: list[PastRow]) -> None:
    points = points_of(asked)
    assert sorted(which for some in points.values() for which in some) == list(range(len(asked)))
    for point, some in points.items():
        assert all(asked[which].first <= point <= asked[which].last for which in some)
    apart = sorted((asked[some[0]].first, asked[some[0]].last) for some in points.values())
    assert all(one[1] < other[0] for one, other in pairwise(apart)), "no two share a number"


def test_the_lease_is_renewed_after_the_answers() -> None:
    pool = Pool()
    row = encode_cell(b"row", b"f", b"q", 1, 4, b"v", ())
    found = answered(pool, PastRow(b"row", 8, 9), PastRow(b"none", 9, 9), PastRow(b"row", 10, 12))
    assert found == [[row, b"", row]]
    assert pool.asked == ["open", "rows", "rows", "renew"]


@pytest.mark.parametrize("kind", ["rows", "renew"])
@pytest.mark.parametrize("error", [ScannerLostError("unknown scanner"), RegionNotServedError("it moved")])
def test_answers_of_a_lost_read_point_are_not_given(kind: str, error: Exception) -> None:
    if kind == "renew" or isinstance(error, RegionNotServedError):
        assert answered(Pool(**{kind: error}), PastRow(b"row", 8, 8)) == [None]
    with pytest.raises(RequestTimeoutError):
        answered(Pool(**{kind: RequestTimeoutError("no answer")}), PastRow(b"row", 8, 8))


@pytest.mark.parametrize(
    ("family", "type_", "is_told"), [(b"f", 8, False), (b"f", 10, False), (b"f", 12, True), (b"g", 8, True)]
)
def test_a_row_with_a_delete_of_one_version_is_not_told_where_versions_may_be_dropped_in_memory(
    family: bytes, type_: int, is_told: bool
) -> None:
    class WithMarker(Pool):
        def call(self, *request: Any, **more: Any) -> tuple[Any, bytes]:
            answer, block = super().call(*request, **more)
            raw = bool(request[3].scan.attribute)
            return answer, encode_cell(b"row", family, b"q", 1, type_, b"", ()) if raw else block

    past = PastRow(b"row", 8, 9)
    (found,) = answered(WithMarker(), past, one_version={"t": [b"f"]}) or [None]
    assert found == [encode_cell(b"row", b"f", b"q", 1, 4, b"v", ()) if is_told else None]
    assert answered(WithMarker(), past) == [[encode_cell(b"row", b"f", b"q", 1, 4, b"v", ())]]


def test_a_region_that_is_not_there_has_no_read_point_to_hold() -> None:
    client = cast(Calls, SimpleNamespace(pool=Pool(open=RegionNotServedError("it moved")), timeout_s=5.0))
    assert hold_read_points(client, [(SERVER, REGION)], attempts=1) == [None]
    assert still_held(client, []) == []


@pytest.mark.parametrize("past", [PastRow(b"row", 7, 9), PastRow(b"row", 9, 8)])
def test_a_row_from_before_the_held_read_point_is_never_asked_for(past: PastRow) -> None:
    pool = Pool()
    with pytest.raises(ValueError, match="before its held read point 8"):
        answered(pool, past)
    assert pool.asked == ["open"]
