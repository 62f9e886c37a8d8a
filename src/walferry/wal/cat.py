"""`walferry wal cat`: the cells of WAL files as JSON, one per line, or as Arrow or Parquet."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from typing import Any, BinaryIO, TextIO

import pyarrow as pa
import pyarrow.parquet as pq

from walferry.errors import DamagedInputError, UsageError, WalferryError
from walferry.formats.cells import decode_tags
from walferry.formats.entries import WAL_CELL_SCHEMA, entry_cells, index_entry_cells
from walferry.formats.wal import MAGIC, EntryBatch, WalReader
from walferry.security import OPEN, Security
from walferry.storage import open_file_system
from walferry.wal.open import open_wal_at

# Small batches, so that a pipe into `head` ends soon.
BATCH_BYTES = 1 << 20
ARROW_BATCH_BYTES = 2 << 20
"""small enough for a processor's cache: a third faster than 16 MiB"""
PARQUET_BATCH_BYTES = 16 << 20
"""each batch becomes a row group"""


def cat(paths: Sequence[str], out: TextIO, err: TextIO, security: Security = OPEN) -> int:
    """Print every cell of each file to `out`, in file order, markers included; errors go to `err`.

    A path is local, or a webhdfs:// or swebhdfs:// URL; `security`: who to be to a secured HDFS, and how the servers of
    swebhdfs:// URLs are checked. A line has the keys region, table,
    seq, write_time, row, family, qualifier, timestamp, type, value and tags; row, family, qualifier, value and the
    content of tags are in hex.
    Returns the worst exit code over the files: 0 whole, 3 unfinished, 4 damaged or of a kind that cannot be read,
    1 for a file that cannot be opened, 2 for a URL of an unknown kind. Cells before the end or the damage are printed.
    If `out` is closed early, `cat` ends without a message.
    """

    def write(batch: EntryBatch, path: str) -> None:
        out.writelines(_lines(batch))

    try:
        return _each(paths, write, out.flush, err, BATCH_BYTES, security)
    except BrokenPipeError:
        return _reader_left(out.fileno())


def cat_columns(paths: Sequence[str], out: BinaryIO, err: TextIO, columns: Columns, security: Security = OPEN) -> int:
    """The same cells as an Arrow IPC stream or as one Parquet file (WAL_CELL_SCHEMA, with each cell's file and the
    offset of its entry); errors and exit codes are those of `cat`."""
    open_writer, batch_bytes = {
        Columns.ARROW: (pa.ipc.new_stream, ARROW_BATCH_BYTES),
        Columns.PARQUET: (pq.ParquetWriter, PARQUET_BATCH_BYTES),
    }[columns]
    try:
        with open_writer(out, WAL_CELL_SCHEMA) as writer:

            def write(batch: EntryBatch, path: str) -> None:
                writer.write_batch(entry_cells(batch, path))

            return _each(paths, write, out.flush, err, batch_bytes, security)
    except BrokenPipeError:
        return _reader_left(out.fileno())


class Columns(StrEnum):
    """Formats in columns."""

    ARROW = "arrow"
    PARQUET = "parquet"


def _each(
    paths: Sequence[str],
    write: Callable[[EntryBatch, str], None],
    flush: Callable[[], None],
    err: TextIO,
    batch_bytes: int,
    security: Security,
) -> int:
    worst = 0
    for path in paths:
        try:
            files, place = open_file_system(path, security=security)
            wal = open_wal_at(files, place, path, batch_bytes=batch_bytes)
            try:
                for batch in wal:
                    write(batch, path)
            finally:
                flush()
            if wal.unfinished is not None:
                raise wal.unfinished
        except BrokenPipeError:
            raise
        except WalferryError as error:
            print(f"error: {error}", file=err)
            worst = max(worst, error.exit_code)
        except OSError as error:
            is_folder = isinstance(error, IsADirectoryError)
            reason = "is a folder: name files in it, or use `walferry wal stat`" if is_folder else error.strerror
            print(f"error: {path}: {reason or error}", file=err)
            named_wrong = is_folder or isinstance(error, FileNotFoundError)
            worst = max(worst, UsageError.exit_code if named_wrong else WalferryError.exit_code)
    return worst


def _reader_left(out: int) -> int:
    """Discard what Python would flush to stdout at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), out)
    return 0


def cells_of_entry(data: bytes) -> list[dict[str, Any]]:
    """The cells of one plain entry, as `cat` prints them; none if these bytes are not an entry."""
    try:
        log = WalReader([MAGIC, b"\0", data], "entry")  # a header may be empty
        return [json.loads(line) for batch in log for line in _lines(batch)]
    except DamagedInputError:
        return []


def _lines(batch: EntryBatch) -> Iterator[str]:
    """The JSON of a batch's cells. Formatted by hand: a tenth of the time of json.dumps per cell."""
    cells, entries, _ = index_entry_cells(batch)
    tables = [json.dumps(name.decode()) for name in batch.tables]
    regions = [json.dumps(name.decode()) for name in batch.regions]
    heads = [
        f'{{"region": {regions[region]}, "table": {tables[table]}, "seq": {sequence_number}, "write_time": {write_time}'
        for region, table, sequence_number, write_time in zip(
            batch.region.tolist(),
            batch.table.tolist(),
            batch.sequence_number.tolist(),
            batch.write_time.tolist(),
            strict=True,
        )
    ]
    hexed = batch.buffer.tobytes().hex()
    columns = (
        (2 * cells.row_start, 2 * (cells.row_start + cells.row_length)),
        (2 * cells.family_start, 2 * (cells.family_start + cells.family_length)),
        (2 * cells.qualifier_start, 2 * (cells.qualifier_start + cells.qualifier_length)),
        (2 * cells.value_start, 2 * (cells.value_start + cells.value_length)),
        (2 * cells.tags_start, 2 * (cells.tags_start + cells.tags_length)),
    )
    positions = [side.tolist() for column in columns for side in column]
    for entry, timestamp, kind, r, r_end, f, f_end, q, q_end, v, v_end, t, t_end in zip(
        entries.tolist(), cells.timestamp.tolist(), cells.type.tolist(), *positions, strict=True
    ):
        tags = (
            json.dumps([[tag, held.hex()] for tag, held in decode_tags(bytes.fromhex(hexed[t:t_end]))])
            if t < t_end
            else "[]"
        )
        yield (
            f'{heads[entry]}, "row": "{hexed[r:r_end]}", "family": "{hexed[f:f_end]}", '
            f'"qualifier": "{hexed[q:q_end]}", "timestamp": {timestamp}, "type": {kind}, '
            f'"value": "{hexed[v:v_end]}", "tags": {tags}}}\n'
        )
