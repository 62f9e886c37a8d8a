"""Writes HFiles of version 3 for HBase's bulk load; `hfile` has the layout.

A file has data blocks with bloom filter chunks and index leaves between them, then the root of the index, an empty meta
index, the file info, the bloom filter's metadata and the trailer. Cells have tags and sequence number 0: the bulk load
gives all of them its own sequence number. (HFileWriterImpl, StoreFileWriter, CompoundBloomFilterWriter)
"""

from __future__ import annotations

import gzip
import math
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from io import BytesIO

import cramjam
import crc32c
import numpy as np
from google.protobuf import proto
from google.protobuf.message import Message

from walferry.formats import _hfile_write_kernels as kernels
from walferry.formats._hfile_encode_kernels import MOST_MORE_BYTES, encode, index_rows
from walferry.formats._hfile_kernels import DIFF, FAST_DIFF, PREFIX, ROW_INDEX
from walferry.formats._order_kernels import compare_keys
from walferry.formats.cells import Bytes, Int64s, row_at
from walferry.formats.proto import hbase_pb2 as pb
from walferry.formats.value_codecs import ALGORITHMS

OUT_BYTES = 4 << 20
"""of blocks that are yielded together"""
CHECKSUM_CHUNK_BYTES = 16384
INDEX_BLOCK_BYTES = 128 << 10
"""hfile.index.block.max.size"""
BLOOM_BYTES = 128 << 10
"""of one chunk (io.storefile.bloom.block.size)"""
BLOOM_ERROR = 0.01
"""io.storefile.bloom.error.rate"""
ENCODINGS = {"NONE": 0, "PREFIX": PREFIX, "DIFF": DIFF, "FAST_DIFF": FAST_DIFF, "ROW_INDEX_V1": ROW_INDEX}
BLOOMS = ("NONE", "ROW", "ROWCOL")
_MOST_BLOCKS = 4096
_CHUNK_BYTES = 1 << 16
"""of a block, compressed at once: decompressors have room for 256 KiB (io.compression.codec.*.buffersize)"""
_LEAST_CELL = 23
"""bytes of a cell besides row, family, qualifier, value and tags"""
_TRAILER_BYTES = 4096
_VERSION = bytes([3, 0, 0, 3])
"""minor and major version"""
_CRC32C = 2
_MURMUR = 1
_HEADER = struct.Struct(">8siiqBii")
_DATA, _ENCODED, _LEAF, _BLOOM = b"DATABLK*", b"DATABLKE", b"IDXLEAF2", b"BLMFBLK2"
_ROOT, _INFO, _BLOOM_META, _TRAILER = b"IDXROOT2", b"FILEINF2", b"BLMFMET2", b'TRABLK"$'
_COMPARATOR = "org.apache.hadoop.hbase.KeyValue$KVComparator"
_COLUMN_COMPARATOR = b"org.apache.hadoop.hbase.CellComparatorImpl"
_LATEST = (1 << 63) - 1


@dataclass(frozen=True)
class StoreFormat:
    """The format of a family's files: its BLOCKSIZE, COMPRESSION, DATA_BLOCK_ENCODING and BLOOMFILTER."""

    block_bytes: int = 65536
    compression: str = "NONE"
    """one of COMPRESSIONS"""
    encoding: str = "NONE"
    """one of ENCODINGS"""
    bloom: str = "ROW"
    """one of BLOOMS"""


@dataclass
class WrittenFile:
    """What a file contains, filled in as it is written."""

    cells: int = 0
    size: int = 0
    """bytes"""
    first_row: bytes = b""
    last_row: bytes = b""


def hfile_chunks(
    batches: Iterable[tuple[Bytes, Int64s]], format: StoreFormat, written_ms: int, written: WrittenFile
) -> Iterator[bytes]:
    """Yield the bytes of an HFile with the cells of one family, a few megabytes at a time; nothing if there are none.

    A batch is a buffer and the positions of its cells' int32 lengths, as in a WAL. The cells of all batches are in the
    order of a store, no two with the same key. `written_ms`: the time of writing, for the file info. `written` is
    complete after the last bytes. Memory: OUT_BYTES, the largest cell, the bloom filter's open chunk and the index.

    Raises ValueError for cells out of order.
    """
    file = _Writer(format, written)
    for buffer, positions in batches:
        if len(positions):
            yield from file.add(buffer, positions)
    if written.cells:
        yield from file.end(written_ms)


@dataclass
class _Index:
    """Entries of one index block: each indexed block's offset, stored length and first key."""

    entries: list[tuple[int, int, bytes]] = field(default_factory=list)
    size: int = 0

    def add(self, offset: int, size: int, key: bytes) -> None:
        self.entries.append((offset, size, key))
        self.size += 12 + len(key)

    def as_leaf(self) -> bytes:
        """BlockIndexWriter.writeNonRoot"""
        starts = np.cumsum([0, *(12 + len(key) for _, _, key in self.entries)]).astype(">i4")
        entries = (struct.pack(">qi", offset, size) + key for offset, size, key in self.entries)
        return struct.pack(">i", len(self.entries)) + starts.tobytes() + b"".join(entries)

    def as_root(self) -> bytes:
        """BlockIndexWriter.writeIndexBlocks"""
        return b"".join(struct.pack(">qi", offset, size) + _vlong(len(key)) + key for offset, size, key in self.entries)


class _Writer:
    def __init__(self, format: StoreFormat, written: WrittenFile) -> None:
        self._format = format
        self._written = written
        self._offset = 0
        """where the next block begins in the file"""
        self._ready: list[memoryview | bytes | bytearray] = []
        """blocks that are not yielded yet"""
        self._out = np.empty(OUT_BYTES, np.uint8)
        """the plain blocks being laid"""
        self._at = 0
        """where the next cell goes in `_out`"""
        self._open = -1
        """where the open block begins in `_out`; -1: no block is open"""
        self._stats = np.zeros(kernels.STATS, np.int64)
        self._stats[[kernels.LEAST_TIME, kernels.EARLIEST_PUT]] = _LATEST
        self._previous: dict[bytes, int] = {}
        """offset of the last block of each kind"""
        self._plain_bytes = 0
        self._leaf, self._root = _Index(), _Index()
        self._leaf_sizes: list[int] = []
        """entries in each leaf of the index"""
        self._last = np.empty(0, np.uint8)
        """the last cell, up to its value"""
        self._filter = None if format.bloom == "NONE" else _Bloom(format.bloom == "ROWCOL")

    def add(self, buffer: Bytes, positions: Int64s) -> Iterator[bytes]:
        """Lay cells into blocks, and yield the full ones."""
        if not self._written.cells:
            self._written.first_row = row_at(buffer, int(positions[0]))
        elif compare_keys(self._last, 0, buffer, positions[0]) >= 0:
            raise ValueError(f"cell {self._written.cells} is not in order")
        cell, status = 0, kernels.FULL
        while status != kernels.OK:
            blocks = np.empty((_MOST_BLOCKS, 2), np.int64)
            status, cell, self._at, self._open, closed = kernels.lay_cells(
                buffer, positions, cell, self._out, self._at, self._open, self._format.block_bytes,
                CHECKSUM_CHUNK_BYTES, blocks, self._stats,
            )  # fmt: skip
            if status == kernels.UNSORTED:
                raise ValueError(f"cell {self._written.cells + cell} is not in order")
            self._close(blocks[:closed])
            if self._ready:
                yield self._given_out()
            if status == kernels.FULL and cell < len(positions):
                self._make_room(_int32(buffer, int(positions[cell])))
        self._written.cells += len(positions)
        last = int(positions[-1])
        self._written.last_row = row_at(buffer, last)
        self._last = buffer[last : last + 12 + _int32(buffer, last + 4)].copy()
        if self._filter is not None:
            for chunk, key in self._filter.add(buffer, positions):
                self._put(_BLOOM, chunk, self._filter.index, key)

    def end(self, written_ms: int) -> Iterator[bytes]:
        """Yield the rest of the file after the last cell."""
        if self._open >= 0:
            self._close(np.array([[self._open, self._at]]))
        if self._filter is not None:
            for chunk, key in self._filter.end():
                self._put(_BLOOM, chunk, self._filter.index, key)
        root, levels, middle = self._leaf, 1, b""
        if self._root.entries:
            self._put_leaf()
            root, levels, middle = self._root, 2, self._middle()
        opening = self._offset
        self._put(_ROOT, root.as_root() + middle)
        self._put(_ROOT, b"")  # the meta index: there are no meta blocks
        info = self._offset
        self._put(_INFO, self._info(written_ms))
        if self._filter is not None:
            self._put(_BLOOM_META, self._filter.meta())
        trailer = pb.FileTrailerProto(
            file_info_offset=info,
            load_on_open_data_offset=opening,
            uncompressed_data_index_size=root.size,
            total_uncompressed_bytes=self._plain_bytes + _TRAILER_BYTES,
            data_index_count=len(root.entries),
            meta_index_count=0,
            entry_count=self._written.cells,
            num_data_index_levels=levels,
            first_data_block_offset=0,
            last_data_block_offset=self._previous[_DATA if self._format.encoding == "NONE" else _ENCODED],
            comparator_class_name=_COMPARATOR,
            compression_codec=ALGORITHMS.index(self._format.compression),
        )
        tail = _TRAILER + _with_length(trailer)
        self._ready.append(tail.ljust(_TRAILER_BYTES - len(_VERSION), b"\0") + _VERSION)
        self._written.size = self._offset + _TRAILER_BYTES
        yield self._given_out()

    def _given_out(self) -> bytes:
        given = b"".join(self._ready)
        self._ready.clear()
        return given

    def _make_room(self, size: int) -> None:
        """Move the open block to the beginning of `_out`, with room after it for a cell of `size` bytes."""
        held = self._out[self._open : self._at].copy() if self._open >= 0 else self._out[:0]
        need = len(held) + _HEADER.size + size + 16
        need += _sums(need) + 4
        if need > len(self._out):
            self._out = np.empty(need, np.uint8)
        self._out[: len(held)] = held
        self._at, self._open = len(held), 0 if len(held) else -1

    # ------------------------------------------------------------------ blocks

    def _close(self, blocks: Int64s) -> None:
        """Finish data blocks; `blocks` holds where each begins in `_out` and where its cells end."""
        data = self._out.data
        for begin, end in blocks.tolist():
            cells = begin + _HEADER.size
            key = bytes(data[cells + 8 : cells + 8 + int.from_bytes(data[cells : cells + 4], "big")])
            if self._format.encoding != "NONE":
                self._put(_ENCODED, self._encoded(cells, end), self._leaf, key)
            elif self._format.compression == "NONE":
                block = data[begin : end + _sums(end - begin)]
                self._seal(block, _DATA, end - cells, end - cells, self._leaf, key)
            else:
                self._put(_DATA, data[cells:end], self._leaf, key)
            if self._leaf.size >= INDEX_BLOCK_BYTES:
                self._put_leaf()

    def _encoded(self, begin: int, end: int) -> bytes:
        """Encode the cells laid at [begin, end) as the payload of a block."""
        code, plain = ENCODINGS[self._format.encoding], end - begin
        if code == ROW_INDEX:
            rows = np.empty(plain // _LEAST_CELL + 1, np.int32)
            count = index_rows(self._out, begin, end, rows)
            index = np.concatenate([[count], rows[:count], [plain]]).astype(">i4")
            return b"".join((struct.pack(">h", code), self._out[begin:end].data, index.tobytes()))
        out = np.empty(plain + (plain // _LEAST_CELL + 1) * MOST_MORE_BYTES, np.uint8)
        size = encode(code, self._out, begin, end, out)
        return struct.pack(">hi", code, plain) + out[:size].tobytes()

    def _put_leaf(self) -> None:
        leaf, self._leaf = self._leaf, _Index()
        if leaf.entries:
            self._leaf_sizes.append(len(leaf.entries))
            self._put(_LEAF, leaf.as_leaf(), self._root, leaf.entries[0][2])

    def _put(self, kind: bytes, payload: bytes | memoryview, index: _Index | None = None, key: bytes = b"") -> None:
        """Finish a block, and add it to an index."""
        stored = _COMPRESSORS[self._format.compression](payload)
        end = _HEADER.size + len(stored)
        block = bytearray(end + _sums(end))
        block[_HEADER.size : end] = stored
        self._seal(memoryview(block), kind, len(stored), len(payload), index, key)

    def _seal(self, block: memoryview, kind: bytes, stored: int, plain: int, index: _Index | None, key: bytes) -> None:
        """Add the header and the checksums to a block around its payload."""
        end = _HEADER.size + stored
        _HEADER.pack_into(
            block, 0, kind, len(block) - _HEADER.size, plain, self._previous.get(kind, -1), _CRC32C,
            CHECKSUM_CHUNK_BYTES, end,
        )  # fmt: skip
        starts = range(0, end, CHECKSUM_CHUNK_BYTES)
        sums = [crc32c.crc32c(block[at : min(at + CHECKSUM_CHUNK_BYTES, end)]) for at in starts]
        struct.pack_into(f">{(len(block) - end) // 4}I", block, end, *sums)
        if index is not None:
            index.add(self._offset, len(block), key)
        self._ready.append(block)
        self._previous[kind] = self._offset
        self._offset += len(block)
        self._plain_bytes += _HEADER.size + plain

    def _middle(self) -> bytes:
        """The index leaf and the entry in the middle of the file (BlockIndexWriter.getMidKeyMetadata)."""
        middle = (sum(self._leaf_sizes) - 1) // 2
        before = np.cumsum([0, *self._leaf_sizes])
        leaf = int(np.searchsorted(before, middle, side="right")) - 1
        offset, size, _ = self._root.entries[leaf]
        return struct.pack(">qii", offset, size, middle - int(before[leaf]))

    def _info(self, written_ms: int) -> bytes:
        stats, cells = self._stats, self._written.cells
        last_key = self._last[12:].tobytes()
        info: dict[bytes, bytes] = {
            b"BULKLOAD_SOURCE_TASK": b"walferry",
            b"BULKLOAD_TIMESTAMP": _int64(written_ms),
            b"DELETE_FAMILY_COUNT": _int64(stats[kernels.FAMILY_DELETES]),
            b"EARLIEST_PUT_TS": _int64(stats[kernels.EARLIEST_PUT]),
            b"KEY_VALUE_VERSION": struct.pack(">i", 1),
            b"MAX_MEMSTORE_TS_KEY": _int64(0),
            b"TIMERANGE": _int64(stats[kernels.LEAST_TIME]) + _int64(stats[kernels.GREATEST_TIME]),
            b"hfile.AVG_KEY_LEN": struct.pack(">i", int(stats[kernels.KEY_BYTES]) // cells),
            b"hfile.AVG_VALUE_LEN": struct.pack(">i", int(stats[kernels.VALUE_BYTES]) // cells),
            b"hfile.CREATE_TIME_TS": _int64(written_ms),
            b"hfile.LASTKEY": last_key,
            b"hfile.MAX_TAGS_LEN": struct.pack(">i", int(stats[kernels.TAGS_BYTES])),
        }
        if self._format.encoding != "NONE":
            info[b"DATA_BLOCK_ENCODING"] = self._format.encoding.encode()
        if self._filter is not None:
            info |= {b"BLOOM_FILTER_TYPE": self._format.bloom.encode(), b"LAST_BLOOM_KEY": self._filter.last_key}
        pairs = [pb.BytesBytesPair(first=name, second=value) for name, value in sorted(info.items())]
        return b"PBUF" + _with_length(pb.FileInfoProto(map_entry=pairs))


class _Bloom:
    """A compound bloom filter of rows, or of rows with columns; its false positive rate is at most BLOOM_ERROR.

    A chunk has 128 KiB of bits, halved while its keys still fit. (BloomFilterUtil, BloomFilterChunk)
    """

    def __init__(self, columns: bool) -> None:
        self._columns = columns
        # HBase looks up the column and the row, so each of the two lookups may err less. (BloomFilterFactory)
        error = 1 - math.sqrt(1 - BLOOM_ERROR) if columns else BLOOM_ERROR
        self._hashes = math.ceil(-math.log2(error))
        self._most = int(-BLOOM_BYTES * 8 / self._hashes * math.log(1 - error ** (1 / self._hashes)))
        self._bits = np.zeros(BLOOM_BYTES, np.uint8)
        self._keys = 0
        self._first = b""
        """the first key of the open chunk"""
        self._last, self._key = np.empty(1 << 10, np.uint8), np.empty(1 << 10, np.uint8)
        self._last_length = -1
        self._all_keys = self._all_most = self._all_bytes = 0
        self.index = _Index()

    @property
    def last_key(self) -> bytes:
        """The key added last."""
        return self._last[: self._last_length].tobytes()

    def add(self, buffer: Bytes, positions: Int64s) -> Iterator[tuple[bytes, bytes]]:
        """Add cells, and yield each full chunk with its first key."""
        cell = 0
        while cell < len(positions):
            cell, self._keys, self._last_length, first = kernels.add_keys(
                buffer, positions, cell, self._columns, self._bits, self._hashes, self._keys, self._most,
                self._last, self._last_length, self._key,
            )  # fmt: skip
            if first >= 0:
                self._first = self._key_of(buffer, int(positions[first]))
            if cell < len(positions) and self._keys == self._most:
                yield from self.end()
            elif cell < len(positions):  # its key exceeds the key buffers
                size = _int32(buffer, int(positions[cell]) + 4) + 16
                self._key = np.empty(size, np.uint8)
                self._last = np.concatenate([self._last, np.empty(size, np.uint8)])

    def end(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield the open chunk, if it has keys."""
        if not self._keys:
            return
        bits, most = self._bits, self._most
        while len(bits) % 2 == 0 and most > 2 * self._keys:
            half = len(bits) // 2
            bits, most = bits[:half] | bits[half:], most // 2
        self._all_keys += self._keys
        self._all_most += most
        self._all_bytes += len(bits)
        self._bits, self._keys = np.zeros(BLOOM_BYTES, np.uint8), 0
        yield bits.tobytes(), self._first

    def meta(self) -> bytes:
        """The filter's metadata block (CompoundBloomFilterWriter.MetaWriter)."""
        comparator = _COLUMN_COMPARATOR if self._columns else b""
        return b"".join((
            struct.pack(
                ">iqiiqqi", 3, self._all_bytes, self._hashes, _MURMUR, self._all_keys, self._all_most,
                len(self.index.entries),
            ),
            _vlong(len(comparator)), comparator, self.index.as_root(),
        ))  # fmt: skip

    def _key_of(self, buffer: Bytes, position: int) -> bytes:
        key = np.empty(_int32(buffer, position + 4) + 16, np.uint8)
        length = int(kernels.bloom_key(buffer, position, self._columns, key))
        taken: bytes = key[:length].tobytes()
        return taken


# ------------------------------------------------------------------ numbers and codecs


def _sums(size: int) -> int:
    """How many bytes the checksums of `size` bytes take."""
    return 4 * -(-size // CHECKSUM_CHUNK_BYTES)


def _int32(buffer: Bytes, at: int) -> int:
    return int.from_bytes(buffer[at : at + 4].tobytes(), "big")


def _int64(value: int | np.int64) -> bytes:
    return struct.pack(">q", int(value))


def _with_length(message: Message) -> bytes:
    out = BytesIO()
    proto.serialize_length_prefixed(message, out)
    return out.getvalue()


def _vlong(value: int) -> bytes:
    """A length as WritableUtils.writeVLong writes it."""
    if value <= 127:
        return bytes([value])
    size = (value.bit_length() + 7) // 8
    return struct.pack(">b", -112 - size) + value.to_bytes(size, "big")


def _in_blocks(compress: Callable[[memoryview], bytes]) -> Callable[[bytes | memoryview], bytes]:
    """Compress like Hadoop's BlockCompressorStream: one block, in chunks that fit a decompressor's buffer."""

    def compressed(data: bytes | memoryview) -> bytes:
        view = memoryview(data)
        chunks = [compress(view[at : at + _CHUNK_BYTES]) for at in range(0, len(view), _CHUNK_BYTES)]
        parts = (part for chunk in chunks for part in (struct.pack(">i", len(chunk)), chunk))
        return b"".join((struct.pack(">i", len(view)), *parts))

    return compressed


_COMPRESSORS: Mapping[str, Callable[[bytes | memoryview], bytes | memoryview]] = {
    "NONE": lambda data: data,
    "GZ": lambda data: gzip.compress(data, 6, mtime=0),
    "SNAPPY": _in_blocks(lambda data: bytes(cramjam.snappy.compress_raw(data))),
    "LZ4": _in_blocks(lambda data: bytes(cramjam.lz4.compress_block(data, store_size=False))),
}
# ZSTD is missing: the bytes of a ZSTD block depend on which codec class the cluster has configured.
COMPRESSIONS = tuple(_COMPRESSORS)
