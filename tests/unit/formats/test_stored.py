"""The cells of an HFile as Arrow."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from walferry.errors import DamagedInputError
from walferry.formats.hfile import of_bytes
from walferry.formats.stored import HFILE_CELL_SCHEMA, hfile_cells

DATA = (Path(__file__).parents[2] / "fixtures" / "hfile" / "none.hfile").read_bytes()


def table(start_row: bytes = b"", stop_row: bytes = b"") -> pa.Table:
    return pa.Table.from_batches(hfile_cells(DATA, start_row=start_row, stop_row=stop_row), HFILE_CELL_SCHEMA)


def test_all_cells_of_a_file_are_given_with_their_sequence_numbers() -> None:
    found = table()
    assert found.num_rows == len(of_bytes(DATA, "none.hfile"))
    expected = [int(number) for batch in of_bytes(DATA, "none.hfile").batches() for number in batch.sequence]
    assert found["sequence_number"].to_pylist() == expected


def test_rows_can_be_bounded() -> None:
    rows = table()["row"].to_pylist()
    middle = rows[len(rows) // 2]
    assert table(stop_row=middle)["row"].to_pylist() + table(start_row=middle)["row"].to_pylist() == rows
    assert table(start_row=middle)["row"][0].as_py() == middle


def test_damage_names_the_file() -> None:
    with pytest.raises(DamagedInputError, match=r"^my file is damaged"):
        list(hfile_cells(DATA[:-10], "my file"))
