"""Edits handed to a region server as its own replication does: AdminService.ReplicateWALEntry."""

from __future__ import annotations

from collections.abc import Sequence

from walferry.formats.proto import hbase_pb2 as pb
from walferry.hbase.calls import Calls
from walferry.hbase.rpc import CODEC_WITH_TAGS, Buffer
from walferry.hbase.zookeeper import Server


def replicate(
    client: Calls,
    server: Server | str,
    entries: Sequence[tuple[bytes, int]],
    cells: Buffer | Sequence[Buffer],
    *,
    timeout_s: float = 60,
) -> None:
    """Apply WAL entries; returns when the target has them all in its own log.

    `entries` are (WALKey message, number of cells); `cells` are their cells one after the other, each
    int32 length + KeyValue with tags, just as an uncompressed WAL has them. Any region server takes any
    table's entries (the key's table name decides). Timestamps, types and tags are kept. Order holds
    within one request as long as it makes at most 5,000 mutations (ReplicationSink).

    One try, no retries: an error leaves open which entries were applied, a RequestTimeoutError also
    whether more will be; repeating them all, in order, is safe. Sent as marker edits' cells, a METAFAMILY
    cell would be refused by the target.
    """
    request = pb.ReplicateWALEntryRequest()
    for key, cell_count in entries:
        entry = request.entry.add(associated_cell_count=cell_count)
        entry.key.MergeFromString(key)
    client.pool.call(
        server if isinstance(server, str) else server.address,
        "AdminService",
        "ReplicateWALEntry",
        request,
        pb.ReplicateWALEntryResponse,
        cells,
        codec=CODEC_WITH_TAGS,
        timeout_s=timeout_s,
    )
