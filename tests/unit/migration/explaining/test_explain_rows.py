"""How rows that differ are read again."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from walferry.formats.cells import CellType, encode_cell
from walferry.formats.resolve import FamilyRules
from walferry.migration.explaining import explain_rows
from walferry.migration.sides.row_sides import Bounds, RowSides

RULES = {b"f": FamilyRules(1, 0, None)}


class Side:
    """One side's table, by the size of each row's value. Notes the rows of each scan, how many scans are under way
    whenever one begins, and how many rows were sent."""

    def __init__(self, sizes: Mapping[bytes, int]) -> None:
        self.sizes = sizes
        self.asked: list[tuple[bytes, ...]] = []
        self.at_once: list[int] = []
        self.sent = 0
        self.block_bytes = explain_rows._LARGE_BYTES
        self._under_way = 0
        self._changed = threading.Lock()

    def scan_raw(
        self, table: str, start: bytes, stop: bytes, *, max_result_bytes: int, rows: Sequence[bytes]
    ) -> Iterator[bytes]:
        assert (start, stop) == (rows[0], rows[-1] + b"\0")
        with self._changed:
            self.asked.append(tuple(rows))
            self._under_way += 1
            self.at_once.append(self._under_way)
        time.sleep(0.05)
        with self._changed:
            self._under_way -= 1
        block = b""
        for row in rows:
            if row in self.sizes:
                self.sent += 1
                block += encode_cell(row, b"f", b"q", 1, CellType.PUT, bytes(self.sizes[row]))
            if len(block) >= min(max_result_bytes, self.block_bytes):
                yield block
                block = b""
        if block:
            yield block


def read(
    monkeypatch: pytest.MonkeyPatch, source: Side, target: Side, *parts: tuple[bytes, ...]
) -> dict[bytes, RowSides | None]:
    sides = {"source": source, "target": target}
    monkeypatch.setattr(explain_rows, "shared_client", lambda address: sides[address])
    given: Any = ("source", "target", "t", "t", parts, RULES, Bounds.of_each(1))
    found = list(explain_rows._read_rows(explain_rows._Rows(*given)))
    assert len(found) == len(dict(found)), "each row once"
    return {row: None if packed is None else packed.value() for row, packed in found}


def test_rows_are_read_again_by_one_scan_of_each_side_for_some_of_them_and_by_several_scans_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = [b"row%02d" % number for number in range(60)]
    source, target = Side(dict.fromkeys(rows, 1)), Side({row: 1 + (row == b"row33") for row in rows if row != b"row07"})
    parts = tuple(tuple(rows[first : first + 3]) for first in range(0, 60, 3))
    found = read(monkeypatch, source, target, *parts)
    assert {row for row, sides in found.items() if sides is not None} == {b"row07", b"row33"}
    assert found.keys() == set(rows)
    for side in (source, target):
        assert sorted(side.asked) == list(parts)
        assert 1 < max(side.at_once) <= explain_rows._AT_A_TIME


def test_large_rows_are_read_again_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Large ones at once would not fit into memory."""
    rows = [b"row%02d" % number for number in range(12)]
    large = dict.fromkeys(rows, explain_rows._LARGE_BYTES)
    source, target = Side(large), Side(large | {b"row05": 1})
    found = read(monkeypatch, source, target, *(tuple(rows[first : first + 4]) for first in range(0, 12, 4)))
    assert list(found) == rows
    assert [row for row, sides in found.items() if sides is not None] == [b"row05"]
    assert max(source.at_once) == max(target.at_once) == 1
    assert source.sent == 12, "no scan went on after a large row"


def test_a_row_that_is_large_at_the_source_alone_ends_that_scan_and_the_rows_behind_it_are_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = (b"a", b"b", b"c", b"d")
    source = Side({b"a": 1, b"b": 2 * explain_rows._LARGE_BYTES, b"d": 1})
    target = Side(dict.fromkeys(rows, 1))
    found = read(monkeypatch, source, target, rows)
    assert list(found) == list(rows)
    assert [row for row, sides in found.items() if sides is not None] == [b"b", b"c"]
    assert target.asked == [rows, rows[2:]]


def test_a_row_that_is_large_at_the_target_alone_ends_that_scan_and_the_rows_behind_it_are_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = (b"a", b"b", b"c", b"d")
    source = Side(dict.fromkeys(rows, 1))
    target = Side({b"a": 1, b"b": 2 * explain_rows._LARGE_BYTES, b"d": 1})
    found = read(monkeypatch, source, target, rows)
    assert list(found) == list(rows)
    assert [row for row, sides in found.items() if sides is not None] == [b"b", b"c"]
    assert source.asked == [rows[:2], rows[2:]]


@pytest.mark.parametrize("side", ["source", "target"])
def test_after_a_large_row_of_either_side_scans_go_one_at_a_time(monkeypatch: pytest.MonkeyPatch, side: str) -> None:
    rows = [b"row%02d" % number for number in range(30)]
    large = {row: explain_rows._LARGE_BYTES for row in rows if row.endswith(b"3")}
    source, target = (Side(dict.fromkeys(rows, 1) | (large if name == side else {})) for name in ("source", "target"))
    found = read(monkeypatch, source, target, *((row,) for row in rows))
    assert {row for row, sides in found.items() if sides is not None} == large.keys()
    assert source.at_once[9:] == target.at_once[9:] == [1] * 21, "the first of them was among the first nine"


def test_rows_of_all_blocks_of_a_scan_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = tuple(b"row%02d" % number for number in range(20))
    source, target = Side(dict.fromkeys(rows, 9)), Side(dict.fromkeys(rows, 9) | {b"row03": 8})
    source.block_bytes = target.block_bytes = 1
    assert [row for row, sides in read(monkeypatch, source, target, rows).items() if sides is not None] == [b"row03"]


def test_a_scan_reads_rows_of_one_region_only() -> None:
    rows = [b"a%02d" % number for number in range(30)] + [b"b", b"ba", b"d"]
    parts = list(explain_rows._by_scan(rows, [b"", b"b", b"c", b"e"]))
    assert parts == [tuple(rows[:25]), tuple(rows[25:30]), (b"b", b"ba"), (b"d",)]
    assert list(explain_rows._by_scan([], [b""])) == []


@pytest.mark.parametrize(("count", "parts"), [(8, [1] * 8), (9, [4, 5])])
def test_regions_are_looked_up_for_many_rows_only_and_those_of_both_sides_count(
    monkeypatch: pytest.MonkeyPatch, count: int, parts: list[int]
) -> None:
    asked: list[int] = []

    def fan_out(spark: object, work: object, items: Sequence[Any], *, what: str) -> dict[bytes, None]:
        asked.extend(len(part) for item in items for part in item.parts)
        return {row: None for item in items for part in item.parts for row in part}

    def side(*starts: bytes) -> Any:
        return SimpleNamespace(regions=lambda table: [SimpleNamespace(start=start) for start in starts])

    monkeypatch.setattr(explain_rows, "fan_out", fan_out)
    rows = [b"r%d" % number for number in reversed(range(count))]
    run: Any = SimpleNamespace(
        source_address=lambda workers: "", target_address=lambda: "", source=side(b""), target=side(b"", b"r4"),
        pair=lambda table: SimpleNamespace(source=table, target=table),
    )  # fmt: skip
    if count == len(parts):
        run.source = run.target = SimpleNamespace()
    found = explain_rows._read_again(run, None, "t", rows, RULES, Bounds.of_each(1))
    assert (list(found), asked) == (sorted(rows), parts)


def test_what_is_written_and_applied_while_a_row_is_read_is_missing_at_the_target_rather_than_at_the_source(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Hole: the target showed a cell that the source, read before, did not have: that counted as unexplained."""
    held: dict[str, list[bytes]] = {"source": [], "target": []}

    def scan_raw(side: str) -> list[bytes]:
        found = list(held[side])
        for cells in held.values():  # meanwhile
            cells.insert(0, encode_cell(b"row", b"f", b"q", len(cells) + 1, CellType.PUT, b"v"))
        return found

    clients = {side: SimpleNamespace(scan_raw=lambda *_, side=side, **__: scan_raw(side)) for side in held}
    monkeypatch.setattr(explain_rows, "shared_client", lambda address: clients[address])
    rules = {b"f": FamilyRules(9, 0, None)}
    rows: Any = ("source", "target", "t", "t", ((b"row",),), rules, Bounds.of_each(1))
    ((_, packed),) = explain_rows._read_rows(explain_rows._Rows(*rows))
    assert packed is not None
    found = packed.value()
    assert (found.only_target, [cell[2] for cell in found.only_source]) == ((), [1])
