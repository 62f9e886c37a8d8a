"""How rows that differ are read again."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from walferry.formats.cells import CellType, encode_cell
from walferry.formats.resolve import FamilyRules
from walferry.migration.explaining import explain_rows
from walferry.migration.sides.row_sides import Bounds


def test_rows_are_read_again_several_at_a_time_but_not_after_a_large_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """One after the other, each waits for the answers of two servers; large ones at once would not fit into memory."""
    at_once: list[int] = []
    reading: list[bytes] = []
    changed = threading.Lock()

    class Side:
        def __init__(self, there: bool) -> None:
            self.there = there

        def scan_raw(self, table: str, row: bytes, stop: bytes) -> list[bytes]:
            with changed:
                if self.there:
                    reading.append(row)
                    at_once.append(len(reading))
            time.sleep(0.05)
            with changed:
                if not self.there:
                    reading.remove(row)
            size = explain_rows._LARGE_BYTES + 1 if row.startswith(b"big") else 1
            value = b"other" if self.there and row == b"small3" else bytes(size)
            return [encode_cell(row, b"f", b"q", 1, CellType.PUT, value)]

    sides = {"here": Side(False), "there": Side(True)}
    monkeypatch.setattr(explain_rows, "shared_client", lambda address: sides[address])
    rules = {b"f": FamilyRules(1, 0, None)}

    def read(*rows: bytes) -> dict[bytes, Any]:
        at_once.clear()
        here: Any = "here"
        there: Any = "there"
        return dict(explain_rows._read_rows(explain_rows._Rows(here, there, "t", "t", rows, rules, Bounds.of_each(1))))

    small = [b"small%d" % number for number in range(9)]
    found = read(*small)
    assert list(found) == small
    assert [row for row, sides_of in found.items() if sides_of is not None] == [b"small3"]
    assert 1 < max(at_once) <= explain_rows._AT_A_TIME
    assert list(read(b"big1", b"big2", b"big3")) == [b"big1", b"big2", b"big3"]
    assert max(at_once) == 1


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

    clients = {side: SimpleNamespace(scan_raw=lambda *_, side=side: scan_raw(side)) for side in held}
    monkeypatch.setattr(explain_rows, "shared_client", lambda address: clients[address])
    rules = {b"f": FamilyRules(9, 0, None)}
    rows: Any = ("source", "target", "t", "t", (b"row",), rules, Bounds.of_each(1))
    ((_, packed),) = explain_rows._read_rows(explain_rows._Rows(*rows))
    assert packed is not None
    found = packed.value()
    assert (found.only_target, [cell[2] for cell in found.only_source]) == ((), [1])
