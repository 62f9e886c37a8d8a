"""The rows of a WAL file are collected whole, or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unit.formats.wal_builder import TRAILER, entry, header
from walferry.apply import written
from walferry.apply.written import RowCollector, WrittenRows
from walferry.formats.cells import CellType, encode_cell
from walferry.formats.proto import hbase_pb2 as pb
from walferry.formats.wal import EntryBatch, WalReader
from walferry.storage import Local
from walferry.wal.open import open_wal_at

ROWS = st.lists(st.binary(min_size=1, max_size=300), min_size=1, max_size=6)
ENTRIES = st.lists(st.tuples(st.sampled_from(["t1", "t2", "t3"]), ROWS), max_size=12)
FIXTURES = [
    path
    for path in sorted((Path(__file__).parents[2] / "fixtures" / "wal").glob("*.wal"))
    if "encrypted" not in path.name  # read as the others once they are deciphered
]


def batches(parts: list[bytes], batch_bytes: int = 1 << 20) -> Iterator[EntryBatch]:
    return iter(WalReader([header() + b"".join(parts) + TRAILER], "file", batch_bytes=batch_bytes))


def log_of(entries: list[tuple[str, list[bytes]]]) -> list[bytes]:
    return [
        entry(
            [encode_cell(row, b"f", b"q", 5, CellType.PUT, b"v") for row in rows], number, table_name=table.encode()
        )
        for number, (table, rows) in enumerate(entries, 1)
    ]  # fmt: skip


def collected(parts: list[bytes], *tables: str, limited: bool = True) -> dict[str, list[bytes]]:
    collector = RowCollector(tables, limited=limited)
    for batch in batches(parts, 2_000):
        collector.add(batch)
    return {found.table: found.rows.to_pylist() for found in collector.rows()}


@given(ENTRIES)
def test_every_row_is_collected_once(entries: list[tuple[str, list[bytes]]]) -> None:
    found = collected(log_of(entries), "t1", "t2")
    for table in ("t1", "t2"):
        rows = {row for of, some in entries if of == table for row in some}
        assert sorted(found.pop(table)) == sorted(rows)
    assert found == {}


def test_a_table_without_an_edit_has_no_row_and_one_that_nobody_wants_is_not_told() -> None:
    assert collected(log_of([("t2", [b"a"])]), "t1") == {"t1": []}


@pytest.mark.parametrize(("name", "most"), [("MOST_ROWS", 3), ("MOST_BYTES", 100)])
def test_of_too_many_rows_none_are_named_unless_all_are_wanted(
    name: str, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(written, name, most)
    parts = log_of([("t1", [b"r%040d" % number]) for number in range(60)] + [("t2", [b"a"] * 60)])
    assert collected(parts, "t1", "t2") == {"t2": [b"a"]}
    assert len(collected(parts, "t1", limited=False)["t1"]) == 60


def test_a_bulk_load_leaves_the_rows_of_its_table_unknown() -> None:
    message = pb.BulkLoadDescriptor(encoded_region_name=b"r", bulkload_seq_num=9)
    message.table_name.namespace, message.table_name.qualifier = b"default", b"t1"
    marker = encode_cell(b"\0", b"METAFAMILY", b"HBASE::BULK_LOAD", 1, CellType.PUT, message.SerializeToString())
    parts = [*log_of([("t1", [b"a"]), ("t2", [b"b"])]), entry([marker], 9, table_name=b"t1"), *log_of([("t1", [b"c"])])]
    assert collected(parts, "t1", "t2") == {"t2": [b"b"]}


@pytest.mark.parametrize("path", FIXTURES, ids=lambda path: path.stem)
def test_the_rows_of_a_real_log_are_those_of_its_cells(path: Path) -> None:
    tables: dict[str, set[bytes]] = {}
    for batch in open_wal_at(Local(), str(path)):
        for number in range(len(batch)):
            if batch.holds_data[number] and not batch.marker[number]:
                one = batch.take(np.array([number]))
                rows = tables.setdefault(batch.tables[batch.table[number]].decode(), set())
                rows.update(first_rows(one))
    collector = RowCollector(tables)
    for batch in open_wal_at(Local(), str(path)):
        collector.add(batch)
    assert {found.table: set(found.rows.to_pylist()) for found in collector.rows()} == tables


def first_rows(batch: EntryBatch) -> list[bytes]:
    """The rows of an entry's cells, by their lengths, byte by byte."""
    data, found = batch.buffer[int(batch.cells_start[0]) : int(batch.end[0])].tobytes(), []
    for _ in range(int(batch.cell_count[0])):
        size = int.from_bytes(data[:4], "big")
        length = int.from_bytes(data[12:14], "big")
        found.append(data[14 : 14 + length])
        data = data[4 + size :]
    return found


def test_packed_rows_are_the_same_after_unpacking() -> None:
    rows = pa.array([b"", b"a" * 70_000, b"\xff"], pa.binary())
    assert WrittenRows("t", WrittenRows.of("t", rows).packed).rows.equals(rows)
