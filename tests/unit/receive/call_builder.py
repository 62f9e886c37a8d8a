"""Builds calls of HBase's replication as a source's server does, with protobuf's own serializer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from walferry.formats.proto import hbase_pb2 as pb
from walferry.receive.calls import ReceivedEntries, entries_of

REGION = "0123456789abcdef0123456789abcdef"


@dataclass(frozen=True)
class Sent:
    """An entry, with its encoded cells."""

    cells: Sequence[bytes] = ()
    region: str = REGION
    table: str = "t1"
    number: int = 1
    time: int = 1700000000000
    clusters: Sequence[tuple[int, int]] = ()
    more: dict[str, Any] = field(default_factory=dict)
    """other fields of the key"""

    @property
    def key(self) -> pb.WALKey:
        """Its key."""
        return pb.WALKey(
            encoded_region_name=self.region.encode(),
            table_name=self.table.encode(),
            log_sequence_number=self.number,
            write_time=self.time,
            cluster_ids=[pb.UUID(most_sig_bits=most, least_sig_bits=least) for most, least in self.clusters],
            **self.more,
        )


def call(entries: Iterable[Sent], **fields: str) -> tuple[bytes, bytes]:
    """A call's parameter and cell block; `fields` are those of ReplicateWALEntryRequest."""
    entries = list(entries)
    of_call = [pb.WALEntry(key=entry.key, associated_cell_count=len(entry.cells)) for entry in entries]
    request = pb.ReplicateWALEntryRequest(entry=of_call, **fields)
    return request.SerializeToString(), b"".join(cell for entry in entries for cell in entry.cells)


def read(parameter: bytes, cells: bytes) -> ReceivedEntries:
    """Read a call as a server that has received it into its own memory."""
    return entries_of(memoryview(bytearray(parameter)), memoryview(bytearray(cells)))


def received(*entries: Sent) -> ReceivedEntries:
    """What a server reads of these entries in one call."""
    return read(*call(entries))
