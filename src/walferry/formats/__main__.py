"""`python -m walferry.formats`: compile the numba kernels into their cache, so that the first run does not wait."""

from __future__ import annotations

import gzip
import itertools
from contextlib import suppress

import numpy as np
import zstandard

from walferry.errors import DamagedInputError
from walferry.formats import _call_kernels as call_kernels
from walferry.formats import _wal_kernels as wal_kernels
from walferry.formats.cells import (
    Bytes,
    CellType,
    as_run,
    cell_lengths,
    cell_starts,
    cells_to_arrow,
    encode_cell,
    find_cells,
    gather,
    index_cells,
    row_starts,
)
from walferry.formats.entries import entry_cells
from walferry.formats.hfile import of_bytes
from walferry.formats.hfile_writer import StoreFormat, WrittenFile, hfile_chunks
from walferry.formats.mutations import RowBorders, cut_mutations
from walferry.formats.order import count_below, families_of, outranked, stepped_over, store_order, winners
from walferry.formats.proto import hbase_pb2 as pb
from walferry.formats.resolve import FamilyRules, Fate, digest_of, expiring_after, held_by, resolve, row_digests
from walferry.formats.value_codecs import CODECS
from walferry.formats.wal import WalReader
from walferry.formats.wal_header import SECURE_CODEC


def _message(message: bytes) -> bytes:
    assert len(message) < 128  # one byte of varint
    return bytes([len(message)]) + message


_CELL = encode_cell(b"r", b"f", b"q", 1, CellType.PUT, b"v", [(8, b"\0" * 8)])
_KEY = pb.WALKey(
    encoded_region_name=b"0" * 32, table_name=b"t", log_sequence_number=1, write_time=1, following_kv_count=1
)


def plain_log() -> bytes:
    """A closed log of one entry with one cell."""
    header = pb.WALHeader(writer_cls_name="ProtobufLogWriter")
    entry = _message(_KEY.SerializeToString()) + _CELL
    return b"PWAL" + _message(header.SerializeToString()) + entry + bytes(4) + b"LAWP"


def _compressed_log() -> bytes:
    """A log that has one entry and ends inside a second one."""
    key = pb.WALKey(
        encoded_region_name=b"\xff\x20" + b"0" * 32,
        table_name=b"\xff\x01t",
        log_sequence_number=1,
        write_time=1,
        scopes=[pb.FamilyScope(family=b"\xff\x01f", scope_type=pb.REPLICATION_SCOPE_GLOBAL)],
        following_kv_count=1,
    )
    names = b"\xff\x01r" + b"\0\0" + b"\xff\x01q"
    cell = bytes([15, 1, 3]) + names + bytes(8) + bytes([CellType.PUT]) + b"v" + b"\xff\x01\x08"
    header = pb.WALHeader(has_compression=True, has_tag_compression=True)
    return b"PWAL" + _message(header.SerializeToString()) + _message(key.SerializeToString()) + cell + b"\x7f"


def _encrypted_log() -> bytes:
    """A log of one entry whose cell does not decrypt to a valid cell."""
    wrapped = pb.WrappedKey(algorithm="AES", length=16, data=bytes(16), iv=bytes(16))
    header = pb.WALHeader(encryption_key=_message(wrapped.SerializeToString()), cell_codec_cls_name=SECURE_CODEC)
    key = pb.WALKey(
        encoded_region_name=b"0" * 32, table_name=b"t", log_sequence_number=1, write_time=1, following_kv_count=1
    )
    return b"PWAL" + _message(header.SerializeToString()) + _message(key.SerializeToString()) + b"\x10" * 34


def _decompress() -> None:
    """Decompress a value with each codec that handles many values together, in arrays like a decoder's."""
    for codec, data in (("GZ", gzip.compress(b"v")), ("ZSTD", zstandard.compress(b"v"))):
        values = np.zeros((4, 2), np.int64)[:, :1]
        values[:, 0] = (0, len(data), 0, 1)
        CODECS[codec].decompress_all(np.frombuffer(bytearray(data), np.uint8), values, np.empty(1, np.uint8))


def _call(key: pb.WALKey, cell: bytes) -> None:
    """Read a call of replication with one entry, from memory that can be written."""
    call = pb.ReplicateWALEntryRequest(entry=[pb.WALEntry(key=key, associated_cell_count=1)]).SerializeToString()
    request, block = (np.frombuffer(bytearray(part), np.uint8) for part in (call, cell))
    call_kernels.count_entries(request)
    call_kernels.scan_call(
        request, block, np.empty((wal_kernels.ENTRY_FIELDS, 1), np.int64), np.empty((2, 1), np.int64)
    )
    one = np.zeros(1, np.int64)
    call_kernels.prints_of_entries(block, one, one, one, np.empty(1, np.int64))


def _mutations(cell: bytes) -> None:
    """Cut a cell into mutations of regions, from memory that can be written and from memory that cannot."""
    for buffer in (np.frombuffer(bytearray(cell), np.uint8), np.frombuffer(cell, np.uint8)):
        cut = cut_mutations(buffer, 0, 1)
        RowBorders.of([b"a"]).ranges_of(buffer, cut.start)
        cut.actions(np.zeros(1, np.int64), b"")


def _hfile(run: Bytes) -> None:
    """Write and read the cells of a run as an HFile, and sort them as edits."""
    positions = cell_starts(run)
    numbers = np.ones(len(positions), np.int64)
    families_of(run, positions, [b"f"])
    store_order(run, positions, numbers)
    outranked(run, positions, numbers)
    stepped_over(run, positions[winners(run, positions)])
    count_below(run, positions, b"r")
    cell_lengths(run, positions)
    for encoding in ("FAST_DIFF", "ROW_INDEX_V1", "NONE"):
        data = b"".join(hfile_chunks([(run, positions)], StoreFormat(encoding=encoding), 1, WrittenFile()))
    for stored in of_bytes(data, "warm-up").batches():
        as_run(stored.cells)


def main() -> None:
    """Run one small log and one cell through every kernel."""
    for batch in itertools.chain(WalReader([plain_log()], "warm-up"), WalReader([_compressed_log()], "warm-up")):
        entry_cells(batch, "warm-up", np.ones(len(batch), np.bool_))
        positions, *_ = find_cells(batch.buffer, batch.cells_start, batch.cell_count)
        families_of(batch.buffer, positions, [b"f"])
        _hfile(gather(batch.buffer, batch.cells_start, batch.end))
        row_starts(batch.buffer, batch.cells_start)
    for log in (_encrypted_log(), _encrypted_log()[:-1]):
        with suppress(DamagedInputError):
            list(WalReader([log], "warm-up", keys=lambda: {"": bytes(16)}))
    _decompress()
    _call(_KEY, _CELL)
    _mutations(_CELL)
    cells = index_cells(np.frombuffer(_CELL, np.uint8))
    cell_starts(cells.buffer)
    cells_to_arrow(cells)
    row_starts(cells.buffer, cells.position)
    fates = resolve(cells, {b"f": FamilyRules(1, 0, None)}, 2)
    digest_of(row_digests(cells, fates == Fate.VISIBLE))
    expiring_after(cells, 0)
    held_by(cells, fates == Fate.EXPIRED, cells, fates == Fate.EXPIRED)


if __name__ == "__main__":
    main()
