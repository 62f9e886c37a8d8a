"""Sends edits to a region server as HBase's own replication does: AdminService.ReplicateWALEntry."""

from __future__ import annotations

from collections.abc import Callable, Sequence

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
    since: float | None = None,
    may_send: Callable[[], None] = lambda: None,
) -> None:
    """Apply WAL entries; returns when the target has them all in its own log.

    `entries` are (WALKey message, number of cells); `cells` are their cells one after the other, each
    int32 length + KeyValue with tags, exactly as in an uncompressed WAL. Any region server accepts any table's
    entries (the key's table name decides). Timestamps, types and tags are kept. Order is kept within a request of at
    most 5,000 mutations (ReplicationSink). `timeout_s`, `since` and `may_send` are those of `RpcConnection.call`.

    One attempt, no retries. After an error it is unknown which entries were applied, after a RequestTimeoutError also
    whether more will be; repeating them all, in order, is safe. The target refuses METAFAMILY cells: send no markers.
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
        since=since,
        may_send=may_send,
    )
