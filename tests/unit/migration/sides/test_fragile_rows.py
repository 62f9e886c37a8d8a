"""A row whose view a flush, a compaction or the end of a TTL can change is remembered, in bounded memory."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from walferry.formats.cells import CellIndex, CellType, encode_cell, index_cells
from walferry.formats.resolve import FamilyRules, Fate, resolve
from walferry.hbase.descriptors import Range
from walferry.migration.sides import fragile_rows
from walferry.migration.sides.fragile_rows import NONE, RowSpan, RowSpans, fragile_in

ROWS = st.binary(min_size=1, max_size=2)
MARKERS = (CellType.DELETE, CellType.DELETE_COLUMN, CellType.DELETE_FAMILY, CellType.DELETE_FAMILY_VERSION)


@st.composite
def ranges(draw: st.DrawFn) -> Range:
    start, stop = sorted((draw(ROWS), draw(ROWS)))
    return (start, b"") if draw(st.integers(0, 9)) == 0 else (start, stop + b"\0")


@st.composite
def spans(draw: st.DrawFn) -> RowSpan:
    row = draw(ROWS)
    start, stop = draw(st.one_of(st.just((row, row + b"\0")), ranges()))
    return RowSpan(start, stop, draw(st.booleans()), draw(st.none() | st.integers(0, 50)), draw(st.booleans()))


def holds(range_: Range, row: bytes) -> bool:
    start, stop = range_
    return start <= row and (not stop or row < stop)


def held(some: RowSpans, row: bytes) -> list[RowSpan]:
    return [span for span in some if holds((span.start, span.stop), row)]


@given(st.lists(spans(), max_size=40), st.integers(2, 12), ROWS)
def test_many_spans_become_few_that_still_hold_every_row_with_all_that_is_known_of_it(
    given_spans: list[RowSpan], most: int, row: bytes
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fragile_rows, "MOST_SPANS", most)
        found = RowSpans.of(given_spans)
    assert len(found) <= most
    assert all(one.stop and one.stop <= other.start for one, other in zip(found.all, found.all[1:], strict=False))
    of_row = [span for span in given_spans if holds((span.start, span.stop), row)]
    for span in of_row:
        (now,) = held(found, row)
        assert now.marked or not span.marked
        assert now.by_version or not span.by_version
        assert span.due_ms is None or (now.due_ms is not None and now.due_ms <= span.due_ms)


def test_few_rows_are_kept_by_their_keys_and_long_keys_are_bounded_too() -> None:
    rows = [b"%04d" % number for number in range(1_000)]
    assert RowSpans.of_rows(rows).rows == rows
    assert not RowSpans.of_rows(rows).ranges
    long = RowSpans.of_rows([b"%04d" % number + b"x" * 2_000 for number in range(1_000)])
    assert sum(len(span.start) + len(span.stop) for span in long) <= 2 * fragile_rows.MOST_BYTES
    assert held(long, b"0500" + b"x" * 2_000)


@given(st.lists(spans(), max_size=20), ROWS)
def test_the_span_over_a_row_is_the_one_that_holds_it(some: list[RowSpan], row: bytes) -> None:
    found = RowSpans.of(some)
    assert found.over(row) == next(iter(held(found, row)), None)


@given(st.lists(spans(), max_size=20))
def test_what_the_ledger_keeps_is_read_back(some: list[RowSpan]) -> None:
    found = RowSpans.of(some)
    assert RowSpans.unpack(found.pack()) == found


@given(st.lists(spans(), max_size=20), st.lists(ranges(), max_size=5), st.integers(0, 60))
def test_due_is_what_is_marked_where_files_changed_and_what_has_expired(
    some: list[RowSpan], changed: list[Range], moment: int
) -> None:
    found = RowSpans.of(some)

    def may_show(span: RowSpan) -> bool:
        return any(span.meets(one) for one in changed)

    expected = [
        span
        for span in found
        if (span.due_ms is not None and span.due_ms <= moment) or (span.marked and may_show(span))
    ]
    assert list(found.due(may_show, moment)) == expected


@given(st.lists(spans(), max_size=15), st.lists(ROWS), st.lists(ranges(), max_size=3), st.lists(spans(), max_size=5))
def test_what_was_not_read_stays_fragile_and_what_was_read_is_as_it_was_found(
    some: list[RowSpan], rows: list[bytes], read: list[Range], new: list[RowSpan]
) -> None:
    before, found, rows = RowSpans.of(some), RowSpans.of(new), sorted(set(rows))
    after = before.after(rows, read, found)
    for row in {span.start for span in (*some, *new)} | set(rows):
        was_read = row in rows or any(holds(one, row) for one in read)
        if held(found, row) or (held(before, row) and not was_read):
            assert held(after, row)
        if was_read and all(span.is_row for span in before) and not held(found, row):
            assert not held(after, row)


# ------------------------------------------------------------------ which rows are fragile


@dataclass(frozen=True)
class Kept:
    """A cell of the one row, as a store has it; of equal keys, the one written last counts."""

    qualifier: bytes
    timestamp: int
    type: int
    ttl: int | None
    number: int

    @property
    def order(self) -> tuple[bytes, int, int, int]:
        return self.qualifier, -self.timestamp, -self.type, -self.number


@st.composite
def kept_cells(draw: st.DrawFn) -> list[Kept]:
    cells = []
    for number in range(draw(st.integers(1, 7))):
        kind = draw(st.sampled_from([CellType.PUT] * 6 + list(MARKERS)))
        of_family = kind in (CellType.DELETE_FAMILY, CellType.DELETE_FAMILY_VERSION)
        ttl = draw(st.sampled_from([None, None, 3, 6])) if kind == CellType.PUT else None
        qualifier = b"" if of_family else draw(st.sampled_from([b"a", b"b"]))
        cells.append(Kept(qualifier, draw(st.integers(1, 4)), int(kind), ttl, number))
    return cells


def index(cells: Sequence[Kept]) -> CellIndex:
    raw = [
        encode_cell(
            b"row", b"f", c.qualifier, c.timestamp, c.type, b"%d" % c.number,
            [] if c.ttl is None else [(8, struct.pack(">q", c.ttl))],
        )
        for c in sorted(cells, key=lambda c: c.order)
    ]  # fmt: skip
    return index_cells(np.frombuffer(b"".join(raw), np.uint8))


def visible(cells: Sequence[Kept], rules: FamilyRules, moment: int) -> set[Kept]:
    """What a reader sees of the row."""
    fates = resolve(index(cells), {b"f": rules}, moment)
    return {c for c, fate in zip(sorted(cells, key=lambda c: c.order), fates, strict=True) if fate == Fate.VISIBLE}


def compacted(cells: Sequence[Kept], files: set[int], rules: FamilyRules, moment: int, *, major: bool) -> list[Kept]:
    """The row once the files with these cells were flushed or compacted into one."""
    some = [c for c in cells if c.number in files]
    stay = visible(some, rules, moment) | (set() if major else {c for c in some if c.type != CellType.PUT})
    return [c for c in cells if c.number not in files or c in stay]


def shown_raw(cells: Sequence[Kept], moment: int) -> list[Kept]:
    """What a raw scan shows: of equal keys one, and none beyond a TTL of its own."""
    alive = [c for c in cells if c.ttl is None or c.timestamp + c.ttl >= moment]
    newest = {(c.qualifier, c.timestamp, c.type): c for c in sorted(alive, key=lambda c: c.number)}
    return list(newest.values())


@settings(max_examples=600)
@given(
    kept_cells(),
    st.sets(st.integers(0, 6)),
    st.booleans(),
    st.builds(FamilyRules, st.integers(1, 3), st.integers(0, 1), st.none() | st.integers(2, 6)),
    st.integers(4, 12),
    st.integers(0, 8),
)
@example(  # the marker goes, the old put stays
    [Kept(b"a", 3, int(CellType.DELETE_COLUMN), None, 0), Kept(b"a", 1, int(CellType.PUT), None, 1)],
    {0}, True, FamilyRules(1, 0, None), 5, 0,
)  # fmt: skip
@example(  # what the cell with a TTL replaced is gone on one side
    [Kept(b"a", 3, int(CellType.PUT), None, 0), Kept(b"a", 3, int(CellType.PUT), 3, 1)],
    {0, 1}, False, FamilyRules(1, 0, None), 5, 4,
)  # fmt: skip
@example(  # what was surplus before its newer version was hidden
    [Kept(b"a", 2, int(CellType.PUT), None, 0), Kept(b"a", 1, int(CellType.PUT), None, 1),
     Kept(b"a", 2, int(CellType.DELETE), None, 2)],
    {0, 1}, False, FamilyRules(1, 0, None), 5, 0,
)  # fmt: skip
def test_only_a_fragile_row_is_changed_by_a_flush_a_compaction_or_the_end_of_a_ttl(
    cells: list[Kept], files: set[int], major: bool, rules: FamilyRules, read: int, later: int
) -> None:
    after = compacted(cells, files, rules, read, major=major)
    if visible(after, rules, read + later) == visible(cells, rules, read + later):
        return
    raw = shown_raw(cells, read)
    (span,) = fragile_in(index(raw), read, 0)
    by_dropping = span.marked if major else span.by_version
    assert by_dropping or (span.due_ms is not None and span.due_ms <= read + later)


def test_a_row_of_puts_without_a_ttl_of_their_own_is_not_fragile_however_many_versions_it_has() -> None:
    cells = [Kept(b"a", number, int(CellType.PUT), None, number) for number in range(1, 9)]
    assert fragile_in(index(cells), 5, 0) == NONE


def test_a_servers_clock_may_be_late() -> None:
    cell = Kept(b"a", 100, int(CellType.PUT), 50, 0)
    assert fragile_in(index([cell]), 120, 30) == RowSpans((RowSpan(b"row", b"row\0", due_ms=181),))
    assert fragile_in(index([cell]), 180, 30) != NONE
    assert fragile_in(index([cell]), 181, 30) == NONE


def test_markers_of_very_many_rows_are_few_spans() -> None:
    rows = [b"%06d" % number for number in range(20_000)]
    data = b"".join(encode_cell(row, b"f", b"", 5, int(CellType.DELETE_FAMILY)) for row in rows)
    found = fragile_in(index_cells(np.frombuffer(data, np.uint8)), 5, 0)
    assert len(found) <= fragile_rows.MOST_SPANS
    assert all(found.marked.hold((row, row + b"\0")) for row in rows[::997])


def test_of_a_row_the_first_ttl_to_end_counts() -> None:
    cells = [Kept(b"a", 100, int(CellType.PUT), 50, 0), Kept(b"b", 100, int(CellType.PUT), 20, 1)]
    assert fragile_in(index(cells), 110, 0) == RowSpans((RowSpan(b"row", b"row\0", due_ms=121),))
    assert fragile_in(index(cells), 121, 0) == RowSpans((RowSpan(b"row", b"row\0", due_ms=151),))
