from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from walferry.errors import WalferryError
from walferry.streams.ordering.sent import StreamPositions
from walferry.streams.snapshot.records import RegionRows, Snapshots, Step, TableSnapshot

NAMES, ROWS, NUMBERS = st.text(min_size=1, max_size=5), st.binary(max_size=3), st.integers(0, 2**40)
TABLES = st.builds(TableSnapshot, st.sampled_from(Step), NAMES, NUMBERS, NUMBERS, NUMBERS, NUMBERS, NUMBERS)
REGIONS = st.builds(
    RegionRows, NAMES, ROWS, NUMBERS, st.dictionaries(st.binary(min_size=1, max_size=3), NUMBERS, min_size=1),
    st.frozensets(NAMES), st.integers(0, 127), st.none() | ROWS,
)  # fmt: skip
SNAPSHOTS = st.builds(
    Snapshots, st.dictionaries(NAMES, TABLES, max_size=3), st.dictionaries(NAMES, REGIONS, max_size=3)
)


@given(SNAPSHOTS, SNAPSHOTS)
def test_what_changed_between_two_states_makes_the_one_from_the_other(before: Snapshots, after: Snapshots) -> None:
    records = {key: value for key, value in before.changed(Snapshots()).items() if value is not None}
    for key, value in after.changed(before).items():
        if value is None:
            del records[key]
        else:
            records[key] = value
    assert Snapshots.of_records(records) == after
    assert StreamPositions.of_records(records) == StreamPositions(), "they are no positions"


def test_a_record_that_walferry_did_not_write_is_refused() -> None:
    with pytest.raises(WalferryError, match="has a record 'snapshot t' that walferry did not write"):
        Snapshots.of_records({"snapshot t": b'{"step":"flying"}'})


def test_a_tables_changes_are_held_from_the_taking_of_its_snapshot_until_all_rows_are_sent() -> None:
    tables = {step.value: TableSnapshot(step) for step in Step}
    assert Snapshots(tables).holding == {"taking", "sending", "sent"}
    assert Snapshots(tables).in_progress == {"taking", "sending", "sent", "catching up"}
