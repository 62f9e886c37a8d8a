"""Lists a source's WAL files repeatedly, at a cost proportional to what changed."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence

from walferry.storage import FileSystem
from walferry.wal.files import Place, WalFile, find_archived, list_archive, list_live, with_archived

ARCHIVE_SECONDS = 600.0
"""the archive is listed as a whole this often, and sooner only if needed"""
MOST_LOOKUPS = 200
"""up to this many archived files are looked up one by one, with one request each; for more, the whole archive is
listed, with one request for each thousand files"""


class CachedListing:
    """The WAL files below HBase's `root`, and when the archive was last listed as a whole."""

    def __init__(self, files: FileSystem, root: str) -> None:
        self._files = files
        self._root = root
        self._whole_at: float | None = None
        self._servers: frozenset[str] = frozenset()
        self.whole = False
        """whether the whole archive was listed the last time"""
        self.applied: frozenset[str] = frozenset()
        """names in the peer's queues that are known to be applied"""

    def live(self) -> list[WalFile]:
        """Every file that is not archived. Raises TransientError when folders keep moving."""
        return list_live(self._files, self._root)

    def with_archive(self, live: Sequence[WalFile], expected: Collection[str], *, whole: bool = False) -> list[WalFile]:
        """The live files, as just listed, and archived files: all if `whole`, otherwise at least the `expected` names.

        The whole archive is also listed the first time, every `ARCHIVE_SECONDS`, when many names are expected, and when
        servers came or went: HBase passes a dead server's queue on to another server, and a reader of the queues at
        that moment misses it.
        """
        now = time.monotonic()
        servers = frozenset(file.server for file in live if file.place is Place.LIVE)
        archived = sorted(set(expected) - {file.name for file in live})
        due = self._whole_at is None or now - self._whole_at >= ARCHIVE_SECONDS
        self.whole = whole or due or servers != self._servers or len(archived) > MOST_LOOKUPS
        if self.whole:
            self._whole_at, self._servers = now, servers
            return with_archived(live, list_archive(self._files, self._root))
        looked_up = (find_archived(self._files, self._root, name) for name in archived)
        return with_archived(live, [file for file in looked_up if file is not None])
