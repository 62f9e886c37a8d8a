"""HBase's bytes to Arrow and back: WAL, HFile, KeyValue, tags, protobuf messages. Pure: no I/O, clock or cluster.

The cells of a WAL and of an HFile as Arrow:

    >>> from pathlib import Path
    >>> import pyarrow as pa
    >>> from walferry.formats import hfile_cells, wal_cells
    >>> table = pa.Table.from_batches(wal_cells(Path("closed.wal").read_bytes(), "closed.wal"))
    >>> table.column_names[:5]
    ['table', 'region', 'sequence_number', 'index', 'write_time']

    >>> table = pa.Table.from_batches(hfile_cells(Path("none.hfile").read_bytes(), "none.hfile"))
    >>> table.column_names
    ['row', 'family', 'qualifier', 'timestamp', 'type', 'value', 'tags', 'sequence_number']

`walferry.wal.read_wal` reads a WAL by its path, also from HDFS. Every exported name is documented,
and stable to the extent that docs/api.md states.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from walferry.formats.cells import CELL_SCHEMA, CellType, decode_tags
    from walferry.formats.entries import WAL_CELL_SCHEMA, entry_cells, wal_cells
    from walferry.formats.hfile import HFile
    from walferry.formats.stored import HFILE_CELL_SCHEMA, hfile_cells
    from walferry.formats.wal import Ending, EntryBatch, WalReader

__all__ = [
    "CELL_SCHEMA",
    "HFILE_CELL_SCHEMA",
    "WAL_CELL_SCHEMA",
    "CellType",
    "Ending",
    "EntryBatch",
    "HFile",
    "WalReader",
    "decode_tags",
    "entry_cells",
    "hfile_cells",
    "wal_cells",
]

_HOMES = {
    "cells": ("CELL_SCHEMA", "CellType", "decode_tags"),
    "entries": ("WAL_CELL_SCHEMA", "entry_cells", "wal_cells"),
    "hfile": ("HFile",),
    "stored": ("HFILE_CELL_SCHEMA", "hfile_cells"),
    "wal": ("Ending", "EntryBatch", "WalReader"),
}
"""modules to import when one of these names is first used: importing numba takes a third of a second, and a process
that uses only the protobuf messages skips that wait"""


def __getattr__(name: str) -> Any:
    for module, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"walferry.formats.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
