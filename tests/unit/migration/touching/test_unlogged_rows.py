"""Which rows are read again when servers have counted mutations that skip the log, by the timestamps of cells."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from walferry.errors import TransientError
from walferry.formats.cells import encode_cell
from walferry.hbase.descriptors import Region
from walferry.hbase.zookeeper import Server
from walferry.migration.sides.fragile_rows import RowSpans
from walferry.migration.touching import unlogged_rows
from walferry.migration.touching.touched import risen
from walferry.migration.touching.unlogged_rows import in_doubt, oldest_unseen_ms, recent_rows

HERE, THERE = Server("rs1", 16020, 1), Server("rs2", 16020, 1)
LATE_MS = 50_000
"""COUNTED_LATE_MS, and how far clocks may be apart"""


# ------------------------------------------------------------------ from which timestamp on


def test_nothing_is_older_than_what_the_last_count_of_the_server_may_have_missed() -> None:
    asked = {"s1": 100_000, "s2": 110_000}
    assert oldest_unseen_ms(asked, {"s2"}, (), ()) == 110_000 - LATE_MS
    assert oldest_unseen_ms(asked, {"s1", "s2"}, (), ()) == 100_000 - LATE_MS


def test_a_server_that_was_silent_meanwhile_is_asked_for_all_since_its_last_count() -> None:
    assert oldest_unseen_ms({"s1": 5_000, "s2": 110_000}, {"s1"}, (), ("s1",)) == 5_000 - LATE_MS


def test_where_a_count_fell_any_server_that_tells_may_have_had_the_region() -> None:
    asked = {"s1": 100_000, "s2": 110_000, "silent": 5_000}
    assert oldest_unseen_ms(asked, None, ("silent",), ()) == 100_000 - LATE_MS
    assert oldest_unseen_ms(asked, None, (), ("silent",)) == 5_000 - LATE_MS, "it is gone, or tells again"


def test_a_server_that_has_just_come_has_counted_nothing_before_the_last_look() -> None:
    assert oldest_unseen_ms({"s1": 100_000, "s2": 110_000}, {"new"}, (), ()) == 110_000 - LATE_MS


def test_nobody_knows_of_a_server_that_never_told_and_in_a_note_of_an_older_release() -> None:
    assert oldest_unseen_ms({"s1": 100_000}, {"s1", "s2"}, (), ("s2",)) is None
    assert oldest_unseen_ms({}, {"s1"}, (), ()) is None
    assert oldest_unseen_ms({}, None, (), ()) is None
    assert oldest_unseen_ms({"s1": 1}, None, ("s1",), ()) is None


STEP_MS = 5_000
WRITES = st.lists(st.tuples(st.sampled_from(["s1", "s2"]), st.integers(0, 20), st.integers(0, 4)), max_size=6)


@given(WRITES, st.lists(st.integers(1, 4), min_size=2, max_size=8), st.sampled_from([-30_000, 30_000]), st.data())
def test_each_write_that_is_counted_is_within_what_is_scanned_at_the_look_that_counts_it_first(
    writes: list[tuple[str, int, int]], pauses: list[int], skew_ms: int, data: st.DataObject
) -> None:
    """Servers count up to 20 s late, and do not always tell; their clocks are up to 30 s apart from ours."""
    counted = [(server, at * STEP_MS, (at + late) * STEP_MS) for server, at, late in writes]
    counts: dict[str, int] | None = None
    now, asked, unknown = 0, dict[str, int](), list[str]()
    found: set[int] = set()
    for pause in pauses:
        now += pause * STEP_MS
        silent = data.draw(st.sets(st.sampled_from(["s1", "s2"])))
        told = {s: sum(one == s and at <= now for one, _, at in counted) for s in ("s1", "s2") if s not in silent}
        moments = dict.fromkeys(told, now)
        told |= {s: counts[s] for s in silent if counts is not None and s in counts}
        moments |= {s: asked[s] for s in silent if s in asked}
        servers = risen(counts, told)
        assert servers is not None
        if servers:
            since = oldest_unseen_ms(asked, servers, sorted(silent), unknown)
            for number, (server, at, counted_at) in enumerate(counted):
                if server in servers and counted_at <= now and number not in found:
                    assert since is None or at + skew_ms >= since
        found |= {number for number, (server, _, at) in enumerate(counted) if at <= now and server not in silent}
        counts, asked, unknown = told, moments, sorted(silent)


def test_a_region_is_in_doubt_on_a_server_that_counted_and_where_it_moved_to_since() -> None:
    region = Region(b"t,,1.x.", "x", "t", b"", b"", HERE, 1, changed_ms=1_000)
    assert in_doubt(region, {HERE.name}, 5_000)
    assert not in_doubt(region, {THERE.name}, 5_000)
    assert not in_doubt(region, {THERE.name}, None), "all of it would be read again"
    assert in_doubt(region, {THERE.name}, 1_000), "it may have been there"
    assert in_doubt(region, None, 5_000)
    assert in_doubt(Region(b"t,,1.x.", "x", "t", b"", b"", None, 1), {THERE.name}, 5_000)


# ------------------------------------------------------------------ which rows


def cell(row: bytes, value: bytes = b"v", kind: int = 4) -> bytes:
    return encode_cell(row, b"f", b"q", 7, kind, value, ())


class Side:
    """A cluster with cells that are new enough, a block for each."""

    def __init__(self, *cells: bytes, fails: bool = False) -> None:
        self.cells, self.fails, self.asked = cells, fails, list[tuple[bytes, bytes, int]]()

    def scan_raw(self, table: str, start: bytes, stop: bytes, *, since_ms: int) -> Iterator[bytes]:
        self.asked.append((start, stop, since_ms))
        for block in self.cells:
            row = block[14 : 14 + int.from_bytes(block[12:14], "big")]
            if start <= row and (not stop or row < stop):
                yield block
        if self.fails and start < b"m":
            raise TransientError("the region was moved again and again")


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unlogged_rows, "_SHOWN_S", 0.0)


def found(source: Side, target: Side, borders: Sequence[bytes] = (b"", b"m", b"")) -> RowSpans:
    run: Any = SimpleNamespace(source=source, target=target)
    pair: Any = SimpleNamespace(source="t", target="u")
    regions = [Region(start, start.hex(), "t", start, end, HERE, 1) for start, end in pairwise(borders)]
    return recent_rows(run, pair, regions, 5)


def test_rows_whose_new_cells_are_not_the_same_on_both_sides_are_named() -> None:
    source = Side(cell(b"a"), cell(b"b"), cell(b"c", b"one"), cell(b"n"), cell(b"o", kind=12))
    target = Side(cell(b"b"), cell(b"c", b"other"), cell(b"k"), cell(b"n"))
    assert found(source, target).rows == [b"a", b"c", b"k", b"o"]
    assert found(source, target).ranges == []
    assert set(source.asked) == set(target.asked) == {(b"", b"m", 5), (b"m", b"", 5)}


def test_a_region_that_cannot_be_read_is_read_again_as_a_whole_and_no_other() -> None:
    spans = found(Side(cell(b"a"), cell(b"n")), Side(cell(b"b"), fails=True))
    assert (spans.rows, spans.ranges) == ([b"n"], [(b"", b"m")])


@pytest.mark.parametrize(("bound", "most"), [("MOST_ROWS", 2), ("MOST_BYTES", 2), ("MOST_SECONDS", 0.0)])
def test_beyond_the_bounds_regions_are_read_again_as_a_whole(
    bound: str, most: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unlogged_rows, bound, most)
    source = Side(*(cell(b"%c" % letter) for letter in b"abcdnopq"))
    spans = found(source, Side())
    assert spans.rows == []
    assert spans.ranges == [(b"", b"m"), (b"m", b"")]


def test_rows_that_are_the_same_do_not_count_against_the_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unlogged_rows, "MOST_ROWS", 1)
    cells = [cell(b"%c" % letter) for letter in b"abcdnopq"]
    assert found(Side(*cells), Side(*cells[:3], *cells[4:])).rows == [b"d"]
