"""Which edits belong to a window: by write time and, for a restore, by region and number."""

from __future__ import annotations

from pathlib import Path

from unit.formats.wal_builder import REGION, TRAILER, entry, header
from walferry.apply.window_rows import Numbers, WindowRows, WriteTimes
from walferry.formats.cells import CellType, encode_cell
from walferry.storage import Local
from walferry.wal.open import open_wal_at

OTHER = b"f" * 32


def test_numbers_are_between_both_ends_written_since_a_moment_and_of_the_named_regions_alone(tmp_path: Path) -> None:
    cells = [encode_cell(b"r", b"f", b"q", 1, CellType.PUT, b"v")]
    wanted = [(number, 100 + number, region) for number in range(1, 7) for region in (REGION, OTHER)]
    content = b"".join(entry(cells, n, write_time=at, encoded_region_name=region) for n, at, region in wanted)
    (tmp_path / "log").write_bytes(header() + content + TRAILER)
    (batch,) = open_wal_at(Local(), str(tmp_path / "log"))
    rows = WindowRows(WriteTimes(0, 105), numbers={REGION.decode(): Numbers(1, 6, 103)})
    found = [n for n, of in zip(batch.sequence_number.tolist(), rows.applied(batch).tolist(), strict=True) if of]
    assert found == [3, 4]
    assert found == [n for n, at, region in wanted if rows.has(region.decode(), n, at)]
    rows = WindowRows(numbers={REGION.decode(): Numbers(1, 6)})
    assert int(rows.applied(batch).sum()) == 4
