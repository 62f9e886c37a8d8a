"""HFiles, the files of a store: their cells in the order of the store, and their metadata.

Reads version 3 (HFileWriterImpl; HFileWriterV3 of HBase 1.x, minor version 0) and version 2 with minor version 3. A
file is a sequence of blocks:

    data blocks, with index blocks and bloom filter chunks between them | root of the index | root of the meta index
    | file info | metadata of the bloom filters | trailer, 4096 bytes (version 2: 212)

All integers are big-endian. A block: magic, 8 bytes | int32 stored length | int32 plain length | int64 offset of the
previous block of the same kind | int8 checksum type | int32 bytes per checksum | int32 stored length with the header
but without checksums | compressed payload | one int32 checksum per "bytes per checksum", header included (HFileBlock).
"""

from __future__ import annotations

import struct
import zlib
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import crc32c
import numpy as np
from google.protobuf.message import DecodeError

from walferry.errors import DamagedInputError, UnreadableInputError
from walferry.formats import _hfile_kernels as kernels
from walferry.formats._cell_kernels import OK
from walferry.formats._cell_kernels import REASONS as CELL_REASONS
from walferry.formats._dictionary_kernels import SLOT_FIELDS, USE_FIELDS
from walferry.formats._protobuf_kernels import varint_at
from walferry.formats.cells import Bytes, CellIndex, Int64s
from walferry.formats.proto import hbase_pb2 as pb
from walferry.formats.value_codecs import ALGORITHMS, CODECS

Read = Callable[[int, int], Iterable[bytes]]
"""(offset, length) -> that many bytes of the file in pieces; fewer only at the end of the file"""

BATCH_BYTES = 4 << 20
"""stored bytes of the blocks that are read and yielded together; at least one block"""
MAX_BLOCK_BYTES = 1 << 30
"""of a block after decoding; a damaged length must not allocate more"""
_TAIL_BYTES = 256 << 10
"""read first: the trailer, and in most files everything that opening needs"""
_TRAILER_BYTES = {2: 212, 3: 4096}
_TRAILER = b'TRABLK"$'
_HEADER = struct.Struct(">8siiqBii")
_DATA, _ENCODED = b"DATABLK*", b"DATABLKE"
_ROOT_INDEX, _INDEX, _LEAF_INDEX = b"IDXROOT2", b"IDXINTE2", b"IDXLEAF2"
_FILE_INFO = b"FILEINF2"
_ENCODINGS = {
    b"PREFIX": kernels.PREFIX,
    b"DIFF": kernels.DIFF,
    b"FAST_DIFF": kernels.FAST_DIFF,
    b"ROW_INDEX_V1": kernels.ROW_INDEX,
}
_CHECKSUMS: dict[int, Callable[[memoryview], int]] = {1: zlib.crc32, 2: crc32c.crc32c}
"""by HBase's ChecksumType; 0 is none"""
_TAG_NAMES = 127
"""capacity of the dictionary of tags"""
_LEAST_KEY = 12
"""bytes of a key besides row, family and qualifier"""


@dataclass(frozen=True)
class StoredCells:
    """Cells of an HFile, in its order: row, family, qualifier, newest timestamp first, type, newest sequence first.

    `cells.position` is four bytes before a cell's key length, since an HFile stores no length of the whole cell.
    """

    cells: CellIndex
    sequence: Int64s
    """each cell's sequence number (MVCC); HBase writes 0 once no reader needs the number"""

    def __len__(self) -> int:
        return len(self.cells)

    def part(self, start: int, stop: int) -> StoredCells:
        """The cells numbered [start, stop)."""
        return StoredCells(self.cells.part(start, stop), self.sequence[start:stop])


@dataclass(frozen=True)
class _Block:
    kind: bytes
    offset: int
    payload: memoryview
    """without compression"""
    end: int
    """file offset of the next block"""


class _Stream:
    """The bytes of a file from an offset on, read on demand."""

    def __init__(self, pieces: Iterable[bytes], offset: int) -> None:
        self._pieces = iter(pieces)
        self._data = memoryview(b"")
        self._begin = offset

    def read(self, offset: int, length: int) -> memoryview:
        """`length` bytes from `offset`, which was read before or comes next; fewer only at the end of the stream."""
        kept = self._data[offset - self._begin :]
        if len(kept) < length:
            parts, size = [kept] if kept else [], len(kept)
            while size < length and (piece := next(self._pieces, b"")):
                parts.append(memoryview(piece))
                size += len(piece)
            kept = parts[0] if len(parts) == 1 else memoryview(b"".join(parts))
        self._data, self._begin = kept, offset
        return kept[:length]


class HFile:
    """An HFile whose bytes `read` returns; `name` is for messages. The constructor reads the end of the file.

    The constructor and the methods that read cells raise DamagedInputError (facts `file`, `offset`, `reason`) for bytes
    that no HBase writes, and UnreadableInputError for encrypted files and for unsupported encodings and codecs.
    """

    def __init__(self, read: Read, length: int, name: str) -> None:
        self.name = name
        self._read = read
        self.length = length
        """of the file, in bytes"""
        tail_at = max(0, length - _TAIL_BYTES)
        tail = self._read_at(tail_at, length - tail_at)
        if len(tail) < length - tail_at:
            raise self._damaged(tail_at + len(tail), "the file ends before its length")
        self.trailer, trailer_at = self._read_trailer(tail, tail_at)
        self.codec = (
            _codec_name(self.trailer.compression_codec) if self.trailer.HasField("compression_codec") else "NONE"
        )
        self._refuse_unreadable()
        opening_at = self.trailer.load_on_open_data_offset
        least = 1 if self.trailer.entry_count else 0  # a file without cells begins with its index
        if not least <= opening_at < trailer_at:
            raise self._damaged(trailer_at, "the trailer names an offset outside of the file")
        if opening_at < tail_at:
            tail_at, tail = opening_at, self._read_at(opening_at, length - opening_at)
        root = self._block(memoryview(tail), tail_at, opening_at)
        info = self._block(memoryview(tail), tail_at, self.trailer.file_info_offset)
        if root.kind != _ROOT_INDEX or info.kind != _FILE_INFO:
            raise self._damaged(opening_at, "there is no index, or no file info, at the offset that the trailer states")
        self.info = self._file_info(info)
        self._root = self._root_entries(root)
        encoding = self.info.get(b"DATA_BLOCK_ENCODING", b"NONE")
        if encoding not in {*_ENCODINGS, b"NONE"}:
            raise self._unreadable(f"its blocks have the encoding {encoding.decode('utf-8', 'replace')}")
        if self.info.get(b"INDEX_BLOCK_ENCODING", b"NONE") != b"NONE":
            raise self._unreadable("the blocks of its index are encoded")
        self._has_tags = b"hfile.MAX_TAGS_LEN" in self.info
        self._tags_compressed = self.info.get(b"hfile.TAGS_COMPRESSED", b"\0") != b"\0"
        self._has_sequence = self.info.get(b"KEY_VALUE_VERSION") == b"\0\0\0\1"
        self._slots = np.zeros((_TAG_NAMES, SLOT_FIELDS), np.int64)
        self._uses = np.zeros((1, USE_FIELDS), np.int64)
        self._uses[0, 1] = _TAG_NAMES

    def __len__(self) -> int:
        """The number of cells, from the trailer."""
        return self.trailer.entry_count

    @property
    def time_range(self) -> tuple[int, int] | None:
        """The least and the greatest timestamp (ms), both inclusive; None if the file info has none.

        The least is 0 if a delete marker covers older cells of other files. (TimeRangeTracker)
        """
        stated = self.info.get(b"TIMERANGE", b"")
        return struct.unpack(">qq", stated) if len(stated) == 16 else None

    @property
    def rows(self) -> tuple[bytes, bytes]:
        """The first row, or one shortly before it, and the last one; b"" for both if the file does not say."""
        last = self.info.get(b"hfile.LASTKEY", b"")
        return (_row_of(self._root[0][2]), _row_of(last)) if self._root and last else (b"", b"")

    def rows_between(self, parts: int) -> list[bytes]:
        """Rows that cut the file into at most `parts` parts of about equally many blocks, from the index."""
        keys = [key for _, key in self._leaves()]
        rows = {_row_of(keys[len(keys) * part // parts]) for part in range(1, parts)} if keys else set()
        return sorted(rows - {b""})

    def batches(self, start_row: bytes = b"", stop_row: bytes = b"") -> Iterator[StoredCells]:
        """Yield the cells with start_row <= row < stop_row (b"": no border), some megabytes at a time.

        Each batch has a buffer of its own, which stays valid. The file is read as one stream.
        """
        if not self._root:
            return
        offset = self._block_with(start_row)[0] if start_row else self.trailer.first_data_block_offset
        last, end = self.trailer.last_data_block_offset, self.trailer.load_on_open_data_offset
        if stop_row:
            last, size = self._block_with(stop_row)
            end = last + size
        stream = _Stream(self._read(offset, max(0, end - offset)), offset)
        while offset <= last:
            blocks, offset = self._read_blocks(stream, offset, last)
            found = self._cells([block for block in blocks if block.kind in (_DATA, _ENCODED)])
            if not len(found):
                continue
            start = _first_at_or_after(found.cells, start_row) if start_row else 0
            stop = _first_at_or_after(found.cells, stop_row) if stop_row else len(found)
            if start < stop:
                yield found.part(start, stop)
            if stop < len(found):
                return

    # ------------------------------------------------------------------ blocks

    def _read_at(self, offset: int, length: int) -> bytes:
        return b"".join(self._read(offset, length)) if length else b""

    def _read_blocks(self, stream: _Stream, offset: int, last: int) -> tuple[list[_Block], int]:
        """The next blocks to yield together, from `offset` on, and the offset after them."""
        data = stream.read(offset, BATCH_BYTES)
        begin = offset
        blocks: list[_Block] = []
        while offset <= last:
            while (need := self._stored_length(data, begin, offset)) > len(data) - (offset - begin):
                if blocks:
                    return blocks, offset
                if need <= self.trailer.load_on_open_data_offset - offset:
                    data = stream.read(offset, need)
                if len(data) < need:
                    raise self._damaged(offset, "a block is longer than the file")
            blocks.append(self._block(data, begin, offset))
            offset = blocks[-1].end
        return blocks, offset

    def _stored_length(self, data: memoryview, begin: int, offset: int) -> int:
        at = offset - begin
        if len(data) - at < _HEADER.size:
            return _HEADER.size
        stored: int = _HEADER.unpack_from(data, at)[1]
        if stored < 0:
            raise self._damaged(offset, "a block has a negative length")
        return _HEADER.size + stored

    def _block(self, data: memoryview, begin: int, offset: int) -> _Block:
        """Check and decompress the block at file offset `offset`; `data` has the file's bytes from `begin` on."""
        at = offset - begin
        if at < 0 or len(data) - at < _HEADER.size:
            raise self._damaged(offset, "the file ends inside the header of a block")
        kind, stored, plain, _, checksum, chunk, with_header = _HEADER.unpack_from(data, at)
        end = at + _HEADER.size + stored
        sums = stored + _HEADER.size - with_header
        if stored < 0 or plain < 0 or sums < 0 or with_header < _HEADER.size or end > len(data) or chunk < 1:
            raise self._damaged(offset, "the lengths of a block contradict each other")
        if checksum > 2 or sums != 4 * -(-with_header // chunk):
            raise self._damaged(offset, "a block does not have the checksums that its header states")
        if checksum:
            self._verify(data[at:end], with_header, chunk, _CHECKSUMS[checksum], offset)
        payload = data[at + _HEADER.size : at + with_header]
        if self.codec != "NONE":
            codec = CODECS[self.codec]
            if plain > len(payload) * codec.max_ratio:
                raise self._damaged(offset, f"a block claims to be longer than {self.codec} can make it")
            out = memoryview(bytearray(plain))
            if not codec.decompress(payload, out):
                raise self._damaged(offset, f"a block does not decompress to {plain} bytes with {self.codec}")
            payload = out
        elif len(payload) != plain:
            raise self._damaged(offset, "the lengths of a block contradict each other")
        return _Block(kind, offset, payload, begin + end)

    def _verify(
        self, block: memoryview, size: int, chunk: int, checksum: Callable[[memoryview], int], offset: int
    ) -> None:
        sums = struct.unpack_from(f">{-(-size // chunk)}I", block, size)
        for number, stated in enumerate(sums):
            if checksum(block[number * chunk : min((number + 1) * chunk, size)]) != stated:
                raise self._damaged(offset, f"checksum {number} of a block does not match its bytes")

    def _cells(self, blocks: list[_Block]) -> StoredCells:
        """The cells of data blocks."""
        spans = np.empty((len(blocks), 2), np.int64)
        buffer = self._plain(blocks, spans)
        status, count, wrong = kernels.count_cells(buffer, spans, self._has_tags, self._has_sequence)
        if status != OK:
            number = int(np.searchsorted(spans[:, 0], wrong, side="right")) - 1
            raise self._damaged(blocks[number].offset, _reason(status))
        fields = kernels.locate_cells(buffer, spans, count, self._has_tags, self._has_sequence)
        return StoredCells(CellIndex.of(buffer, fields[: kernels.SEQUENCE]), fields[kernels.SEQUENCE])

    def _plain(self, blocks: list[_Block], spans: Int64s) -> Bytes:
        """The plain cells of all blocks in one buffer; fills `spans` with where each block's cells begin and end."""
        sizes = [self._plain_size(block) for block in blocks]
        buffer = np.empty(sum(sizes), np.uint8)
        at = 0
        for number, (block, size) in enumerate(zip(blocks, sizes, strict=True)):
            spans[number] = at, at + size
            data = np.frombuffer(block.payload, np.uint8)
            if block.kind == _DATA:
                buffer[at : at + size] = data
            elif data[1] == _ENCODINGS[b"ROW_INDEX_V1"]:
                buffer[at : at + size] = data[2 : 2 + size]
            else:
                arena = np.empty(len(data) if self._tags_compressed else 0, np.uint8)
                status, _ = kernels.unencode(
                    int(data[1]), data, 6, len(data), buffer, at, at + size, self._has_tags, self._tags_compressed,
                    self._has_sequence, self._slots, self._uses, arena,
                )  # fmt: skip
                if status != OK:
                    raise self._damaged(block.offset, _reason(status))
            at += size
        return buffer

    def _plain_size(self, block: _Block) -> int:
        """How many bytes a data block's cells have once decoded."""
        if block.kind == _DATA:
            return len(block.payload)
        encoding = int.from_bytes(block.payload[:2], "big")
        if encoding not in _ENCODINGS.values() or len(block.payload) < 6:
            raise self._damaged(block.offset, f"a block has the unknown encoding {encoding}")
        if encoding == _ENCODINGS[b"ROW_INDEX_V1"]:
            size = int.from_bytes(block.payload[-4:], "big", signed=True)
            if not 0 <= size <= len(block.payload) - 2 - 8:
                raise self._damaged(block.offset, "the lengths of a block contradict each other")
            return size
        size = int.from_bytes(block.payload[2:6], "big", signed=True)
        if not 0 <= size <= MAX_BLOCK_BYTES:
            raise self._damaged(block.offset, f"a block claims to have {size} bytes without its encoding")
        return size

    # ------------------------------------------------------------------ index

    def _block_with(self, row: bytes) -> tuple[int, int]:
        """Offset and stored size of the first data block that may have a cell of `row` or of a later row.

        No later block has a cell of an earlier row.
        """
        offset, size, _ = self._root[_child(self._root, row)]
        for _ in range(self.trailer.num_data_index_levels - 1):
            entries = self._index_entries(offset, size)
            offset, size, _ = entries[_child(entries, row)]
        return offset, size

    def _leaves(self) -> Iterator[tuple[int, bytes]]:
        """Offset and first key of every data block; HBase may have shortened the key."""
        level = self._root
        for _ in range(self.trailer.num_data_index_levels - 1):
            level = [entry for offset, size, _ in level for entry in self._index_entries(offset, size)]
        for offset, _, key in level:
            yield offset, key

    def _root_entries(self, block: _Block) -> list[tuple[int, int, bytes]]:
        entries, at = [], 0
        data = np.frombuffer(block.payload, np.uint8)
        for _ in range(self.trailer.data_index_count):
            status, length, after = kernels.vlong_at(data, at + 12, len(data))
            if at + 12 > len(data) or status != OK or not 0 <= length <= len(data) - after:
                raise self._damaged(block.offset, "the index ends inside an entry")
            offset, size = struct.unpack_from(">qi", block.payload, at)
            entries.append((offset, size, bytes(block.payload[after : after + length])))
            at = after + length
        self._check_entries(entries, block.offset)
        return entries

    def _index_entries(self, offset: int, size: int) -> list[tuple[int, int, bytes]]:
        block = self._block(memoryview(self._read_at(offset, size)), offset, offset)
        if block.kind not in (_INDEX, _LEAF_INDEX):
            raise self._damaged(offset, "there is no index block at the offset that its parent states")
        data = block.payload
        try:
            (count,) = struct.unpack_from(">i", data)
            begins = struct.unpack_from(f">{count + 1}i", data, 4)
            first = 4 + 4 * (count + 1)
            entries = []
            for begin, end in pairwise(begins):
                child, length = struct.unpack_from(">qi", data, first + begin)
                entries.append((child, length, bytes(data[first + begin + 12 : first + end])))
        except struct.error:
            raise self._damaged(offset, "a block of the index ends inside an entry") from None
        self._check_entries(entries, offset)
        return entries

    def _check_entries(self, entries: list[tuple[int, int, bytes]], offset: int) -> None:
        for child, size, key in entries:
            inside = 0 <= child < self.length and _HEADER.size <= size <= self.length - child
            if not inside or len(key) < _LEAST_KEY or int.from_bytes(key[:2], "big") + _LEAST_KEY > len(key):
                raise self._damaged(offset, "an index entry points to no block of the file")
        if not entries and self.trailer.entry_count:
            raise self._damaged(offset, "the index is empty, but the file has cells")

    # ------------------------------------------------------------------ the end of the file

    def _read_trailer(self, tail: bytes, tail_at: int) -> tuple[pb.FileTrailerProto, int]:
        version = int.from_bytes(tail[-4:], "big") if len(tail) >= 4 else 0
        major, minor = version & 0xFFFFFF, version >> 24
        size = _TRAILER_BYTES.get(major)
        if size is None or len(tail) < size or tail[-size:][:8] != _TRAILER:
            raise self._damaged(max(0, self.length - 4), "it does not end with an HFile's trailer")
        if minor > 3 or (major == 2 and minor < 3):
            raise self._unreadable(f"it is of version {major}, minor version {minor}; 2.3 and 3.0 to 3.3 are read")
        at = self.length - size
        data = np.frombuffer(tail, np.uint8)[-size:]
        message = _delimited(data, 8)
        trailer = pb.FileTrailerProto()
        try:
            if message is None:
                raise DecodeError
            trailer.ParseFromString(message)
        except DecodeError:
            raise self._damaged(at, "its trailer is not an HBase message") from None
        return trailer, at

    def _file_info(self, block: _Block) -> Mapping[bytes, bytes]:
        data = np.frombuffer(block.payload, np.uint8)
        info = pb.FileInfoProto()
        message = _delimited(data, 4) if bytes(block.payload[:4]) == b"PBUF" else None
        try:
            if message is None:
                raise DecodeError
            info.ParseFromString(message)
        except DecodeError:
            raise self._damaged(block.offset, "its file info is not an HBase message") from None
        return {pair.first: pair.second for pair in info.map_entry}

    def _refuse_unreadable(self) -> None:
        if self.trailer.encryption_key:
            raise self._unreadable("it is encrypted")
        if self.codec not in CODECS:
            raise self._unreadable(f"it is compressed by {self.codec}")

    def _damaged(self, offset: int, reason: str) -> DamagedInputError:
        return DamagedInputError(
            f"{self.name} is damaged at byte {offset}: {reason}", file=self.name, offset=offset, reason=reason
        )

    def _unreadable(self, reason: str) -> UnreadableInputError:
        return UnreadableInputError(f"{self.name} cannot be read: {reason}", file=self.name, offset=0, reason=reason)


def of_bytes(data: bytes, name: str) -> HFile:
    """An HFile that is in memory."""
    return HFile(partial(_slice, data), len(data), name)


def _slice(data: bytes, offset: int, length: int) -> Iterator[bytes]:
    yield data[offset : offset + length]


def _codec_name(number: int) -> str:
    return ALGORITHMS[number] if number < len(ALGORITHMS) else f"algorithm {number}"


def _reason(status: int) -> str:
    return (kernels.REASONS | CELL_REASONS).get(status, "a cell goes past its block")


def _delimited(data: Bytes, at: int) -> bytes | None:
    """The protobuf message at `at`, without its varint length; None if it is incomplete."""
    status, length, start = varint_at(data, at, len(data))
    if status != OK or not 0 <= length <= len(data) - start:
        return None
    return data[start : start + length].tobytes()


def _row_of(key: bytes) -> bytes:
    return key[2 : 2 + int.from_bytes(key[:2], "big")]


def _child(entries: list[tuple[int, int, bytes]], row: bytes) -> int:
    """The number of the last entry whose key precedes the row: its block may end with the row's first cells."""
    return max(0, bisect_left(entries, row, key=lambda entry: _row_of(entry[2])) - 1)


def _first_at_or_after(cells: CellIndex, row: bytes) -> int:
    return bisect_left(range(len(cells)), row, key=cells.row)
