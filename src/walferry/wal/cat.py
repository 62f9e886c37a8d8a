"""`walferry wal cat`: the cells of WAL files as JSON, one per line."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from typing import TextIO

from walferry.errors import WalferryError
from walferry.formats.cells import decode_tags
from walferry.formats.entries import index_entry_cells, text
from walferry.formats.wal import EntryBatch
from walferry.storage import open_file_system
from walferry.wal.open import open_wal_at

# Small batches, so that a pipe into `head` ends soon.
BATCH_BYTES = 1 << 20


def cat(paths: Sequence[str], out: TextIO, err: TextIO) -> int:
    """Print every cell of each file to `out`, in file order, markers included; errors go to `err`.

    A path is local or a webhdfs:// URL. A line has the keys region, table, seq, write_time, row, family, qualifier,
    timestamp, type, value and tags; row, family, qualifier, value and the content of tags are in hex.
    Returns the worst exit code over the files: 0 whole, 3 unfinished, 4 damaged or of a kind that cannot be read,
    1 for a file that cannot be opened, 2 for a URL of an unknown kind. Whatever precedes the end or the damage is
    printed. If `out` is closed early, it ends without a message.
    """
    worst = 0
    for path in paths:
        try:
            _print_file(path, out)
        except BrokenPipeError:
            # The reader has left. Python flushes stdout once more at exit: discard that.
            os.dup2(os.open(os.devnull, os.O_WRONLY), out.fileno())
            return worst
        except WalferryError as error:
            print(f"error: {error}", file=err)
            worst = max(worst, error.exit_code)
        except OSError as error:
            print(f"error: {path}: {error.strerror or error}", file=err)
            worst = max(worst, 1)
    return worst


def _print_file(path: str, out: TextIO) -> None:
    files, place = open_file_system(path)
    wal = open_wal_at(files, place, path, batch_bytes=BATCH_BYTES)
    try:
        for batch in wal:
            out.writelines(_lines(batch))
    finally:
        out.flush()
    if wal.unfinished is not None:
        raise wal.unfinished


def _lines(batch: EntryBatch) -> Iterator[str]:
    """The JSON of a batch's cells. Formatted by hand: a tenth of the time of json.dumps per cell."""
    cells, entries, _ = index_entry_cells(batch)
    tables = [json.dumps(text(name)) for name in batch.tables]
    regions = [json.dumps(text(name)) for name in batch.regions]
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
