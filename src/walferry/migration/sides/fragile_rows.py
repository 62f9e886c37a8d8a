"""Rows whose clean reading does not last although nobody writes to them: a bounded set of them.

A row that holds a delete marker, on either side, may show something else once a compaction of its region has dropped
the marker; if the marker hides a single version, once a flush or any compaction has dropped what it uncovers
(`store_files`). One that holds a cell with a TTL of its own may show an older cell after that. No other row changes by
itself: of a row without markers, a server drops only what is hidden by what it keeps.

Few rows are kept by their keys; of many, neighbours share a range.
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
"""of a table, before neighbours share one"""
MOST_BYTES = 512 << 10
"""of their keys"""

Item = TypeVar("Item")


@dataclass(frozen=True)
class RowSpan:
    """A row, or a range of rows that has some."""

    start: bytes
    stop: bytes
    """the row after the last one; b"": to the end of the table"""
    marked: bool = False
    """whether a delete marker is in it"""
    due_ms: int | None = None
    """when a cell in it has certainly expired by its own TTL, the first one"""
    by_version: bool = False
    """whether a marker in it hides a single version: Delete or DeleteFamilyVersion"""

    @property
    def is_row(self) -> bool:
        """Whether it is a single row."""
        return self.stop == self.start + b"\0"

    def meets(self, other: Range) -> bool:
        """Whether a range has rows of it."""
        start, stop = other
        return (not stop or self.start < stop) and (not self.stop or start < self.stop)

    def within(self, other: Range) -> bool:
        """Whether all of it is in a range."""
        start, stop = other
        return start <= self.start and (not stop or (bool(self.stop) and self.stop <= stop))

    def __add__(self, other: RowSpan) -> RowSpan:
        """One span over both; `other` does not begin before it."""
        stop = b"" if not self.stop or not other.stop else max(self.stop, other.stop)
        due = [at for at in (self.due_ms, other.due_ms) if at is not None]
        marked, by_version = self.marked or other.marked, self.by_version or other.by_version
        return RowSpan(self.start, stop, marked, min(due, default=None), by_version)


@dataclass(frozen=True)
class RowSpans:
    """Row spans in order, none of which overlap. Sums are bounded."""

    all: tuple[RowSpan, ...] = ()

    @classmethod
    def of(cls, spans: Iterable[RowSpan]) -> RowSpans:
        """Of any spans; those that overlap become one, and of too many neighbours do."""
        found: list[RowSpan] = []
        for span in sorted(spans, key=lambda one: one.start):
            if found and (not found[-1].stop or span.start < found[-1].stop):
                found[-1] += span
            else:
                found.append(span)
        return cls(tuple(_bounded(found)))

    @classmethod
    def of_rows(cls, rows: Iterable[bytes]) -> RowSpans:
        """Rows that have only to be read again."""
        return cls.of(RowSpan(row, row + b"\0") for row in rows)

    def __len__(self) -> int:
        return len(self.all)

    def __iter__(self) -> Iterator[RowSpan]:
        return iter(self.all)

    def __add__(self, other: RowSpans) -> RowSpans:
        return RowSpans.of((*self.all, *other.all)) if self.all and other.all else self if self.all else other

    def without(self, others: Iterable[RowSpan]) -> RowSpans:
        """Those that are none of the others."""
        left = set(others)
        return RowSpans(tuple(span for span in self.all if span not in left))

    def due(self, may_show: Callable[[RowSpan], bool], moment_ms: int) -> RowSpans:
        """Those to be read again: what has expired, and what a change of store files may have changed."""
        return RowSpans(
            tuple(
                span
                for span in self.all
                if (span.due_ms is not None and span.due_ms <= moment_ms) or (span.marked and may_show(span))
            )
        )

    def meet(self, other: Range) -> bool:
        """Whether one of them has rows of a range."""
        at = max(0, bisect_right(self.all, other[0], key=lambda span: span.start) - 1)
        return any(span.meets(other) for span in self.all[at : at + 2])

    def over(self, row: bytes) -> RowSpan | None:
        """The one that has a row."""
        at = bisect_right(self.all, row, key=lambda span: span.start) - 1
        return self.all[at] if at >= 0 and self.all[at].meets((row, row + b"\0")) else None

    @property
    def marked(self) -> RowSpans:
        """Those with delete markers."""
        return RowSpans(tuple(span for span in self.all if span.marked))

    def after(self, rows: Sequence[bytes], ranges: Sequence[Range], found: RowSpans) -> RowSpans:
        """What they are once these rows (in order) and ranges were read, in which `found` were."""

        whole = RowSpans.of(RowSpan(start, stop) for start, stop in ranges)

        def read(span: RowSpan) -> bool:
            if whole.hold((span.start, span.stop)):
                return True
            at = bisect_left(rows, span.start)
            return span.is_row and at < len(rows) and rows[at] == span.start

        return RowSpans(tuple(span for span in self.all if not read(span))) + found

    def hold(self, other: Range) -> bool:
        """Whether one of them has all rows of a range."""
        at = max(0, bisect_right(self.all, other[0], key=lambda span: span.start) - 1)
        return any(RowSpan(*other).within((span.start, span.stop)) for span in self.all[at : at + 1])

    @property
    def rows(self) -> list[bytes]:
        """The single rows."""
        return [span.start for span in self.all if span.is_row]

    @property
    def ranges(self) -> list[Range]:
        """The others."""
        return [(span.start, span.stop) for span in self.all if not span.is_row]

    def pack(self) -> str:
        """As text, for the ledger."""
        data = b"".join(map(_packed, self.all))
        return base64.b85encode(zlib.compress(data, 6)).decode()

    @classmethod
    def unpack(cls, text: str) -> RowSpans:
        """What `pack` returned."""
        return cls(tuple(_unpacked(zlib.decompress(base64.b85decode(text)))))


def fragile_in(cells: CellIndex, moment_ms: int, late_ms: int) -> RowSpans:
    """The fragile rows among whole rows as a raw scan shows them, read after `moment_ms`.

    `late_ms`: how much later than here a cell may have expired for a server, by its clock.
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
    """As few that they may be kept: neighbours share one."""
    while len(spans) > MOST_SPANS or (len(spans) > 1 and _size(spans) > MOST_BYTES):
        each = max(2, -(-len(spans) // (MOST_SPANS // 2)))
        spans = [_joined(spans[first : first + each]) for first in range(0, len(spans), each)]
    return spans


def _rows(cells: CellIndex, numbers: npt.NDArray[np.intp]) -> pa.DictionaryArray:
    """The rows of some cells, each once in the dictionary, in order."""
    return binary_column(cells.buffer, cells.row_start[numbers], cells.row_length[numbers]).dictionary_encode()


def _parts(items: list[Item]) -> list[list[Item]]:
    """As many neighbours together that the parts may be kept."""
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
