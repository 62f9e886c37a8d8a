"""The cells of a WAL by its path."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from walferry.errors import DamagedInputError
from walferry.formats import wal_cells
from walferry.wal import read_wal

FIXTURES = Path(__file__).parents[2] / "fixtures" / "wal"


@pytest.mark.parametrize("name", ["closed.wal", "killed.wal", "dictionary.wal"])
def test_a_file_is_read_as_its_bytes_are(name: str) -> None:
    """Whole, unfinished, compressed."""
    path = str(FIXTURES / name)
    found = pa.Table.from_batches(read_wal(path))
    assert found.num_rows
    assert found.equals(pa.Table.from_batches(wal_cells(Path(path).read_bytes(), path)))


def test_a_missing_file_is_named() -> None:
    with pytest.raises(FileNotFoundError, match=r"missing\.wal"):
        list(read_wal(str(FIXTURES / "missing.wal")))


def test_what_precedes_damage_is_given(tmp_path: Path) -> None:
    whole = (FIXTURES / "closed.wal").read_bytes()
    damaged = tmp_path / "damaged.wal"
    damaged.write_bytes(whole[: len(whole) // 2] + b"\xff" * 64 + whole[len(whole) // 2 :])
    before: list[pa.RecordBatch] = []
    with pytest.raises(DamagedInputError):
        before.extend(read_wal(str(damaged), batch_bytes=1024))
    assert sum(map(len, before)) > 0
