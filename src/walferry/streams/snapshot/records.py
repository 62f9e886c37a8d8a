"""How far the snapshots of a stream's tables were sent: records of its position topic.

They are written in the transactions that send the rows. Keys: "snapshot TABLE" while a table's snapshot is wanted,
taken, sent, or caught up with, and "snapshot-region NAME" for each region of it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from walferry.errors import WalferryError

_TABLE, _REGION = "snapshot ", "snapshot-region "


class Step(StrEnum):
    """What is done with a table's snapshot."""

    WANTED = "wanted"
    """the stream goes on as it does until it has seen all regions that there are"""
    TAKING = "taking"
    """the table's changes are held, and the snapshot is taken"""
    SENDING = "sending"
    """its rows are sent; the table's changes are still held"""
    SENT = "sent"
    """all rows were sent; the table's changes are held until those of other tables were sent, too"""
    CATCHING_UP = "catching up"
    """changes that the snapshot has are left out until the log was followed past it"""
    DONE = "done"
    """only the count is still needed"""


@dataclass(frozen=True)
class TableSnapshot:
    """The snapshot of a table."""

    step: Step
    name: str = ""
    """of the snapshot at the source; "" before it is taken"""
    asked_ms: int = 0
    """when a person asked for it; 0: the table joined the stream with it"""
    since_ms: int = 0
    """WANTED: what was written before is to be sent first; later steps: when the snapshot was complete"""
    taken_ms: int = 0
    """by the master's clock"""
    rows: int = 0
    """sent so far"""
    count: int = 0
    """how many snapshots of the table were begun before, in this epoch: later ones have higher positions"""

    @property
    def holds(self) -> bool:
        """Whether the changes of the table are held."""
        return self.step in (Step.TAKING, Step.SENDING, Step.SENT)


@dataclass(frozen=True)
class RegionRows:
    """A region of a snapshot."""

    table: str
    start: bytes
    """its first row"""
    region_id: int
    """RegionInfo.region_id: rises from a region to those that take over its rows"""
    numbers: Mapping[bytes, int]
    """for each family: the snapshot has all its cells up to this sequence number"""
    loaded: frozenset[str]
    """names of its bulk-loaded files"""
    incarnation: int
    next: bytes | None
    """the first row that was not sent; None: all were"""

    @property
    def number(self) -> int:
        """The sequence number in the positions of its rows: not below that of any change that was sent before, and
        below that of any that is sent later."""
        return max(0, min(self.numbers.values()))


@dataclass(frozen=True)
class Snapshots:
    """All snapshots that a stream has to do with."""

    tables: Mapping[str, TableSnapshot] = field(default_factory=dict)
    regions: Mapping[str, RegionRows] = field(default_factory=dict)
    """by encoded name"""

    @property
    def holding(self) -> frozenset[str]:
        """The tables whose changes are held."""
        return frozenset(name for name, table in self.tables.items() if table.holds)

    def changed(self, before: Snapshots) -> dict[str, bytes | None]:
        """The records that differ from earlier ones; None: to be deleted."""
        found: dict[str, bytes | None] = {
            _TABLE + name: _encoded(_table_json(table))
            for name, table in self.tables.items()
            if before.tables.get(name) != table
        }
        found |= {
            _REGION + name: _encoded(_region_json(region))
            for name, region in self.regions.items()
            if before.regions.get(name) != region
        }
        found |= {_TABLE + name: None for name in before.tables.keys() - self.tables.keys()}
        return found | {_REGION + name: None for name in before.regions.keys() - self.regions.keys()}

    def of_table(self, table: str) -> dict[str, RegionRows]:
        """The regions of a table's snapshot, by encoded name."""
        return {name: region for name, region in self.regions.items() if region.table == table}

    @property
    def in_progress(self) -> frozenset[str]:
        """The tables of which something older than the log that was followed may still be sent."""
        return frozenset(name for name, table in self.tables.items() if table.step not in (Step.WANTED, Step.DONE))

    @property
    def covering(self) -> dict[str, RegionRows]:
        """The regions of the snapshots that the log is followed past, by encoded name."""
        over = {name for name, table in self.tables.items() if table.step is Step.CATCHING_UP}
        return {name: region for name, region in self.regions.items() if region.table in over}

    def without(self, table: str) -> Snapshots:
        """The same without a table."""
        return Snapshots(
            {name: one for name, one in self.tables.items() if name != table},
            {name: region for name, region in self.regions.items() if region.table != table},
        )

    @classmethod
    def of_records(cls, records: Mapping[str, bytes]) -> Snapshots:
        """Read the records of a position topic; those of other kinds are passed over. Raises WalferryError for one that
        no walferry wrote."""
        tables, regions = {}, {}
        for key, value in records.items():
            try:
                if key.startswith(_TABLE):
                    known = json.loads(value)
                    tables[key.removeprefix(_TABLE)] = TableSnapshot(**known | {"step": Step(known["step"])})
                elif key.startswith(_REGION):
                    regions[key.removeprefix(_REGION)] = _region_of(json.loads(value))
            except (ValueError, TypeError, KeyError) as error:
                raise WalferryError(f"the position topic has a record {key!r} that walferry did not write") from error
        return cls(tables, regions)


def _encoded(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _table_json(table: TableSnapshot) -> dict[str, Any]:
    return {
        "step": table.step, "name": table.name, "asked_ms": table.asked_ms, "since_ms": table.since_ms,
        "taken_ms": table.taken_ms, "rows": table.rows, "count": table.count,
    }  # fmt: skip


def _region_json(region: RegionRows) -> dict[str, Any]:
    return {
        "table": region.table, "start": region.start.hex(), "id": region.region_id,
        "numbers": {family.hex(): number for family, number in region.numbers.items()},
        "loaded": sorted(region.loaded), "incarnation": region.incarnation,
        "next": None if region.next is None else region.next.hex(),
    }  # fmt: skip


def _region_of(value: dict[str, Any]) -> RegionRows:
    return RegionRows(
        value["table"], bytes.fromhex(value["start"]), value["id"],
        {bytes.fromhex(family): number for family, number in value["numbers"].items()}, frozenset(value["loaded"]),
        value["incarnation"], None if value["next"] is None else bytes.fromhex(value["next"]),
    )  # fmt: skip
