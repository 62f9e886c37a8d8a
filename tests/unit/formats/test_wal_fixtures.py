"""Compressed WALs of a real HBase, beside what HBase's own reader printed of them (tests/fixtures/wal)."""

from __future__ import annotations

import gzip
import io
import json
from pathlib import Path

import pytest

from walferry.wal.cat import cat

FIXTURES = Path(__file__).parents[2] / "fixtures" / "wal"


@pytest.mark.parametrize("kind", ["dictionary", "dictionary-raw-tags", "values-gz", "values-none"])
def test_every_cell_is_what_hbase_itself_reads(kind: str) -> None:
    out, err = io.StringIO(), io.StringIO()
    assert (cat([str(FIXTURES / f"{kind}.wal")], out, err), err.getvalue()) == (0, "")
    cells = [json.loads(line) for line in out.getvalue().splitlines()]
    for cell in cells:
        del cell["write_time"]
    printed = gzip.decompress((FIXTURES / f"{kind}.json.gz").read_bytes()).decode()
    assert cells == [json.loads(line) for line in printed.splitlines()]
    assert len(cells) > 800
