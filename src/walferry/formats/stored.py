"""The cells of an HFile as Arrow, each with its sequence number."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from walferry.formats.cells import CELL_SCHEMA, cells_to_arrow, number_column
from walferry.formats.hfile import of_bytes

HFILE_CELL_SCHEMA = pa.schema([*CELL_SCHEMA, ("sequence_number", pa.int64())])


def hfile_cells(
    data: bytes, name: str = "HFile", *, start_row: bytes = b"", stop_row: bytes = b""
) -> Iterator[pa.RecordBatch]:
    """The cells of an HFile with start_row <= row < stop_row (b"": no border), in file order, as HFILE_CELL_SCHEMA.

    Includes everything stored, also old versions and delete markers. `name` is for messages. HBase writes 0 as sequence
    number once no reader needs it. Raises DamagedInputError, and UnreadableInputError for encrypted files and unknown
    codecs.
    """
    for found in of_bytes(data, name).batches(start_row, stop_row):
        columns = [*cells_to_arrow(found.cells).columns, number_column(found.sequence)]
        yield pa.RecordBatch.from_arrays(columns, schema=HFILE_CELL_SCHEMA)
