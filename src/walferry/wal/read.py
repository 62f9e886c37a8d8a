"""The cells of a WAL by its path, as Arrow."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from walferry.formats.entries import entry_cells
from walferry.security import OPEN, Security
from walferry.storage import open_file_system
from walferry.wal.open import BATCH_BYTES, open_wal_at


def read_wal(
    path: str,
    *,
    user: str | None = None,
    webhdfs: str | None = None,
    security: Security = OPEN,
    batch_bytes: int = BATCH_BYTES,
) -> Iterator[pa.RecordBatch]:
    """The cells of a WAL, markers included, in its order, as WAL_CELL_SCHEMA.

    `path` is local, or a URL "webhdfs://host:port/path" (HTTPS: "swebhdfs://…"); with `webhdfs`, the name node's HTTP
    address, it may also be a path on that HDFS. `security` (`walferry.security.Security`): who to be to a secured one,
    instead of `user`, and how the servers of https URLs are checked. Keys of encrypted WALs come from the environment
    (`walferry.wal.keys`). A WAL that is still being written is read up to its current end, and followed if
    HBase moves it.

    Raises FileNotFoundError, UsageError for an unknown kind of URL, DamagedInputError after the entries that precede
    the damage, UnreadableInputError for a kind of file that cannot be read, WalKeyError for an encrypted one without
    its key.
    """
    files, place = open_file_system(path, user=user, webhdfs=webhdfs, security=security)
    for batch in open_wal_at(files, place, path, batch_bytes=batch_bytes):
        yield entry_cells(batch, path)
