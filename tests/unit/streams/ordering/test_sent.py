from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from walferry.errors import WalferryError
from walferry.streams.ordering.sent import GroupRead, RegionSent, StreamPositions, TableSent
from walferry.streams.ordering.stays import LogPlace
from walferry.wal.offsets import GroupPosition

NUMBERS = st.integers(0, 2**40)
GROUPS = st.builds(
    GroupRead,
    st.builds(GroupPosition, NUMBERS, NUMBERS, st.booleans(), st.booleans(), st.lists(NUMBERS, max_size=2).map(tuple)),
    st.builds(LogPlace, NUMBERS, NUMBERS),
)
REGIONS = st.builds(
    RegionSent, st.text(max_size=5), st.text(max_size=5), st.integers(-1, 2**40), st.integers(0, 100),
    st.none() | st.tuples(st.binary(max_size=3), st.binary(max_size=3)),
)  # fmt: skip
NAMES = st.sampled_from(["a", "b", "c d"])
POSITIONS = st.builds(
    StreamPositions,
    st.dictionaries(NAMES, GROUPS, min_size=1),
    st.dictionaries(NAMES, REGIONS),
    st.dictionaries(NAMES, st.builds(TableSent, st.text(max_size=4), st.dictionaries(NAMES, NUMBERS))),
    st.integers(1, 5),
)


def after(records: dict[str, bytes], changed: dict[str, bytes | None]) -> dict[str, bytes]:
    """The records of a compacted topic after changes."""
    return {key: value for key, value in (records | changed).items() if value is not None}


@given(st.lists(POSITIONS, min_size=1, max_size=4))
def test_what_was_recorded_change_by_change_is_read_again(positions: list[StreamPositions]) -> None:
    records: dict[str, bytes] = {}
    before = StreamPositions()
    for one in positions:
        records = after(records, one.changed(before))
        assert StreamPositions.of_records(records) == one
        before = one


@given(POSITIONS)
def test_unchanged_positions_are_not_recorded_again(positions: StreamPositions) -> None:
    assert positions.changed(positions) == {}


@pytest.mark.parametrize("record", [("group g", b"{}"), ("region r", b"[1]"), ("stream", b"x"), ("table t", b"3")])
def test_a_record_of_somebody_else_is_refused(record: tuple[str, bytes]) -> None:
    with pytest.raises(WalferryError, match="that walferry did not write"):
        StreamPositions.of_records(dict([record]))
