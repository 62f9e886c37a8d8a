"""A bounded set of fragile rows: found equal, they may still change although nobody writes to them.

A row with a delete marker on either side may change once a compaction of its region drops the marker. If the marker
hides a single version, the row may already change once a flush or any compaction drops what the marker uncovers
(`store_files`). A row with a cell that has its own TTL may show an older cell once that TTL ends. No other row changes
by itself: in a row without markers, a server drops only cells that the remaining cells hide.

A few rows are kept by their keys; if there are many, neighbours share a range.
"""

from __future__ import annotations

import base64
import struct
import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from walferry.formats.cells import CellIndex, binary_column
from walferry.formats.resolve import expiring_after, marker_numbers
from walferry.hbase.descriptors import Range

MOST_SPANS = 5_000
"""the most spans of a table; if there are more, neighbours share one"""
MOST_BYTES = 512 << 10
"""the most bytes of their keys"""

Item = TypeVar("Item")


@dataclass(frozen=True)
class RowSpan:
    """A fragile row, or a range of rows that contains fragile rows."""

    start: bytes
    stop: bytes
    """the first row after the span; b"": to the end of the table"""
    marked: bool = False
    """whether it contains a delete marker"""
    due_ms: int | None = None
    """when the first of its cells with a TTL of its own has certainly expired"""
    by_version: bool = False
    """whether it contains a marker that hides a single version: Delete or DeleteFamilyVersion"""

    @property
    def is_row(self) -> bool:
        """Whether the span is a single row."""
        return self.stop == self.start + b"\0"

    def meets(self, other: Range) -> bool:
        """Whether the span and a range have rows in common."""
        start, stop = other
        return (not stop or self.start < stop) and (not self.stop or start < self.stop)

    def within(self, other: Range) -> bool:
        """Whether the whole span is in a range."""
        start, stop = other
        return start <= self.start and (not stop or (bool(self.stop) and self.stop <= stop))

    def __add__(self, other: RowSpan) -> RowSpan:
        """One span over both; `other` must not start before this one."""
        stop = b"" if not self.stop or not other.stop else max(self.stop, other.stop)
        due = [at for at in (self.due_ms, other.due_ms) if at is not None]
        marked, by_version = self.marked or other.marked, self.by_version or other.by_version
        return RowSpan(self.start, stop, marked, min(due, default=None), by_version)


@dataclass(frozen=True)
class RowSpans:
    """Row spans in order, without overlaps. The sum of two is bounded, too."""

    all: tuple[RowSpan, ...] = ()

    @classmethod
    def of(cls, spans: Iterable[RowSpan]) -> RowSpans:
        """From any spans: overlapping spans become one and, if there are too many, neighbours do."""
        found: list[RowSpan] = []
        for span in sorted(spans, key=lambda one: one.start):
            if found and (not found[-1].stop or span.start < found[-1].stop):
                found[-1] += span
            else:
                found.append(span)
        return cls(tuple(_bounded(found)))

    @classmethod
    def of_rows(cls, rows: Iterable[bytes]) -> RowSpans:
        """From single rows that only need to be read again."""
        return cls.of(RowSpan(row, row + b"\0") for row in rows)

    def __len__(self) -> int:
        return len(self.all)

    def __iter__(self) -> Iterator[RowSpan]:
        return iter(self.all)

    def __add__(self, other: RowSpans) -> RowSpans:
        return RowSpans.of((*self.all, *other.all)) if self.all and other.all else self if self.all else other

    def without(self, others: Iterable[RowSpan]) -> RowSpans:
        """The spans that are not among the others."""
        left = set(others)
        return RowSpans(tuple(span for span in self.all if span not in left))

    def due(self, may_show: Callable[[RowSpan], bool], moment_ms: int) -> RowSpans:
        """The spans to read again: those with expired cells, and those that a change of store files may have
        changed."""
        return RowSpans(
            tuple(
                span
                for span in self.all
                if (span.due_ms is not None and span.due_ms <= moment_ms) or (span.marked and may_show(span))
            )
        )

    def meet(self, other: Range) -> bool:
        """Whether any span has rows in a range."""
        at = max(0, bisect_right(self.all, other[0], key=lambda span: span.start) - 1)
        return any(span.meets(other) for span in self.all[at : at + 2])

    def over(self, row: bytes) -> RowSpan | None:
        """The span that contains a row; None if there is none."""
        at = bisect_right(self.all, row, key=lambda span: span.start) - 1
        return self.all[at] if at >= 0 and self.all[at].meets((row, row + b"\0")) else None

    @property
    def marked(self) -> RowSpans:
        """The spans with delete markers."""
        return RowSpans(tuple(span for span in self.all if span.marked))

    def after(self, rows: Sequence[bytes], ranges: Sequence[Range], found: RowSpans) -> RowSpans:
        """The fragile rows after these rows (in order) and ranges were read; `found`: the fragile rows that were found
        in them."""

        whole = RowSpans.of(RowSpan(start, stop) for start, stop in ranges)

        def read(span: RowSpan) -> bool:
            if whole.hold((span.start, span.stop)):
                return True
            at = bisect_left(rows, span.start)
            return span.is_row and at < len(rows) and rows[at] == span.start

        return RowSpans(tuple(span for span in self.all if not read(span))) + found

    def hold(self, other: Range) -> bool:
        """Whether one span contains all rows of a range."""
        at = max(0, bisect_right(self.all, other[0], key=lambda span: span.start) - 1)
        return any(RowSpan(*other).within((span.start, span.stop)) for span in self.all[at : at + 1])

    @property
    def rows(self) -> list[bytes]:
        """The single rows."""
        return [span.start for span in self.all if span.is_row]

    @property
    def ranges(self) -> list[Range]:
        """The spans of several rows."""
        return [(span.start, span.stop) for span in self.all if not span.is_row]

    def pack(self) -> str:
        """The spans as text, for the ledger."""
        data = b"".join(map(_packed, self.all))
        return base64.b85encode(zlib.compress(data, 6)).decode()

    @classmethod
    def unpack(cls, text: str) -> RowSpans:
        """The spans from the text that `pack` returned."""
        return cls(tuple(_unpacked(zlib.decompress(base64.b85decode(text)))))


def fragile_in(cells: CellIndex, moment_ms: int, late_ms: int) -> RowSpans:
    """The fragile rows among whole rows of a raw scan, which were read after `moment_ms`.

    `late_ms`: how much later a cell may expire for a server than for this process, since the server's clock may be
    late.
    """
    spans: list[RowSpan] = []
    for by_version in (False, True):
        if len(marked := marker_numbers(cells, by_version=by_version)):
            parts_of = _parts(_rows(cells, marked).dictionary.to_pylist())
            spans += [RowSpan(*_around(rows), marked=True, by_version=by_version) for rows in parts_of]
    numbers, ends = expiring_after(cells, moment_ms - late_ms)
    if len(numbers):
        found = _rows(cells, numbers)
        dues = np.full(len(found.dictionary), np.iinfo(np.int64).max)
        np.minimum.at(dues, found.indices.to_numpy(), ends)
        parts = zip(_parts(found.dictionary.to_pylist()), _parts(dues.tolist()), strict=True)
        spans += [RowSpan(*_around(rows), due_ms=min(of_rows) + late_ms) for rows, of_rows in parts]
    return RowSpans.of(spans) if spans else NONE


NONE = RowSpans()


def _bounded(spans: list[RowSpan]) -> list[RowSpan]:
    """Join neighbours until the spans are few enough to be kept."""
    while len(spans) > MOST_SPANS or (len(spans) > 1 and _size(spans) > MOST_BYTES):
        each = max(2, -(-len(spans) // (MOST_SPANS // 2)))
        spans = [_joined(spans[first : first + each]) for first in range(0, len(spans), each)]
    return spans


def _rows(cells: CellIndex, numbers: npt.NDArray[np.intp]) -> pa.DictionaryArray:
    """The rows of the numbered cells, in order; the dictionary has each row once."""
    return binary_column(cells.buffer, cells.row_start[numbers], cells.row_length[numbers]).dictionary_encode()


def _parts(items: list[Item]) -> list[list[Item]]:
    """Put neighbours together so that the parts are few enough to be kept."""
    each = -(-len(items) // MOST_SPANS)
    return [items[first : first + each] for first in range(0, len(items), each)]


def _around(rows: Sequence[bytes]) -> Range:
    return rows[0], rows[-1] + b"\0"


def _joined(spans: Sequence[RowSpan]) -> RowSpan:
    whole = spans[0]
    for span in islice(spans, 1, None):
        whole += span
    return whole


def _size(spans: Sequence[RowSpan]) -> int:
    return sum(len(span.start) + (0 if span.is_row else len(span.stop)) for span in spans)


_ROW, _MARKED, _DUE, _BY_VERSION = 1, 2, 4, 8


def _packed(span: RowSpan) -> bytes:
    flags = _ROW * span.is_row | _MARKED * span.marked | _BY_VERSION * span.by_version
    flags |= _DUE * (span.due_ms is not None)
    head = struct.pack(">BH", flags, len(span.start)) + span.start
    stop = b"" if span.is_row else struct.pack(">H", len(span.stop)) + span.stop
    return head + stop + (b"" if span.due_ms is None else struct.pack(">q", span.due_ms))


def _unpacked(data: bytes) -> Iterator[RowSpan]:
    at = 0

    def take(size: int) -> bytes:
        nonlocal at
        at += size
        return data[at - size : at]

    while at < len(data):
        flags = take(1)[0]
        start = take(int.from_bytes(take(2), "big"))
        stop = start + b"\0" if flags & _ROW else take(int.from_bytes(take(2), "big"))
        due = int.from_bytes(take(8), "big", signed=True) if flags & _DUE else None
        yield RowSpan(start, stop, bool(flags & _MARKED), due, bool(flags & _BY_VERSION))
