"""Plan how a target row comes to show what the source shows: which cells to send, and which markers to purge first.

No request can take back a marker at the target: only a major compaction drops it. Everything else is sent: the source's
cells that the target lacks, as they are, and a delete of exactly one version for each put that only the target shows.
Such a delete is a marker that the source lacks, so it is purged afterwards.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from walferry.amounts import amount
from walferry.errors import WalferryError
from walferry.formats.cells import CellType, cells_to_arrow, encode_cell, index_cells
from walferry.formats.resolve import FamilyRules, Fate, outlived, resolve

MOST_CELLS = 200_000
"""the most raw cells of one row, on either side"""

Key = tuple[bytes, bytes, int, int]
"""family, qualifier, timestamp, type"""


class TooLargeError(WalferryError):
    """A row has more raw cells than a repair examines one by one; fact `cells`."""


class RawCell(NamedTuple):
    """A cell of a raw scan, with its own bytes (int32 length + KeyValue)."""

    family: bytes
    qualifier: bytes
    timestamp: int
    type: int
    value: bytes
    tags: bytes
    data: bytes

    @property
    def key(self) -> Key:
        """All parts but value and tags; among cells with equal keys, the one written last wins."""
        return self.family, self.qualifier, self.timestamp, self.type

    @property
    def is_marker(self) -> bool:
        """Whether the cell deletes others."""
        return self.type != CellType.PUT

    def hides(self, put: RawCell) -> bool:
        """Whether this marker hides a put (ScanDeleteTracker.isDeleted)."""
        if not self.is_marker or self.family != put.family:
            return False
        same = self.timestamp == put.timestamp
        if self.type == CellType.DELETE_FAMILY:
            return put.timestamp <= self.timestamp
        if self.type == CellType.DELETE_FAMILY_VERSION:
            return same
        in_column = self.qualifier == put.qualifier
        return in_column and (same if self.type == CellType.DELETE else put.timestamp <= self.timestamp)


@dataclass(frozen=True)
class RowRepair:
    """The repair that makes a target row show what the source shows."""

    purge: tuple[RawCell, ...]
    """markers that the source lacks and that hide cells which the source shows: nothing is sent until these markers are
    gone from the target"""
    sent: tuple[RawCell, ...]
    """cells of the source that the target lacks, in the source's order"""
    deleted: tuple[RawCell, ...]
    """puts that only the target shows: each is deleted by exactly its version, and that delete is purged afterwards"""

    @property
    def compacts(self) -> bool:
        """Whether the row's region must be compacted, before or after cells are sent."""
        return bool(self.purge or self.deleted)

    def cells(self, row: bytes) -> tuple[int, bytes]:
        """The cells to send: their number, and their bytes one after the other."""
        deletes = [encode_cell(row, p.family, p.qualifier, p.timestamp, CellType.DELETE) for p in self.deleted]
        return len(self.sent) + len(deletes), b"".join([*(cell.data for cell in self.sent), *deletes])

    def describe(self, compacts: bool = True) -> str:
        """What the repair does and why, as a clause. `compacts`: whether regions may be compacted for it."""
        if self.purge:
            return (
                f"{amount(len(self.purge), 'marker')} that the source does not have hide cells that it shows: purge "
                "the markers by a flush and a major compaction of the region, then send the cells that the target "
                "lacks"
            )
        parts = []
        if self.sent:
            parts.append(f"send {amount(len(self.sent), 'cell')} of the source that the target lacks")
        if self.deleted:
            after = ", then purge that delete by a flush and a major compaction of the region" if compacts else ""
            parts.append(f"delete exactly {amount(len(self.deleted), 'version')} that the source does not show{after}")
        return ", ".join(parts)


def raw_cells(block: bytes) -> list[RawCell]:
    """The cells of a row's raw scan, in order. Raises TooLargeError beyond MOST_CELLS."""
    index = index_cells(np.frombuffer(block, np.uint8))
    if len(index) > MOST_CELLS:
        raise TooLargeError(f"the row has {len(index)} raw cells, more than {MOST_CELLS}", cells=len(index))
    borders = [*index.position.tolist(), len(block)]
    columns = cells_to_arrow(index)
    names = ("family", "qualifier", "timestamp", "type", "value", "tags")
    rows = zip(*(columns[name].to_pylist() for name in names), strict=True)
    return [RawCell._make((*row, block[borders[n] : borders[n + 1]])) for n, row in enumerate(rows)]


def shown(cells: Iterable[RawCell], rules: Mapping[bytes, FamilyRules], at_ms: int) -> dict[Key, RawCell]:
    """The puts that a reader sees at a moment. Among cells with equal keys, the first one counts."""
    ordered = sorted(cells, key=lambda cell: (cell.family, cell.qualifier, -cell.timestamp, -cell.type))
    index = index_cells(np.frombuffer(b"".join(cell.data for cell in ordered), np.uint8))
    visible = np.flatnonzero(resolve(index, rules, at_ms) == Fate.VISIBLE)
    return {ordered[number].key: ordered[number] for number in visible.tolist()}


def plan_row(
    row: bytes,
    source: Sequence[RawCell],
    target: Sequence[RawCell],
    rules: Mapping[bytes, FamilyRules],
    at_ms: int,
) -> RowRepair | None:
    """How to repair a row, from both sides' raw cells; None if a reader sees the same on both at `at_ms`.

    After the repair, the target holds every cell that the source holds, and shows what the source shows. Any other
    cells at the target stay, hidden.
    """
    wanted = shown(source, rules, at_ms)
    if alike(wanted, shown(target, rules, at_ms)):
        return None
    here, there = (_newest_of_each(cells, at_ms) for cells in (source, target))
    purge = tuple(
        marker
        for key, marker in there.items()
        if marker.is_marker and key not in here and any(marker.hides(put) for put in wanted.values())
    )
    if purge:
        return RowRepair(purge, (), ())
    sent = tuple(cell for key, cell in here.items() if key not in there or _content(there[key]) != _content(cell))
    state = {**there, **here}
    deleted: list[RawCell] = []
    while extra := [put for key, put in shown(state.values(), rules, at_ms).items() if key not in wanted]:
        # Once these puts are deleted, older versions may show up that the source dropped long ago.
        deleted += extra
        for put in extra:
            data = encode_cell(row, put.family, put.qualifier, put.timestamp, CellType.DELETE)
            delete = RawCell(put.family, put.qualifier, put.timestamp, CellType.DELETE, b"", b"", data)
            state[delete.key] = delete
    return RowRepair((), sent, tuple(deleted))


def alike(source: Mapping[Key, RawCell], target: Mapping[Key, RawCell]) -> bool:
    """Whether both sides show the same: keys, values and tags."""
    return source.keys() == target.keys() and all(_content(source[key]) == _content(target[key]) for key in source)


def _content(cell: RawCell) -> tuple[bytes, bytes]:
    return cell.value, cell.tags


def _newest_of_each(cells: Sequence[RawCell], at_ms: int) -> dict[Key, RawCell]:
    """The first cell of each key, which is the newest one in a raw scan. Cells beyond their own TTL are left out, since
    they hide no others."""
    gone = outlived(index_cells(np.frombuffer(b"".join(cell.data for cell in cells), np.uint8)), at_ms)
    found: dict[Key, RawCell] = {}
    for cell, over in zip(cells, gone.tolist(), strict=True):
        if not over:
            found.setdefault(cell.key, cell)
    return found
