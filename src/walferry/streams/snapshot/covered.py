"""What of the log is not sent, since the rows of a snapshot have it that were sent before.

A FLUSH snapshot is not of one moment: each region is flushed by itself, while writes go on. Its store files say what it
has: all cells of a family whose sequence number is at or below the files' greatest one (MAX_SEQ_ID_KEY; HBase itself
relies on it to skip recovered edits). So a cell of the log is left out if its number is at or below that of its
family in its region. Of a region that is not in the snapshot, all is left out or nothing: an older region gave way to
one of the snapshot's, after all of it was flushed; a newer one has only what came after.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import numpy as np

from walferry.apply.region_events import Origin, family_of, region_events
from walferry.errors import WalferryError
from walferry.formats.wal import EntryBatch
from walferry.streams.ordering.stays import Taken
from walferry.streams.snapshot.records import RegionRows

Part = tuple[Taken, tuple[bytes, ...] | None]
"""entries, and the families whose cells are left out of them; None: all of them are left out"""


class UnknownRegionError(WalferryError):
    """Nobody knows whether a region is older than a snapshot; facts `table`, `region`."""


class _Covered(NamedTuple):
    """A region of a snapshot."""

    name: str
    rows: RegionRows


class Covered:
    """What the snapshots of tables have that were sent, until the log was followed past them."""

    def __init__(self, regions: Mapping[str, RegionRows], origin: Callable[[str], Origin | None]) -> None:
        """`regions`: as `change` takes them. `origin`: of any region; None: unknown."""
        self._origin = origin
        self.change(regions)

    def change(self, regions: Mapping[str, RegionRows]) -> None:
        """From now on, these are the regions of the snapshots, by encoded name."""
        self._regions = dict(regions)
        self._tables: dict[str, list[_Covered]] = defaultdict(list)
        for name, rows in sorted(regions.items(), key=lambda pair: pair[1].start):
            self._tables[rows.table].append(_Covered(name, rows))

    def has_some(self, one: Taken) -> bool:
        """Whether some of these entries may be left out."""
        return any(name.decode() in self._tables for name in one.batch.tables)

    def parts(self, one: Taken) -> Iterator[Part]:
        """The edits in parts, so that those of each region keep their order."""
        batch, picked = one.batch, one.picked
        codes, numbers = batch.region[picked], batch.sequence_number[picked]
        whole = np.zeros(len(picked), bool)
        for code in np.unique(codes).tolist():
            mine = codes == code
            table, region = batch.table_and_region(int(picked[mine][0]))
            known = self._numbers(table, region)
            if known is None:
                whole |= mine
                continue
            bounds = np.unique(np.fromiter(known.values(), np.int64, len(known)))
            classes = np.searchsorted(bounds, numbers, side="left")
            whole |= mine & (classes == len(bounds))
            for at in np.unique(classes[mine & (classes < len(bounds))]).tolist():
                left_out = tuple(family for family, number in known.items() if number >= bounds[at])
                these = one.only(picked[mine & (classes == at)])
                yield these, None if len(left_out) == len(known) else left_out
        if whole.any():
            yield one.only(picked[whole]), ()

    def has_load(self, batch: EntryBatch, entry: int) -> bool:
        """Whether a snapshot has all files of a marker of a bulk load."""
        table, region = batch.table_and_region(entry)
        numbers = self._numbers(table, region) if table in self._tables else None
        if numbers is None:
            return False
        picked = np.zeros(len(batch), bool)
        picked[entry] = True
        (loaded,) = region_events(batch, region, picked)
        names = self._regions[region].loaded if region in self._regions else frozenset()
        number = int(batch.sequence_number[entry])
        return all(
            name.partition("/")[2] in names or number <= numbers.get(family_of(name).encode(), _NONE)
            for name in loaded.files
        )

    def has_opening(self, table: str, region: str) -> bool:
        """Whether a region was there when the snapshot of its table was taken, or before."""
        return table in self._tables and (region in self._regions or self._is_older(table, region))

    def _numbers(self, table: str, region: str) -> Mapping[bytes, int] | None:
        """For each family, up to which number the snapshot has the cells of a region; None: it has nothing."""
        if (known := self._regions.get(region)) is not None:
            return known.numbers
        regions = self._tables.get(table)
        if regions is None or not self._is_older(table, region):
            return None
        return {family: _ALL for one in regions for family in one.rows.numbers}

    def _is_older(self, table: str, region: str) -> bool:
        """Whether a region that is not in the snapshot was made before the snapshot's region with its first row."""
        origin = self._origin(region)
        if origin is None:
            raise UnknownRegionError(
                f"region {region} of {table} came and went while a snapshot was taken, and the log does not say when: "
                "start the stream with a higher epoch, which begins with new snapshots",
                table=table, region=region,
            )  # fmt: skip
        for one in reversed(self._tables[table]):
            if one.rows.start <= origin.start:
                return origin.region_id < one.rows.region_id
        return False


_ALL, _NONE = 2**63 - 1, -1
