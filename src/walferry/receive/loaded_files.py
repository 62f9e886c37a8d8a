"""Bulk loads as a source ships them: a marker in a call, and files on the source's file system.

    <hbase.rootdir>/data/<namespace>/<table>/<region>/<family>/<file>, later below <hbase.rootdir>/archive/data

With `hbase.replication.bulkload.enabled` the source keeps the files until the call with the marker is answered. The
root folder is that of the run's source address: a call names such folders too, but whoever reaches the port can send
one, and calls must not choose what is read. Files are read where they are; nothing is copied.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from uuid import UUID

from google.protobuf.message import DecodeError

from walferry.errors import DamagedInputError, TransientError, WalferryError
from walferry.formats.cells import Bytes, CellIndex, as_run, cells_to_arrow, index_cells
from walferry.formats.hfile import HFile
from walferry.formats.markers import Marker
from walferry.formats.order import winners
from walferry.formats.proto import hbase_pb2 as pb
from walferry.formats.wal import EntryBatch, Mask, cluster_ids
from walferry.receive.calls import BadCallError
from walferry.snapshots.manifest import Stored, StoreFile, StoreFileGoneError, places_of, stored
from walferry.storage import FileSystem, PermissionDeniedError

_PLAIN = re.compile(r"[^/.][^/]*")
_TAG_HEADER, _MOB_REFERENCE = 2, 5
_HALF = (1 << 64) - 1
LEFT_OUT = "The source sends it again until it is left out: copy what was loaded, then remove the peer and add it again"
"""the way out of a load that cannot be applied"""


class LoadError(WalferryError):
    """A bulk load cannot be applied: facts `table`, `region`."""


@dataclass(frozen=True)
class Load:
    """The bulk load of an entry."""

    table: str
    """at the source"""
    region: str
    number: int
    """of the entry"""
    files: tuple[tuple[str, str], ...]
    """family and name of each file"""
    clusters: bytes
    """raw `cluster_ids` fields of a key: the clusters that have had it"""
    replicates: bool
    """whether it is to be replicated at all"""
    ordered: bool
    """whether the source counts its cells as newer than those that the region had; otherwise they are the oldest"""

    @classmethod
    def of(cls, batch: EntryBatch, entry: int) -> Load:
        """The load of an entry that is its marker. Raises BadCallError for a marker that cannot be read."""
        table, region = batch.table_and_region(entry)
        cells = index_cells(batch.buffer[batch.cells_start[entry] : batch.end[entry]])
        try:
            found = pb.BulkLoadDescriptor.FromString(cells_to_arrow(cells)["value"][0].as_py())
            files = tuple((store.family_name.decode(), name) for store in found.stores for name in store.store_file)
        except (DecodeError, UnicodeDecodeError) as error:
            raise BadCallError(
                f"the marker of a bulk load of {table} (region {region}) cannot be read: {error}. {LEFT_OUT}",
                table=table, region=region,
            ) from error  # fmt: skip
        return cls(
            table, region, int(batch.sequence_number[entry]), files,
            batch.cluster_lists[batch.clusters[entry]] + _as_fields(found.cluster_ids), found.replicate,
            found.bulkload_seq_num >= 0,
        )  # fmt: skip

    def __str__(self) -> str:
        return f"bulk load {self.number} of region {self.region} of {self.table}"

    def open(self, files: FileSystem, root: str) -> list[HFile]:
        """Open all files, wherever they are now: of cells with equal keys in several of them, a reader sees that of the
        last one.

        Raises LoadError for a file that is gone or of an unknown kind, or that this process may not read. Reading may
        raise that, too (`runs`).
        """
        with self._reading(root):
            opened = [self._place(root, *file).open(files) for file in self.files]
        # All files of a load have one sequence number; then StoreFileComparators.SEQ_ID goes on like this.
        return sorted(opened, key=lambda file: (-file.length, _loaded_ms(file), file.name.rpartition("/")[2]))

    def runs(self, file: HFile, root: str) -> Iterator[Bytes]:
        """The cells of an opened file as runs, without each cell that repeats the key of the one before it: a reader
        sees the first one. Raises the errors of `open`."""
        last = b""
        with self._reading(root):
            for found in file.batches():
                if _refers_to_mob(found.cells):
                    raise LoadError(f"{self}: {file.name} refers to MOB files. {LEFT_OUT}", **self._facts)
                first = winners(found.cells.buffer, found.cells.position)
                first[0] = _key(found.cells, 0) != last
                last = _key(found.cells, len(found) - 1)
                yield as_run(found.cells if first.all() else found.cells.pick(first.nonzero()[0]))[0]

    def _place(self, root: str, family: str, name: str) -> StoreFile:
        place = stored(self.table, self.region, name)
        if place != Stored(self.table, self.region, name) or not all(
            _PLAIN.fullmatch(part) for part in (self.region, family)
        ):
            raise LoadError(f"{self}: {family}/{name} is no whole file of its region. {LEFT_OUT}", **self._facts)
        there, archived = places_of(root, family, place)
        return StoreFile(family.encode(), name, (there, archived, there), 0)  # it may move in between

    @property
    def _facts(self) -> dict[str, str]:
        return {"table": self.table, "region": self.region}

    @contextmanager
    def _reading(self, root: str) -> Iterator[None]:
        """Say which load it is whose files cannot be read, and what to do."""
        facts = self._facts
        try:
            yield
        except StoreFileGoneError as error:
            raise LoadError(
                f"{self}: its file {error.facts['file']} is gone, and not in the archive of the source either. "
                f"{LEFT_OUT}", **facts,
            ) from error  # fmt: skip
        except DamagedInputError as error:
            raise LoadError(f"{self}: {error}. {LEFT_OUT}", **facts) from error
        except PermissionDeniedError as error:
            raise LoadError(f"{self}: {error}. {readable(root)}. {LEFT_OUT}", **facts) from error
        except TransientError as error:
            raise TransientError(f"{self}: its files are not read now: {error}. {readable(root)}", **facts) from error


def readable(root: str) -> str:
    """What a source needs for its bulk loads to be taken, as a sentence without its point."""
    return f"Let this process read {root}/data and {root}/archive by the webhdfs and rootdir of the source's address"


def loads_for(batch: EntryBatch, target: UUID) -> Mask:
    """Which entries of a call are bulk loads that the target is to have: not those that it has had first (loops), nor
    those that are not to be replicated."""
    wanted = batch.of_kinds([Marker.BULK_LOAD])
    for entry in wanted.nonzero()[0].tolist():
        load = Load.of(batch, entry)
        wanted[entry] = load.replicates and target not in cluster_ids(load.clusters)
    return wanted


def _as_fields(clusters: list[str]) -> bytes:
    """Clusters as fields of a key; ids that are no UUIDs are no cluster's."""
    fields = b""
    for one in clusters:
        with suppress(ValueError):
            fields += _field(UUID(one))
    return fields


def _field(cluster: UUID) -> bytes:
    ids = [pb.UUID(most_sig_bits=cluster.int >> 64, least_sig_bits=cluster.int & _HALF)]
    field: bytes = pb.WALKey(cluster_ids=ids).SerializePartialToString()
    return field


def _loaded_ms(file: HFile) -> int:
    stated = file.info.get(b"BULKLOAD_TIMESTAMP", b"")
    return int.from_bytes(stated, "big") if len(stated) == 8 else 1 << 63


def _refers_to_mob(cells: CellIndex) -> bool:
    """Whether a value is in another file (MobUtils.createMobRefCell, TagType.MOB_REFERENCE_TAG_TYPE)."""
    tagged = cells.tags_start[cells.tags_length > _TAG_HEADER]
    return bool((cells.buffer[tagged + 2] == _MOB_REFERENCE).any())


def _key(cells: CellIndex, number: int) -> bytes:
    """All but the value and the tags of a cell."""
    start = int(cells.position[number]) + 12
    size = int.from_bytes(cells.buffer[start - 8 : start - 4].tobytes(), "big")
    return cells.buffer[start : start + size].tobytes()
