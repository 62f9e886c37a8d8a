"""Which entries a time window reads: its own, and those that the target has of other times."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import cast

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unit.formats.wal_builder import TRAILER, entry, header
from walferry.apply import by_row
from walferry.apply.by_row import RowsApplied, RowTask, chosen_entries, pieces_of, row_cells
from walferry.apply.route import Route
from walferry.apply.window_rows import SettledEdits, WindowRows, WriteTimes
from walferry.apply.writer_protocol import CellRun
from walferry.errors import DamagedInputError
from walferry.formats.cells import encode_cell, index_cells
from walferry.formats.wal import WalReader
from walferry.wal.files import Place, WalFile
from write_limits import write_limits

CELL = encode_cell(b"r", b"f", b"q", 1, 4)
PIPE = cast(Route, SimpleNamespace(tables={"t1": "t1"}))


def test_what_the_target_did_not_get_of_other_times_does_not_count_and_the_windows_own_does() -> None:
    content = header() + b"".join(entry([CELL], at, write_time=at) for at in (5, 15, 25, 26)) + TRAILER
    (batch,) = WalReader([content], "file")
    offsets = batch.offset.tolist()

    def chosen(*absent: int) -> list[int]:
        task = RowTask(
            PIPE, (),
            window=WindowRows(
                WriteTimes(10, 20), {("file", "t1"): (SettledEdits(WriteTimes(20, 30)),)},
                absent_at_target=frozenset(("file", offset) for offset in absent),
            ),
        )  # fmt: skip
        return [int(batch.write_time[i]) for i in chosen_entries(task, "file", batch)]

    assert chosen() == [15, 25, 26]
    assert chosen(offsets[2]) == [15, 26]
    assert chosen(offsets[1]) == [15, 25, 26]


@pytest.mark.parametrize("write_time", [0, (1 << 63) - 1, 1 << 63])
def test_a_round_has_the_entries_of_all_times(write_time: int) -> None:
    content = header() + entry([CELL], 5, write_time=write_time) + TRAILER
    (batch,) = WalReader([content], "file")
    assert chosen_entries(RowTask(PIPE, ()), "file", batch).tolist() == [0]


def test_only_what_was_recorded_of_a_file_and_not_held_back_counts_as_at_the_target() -> None:
    content = header() + b"".join(entry([CELL], at, write_time=at) for at in (15, 25)) + TRAILER
    (batch,) = WalReader([content], "file")

    def chosen(file: str, held: frozenset[str] = frozenset()) -> list[int]:
        settled = {(file, "t1"): (SettledEdits(WriteTimes(0, 99), held),)}
        task = RowTask(PIPE, (), window=WindowRows(WriteTimes(10, 20), settled))
        return [int(batch.write_time[i]) for i in chosen_entries(task, "file", batch)]

    assert chosen("file") == [15, 25]
    assert chosen("another file") == [15]
    assert chosen("file", frozenset({batch.regions[0].decode()})) == [15]


ROWS = st.lists(st.tuples(st.sampled_from(["a", "a:b", "t"]), st.binary(max_size=3)), max_size=30)


@given(ROWS, st.sets(st.tuples(st.sampled_from(["a", "a:b", "t"]), st.binary(max_size=3)), max_size=6))
def test_each_row_is_in_the_piece_whose_border_is_the_last_at_or_before_it(
    rows: list[tuple[str, bytes]], borders: set[tuple[str, bytes]]
) -> None:
    cells = pa.record_batch(
        [pa.array([table for table, _ in rows], pa.string()), pa.array([row for _, row in rows], pa.binary())],
        ["table", "row"],
    )
    expected = [sum(1 for border in borders if border <= row) for row in rows]
    assert pieces_of(cells, sorted(borders)).tolist() == expected


def test_cells_are_handed_on_in_their_order_and_a_few_megabytes_at_a_time() -> None:
    cells = [encode_cell(b"r%05d" % i, b"f", b"q", 1, 4, bytes(1 << 20 if i < 9 else 10)) for i in range(25_000)]
    cells.append(encode_cell(b"s", b"f", b"q", 1, 4, bytes(6 << 20)))
    content = header() + entry(cells[:2], 1) + entry([CELL], 2) + entry(cells[2:], 3) + TRAILER
    (batch,) = WalReader([content], "file", batch_bytes=2 * len(content))
    found = list(row_cells(batch, "file", np.array([0, 2])))
    assert max(part.num_rows for part in found) == 10_000
    assert max(part.nbytes for part in found if part.num_rows > 1) < 6 << 20
    table = pa.Table.from_batches(found)
    assert table["cell"].to_pylist() == cells
    assert table["index"].to_pylist() == [0, 1, *range(len(cells) - 2)]
    assert table["sequence_number"].to_pylist() == [1, 1, *[3] * (len(cells) - 2)]
    assert table["row"].to_pylist()[-2:] == [b"r24999", b"s"]


def test_without_a_session_the_rows_of_a_piece_are_sent_in_their_order_and_damage_ends_every_piece(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def put(row: bytes, value: bytes) -> tuple[bytes, bytes]:
        return row, encode_cell(row, b"f", b"q", 1, 4, value)

    def edit(row: bytes, number: int, *values: bytes) -> bytes:
        return entry([encode_cell(row, b"f", b"q", 1, 4, value) for value in values], number)

    there = header() + edit(b"b", 9, b"9") + edit(b"a", 7, b"7", b"then") + TRAILER
    here = header() + edit(b"a", 8, b"8") + edit(b"c", 2, b"2") + edit(b"b", 3, b"3") + TRAILER
    logs, sent = {"there": there, "here": here}, list[tuple[bytes, bytes]]()

    def send(runs: Sequence[CellRun], data: memoryview) -> None:
        cells = index_cells(np.frombuffer(data, np.uint8))
        starts = [*cells.position.tolist(), len(data)]
        sent.extend((cells.row(n), bytes(data[:])[starts[n] : starts[n + 1]]) for n in range(len(cells)))

    monkeypatch.setattr(by_row, "writer_to", lambda route: SimpleNamespace(send=send))
    opened = lambda file: WalReader([logs[file.name]], file.name)  # noqa: E731
    route = SimpleNamespace(tables={"t1": "t1"}, open=opened, limits=write_limits())
    files = tuple(WalFile(name, name, name, 1, f"/{name}", Place.ARCHIVED, 1) for name in logs)
    task = RowTask(cast(Route, route), files, borders=(("t1", b"b"),))
    apply = by_row.place_rows(None, task)
    assert apply(1, "the second") == RowsApplied(3, ())
    assert sent == [put(b"b", b"3"), put(b"b", b"9"), put(b"c", b"2")]
    assert apply(0, "the first") == RowsApplied(3, ())
    assert sent[3:] == [put(b"a", b"7"), put(b"a", b"then"), put(b"a", b"8")]
    logs["here"] = here[:-30] + bytes(30)
    for piece in (0, 1):
        with pytest.raises(DamagedInputError):
            by_row.place_rows(None, task)(piece, "again")
    assert len(sent) == 6
