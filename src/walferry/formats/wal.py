"""HBase's write-ahead log: header, entries, trailer (ProtobufLogWriter, AsyncProtobufLogWriter; 1.x to 3.x).

    'PWAL' | varint + WALHeader | ENTRY* | WALTrailer (empty) | int32 its length | 'LAWP'
    plain ENTRY = varint + WALKey | following_kv_count times: int32 length + KeyValue

Compressed and encrypted entries (`wal_header`) are yielded as plain ones too: see `wal_decoders`.

HBase writes the trailer when it closes the file. A file without one is still being written, or its writer died; it is
not damaged. There are no checksums: only damage that breaks the structure is found.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from uuid import UUID

import numpy as np
import numpy.typing as npt
from google.protobuf.message import DecodeError

from walferry.errors import DamagedInputError, UnfinishedInputError, UnreadableInputError, WalKeyError, WrongWalKeyError
from walferry.formats import _protobuf_kernels as protobuf
from walferry.formats import _wal_kernels as kernels
from walferry.formats._cell_kernels import INCOMPLETE, OK
from walferry.formats._file_bytes import FileBytes
from walferry.formats._find_kernels import PLAIN, find_entry
from walferry.formats.cells import Bytes, Int32s, Int64s
from walferry.formats.markers import DATA_ELSEWHERE, Marker
from walferry.formats.names import Names
from walferry.formats.proto import hbase_pb2
from walferry.formats.value_codecs import CODECS
from walferry.formats.wal_decoders import (
    REASONS,
    Decoder,
    DictionaryEntries,
    EncryptedEntries,
    Entries,
    PlainEntries,
)
from walferry.formats.wal_header import WalHeader, algorithm_name, why_unreadable
from walferry.formats.wal_key import MasterKeys, WrongKeyError, unwrap

MAGIC = b"PWAL"
TRAILER_MAGIC = b"LAWP"
EMPTY_TRAILER = b"\0\0\0\0" + TRAILER_MAGIC

MAX_HEADER_BYTES = 1 << 20  # HBase writes 80 to 170

Mask = npt.NDArray[np.bool_]


class Ending(Enum):
    """How a file ends."""

    WHOLE = "whole"  # a valid trailer right after the last entry
    UNFINISHED = "unfinished"  # no trailer; the last whole entry may be followed by part of another


@dataclass(frozen=True)
class EntryBatch:
    """n whole plain entries in file order, as columns.

    `offset` and `offset_end` are file offsets. Other positions are in `buffer` (uint8), since a compressed entry has
    other, fewer bytes in the file. `region`, `table` and `clusters` are codes into `regions`, `tables` and
    `cluster_lists`; these lists grow as the file is read, and all batches of a reader share them.
    """

    buffer: Bytes
    offset: Int64s  # of the entry in the file
    offset_end: Int64s  # after it
    start: Int64s  # of the varint before the key
    end: Int64s  # after the last cell
    key_start: Int64s  # of the WALKey message
    key_end: Int64s
    cell_count: Int32s
    mutation_count: Int32s  # runs of cells of one row and type, each sent as one mutation
    sequence_number: Int64s  # WALKey.log_sequence_number
    write_time: Int64s  # milliseconds, the region server's clock
    region: Int32s
    regions: list[bytes]  # encoded region names, UTF-8
    table: Int32s
    tables: list[bytes]  # b"qualifier" or b"namespace:qualifier", UTF-8
    clusters: Int32s
    cluster_lists: list[bytes]  # the raw `cluster_ids` fields of the key, b"" for none
    marker: npt.NDArray[np.int8]  # Marker

    def __len__(self) -> int:
        return len(self.start)

    @property
    def cells_start(self) -> Int64s:
        """Where an entry's cells begin; `buffer[cells_start:end]` is a valid RPC cell block."""
        return self.key_end

    @property
    def edits(self) -> Mask:
        """bool[n]: whether the entry holds cells that a client wrote."""
        mask: Mask = (self.marker == Marker.NONE) & (self.cell_count > 0)
        return mask

    @property
    def data_elsewhere(self) -> Mask:
        """bool[n]: whether the entry is a marker of data that the log does not hold, or may not."""
        return self.of_kinds(DATA_ELSEWHERE)

    @property
    def holds_data(self) -> Mask:
        """bool[n]: whether the entry changes its table, or may: edits, and markers of data that is elsewhere."""
        return self.edits | self.data_elsewhere

    def of_kinds(self, kinds: Collection[Marker]) -> Mask:
        """bool[n]: whether the entry is a marker of one of these kinds."""
        mask: Mask = np.isin(self.marker, [int(kind) for kind in kinds])
        return mask

    def of_tables(self, names: Collection[str]) -> Mask:
        """bool[n]: whether the entry is of one of these tables."""
        return _named(self.tables, names)[self.table]

    def of_regions(self, names: Collection[str]) -> Mask:
        """bool[n]: whether the entry is of one of these regions, by encoded name."""
        return _named(self.regions, names)[self.region]

    def each_table(self, names: Collection[str]) -> Iterator[tuple[str, Mask]]:
        """Those of these tables that have entries in the batch; for each, bool[n]: whether the entry is of the table.

        `names` may change meanwhile.
        """
        for code in np.flatnonzero(_named(self.tables, names)).tolist():
            if (mask := self.table == code).any():
                yield self.tables[code].decode(), mask

    def table_and_region(self, entry: int) -> tuple[str, str]:
        """The names of an entry's table and region."""
        return self.tables[self.table[entry]].decode(), self.regions[self.region[entry]].decode()

    def take(self, which: npt.NDArray[np.intp]) -> EntryBatch:
        """The entries with these numbers, over the same buffer."""
        return EntryBatch(
            self.buffer,
            self.offset[which],
            self.offset_end[which],
            self.start[which],
            self.end[which],
            self.key_start[which],
            self.key_end[which],
            self.cell_count[which],
            self.mutation_count[which],
            self.sequence_number[which],
            self.write_time[which],
            self.region[which],
            self.regions,
            self.table[which],
            self.tables,
            self.clusters[which],
            self.cluster_lists,
            self.marker[which],
        )


def _named(known: Sequence[bytes], names: Collection[str]) -> Mask:
    """For each code, whether its name is one of `names`. One code at least, so that a batch without entries fits."""
    return np.array([name.decode() in names for name in known] or [False])


def cluster_ids(raw: bytes) -> list[UUID]:
    """The clusters that an entry has been on, from one of `EntryBatch.cluster_lists`."""
    key = hbase_pb2.WALKey()
    key.MergeFromString(raw)
    return [UUID(int=known.most_sig_bits << 64 | known.least_sig_bits) for known in key.cluster_ids]


class WalReader:
    """Reads one WAL from its bytes as they arrive; iterate once to get its whole entries in batches.

    `chunks` are the file's bytes from its beginning, in pieces of any size; `file` names the file in errors. Set
    `recovered` for a file in a region's recovered.edits, whose dictionaries are smaller. `keys`: for encrypted ones.

    The constructor reads the header. It raises UnfinishedInputError if the file ends inside the header (or is empty),
    DamagedInputError if the file is not a WAL, UnreadableInputError for unsupported kinds of WAL (also unknown codecs
    and writers), WalKeyError for an encrypted file without `keys`, and WrongWalKeyError if none of `keys` opens the
    file. Iteration yields all entries before damage, then raises DamagedInputError (facts `file`, `offset` of the first
    unreadable entry, `reason`). An unfinished file is not an error: see `ending`.

    Memory: the last yielded batch and the next one. A batch has `batch_bytes` or, if an entry does not fit, up to one
    and a half times that entry.
    """

    def __init__(
        self,
        chunks: Iterable[bytes],
        file: str,
        *,
        batch_bytes: int = 16 << 20,
        recovered: bool = False,
        keys: MasterKeys | None = None,
    ) -> None:
        self._file = file
        self._regions = Names(text=True)
        self._tables = Names(text=True)
        self._clusters = Names()
        raw = FileBytes(chunks, 0, batch_bytes)
        self.header = self._read_header(raw)
        self.end = self.header.size
        """file offset after the last yielded entry"""
        self.ending = Ending.UNFINISHED
        """valid after iteration"""
        self._broken = False  # found damage: read nothing more, not even after `resume`
        self._decoder: Decoder
        if self.header.encryption_key is not None:
            # If WAL compression is configured, HBase marks encrypted files as compressed too, but they are not.
            key = self._file_key(self.header.encryption_key, keys)
            self._decoder = EncryptedEntries(raw, self.end, batch_bytes, key=key)
        elif self.header.compressed:
            codec = self.header.value_codec
            self._decoder = DictionaryEntries(
                raw,
                self.end,
                batch_bytes,
                compressed_tags=self.header.tag_compressed,
                values=CODECS[codec] if codec else None,
                recovered=recovered,
            )
        else:
            self._decoder = PlainEntries(raw, self.end, batch_bytes)

    def resume(self, chunks: Iterable[bytes]) -> None:
        """Give iteration the file's bytes from offset `needs` on, so that it continues where it stopped.

        Call this after the end of an unfinished file, or after `chunks` failed.
        """
        self._decoder.resume(chunks)

    @property
    def can_skip(self) -> bool:
        """Whether reading can begin at any entry. False for files with dictionaries: any entry may add a name."""
        return not isinstance(self._decoder, DictionaryEntries)

    def skip_to(self, offset: int, chunks: Iterable[bytes]) -> None:
        """Begin at the entry at file offset `offset`, with the file's bytes from there on. Call this before iterating.

        Raises ValueError if the file can only be read from its first entry on: see `can_skip`.
        """
        if not self.can_skip:
            raise ValueError(f"{self._file} has dictionaries: it can only be read from its beginning")
        self._decoder.at = offset - self._decoder.raw.base
        self._decoder.resume(chunks)
        self.end = offset

    @property
    def needs(self) -> int:
        """The file offset from which `resume` needs the file's bytes."""
        return self._decoder.raw.base + self._decoder.at

    @property
    def length(self) -> int:
        """How many bytes of the file were seen so far; after iteration, the length of the whole file."""
        return self._decoder.raw.length

    def __iter__(self) -> Iterator[EntryBatch]:
        decoder = self._decoder
        while True:
            raw = decoder.raw
            if not self._broken:
                # The last 8 bytes seen may be the trailer.
                hold_back = 0 if raw.finished and _trailer_size(raw) is None else len(EMPTY_TRAILER)
                for entries in decoder.read(max(decoder.at, raw.filled - hold_back)):
                    yield from self._give(entries)
                    del entries  # frees its bytes before the next ones are read
                    if self._broken:
                        break
                yield from self._read_on()
                decoder = self._decoder
            if decoder.status not in (OK, INCOMPLETE):
                # At the end of the file and between entries, these bytes may be the beginning of a trailer; elsewhere
                # they are damage.
                self._broken = self._broken or not raw.finished or not self._between_entries()
            if decoder.status not in (OK, INCOMPLETE) or raw.finished:
                self._finish()
                return
            at, decoder.at = decoder.at, 0
            raw.advance(at)

    def _give(self, entries: Entries) -> Iterator[EntryBatch]:
        """Yield the entries before the first whose region or table is not UTF-8: the file is damaged from there on."""
        batch = self._batch(entries)
        wrong = np.flatnonzero((batch.region < 0) | (batch.table < 0))
        if len(wrong):
            self._broken = True
            self._decoder.status, self._decoder.wrong = kernels.NAME_NOT_TEXT, int(batch.offset[wrong[0]])
            batch = batch.take(np.arange(wrong[0]))
        if len(batch):
            self.end = int(batch.offset_end[-1])
            yield batch

    def _read_on(self) -> Iterator[EntryBatch]:
        """Yield an entry whose last bytes look like a trailer, if the entry ends exactly where the file ends."""
        raw, size = self._decoder.raw, _trailer_size(self._decoder.raw)
        if self._broken or not raw.finished or size is None or self._decoder.status not in (OK, INCOMPLETE):
            return
        entries_end = raw.length - len(EMPTY_TRAILER)
        if self.end in (entries_end, entries_end - size):
            return
        ahead = self._decoder.ahead()
        found = list(ahead.read(raw.filled))
        if found and ahead.status == OK and found[-1].offset_end[-1] == raw.length:
            self._decoder = ahead
            for entries in found:
                yield from self._give(entries)

    def _between_entries(self) -> bool:
        """Whether all bytes read so far are in yielded entries: decoders find some damage only later."""
        decoder = self._decoder
        return not decoder.inside and self.end == decoder.raw.base + decoder.at

    def _batch(self, entries: Entries) -> EntryBatch:
        data, fields = entries.buffer, entries.fields
        region = self._regions.codes(data, fields[kernels.REGION_START], fields[kernels.REGION_LENGTH])
        table = self._tables.codes(data, fields[kernels.TABLE_START], fields[kernels.TABLE_LENGTH])
        clusters = self._clusters.codes(data, fields[kernels.CLUSTERS_START], fields[kernels.CLUSTERS_LENGTH])
        return EntryBatch(
            buffer=data,
            offset=entries.offset,
            offset_end=entries.offset_end,
            start=fields[kernels.START].copy(),
            end=fields[kernels.END].copy(),
            key_start=fields[kernels.KEY_START].copy(),
            key_end=fields[kernels.KEY_END].copy(),
            cell_count=fields[kernels.CELL_COUNT].astype(np.int32),
            mutation_count=fields[kernels.MUTATION_COUNT].astype(np.int32),
            sequence_number=fields[kernels.SEQUENCE_NUMBER].copy(),
            write_time=fields[kernels.WRITE_TIME].copy(),
            region=region,
            regions=self._regions.names,
            table=table,
            tables=self._tables.names,
            clusters=clusters,
            cluster_lists=self._clusters.names,
            marker=fields[kernels.MARKER].astype(np.int8),
        )

    def _finish(self) -> None:
        """Set `ending`, or raise DamagedInputError.

        The decoder's `status` is the reason why no entry follows; its `wrong` is the offset.
        """
        decoder, raw, end = self._decoder, self._decoder.raw, self.end
        raw.drain()
        if end == raw.length:  # even if the last entry ends like a trailer
            return
        size = _trailer_size(raw)
        if size is not None:
            entries_end = raw.length - len(EMPTY_TRAILER)
            if end == entries_end - size:
                self.ending = Ending.WHOLE
                return
            if end == entries_end:
                raise self._damaged(end, f"the trailer claims {size} bytes, but entries are there")
            if decoder.status in (OK, INCOMPLETE):
                raise self._damaged(end, "an entry runs into the trailer")
        elif raw.finished:
            rest = raw.data[decoder.at : raw.filled]
            if self._between_entries() and len(rest) < len(EMPTY_TRAILER) and EMPTY_TRAILER.startswith(rest.tobytes()):
                return
            if decoder.status in (OK, INCOMPLETE):
                later = decoder.find_later()
                if later < 0:
                    return
                raise self._damaged(end, f"an entry runs past the end of the file, although a whole one is at {later}")
        reason = REASONS.get(decoder.status, "no entry begins here")
        raise self._damaged(end, f"{reason} (at byte {decoder.wrong})")

    def _read_header(self, buffer: FileBytes) -> WalHeader:
        buffer.need(len(MAGIC) + 10)
        magic = buffer.data[: min(len(MAGIC), buffer.filled)].tobytes()
        if magic != MAGIC[: len(magic)]:
            raise self._damaged(0, "it does not begin with PWAL, so it is not a WAL")
        status, size, start = protobuf.varint_at(buffer.data, len(MAGIC), buffer.filled)
        if status == protobuf.BAD_VARINT or not 0 <= size <= MAX_HEADER_BYTES:
            raise self._damaged(len(MAGIC), "the length of the header is impossible")
        end = start + size
        buffer.need(end)
        if status == INCOMPLETE or buffer.filled < end:
            if find_entry(buffer.data, len(magic), buffer.filled, PLAIN) >= 0:
                raise self._damaged(
                    len(MAGIC), "the header runs past the end of the file, although whole entries follow"
                )
            raise UnfinishedInputError(
                f"{self._file} ends after {buffer.length} bytes, inside its header: its writer just began, or died",
                file=self._file,
                offset=0,
                reason="the file ends inside its header",
            )
        try:
            message = hbase_pb2.WALHeader.FromString(buffer.data[start:end].tobytes())
        except DecodeError:
            raise self._damaged(len(MAGIC), "the header is not a WALHeader message") from None
        header = WalHeader(
            writer=message.writer_cls_name if message.HasField("writer_cls_name") else None,
            codec=message.cell_codec_cls_name if message.HasField("cell_codec_cls_name") else None,
            compressed=message.has_compression,
            tag_compressed=message.has_tag_compression,
            value_codec=algorithm_name(message.value_compression_algorithm)
            if message.has_compression and message.has_value_compression
            else None,
            encryption_key=message.encryption_key if message.HasField("encryption_key") else None,
            size=end,
        )
        reason = why_unreadable(header)
        if reason:
            raise UnreadableInputError(f"{self._file}: {reason}", file=self._file, offset=0, reason=reason)
        return header

    def _file_key(self, field: bytes, keys: MasterKeys | None) -> bytes:
        if keys is None:
            raise WalKeyError(f"{self._file} is encrypted, and no keys were given", file=self._file)
        try:
            known = keys()
        except WalKeyError as error:
            raise WalKeyError(f"{self._file} is encrypted, but {error}", file=self._file) from None
        for key in known.values():
            try:
                return unwrap(field, key)
            except WrongKeyError:
                continue
            except ValueError as error:
                raise self._damaged(len(MAGIC), str(error)) from None
        raise WrongWalKeyError(
            f"{self._file} is encrypted by another key than {' and '.join(known)}, or its header's key is damaged: "
            "unwrapped, it does not match its digest. Configure the key that the source's servers used to write it",
            file=self._file,
        )

    def _damaged(self, offset: int, reason: str) -> DamagedInputError:
        return DamagedInputError(
            f"{self._file} is damaged at byte {offset}: {reason}", file=self._file, offset=offset, reason=reason
        )


def _trailer_size(raw: FileBytes) -> int | None:
    """The trailer's size, from the last 8 bytes seen; None if these are not the end of a trailer."""
    if len(raw.last) < len(EMPTY_TRAILER) or not raw.last.endswith(TRAILER_MAGIC):
        return None
    return int.from_bytes(raw.last[:4], "big", signed=True)
