from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from walferry.hbase.descriptors import Range
from walferry.migration.comparing.written_rows import PARTS_FOR_EACH, RANGES_AT_ONCE, READERS, _last_stop, _together

RANGES = st.lists(st.tuples(st.binary(max_size=2), st.binary(max_size=2)), max_size=3_000, unique=True)


@given(RANGES)
def test_each_range_is_in_one_scan_that_reaches_from_the_first_start_to_the_last_stop(ranges: list[Range]) -> None:
    parts = _together(ranges)
    assert sorted(one for part in parts for one in part) == sorted(ranges)
    for part in parts:
        assert part[0][0] == min(start for start, _ in part)
        assert all(_last_stop(part) == b"" or b"" < stop <= _last_stop(part) for _, stop in part)
        assert list(part) == sorted(part)


def test_a_few_ranges_go_on_side_by_side_and_thousands_together() -> None:
    def sizes(number: int) -> set[int]:
        return {len(part) for part in _together([(b"%06d" % n, b"%06d" % (n + 1)) for n in range(number)])[:-1]}

    assert sizes(READERS * PARTS_FOR_EACH) == {1}
    assert sizes(100 * READERS * PARTS_FOR_EACH) == {100}
    assert sizes(10 * RANGES_AT_ONCE * READERS * PARTS_FOR_EACH) == {RANGES_AT_ONCE}


def test_ranges_in_any_order_are_scanned_in_theirs_up_to_the_last_stop_of_all() -> None:
    ranges = [(b"%06d" % number, b"%06d" % (number + 1)) for number in range(20 * READERS * PARTS_FOR_EACH)]
    assert [one for part in _together(ranges[::-1]) for one in part] == ranges
    assert _last_stop([(b"a", b"z"), (b"b", b"c")]) == b"z"
    assert _last_stop([(b"a", b""), (b"b", b"c")]) == b""
