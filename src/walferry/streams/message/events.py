"""What happens to a table beside the changes of its rows: events, as messages in every partition of its topic.

The log says of them at most that a region has closed and opened, or loaded files; they are sent between the changes
before that and those after it (docs/streams.md).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import numpy as np

from walferry.apply.region_events import family_of, region_events
from walferry.formats.wal import EntryBatch
from walferry.hbase.descriptors import TableDescriptor
from walferry.streams.message.changes import SCHEMA, Form, headers_of

SECRET_ATTRIBUTES = frozenset({"ENCRYPTION_KEY"})


@dataclass(frozen=True)
class Message:
    """A message as Kafka takes it."""

    key: bytes
    value: bytes
    headers: list[tuple[str, bytes]]


def bulk_load(form: Form, batch: EntryBatch, entry: int, incarnation: int, file: str) -> Message:
    """The event of an entry that says which files were loaded into a region. Raises DamagedInputError if the marker
    cannot be read; `file` names the log in that error."""
    picked = np.zeros(len(batch), bool)
    picked[entry] = True
    (loaded,) = region_events(batch, file, picked)
    files = [{"family": family_of(name), "name": name.partition("/")[2]} for name in sorted(loaded.files)]
    place = _Place(loaded.table, loaded.region, loaded.sequence_number, incarnation)
    return _message(form, place, loaded.write_time, {"kind": "bulk_load", "files": files})


def schema(form: Form, descriptor: TableDescriptor, region: str, number: int, incarnation: int) -> Message:
    """The event of a table whose descriptor was found changed when a region opened."""
    event = {"kind": "schema", **_described(descriptor)}
    return _message(form, _Place(descriptor.name, region, number, incarnation), None, event)


def new_history(form: Form, table: str, region: str, number: int, incarnation: int) -> Message:
    """The event of a table that was truncated, or dropped and created again: all its rows are gone."""
    return _message(form, _Place(table, region, number, incarnation), None, {"kind": "truncate"})


def snapshot_begins(form: Form, table: str, snapshot: str, taken_ms: int) -> Message:
    """The event that precedes the rows of a snapshot."""
    return _notice(form, table, {"kind": "snapshot_begins", "snapshot": snapshot, "taken": taken_ms})


def snapshot_ends(form: Form, table: str, snapshot: str, rows: int) -> Message:
    """The event that follows the rows of a snapshot, of which there were so many."""
    return _notice(form, table, {"kind": "snapshot_ends", "snapshot": snapshot, "rows": rows})


def resolved(form: Form, table: str, time_ms: int) -> Message:
    """The event that says that everything written before a moment was sent."""
    return _notice(form, table, {"kind": "resolved", "time": time_ms})


def schema_digest(descriptor: TableDescriptor) -> str:
    """Differs when an event of the table's schema would."""
    return sha256(_json(_described(descriptor))).hexdigest()[:16]


@dataclass(frozen=True)
class _Place:
    table: str
    region: str
    number: int
    incarnation: int


def _message(form: Form, place: _Place, write_time: int | None, event: Mapping[str, Any]) -> Message:
    value = {
        "schema": SCHEMA, "cluster": form.cluster, "table": place.table, "write_time": write_time,
        "region": place.region, "sequence_number": place.number, "epoch": form.epoch,
        "position": [place.incarnation, place.number, 0], "event": event,
    }  # fmt: skip
    key = {"table": place.table, "event": event["kind"]}
    return Message(_json(key), _json(value), headers_of(form.epoch, place.incarnation, place.number, 0))


def _notice(form: Form, table: str, event: Mapping[str, Any]) -> Message:
    """An event without a place in the history of rows."""
    value = {"schema": SCHEMA, "cluster": form.cluster, "table": table, "epoch": form.epoch, "event": event}
    return Message(_json({"table": table, "event": event["kind"]}), _json(value), [("epoch", b"%d" % form.epoch)])


def _described(descriptor: TableDescriptor) -> dict[str, Any]:
    families = {name: _shown(family.effective) for name, family in sorted(descriptor.families.items())}
    return {"families": families, "attributes": _shown(descriptor.attributes)}


def _shown(attributes: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in sorted(attributes.items()) if name not in SECRET_ATTRIBUTES}


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
