"""Compressed and encrypted WALs of a real HBase, beside what its own reader printed of them (tests/fixtures/wal)."""

from __future__ import annotations

import gzip
import io
import json
from pathlib import Path
from typing import Any

import pytest

from walferry.wal.cat import cat
from walferry.wal.keys import KEY_HEX, KEY_STORE

FIXTURES = Path(__file__).parents[2] / "fixtures" / "wal"


@pytest.fixture(autouse=True)
def key_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(KEY_HEX, raising=False)
    monkeypatch.setenv(KEY_STORE, f"jceks://{FIXTURES}/keys.jceks?password=fixture")


def read(kind: str) -> list[dict[str, Any]]:
    out, err = io.StringIO(), io.StringIO()
    assert (cat([str(FIXTURES / f"{kind}.wal")], out, err), err.getvalue()) == (0, "")
    cells = [json.loads(line) for line in out.getvalue().splitlines()]
    for cell in cells:
        del cell["write_time"]
    return cells


def printed(kind: str) -> list[dict[str, Any]]:
    lines = gzip.decompress((FIXTURES / f"{kind}.json.gz").read_bytes()).decode().splitlines()
    return [json.loads(line) for line in lines]


@pytest.mark.parametrize(
    "kind",
    ["dictionary", "dictionary-raw-tags", "values-gz", "values-none", "values-snappy", "values-lz4", "values-zstd"],
)
def test_every_cell_of_a_compressed_log_is_what_hbase_itself_reads(kind: str) -> None:
    cells = read(kind)
    assert cells == printed(kind)
    assert len(cells) > 500
    assert any(cell["tags"] for cell in cells)
    assert any(cell["value"] == "" for cell in cells)


@pytest.mark.parametrize("version", ["1.7.2", "2.2.3", "2.5.7"])
def test_every_cell_of_an_older_log_is_what_that_version_itself_reads(version: str) -> None:
    kinds = sorted(path.name.removesuffix(".wal") for path in FIXTURES.glob(f"{version}-*.wal"))
    assert kinds, version
    for kind in (*kinds, f"recovered.edits/{version}"):
        expected = printed(kind)
        cells = [{name: cell[name] for name in expected[0]} for cell in read(kind)]  # 2.2 does not print types
        assert cells == expected, kind
        assert len(cells) > 50, kind
        assert any(cell["tags"] for cell in cells) or "encrypted" in kind, kind


def test_every_cell_of_an_encrypted_log_is_what_hbase_itself_reads() -> None:
    cells = read("encrypted")
    assert cells == printed("encrypted")
    assert len(cells) > 500


def test_encrypted_cells_with_tags_are_read_which_hbase_itself_cannot() -> None:
    """What was written is known from another file: WriteWal.java writes the same cells to both."""
    expected = printed("values-zstd")
    (long,) = (cell for cell in expected if cell["row"] == b"long".hex())
    long["value"] = long["value"][:10_000]
    assert read("encrypted-tags") == expected
