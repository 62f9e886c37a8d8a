"""A source's WAL files, for who lists them round after round: what that costs follows what changed."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence

from walferry.storage import FileSystem
from walferry.wal.files import Place, WalFile, find_archived, list_archive, list_live, with_archived

ARCHIVE_SECONDS = 600.0
"""how long the archive is not listed as a whole, unless something calls for it"""
MOST_LOOKUPS = 200
"""of archived files, one request each; of more, the archive is listed, at a request for each thousand"""


class SourceLog:
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
        """The live files, as just listed, and those of the archive: all if `whole`, at least the `expected` names.

        All are listed anyway the first time, every `ARCHIVE_SECONDS`, when many are expected, and when servers came or
        went: the queue of a dead server is passed on to another one, and who reads the queues just then misses it.
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
