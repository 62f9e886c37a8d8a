"""What the check of the copy says of the target's regions."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from walferry.hbase.descriptors import Region
from walferry.migration.copying.copy import covered

KEYS = st.lists(st.binary(min_size=1, max_size=1), unique=True, max_size=8).map(sorted)


def regions(borders: list[bytes]) -> list[Region]:
    both = zip([b"", *borders], [*borders, b""], strict=True)
    return [Region(start, start.hex(), "t", start, end, None, 1) for start, end in both]


@given(KEYS, KEYS)
def test_regions_that_were_split_and_merged_have_every_row(copied: list[bytes], now: list[bytes]) -> None:
    for region in regions(copied):
        assert covered(regions(now), region.start, region.end) == (region.start, region.end)


@given(KEYS, KEYS, st.data())
def test_a_region_that_is_missing_or_there_twice_is_a_fault_of_those_that_have_rows_of_it(
    copied: list[bytes], now: list[bytes], data: st.DataObject
) -> None:
    there = regions(now)
    lost = data.draw(st.sampled_from(there))
    for region in regions(copied):
        touches = (not region.end or lost.start < region.end) and (not lost.end or region.start < lost.end)
        whole = (region.start, region.end)
        assert (covered([one for one in there if one != lost], *whole) != whole) == touches
        twice = sorted([*there, lost], key=lambda one: one.start)
        assert (covered(twice, *whole) != whole) == touches
