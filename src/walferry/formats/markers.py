"""Markers: entries that record what HBase did, not what a client wrote (WALEdit, cells of family METAFAMILY).

To add a kind of marker, give it a number in `Marker`, its qualifier in `marker_of`, and a place in REGION_EVENTS,
DATA_ELSEWHERE or WITHOUT_DATA: these three sets decide what readers do. No reader silently skips UNKNOWN.
`apply.region_events` reads the store files that a region event names, and `replay.log.lineage` follows them.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np

from walferry.formats._cell_kernels import OK, int16_at, int32_at
from walferry.formats._njit import kernel
from walferry.formats._protobuf_kernels import VARINT, field_at

MARKER_FLUSH = 1
MARKER_COMPACTION = 2
MARKER_REGION_OPEN = 3
MARKER_REGION_CLOSE = 4
MARKER_BULK_LOAD = 5
MARKER_REPLICATION = 6
MARKER_UNKNOWN = 127

METAFAMILY = np.frombuffer(b"METAFAMILY", np.uint8)
FLUSH = np.frombuffer(b"HBASE::FLUSH", np.uint8)
COMPACTION = np.frombuffer(b"HBASE::COMPACTION", np.uint8)
REGION_EVENT = np.frombuffer(b"HBASE::REGION_EVENT", np.uint8)
REGION_OPEN = np.frombuffer(b"HBASE::REGION_EVENT::REGION_OPEN", np.uint8)
REGION_CLOSE = np.frombuffer(b"HBASE::REGION_EVENT::REGION_CLOSE", np.uint8)
BULK_LOAD = np.frombuffer(b"HBASE::BULK_LOAD", np.uint8)
REPLICATION_MARKER = np.frombuffer(b"HBASE::REPLICATION_MARKER", np.uint8)


class Marker(IntEnum):
    """What an entry's METAFAMILY cell records (WALEdit); NONE for users' edits."""

    NONE = 0
    FLUSH = MARKER_FLUSH
    COMPACTION = MARKER_COMPACTION
    REGION_OPEN = MARKER_REGION_OPEN
    REGION_CLOSE = MARKER_REGION_CLOSE
    BULK_LOAD = MARKER_BULK_LOAD
    REPLICATION = MARKER_REPLICATION
    UNKNOWN = MARKER_UNKNOWN


REGION_EVENTS = frozenset({Marker.REGION_OPEN, Marker.REGION_CLOSE, Marker.FLUSH, Marker.COMPACTION, Marker.BULK_LOAD})
"""changes of a region and its store files; `apply.region_events` reads these markers"""
DATA_ELSEWHERE = frozenset({Marker.BULK_LOAD, Marker.UNKNOWN})
"""their data is not in the log, or may not be: they are quarantined, and count as edits"""
WITHOUT_DATA = frozenset({Marker.REPLICATION})
"""skipped: they carry no data"""


@kernel()
def equals(buffer, start, length, constant):  # type: ignore[no-untyped-def]
    if length != len(constant):
        return False
    for i in range(length):  # noqa: SIM110 (numba has no all() over generators)
        if buffer[start + i] != constant[i]:
            return False
    return True


@kernel()
def marker_of(buffer, cell):  # type: ignore[no-untyped-def]
    """The Marker of a checked cell, from its family and qualifier (WALEdit); 0 for a user's cell."""
    row_length = int16_at(buffer, cell + 12)
    family = cell + 15 + row_length
    family_length = np.int64(buffer[family - 1])
    if not equals(buffer, family, family_length, METAFAMILY):
        return 0
    key_length = int32_at(buffer, cell + 4)
    start = family + family_length
    length = key_length - 12 - row_length - family_length
    if equals(buffer, start, length, FLUSH):
        return MARKER_FLUSH
    if equals(buffer, start, length, COMPACTION):
        return MARKER_COMPACTION
    if equals(buffer, start, length, REGION_OPEN):
        return MARKER_REGION_OPEN
    if equals(buffer, start, length, REGION_CLOSE):
        return MARKER_REGION_CLOSE
    if equals(buffer, start, length, BULK_LOAD):
        return MARKER_BULK_LOAD
    if equals(buffer, start, length, REPLICATION_MARKER):
        return MARKER_REPLICATION
    if equals(buffer, start, length, REGION_EVENT):  # 1.x: the kind is in RegionEventDescriptor.event_type
        at = cell + 12 + key_length
        end = at + int32_at(buffer, cell + 8)
        while at < end:
            status, number, wire, value, _, at = field_at(buffer, at, end)
            if status != OK:
                break
            if number == 1 and wire == VARINT and (value == 0 or value == 1):
                return MARKER_REGION_OPEN if value == 0 else MARKER_REGION_CLOSE
    return MARKER_UNKNOWN
