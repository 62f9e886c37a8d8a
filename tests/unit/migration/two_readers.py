"""Rows as two readers show them: HBase's own Java client, and ours by raw scans."""

from __future__ import annotations

from typing import Any

import pytest

from walferry.formats.resolve import FamilyRules
from walferry.migration.comparing import second_reader

SHOWN = {b"f:q": (b"v", 5)}
OTHERS = {b"f:q": (b"w", 6)}


class Clusters:
    """In place of Thrift and of raw scans; `at_look` changes what Thrift shows before a reading, by its number."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.here: dict[bytes, Any] = {b"a": SHOWN, b"b": SHOWN, b"c": SHOWN}
        self.there = dict(self.here)
        self.raw: list[bytes] = []
        self.asked: list[list[bytes]] = []
        self.at_look: dict[int, dict[bytes, Any]] = {}
        self.now = 0.0
        monkeypatch.setattr(second_reader, "PAUSE_SECONDS", 0.0)
        monkeypatch.setattr(second_reader, "_ThriftReader", lambda *_: self)
        monkeypatch.setattr(second_reader, "rules_of", lambda *_: {b"f": FamilyRules(1, 0, None)})
        monkeypatch.setattr(second_reader, "steady_s", self.clock)
        self.source = self.target = self

    def around(self, keys: Any) -> Any:
        after = [row for key in keys for row in sorted(row for row in {**self.here, **self.there} if row >= key)[:2]]
        return self.exactly(after)

    def exactly(self, rows: Any) -> Any:
        self.asked.append(list(rows))
        self.there |= self.at_look.get(len(self.asked), {})
        sides = {row: (self.here.get(row, {}), self.there.get(row, {})) for row in rows}
        return {row for row in rows if any(sides[row])}, {
            row: both for row, both in sides.items() if both[0] != both[1]
        }

    def clock(self) -> float:
        """A millisecond later each time, so that nobody waits for ever."""
        self.now += 0.001
        return self.now

    def pause(self, seconds: float) -> None:
        self.now += seconds

    def describe(self, table: str) -> None:
        """What it keeps is in `rules_of`."""

    def scan_raw(self, *_: Any) -> list[bytes]:
        return self.raw
