"""The oldest edit of a queue that its peer has not shipped, read from the logs."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from uuid import UUID

import numpy as np

from walferry.errors import GapError, WalferryError
from walferry.formats.cells import binary_column, row_at
from walferry.formats.entries import index_entry_cells
from walferry.formats.markers import Marker
from walferry.formats.proto import hbase_pb2 as pb
from walferry.formats.wal import EntryBatch, cluster_ids
from walferry.hbase.peers import PeerConfig
from walferry.hbase.replication_queues import Queue
from walferry.hbase.rowkey import shown_row
from walferry.storage import FileSystem
from walferry.wal.files import live_file
from walferry.wal.open import Until, open_wal

MOST_BYTES = 8 << 20
"""of a queue's logs that are looked through (a log with dictionaries is also read up to the position)"""
BATCH_BYTES = 1 << 20
ROW_BYTES = 60


@dataclass(frozen=True)
class Edit:
    """An edit that a peer has still to ship."""

    file: str
    """name of the log"""
    offset: int
    """of its entry in the log, in bytes"""
    table: str
    row: str | None
    """of its first cell, as HBase's shell writes it; of its first 60 bytes if it is longer; None: it is a bulk load"""
    families: tuple[str, ...]
    """those that the peer replicates"""
    write_ms: int
    """when it was written, by its region server's clock"""


@dataclass(frozen=True)
class Unshipped:
    """What a queue's logs have past the recorded position, as far as they were read."""

    oldest: Edit | None = None
    tables: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """the families of that edit and of those that follow it closely, by table: they are shipped with it"""
    whole: bool = True
    """whether the logs were read up to that edit, or to their end"""
    read_to_ms: int | None = None
    """if they were not: what was not read is no older"""
    ends: Mapping[str, int] = field(default_factory=dict)
    """bytes of each log up to where reading ended"""
    read_to_end: Collection[str] = ()
    """the logs whose ends those are"""
    unreadable: str | None = None
    """why a log cannot be read"""


def unshipped(files: FileSystem, root: str, queue: Queue, peer: PeerConfig, sink: UUID | None) -> Unshipped:
    """Read a queue's logs from their positions on until the first edit that its peer has to ship; MOST_BYTES at most.

    `sink`: the peer's cluster, to which edits that came from there are not shipped; None if not known.
    """
    found = [
        _of_group(files, root, logs, queue.shipped[group], peer, sink, MOST_BYTES // len(queue.logs))
        for group, logs in queue.logs.items()
    ]
    first = min((one for one in found if one.oldest), key=_write_ms, default=None)
    times = [one.read_to_ms for one in found if one.read_to_ms is not None and not one.whole]
    return Unshipped(
        None if first is None else first.oldest,
        {} if first is None else first.tables,
        all(one.whole for one in found),
        min(times, default=None),
        {name: end for one in found for name, end in one.ends.items()},
        frozenset(name for one in found for name in one.read_to_end),
        next((one.unreadable for one in found if one.unreadable), None),
    )


def _write_ms(found: Unshipped) -> int:
    assert found.oldest is not None
    return found.oldest.write_ms


def _of_group(
    files: FileSystem, root: str, logs: tuple[str, ...], start: int, peer: PeerConfig, sink: UUID | None, left: int
) -> Unshipped:
    found: Edit | None = None
    tables: dict[str, frozenset[str]] = {}
    ends: dict[str, int] = {}
    whole: set[str] = set()
    read_to: int | None = None
    unreadable = None
    for name in logs:
        file = live_file(root, name)
        if file is None:
            continue  # of no user table
        try:
            wal = open_wal(files, root, file, Until.NOW, start=start, batch_bytes=BATCH_BYTES)
            for batch in wal:
                if found is None and (first := first_edit(batch, name, peer, sink)) is not None:
                    found, tables = first
                if found is None:
                    read_to = max(int(batch.write_time.max()), read_to or 0)
                left -= int(batch.offset_end[-1]) - ends.get(name, start)
                ends[name] = int(batch.offset_end[-1])
                del batch  # free its bytes before the next ones are read
                if left <= 0 or (found and name != logs[-1]):  # the name node may not know the end of the newest log
                    return Unshipped(found, tables, found is not None, read_to, ends, whole)
            ends[name] = max(wal.length, ends.get(name, start))
            whole.add(name)
        except GapError:
            pass  # there is no such file, as the listing shows
        except (WalferryError, OSError) as error:
            unreadable = f"{name} cannot be read past byte {ends.get(name, start)}: {error}"
            break
        start = 0
    read_whole = found is not None or unreadable is None
    return Unshipped(found, tables, read_whole, read_to, ends, whole, unreadable)


def first_edit(
    batch: EntryBatch, file: str, peer: PeerConfig, sink: UUID | None
) -> tuple[Edit, dict[str, frozenset[str]]] | None:
    """The first entry of a batch that a peer ships, and the families that it ships of the whole batch, by table.

    As HBase's filters decide: by the scopes in the entry's own key (ScopeWALEntryFilter), by the peer's configuration
    (NamespaceTableCfWALEntryFilter), and by the clusters that the entry has been on (ClusterMarkingEntryFilter). The
    key of a bulk load has scopes only if bulk loads are replicated (ReplicationSourceWALActionListener).
    """
    came = np.array([sink is not None and sink in cluster_ids(raw) for raw in batch.cluster_lists] or [False])
    some = batch.take(np.flatnonzero((batch.edits | batch.of_kinds({Marker.BULK_LOAD})) & ~came[batch.clusters]))
    first: dict[tuple[str, str], int] = {}
    for entry, table, family in (*_edits(some, peer), *_loads(some, peer)):
        if entry < first.get((table, family), len(some)) and family in _scoped(some, entry):
            first[table, family] = entry
    if not first:
        return None
    oldest = min(first.values())
    load = some.marker[oldest] == Marker.BULK_LOAD
    edit = Edit(
        file,
        int(some.offset[oldest]),
        some.table_and_region(oldest)[0],
        None if load else shown_row(row_at(some.buffer, some.cells_start[oldest])[:ROW_BYTES]),
        tuple(sorted(family for (_, family), entry in first.items() if entry == oldest)),
        int(some.write_time[oldest]),
    )
    return edit, {table: frozenset(family for of, family in first if of == table) for table, _ in first}


def _edits(batch: EntryBatch, peer: PeerConfig) -> Iterator[tuple[int, str, str]]:
    """Entry, table and family of what clients wrote and the peer is for, each once, in the entries' order."""
    cells, entry, _ = index_entry_cells(batch)
    if not len(cells):
        return
    column = binary_column(cells.buffer, cells.family_start, cells.family_length).dictionary_encode()
    families = [family.decode() for family in column.dictionary.to_pylist()]
    family, table = column.indices.to_numpy(), batch.table[entry]
    wanted = np.array([[peer.replicates(name.decode(), one) for one in families] for name in batch.tables])
    kept = np.flatnonzero(wanted[table, family] & batch.edits[entry])
    _, once = np.unique(entry[kept].astype(np.int64) * len(families) + family[kept], return_index=True)
    for cell in kept[once].tolist():
        yield int(entry[cell]), batch.tables[table[cell]].decode(), families[family[cell]]


def _loads(batch: EntryBatch, peer: PeerConfig) -> Iterator[tuple[int, str, str]]:
    """The same of bulk loads."""
    for entry in np.flatnonzero(batch.of_kinds({Marker.BULK_LOAD})).tolist():
        cells, *_ = index_entry_cells(batch.take(np.array([entry])))
        start, table = cells.value_start[0], batch.table_and_region(entry)[0]
        value = cells.buffer[start : start + cells.value_length[0]].tobytes()
        for store in pb.BulkLoadDescriptor.FromString(value).stores:
            if peer.replicates(table, family := store.family_name.decode()):
                yield entry, table, family


def _scoped(batch: EntryBatch, entry: int) -> set[str]:
    """The families whose cells in an entry may leave the cluster."""
    key = pb.WALKey.FromString(batch.buffer[batch.key_start[entry] : batch.key_end[entry]].tobytes())
    return {scope.family.decode() for scope in key.scopes if scope.scope_type != pb.REPLICATION_SCOPE_LOCAL}
