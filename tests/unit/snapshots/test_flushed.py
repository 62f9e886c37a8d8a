"""What the store files of a region say of the log that they have."""

from __future__ import annotations

from pathlib import Path

import pytest

from walferry.snapshots.flushed import flushed
from walferry.snapshots.manifest import SnapshotRegion, StoreFile
from walferry.storage import Local

FIXTURE = Path(__file__).parents[2] / "fixtures" / "hfile" / "none.hfile"


def test_a_familys_number_is_the_greatest_of_its_files_and_loaded_files_have_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    numbers = {"a": 3, "b": 9, "c": 5, "d": 7, "e": None}  # HBase wrote the same number into each of our files
    monkeypatch.setattr(StoreFile, "highest_number", lambda file, opened: numbers[file.name])
    families = {"a": b"f", "b": b"f", "c": b"f", "d": b"g", "e": b"g"}
    files = tuple(StoreFile(family, name, (str(FIXTURE),), 1) for name, family in families.items())
    found = flushed(Local(), SnapshotRegion("r", b"", b"", files))
    assert found.numbers == {b"f": 9, b"g": 7}
    assert found.loaded == {FIXTURE.name}


def test_a_file_that_hbase_wrote_has_its_number() -> None:
    file = StoreFile(b"f", "abc", (str(FIXTURE),), 1)
    assert flushed(Local(), SnapshotRegion("r", b"", b"", (file,))).numbers == {b"f": 4711}
