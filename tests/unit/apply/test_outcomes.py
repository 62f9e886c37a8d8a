"""What is counted of a file: its entries and edits, and of regions that moved, for the pieces of their rows."""

from __future__ import annotations

import numpy as np

from unit.formats.wal_builder import TRAILER, entry, header
from walferry.apply.outcomes import SAMPLE_BYTES, Moved, MovedEdits, TableTally, Tally
from walferry.formats.cells import encode_cell
from walferry.formats.wal import WalReader

VALUE = b"v" * 1000


def moved_in(name: str, rows: int) -> MovedEdits:
    """What is counted of a file with one entry for each row."""
    cells = [encode_cell(b"%06d" % row, b"f", b"q", 1, 4, VALUE) for row in range(rows)]
    content = header() + b"".join(entry([cell], number + 1) for number, cell in enumerate(cells)) + TRAILER
    moved = Moved(name)
    for batch in WalReader([content], name):
        picked = np.flatnonzero(batch.cell_count > 0)
        for half in np.array_split(picked, 2):
            moved.add(batch, half)
    (edits,) = moved.edits()
    assert edits.size == sum(len(cell) for cell in cells)
    return edits


def test_a_row_is_named_for_every_sample_of_a_file() -> None:
    edits = moved_in("log", 2000)
    assert len(edits.rows) in (edits.size // SAMPLE_BYTES, edits.size // SAMPLE_BYTES + 1)
    assert list(edits.rows) == sorted(edits.rows)
    assert np.all(np.diff([int(row) for row in edits.rows]) >= SAMPLE_BYTES // (len(VALUE) + 60))


def test_many_small_files_are_sampled_as_one_large_one_is() -> None:
    found = [moved_in(f"log.{number}", 60) for number in range(60)]
    named, size = sum(len(edits.rows) for edits in found), sum(edits.size for edits in found)
    assert 0.5 < named / (size / SAMPLE_BYTES) < 1.5


def test_the_rows_of_a_large_entry_are_sampled_as_those_of_many_small_ones() -> None:
    cells = [encode_cell(b"%06d" % row, b"f", b"q", 1, 4, VALUE) for row in range(2000)]
    moved = Moved("log")
    for batch in WalReader([header() + entry(cells, 1) + TRAILER], "log"):
        moved.add(batch, np.flatnonzero(batch.cell_count > 0))
    (edits,) = moved.edits()
    assert edits.rows == moved_in("log", 2000).rows


def test_nothing_moved_is_nothing() -> None:
    assert Moved("log").edits() == ()


def test_the_last_edit_of_a_table_is_no_marker_and_none_of_another_table() -> None:
    """Hole: regions that moved in the write stop, and other tables, made it shorter: their entries counted as edits."""
    edit = encode_cell(b"r", b"f", b"q", 1, 4)
    marker = encode_cell(b"r", b"METAFAMILY", b"HBASE::REGION_EVENT::REGION_OPEN", 1, 4)
    entries = [
        entry([marker], 1, table_name=b"t1", write_time=1_000),
        entry([edit], 2, table_name=b"t1", write_time=2_000),
        entry([marker], 3, table_name=b"t1", write_time=3_000),
        entry([edit], 4, table_name=b"other", write_time=4_000),
        entry([marker], 5, table_name=b"t2", write_time=5_000),
    ]
    tally = Tally(["t1", "t2"])
    for batch in WalReader([header() + b"".join(entries) + TRAILER], "log"):
        tally.add(batch)
    assert tally.rows() == (TableTally("t1", 3, 1, 1_000, 2_000), TableTally("t2", 1, 0, 5_000, 0))
