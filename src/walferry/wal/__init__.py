"""Write-ahead logs as files: names and groups, where they are, when they are sealed; `wal cat`.

The cells of a WAL by its path, as Arrow:

    >>> import pyarrow as pa
    >>> from walferry.wal import read_wal
    >>> table = pa.Table.from_batches(read_wal("closed.wal"))
    >>> table.column_names[:5]
    ['table', 'region', 'sequence_number', 'index', 'write_time']
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from walferry.wal.read import read_wal

__all__ = ["read_wal"]


def __getattr__(name: str) -> Any:
    """Import `read_wal` on first use: numba takes a third of a second, which a process that only lists logs saves."""
    if name != "read_wal":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from walferry.wal.read import read_wal

    return read_wal
