"""Which entries of a batch are edits, markers, or of some tables, said for all of them at once."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from unit.formats.wal_builder import TRAILER, entry, header
from walferry.formats.cells import encode_cell
from walferry.formats.markers import DATA_ELSEWHERE, Marker
from walferry.formats.wal import EntryBatch, WalReader

CELLS = {
    Marker.NONE: encode_cell(b"r", b"f", b"q", 1, 4),
    Marker.FLUSH: encode_cell(b"r", b"METAFAMILY", b"HBASE::FLUSH", 1, 4),
    Marker.BULK_LOAD: encode_cell(b"r", b"METAFAMILY", b"HBASE::BULK_LOAD", 1, 4),
    Marker.REPLICATION: encode_cell(b"r", b"METAFAMILY", b"HBASE::REPLICATION_MARKER", 1, 4),
    Marker.UNKNOWN: encode_cell(b"r", b"METAFAMILY", b"HBASE::NEVER_HEARD_OF", 1, 4),
}
NAMES = ("t1", "t2", "ns:t3")
names = st.sampled_from(NAMES)


@st.composite
def batches(draw: st.DrawFn) -> EntryBatch:
    """A batch of a file that may begin with another one, so that not every known table has entries in it."""
    lines = [
        entry([CELLS[kind]] * count, number, table_name=table.encode(), encoded_region_name=f"{table} 1".encode())
        for number, (kind, table, count) in enumerate(
            draw(st.lists(st.tuples(st.sampled_from(sorted(CELLS)), names, st.integers(0, 2)), min_size=1)), 1
        )
    ]
    (batch,) = WalReader([header() + b"".join(lines) + TRAILER], "file")
    return batch.take(np.arange(draw(st.integers(0, len(batch))), len(batch)))


@given(batches())
def test_each_entry_is_an_edit_or_names_data_elsewhere_or_holds_none(batch: EntryBatch) -> None:
    kinds = [Marker(kind) for kind in batch.marker.tolist()]
    edits = [kind is Marker.NONE and cells > 0 for kind, cells in zip(kinds, batch.cell_count.tolist(), strict=True)]
    assert batch.edits.tolist() == edits
    assert batch.data_elsewhere.tolist() == [kind in DATA_ELSEWHERE for kind in kinds]
    assert batch.holds_data.tolist() == [
        edit or kind in DATA_ELSEWHERE for edit, kind in zip(edits, kinds, strict=True)
    ]
    # What holds data and is no edit is elsewhere, and an entry that is neither an edit nor a marker has no cells.
    assert batch.data_elsewhere.tolist() == (batch.holds_data & (batch.marker != Marker.NONE)).tolist()
    assert batch.cell_count[(batch.marker == Marker.NONE) & ~batch.edits].sum() == 0


@given(batches(), st.sets(st.sampled_from([Marker.NONE, *CELLS])))
def test_markers_are_chosen_by_kind(batch: EntryBatch, kinds: set[Marker]) -> None:
    assert batch.of_kinds(kinds).tolist() == [kind in kinds for kind in batch.marker.tolist()]


@given(batches(), st.sets(st.sampled_from([*NAMES, "unknown"])))
def test_entries_are_chosen_by_table_and_named(batch: EntryBatch, wanted: set[str]) -> None:
    tables = [batch.tables[code].decode() for code in batch.table.tolist()]
    assert batch.of_tables(wanted).tolist() == [table in wanted for table in tables]
    assert {table: mine.tolist() for table, mine in batch.each_table(wanted)} == {
        table: [other == table for other in tables] for table in wanted & set(tables)
    }
    assert [batch.table_and_region(entry) for entry in range(len(batch))] == [(name, f"{name} 1") for name in tables]


@given(batches())
def test_tables_may_be_dropped_while_each_is_looked_at(batch: EntryBatch) -> None:
    wanted = dict.fromkeys(NAMES)
    seen = []
    for table, _ in batch.each_table(wanted):
        del wanted[table]
        seen.append(table)
    assert sorted(seen) == sorted({batch.tables[code].decode() for code in batch.table.tolist()})
