"""Merges the cells of several store files in the order of a store, a batch of whole rows at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields, replace
from itertools import pairwise

import numpy as np

from walferry.formats.cells import CellIndex
from walferry.formats.hfile import StoredCells
from walferry.formats.order import count_below, store_order, winners
from walferry.formats.resolve import outlived


def merged(files: Sequence[Iterable[StoredCells]]) -> Iterator[CellIndex]:
    """Merge the cells of `files`, oldest file first, each in order; yields batches of whole rows in order.

    Of cells with equal keys (all but value and tags) only one is yielded, as in HBase: the one with the highest
    sequence number or, if these are equal, the newest file's. Memory: one batch and one whole row of each file.
    """
    sources = [_Source(iter(file)) for file in files]
    for source in sources:
        source.read()
    while sources:
        bound = min((source.last_row for source in sources if not source.ended), default=None)
        found = [parts for source in sources if (parts := source.take_below(bound))]
        if len(found) == 1:
            yield from map(_distinct, _whole_rows(found[0]))
        elif found:
            yield _in_order([part for parts in found for part in parts])
        if bound is None:
            return
        for source in sources:
            if not source.ended and source.last_row == bound:
                source.read()
        sources = [source for source in sources if source.pending]


def alive(batches: Iterable[StoredCells], at_ms: int) -> Iterator[StoredCells]:
    """The cells of a file whose own TTL has not expired at `at_ms`.

    Apply this before `merged`: a region server skips an expired cell and shows the cell that the expired one had
    overwritten.
    """
    for found in batches:
        gone = outlived(found.cells, at_ms)
        if not gone.any():
            yield found
        elif not gone.all():
            kept = np.flatnonzero(~gone)
            yield StoredCells(found.cells.pick(kept), found.sequence[kept])


class _Source:
    """A file's cells that are read but not yielded yet."""

    def __init__(self, batches: Iterator[StoredCells]) -> None:
        self._batches = batches
        self.pending: list[StoredCells] = []
        self.last_row = b""
        self.ended = False

    def read(self) -> None:
        found = next(self._batches, None)
        if found is None:
            self.ended = True
        else:
            self.pending.append(found)
            self.last_row = found.cells.row(len(found) - 1)

    def take_below(self, row: bytes | None) -> list[StoredCells]:
        if row is None:
            taken, self.pending = self.pending, []
            return taken
        taken, kept = [], []
        for part in self.pending:
            below = count_below(part.cells.buffer, part.cells.position, row)
            if below:
                taken.append(part.part(0, below))
            if below < len(part):
                kept.append(part.part(below, len(part)))
        self.pending = kept
        return taken


def _whole_rows(parts: Sequence[StoredCells]) -> Iterator[StoredCells]:
    """Cut consecutive parts of one file between rows instead; copies only rows that span several parts."""
    row: list[StoredCells] = []
    """the pieces of the last row so far"""
    for part in parts:
        begin = count_below(part.cells.buffer, part.cells.position, row[0].cells.row(0) + b"\0") if row else 0
        if begin:
            row.append(part.part(0, begin))
        if begin == len(part):
            continue
        if row:
            yield _joined(row)
        end = count_below(part.cells.buffer, part.cells.position, part.cells.row(len(part) - 1))
        if end > begin:
            yield part.part(begin, end)
        row = [part.part(max(begin, end), len(part))]
    if row:
        yield _joined(row)


def _distinct(part: StoredCells) -> CellIndex:
    """The cells of one file, without each cell that repeats the key of the one before it."""
    first = winners(part.cells.buffer, part.cells.position)
    return part.cells if first.all() else part.cells.pick(np.flatnonzero(first))


def _in_order(parts: list[StoredCells]) -> CellIndex:
    cells = _joined(parts)
    buffer = cells.cells.buffer
    order = store_order(buffer, cells.cells.position, cells.sequence)
    return cells.cells.pick(order[winners(buffer, cells.cells.position[order])])


def _joined(parts: Sequence[StoredCells]) -> StoredCells:
    """The cells of all parts, copied into one buffer."""
    if len(parts) == 1:
        return parts[0]
    spans = []
    for part in parts:
        cells = part.cells
        ends = (cells.value_start[-1] + cells.value_length[-1], cells.tags_start[-1] + cells.tags_length[-1])
        spans.append((int(cells.position[0]) + 4, int(max(ends))))
    borders = np.cumsum([0, *(stop - start for start, stop in spans)])
    buffer = np.concatenate([part.cells.buffer[slice(*span)] for part, span in zip(parts, spans, strict=True)])
    columns = {}
    for spec in fields(CellIndex):
        if spec.name != "buffer":
            moves = spec.name == "position" or spec.name.endswith("_start")
            columns[spec.name] = np.concatenate(
                [
                    getattr(part.cells, spec.name) + (border - start if moves else 0)
                    for part, (start, _), (border, _) in zip(parts, spans, pairwise(borders), strict=True)
                ]
            )
    columns["type"] = columns["type"].astype(np.uint8)
    cells = replace(parts[0].cells, buffer=buffer, **columns)
    return StoredCells(cells, np.concatenate([part.sequence for part in parts]))
