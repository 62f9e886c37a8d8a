"""How far a stream has sent each region and each WAL group: the records of its position topic.

They are written in the transaction that sends the messages, so they are never older or newer than what a consumer that
reads committed can see. Keys are text: "group NAME", "region NAME", "table NAME" and "stream"; values are JSON.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from walferry.apply.region_events import Origin
from walferry.errors import WalferryError
from walferry.streams.ordering.stays import LogPlace
from walferry.wal.offsets import GroupPosition

_GROUP, _REGION, _TABLE, _STREAM = "group ", "region ", "table ", "stream"


@dataclass(frozen=True)
class GroupRead:
    """One WAL group."""

    sent: GroupPosition
    """everything before it was sent, or is not of the stream's tables"""
    read: LogPlace
    """how far the group was read"""


@dataclass(frozen=True)
class RegionSent:
    """One region."""

    table: str
    server: str
    """where its last stay is that was passed on; "" if it is not known"""
    number: int
    """the sequence number of its last entry that was sent; -1 for none"""
    incarnation: int
    """rises when the table's history starts over"""
    rows: tuple[bytes, bytes] | None
    """[start, end); None if they are not known"""
    origin: Origin | None = None
    """None if it is not known"""


@dataclass(frozen=True)
class TableSent:
    """One table."""

    schema: str
    """the digest of the descriptor that consumers know (`events.schema_digest`); "" for none"""
    begins: Mapping[str, int] = field(default_factory=dict)
    """for each WAL group that existed when the table joined the stream, the number of the first file of it that counts
    for the table"""


@dataclass(frozen=True)
class StreamPositions:
    """How far a stream is."""

    groups: Mapping[str, GroupRead] = field(default_factory=dict)
    regions: Mapping[str, RegionSent] = field(default_factory=dict)
    tables: Mapping[str, TableSent] = field(default_factory=dict)
    epoch: int = 1

    def changed(self, before: StreamPositions) -> dict[str, bytes | None]:
        """The records that differ from those of earlier positions; None: to be deleted."""
        found: dict[str, bytes | None] = {
            _GROUP + name: _encoded(_group_json(known))
            for name, known in self.groups.items()
            if before.groups.get(name) != known
        }
        found |= {
            _REGION + name: _region_bytes(known)
            for name, known in self.regions.items()
            if before.regions.get(name) != known
        }
        found |= {
            _TABLE + name: _encoded({"schema": table.schema, "begins": dict(table.begins)})
            for name, table in self.tables.items()
            if before.tables.get(name) != table
        }
        if before.epoch != self.epoch or not before.groups:
            found[_STREAM] = _encoded({"epoch": self.epoch})
        found |= {_GROUP + name: None for name in before.groups.keys() - self.groups.keys()}
        found |= {_TABLE + name: None for name in before.tables.keys() - self.tables.keys()}
        return found | {_REGION + name: None for name in before.regions.keys() - self.regions.keys()}

    @classmethod
    def of_records(cls, records: Mapping[str, bytes]) -> StreamPositions:
        """Read the records of a position topic. Raises WalferryError for one that no walferry wrote."""
        groups, regions, tables, epoch = {}, {}, {}, 1
        for key, value in records.items():
            try:
                if key.startswith(_GROUP):
                    groups[key.removeprefix(_GROUP)] = _group_of(json.loads(value))
                elif key.startswith(_REGION):
                    regions[key.removeprefix(_REGION)] = _region_of(json.loads(value))
                elif key.startswith(_TABLE):
                    tables[key.removeprefix(_TABLE)] = TableSent(**json.loads(value))
                elif key == _STREAM:
                    epoch = int(json.loads(value)["epoch"])
            except (ValueError, TypeError, KeyError) as error:
                raise WalferryError(f"the position topic has a record {key!r} that walferry did not write") from error
        return cls(groups, regions, tables, epoch)


def _encoded(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _group_json(known: GroupRead) -> dict[str, Any]:
    sent = known.sent
    return {
        "number": sent.number, "offset": sent.offset, "read": sent.read, "over": sent.over, "ahead": sent.ahead,
        "read_to": known.read,
    }  # fmt: skip


def _group_of(value: dict[str, Any]) -> GroupRead:
    sent = GroupPosition(value["number"], value["offset"], value["read"], value["over"], tuple(value["ahead"]))
    return GroupRead(sent, LogPlace(*value["read_to"]))


def _region_bytes(known: RegionSent) -> bytes:
    rows = None if known.rows is None else [row.hex() for row in known.rows]
    return _encoded(
        {
            "table": known.table, "server": known.server, "number": known.number, "incarnation": known.incarnation,
            "rows": rows, "origin": known.origin and (known.origin.start.hex(), known.origin.region_id),
        }
    )  # fmt: skip


def _region_of(value: dict[str, Any]) -> RegionSent:
    rows = value["rows"] and (bytes.fromhex(value["rows"][0]), bytes.fromhex(value["rows"][1]))
    origin = value.get("origin") and Origin(bytes.fromhex(value["origin"][0]), value["origin"][1])
    return RegionSent(value["table"], value["server"], value["number"], value["incarnation"], rows, origin)
