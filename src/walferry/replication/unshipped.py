"""The oldest edit of a group of logs that a peer has not shipped, read from the logs."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from uuid import UUID

import numpy as np
import numpy.typing as npt
from google.protobuf.message import DecodeError

from walferry.errors import GapError, WalferryError
from walferry.formats.cells import binary_column, row_at
from walferry.formats.entries import entry_scopes, index_entry_cells
from walferry.formats.markers import Marker
from walferry.formats.proto import hbase_pb2 as pb
from walferry.formats.wal import EntryBatch, cluster_ids
from walferry.hbase.descriptors import name_text
from walferry.hbase.peers import PeerConfig
from walferry.hbase.replication_queues import Queue
from walferry.hbase.rowkey import shown_row
from walferry.storage import FileSystem
from walferry.wal.files import Place, WalFile
from walferry.wal.open import Until, Wal, open_wal

MOST_BYTES = 64 << 20
"""of a queue's logs that are looked through (a log with dictionaries is also read up to the position)"""
MOST_LOGS = 100
"""of a group that are opened"""
END_BYTES = 8 << 20
"""that are read on after the oldest edit, to the end of the newest log"""
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
    """What a group's logs have past the recorded position, as far as they were read."""

    oldest: Edit | None = None
    tables: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """the families of that edit and of those that follow it closely, by table: they are shipped with it"""
    whole: bool = True
    """whether the logs were read up to that edit, or to their end"""
    read_to_ms: int | None = None
    """if they were not: what was not read is no older; None: nothing was read there"""
    ends: Mapping[str, int] = field(default_factory=dict)
    """bytes of each log up to where reading ended"""
    read_to_end: Collection[str] = ()
    """the logs whose ends those are"""
    headless: tuple[str, ...] = ()
    """logs without a complete header, although nobody writes to them any more"""
    unreadable: str | None = None
    """why a log cannot be read from the position on"""


def unshipped(
    files: FileSystem, root: str, queue: Queue, group: str, wals: Mapping[str, WalFile], peer: PeerConfig,
    sink: UUID | None,
) -> Unshipped:  # fmt: skip
    """Read a group's logs from their position on until the first edit that its peer has to ship; MOST_BYTES at most for
    all groups of the queue.

    `wals`: the logs as just listed, by name; others are passed over. `sink`: the peer's cluster, to which edits that
    came from there are not shipped; None if not known.
    """
    logs, shipped, left = queue.logs[group], queue.shipped[group], MOST_BYTES // len(queue.logs)
    found: Edit | None = None
    tables: dict[str, frozenset[str]] = {}
    ends: dict[str, int] = {}
    whole: set[str] = set()
    headless: tuple[str, ...] = ()
    read_to: int | None = None
    unreadable = None
    listed = [name for name in logs if name in wals]
    for name in listed[:MOST_LOGS]:
        start = shipped if name == logs[0] else 0
        try:
            wal = open_wal(
                files, root, wals[name], Until.NOW, start=start, batch_bytes=BATCH_BYTES, just_listed=True
            )  # fmt: skip
            for batch in wal:
                if found is None:
                    read_to = max(int(batch.write_time.max()), read_to or 0)
                    if (first := first_edit(batch, name, peer, sink)) is not None:
                        (found, tables), left = first, min(left, END_BYTES)
                left -= int(batch.offset_end[-1]) - ends.get(name, start)
                ends[name] = int(batch.offset_end[-1])
                del batch  # free its bytes before the next ones are read
                if left <= 0 or (found and name != logs[-1]):  # the name node may not know the end of the newest log
                    return Unshipped(found, tables, found is not None, read_to, ends, whole, headless)
            if _lacks_header(wal) and (wals[name].place is Place.ARCHIVED or name != logs[-1]):
                headless = (*headless, name)
            elif start and name not in ends and _ends_before(files, wals[name], start):
                unreadable = f"{name} ends before byte {start}, up to which it was shipped by the queue's record"
                break
            ends[name] = max(wal.length, ends.get(name, start))
            whole.add(name)
        except GapError:
            continue  # shipped and deleted since it was listed
        except (WalferryError, DecodeError, OSError) as error:
            unreadable = f"{name} cannot be read past byte {ends.get(name, start)}: {error}"
            break
    read_whole = found is not None or (unreadable is None and len(listed) <= MOST_LOGS)
    return Unshipped(found, tables, read_whole, read_to, ends, whole, headless, unreadable)


def _lacks_header(wal: Wal) -> bool:
    return wal.unfinished is not None and wal.unfinished.offset == 0


def _ends_before(files: FileSystem, file: WalFile, position: int) -> bool:
    """Whether a file has fewer bytes than that; the name node may list an open one with fewer than it has."""
    if file.length >= position:
        return False
    try:
        return next(iter(files.read(file.path, position - 1, 1)), None) is None
    except FileNotFoundError:
        return False  # it moved


def first_edit(
    batch: EntryBatch, file: str, peer: PeerConfig, sink: UUID | None
) -> tuple[Edit, dict[str, frozenset[str]]] | None:
    """The first entry of a batch that a peer ships, and the families that it ships of the whole batch, by table.

    As HBase's filters decide: not of system tables (SystemTableWALEntryFilter), by the scopes in the entry's own key
    (ScopeWALEntryFilter), by the peer's configuration (NamespaceTableCfWALEntryFilter), and by the clusters that the
    entry has been on (ClusterMarkingEntryFilter). The key of a bulk load has scopes only if bulk loads are replicated
    (ReplicationSourceWALActionListener).
    """
    came = np.array([sink is not None and sink in cluster_ids(raw) for raw in batch.cluster_lists] or [False])
    system = np.array([name.startswith(b"hbase:") for name in batch.tables] or [False])
    may = (batch.edits | batch.of_kinds({Marker.BULK_LOAD})) & ~came[batch.clusters] & ~system[batch.table]
    some = batch.take(np.flatnonzero(may))
    scope, scopes = entry_scopes(some)
    scoped = np.flatnonzero(np.array([bool(one) for one in scopes] or [False])[scope])
    some, scope = some.take(scoped), scope[scoped]
    first: dict[tuple[str, str], int] = {}
    for entry, table, family in (*_edits(some, scope, scopes, peer), *_loads(some, scope, scopes, peer)):
        first[table, family] = min(entry, first.get((table, family), entry))
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


def _edits(
    batch: EntryBatch, scope: npt.NDArray[np.intp], scopes: Sequence[frozenset[bytes]], peer: PeerConfig
) -> Iterator[tuple[int, str, str]]:
    """The first entry of each table and family of what clients wrote and the peer is for."""
    cells, entry, _ = index_entry_cells(batch)
    if not len(cells):
        return
    column = binary_column(cells.buffer, cells.family_start, cells.family_length).dictionary_encode()
    families: list[bytes] = column.dictionary.to_pylist()
    family, table = column.indices.to_numpy(), batch.table[entry]
    wanted = np.array([[peer.replicates(name.decode(), name_text(one)) for one in families] for name in batch.tables])
    scoped = np.array([[one in those for one in families] for those in scopes])
    kept = np.flatnonzero(wanted[table, family] & scoped[scope[entry], family] & batch.edits[entry])
    _, once = np.unique(table[kept].astype(np.int64) * len(families) + family[kept], return_index=True)
    for cell in kept[once].tolist():
        yield int(entry[cell]), batch.tables[table[cell]].decode(), name_text(families[family[cell]])


def _loads(
    batch: EntryBatch, scope: npt.NDArray[np.intp], scopes: Sequence[frozenset[bytes]], peer: PeerConfig
) -> Iterator[tuple[int, str, str]]:
    """Each bulk load with each table and family that the peer is for."""
    for entry in np.flatnonzero(batch.of_kinds({Marker.BULK_LOAD})).tolist():
        cells, *_ = index_entry_cells(batch.take(np.array([entry])))
        start, table = cells.value_start[0], batch.table_and_region(entry)[0]
        value = cells.buffer[start : start + cells.value_length[0]].tobytes()
        for store in pb.BulkLoadDescriptor.FromString(value).stores:
            family = name_text(store.family_name)
            if store.family_name in scopes[scope[entry]] and peer.replicates(table, family):
                yield entry, table, family
