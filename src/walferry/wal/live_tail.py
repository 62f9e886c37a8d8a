"""A tail of the whole log: lists it, and finds out how far its files can be read now. See `wal.offsets`."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence, Set
from typing import Any

import numpy as np

from walferry.errors import DamagedInputError, GapError, TransientError, UsageError
from walferry.storage import FileSystem
from walferry.wal import open as opening
from walferry.wal.files import Place, WalFile, if_sealed, list_archive, list_live
from walferry.wal.offsets import (
    BatchLimits,
    CertainListing,
    GroupPosition,
    Offset,
    Reach,
    Reached,
    advance,
    begin_at_end,
    certain,
    is_news,
)
from walferry.wal.open import Until, Wal, ends_as_listed, open_wal

BATCH_BYTES = 4 << 20
LEAST_BATCH_BYTES = 1 << 16
POLL_SECONDS = 1.0
"""between two listings, when the first one showed nothing new"""
ARCHIVE_SECONDS = 600.0
"""the archive is listed at least this often"""
PAUSE_SECONDS = 10.0
"""the archive is listed after a longer pause between two listings of the live files"""
PATIENCE_SECONDS = 60.0
"""how long one file may be unreadable before the stream fails"""
NO_LIMITS = BatchLimits()

_log = logging.getLogger(__name__)


class LiveTail:
    """Follows the log below HBase's root folder; one per stream, on its driver.

    Its memory only saves requests and makes turns fair: a new LiveTail continues from the same `Offset`.
    """

    def __init__(self, files: FileSystem, root: str) -> None:
        """Raises UsageError when `root` has no folder WALs."""
        self._files = files
        self._root = root
        self._known: dict[str, int] = {}
        self._archive = _ArchiveSeen(files, root)
        self._served: dict[str, int] = {}
        self._reach = FileReach(files, root)
        self._until_now = False
        self._frozen: tuple[CertainListing, Reach] | None = None
        self._idle_since: float | None = None
        self.listing = CertainListing({}, frozenset(), False)
        """the last listing"""
        self.whole = False
        """whether the last batch ended with everything that could be seen when its listing was made, and no log was
        being split"""
        if files.status(f"{root}/WALs") is None:
            raise UsageError(
                f"there is no folder {root}/WALs; set the stream's path to HBase's root folder (or its "
                "hbase.wal.dir), which has the folders WALs and oldWALs",
                path=root,
            )

    def at_end(self) -> Offset:
        """The start of a stream that reads only what is written from now on."""
        return begin_at_end(self._list(Offset()), self._reach, self._reach.is_sealed)

    def stop_growing(self) -> None:
        """Read what exists when `next` is called for the first time, and nothing newer."""
        self._until_now = True

    def next(self, start: Offset, limits: BatchLimits = NO_LIMITS) -> Offset:
        """Where the batch after `start` ends; `start` itself if there is nothing to read.

        Raises GapError for a file that was deleted before it was read, DamagedInputError for one that is damaged right
        at the position, and the other errors of `Wal`.
        """
        if self._until_now and self._frozen is None:
            self._frozen = self._freeze(start)
        if self._frozen is not None:
            listing, reach = self._frozen
        else:
            if self._idle_since is not None:
                time.sleep(max(0.0, self._idle_since + POLL_SECONDS - time.monotonic()))
            listing, reach = self._list(start), self._reach
        self.listing = listing
        self._reach.short.clear()
        end = advance(start, listing, reach, limits, self._served)
        self.whole = (
            not listing.unsure
            and not self._reach.short
            and all(
                _is_read(end.groups[group], files) for group, files in listing.groups.items() if group in end.groups
            )
        )
        self._served |= {span.file.rpartition(".")[0]: end.batch for span in end.spans}
        if is_news(start, end):
            self._idle_since = None
            return end
        self._idle_since = time.monotonic()
        return start

    def _list(self, start: Offset) -> CertainListing:
        """A listing that misses no file below the numbers that were known before it began."""
        for group, position in start.groups.items():
            self._known[group] = max(self._known.get(group, -1), position.number, *position.ahead)
        listing = list_certain(self._files, self._root, self._known, self._archive.after)
        self._reach.forget_all_but(listing.names)
        return listing

    def _freeze(self, start: Offset) -> tuple[CertainListing, Reach]:
        """The listing, and how far each file can be read.

        HBase closes a file within moments of creating the next one: wait for that, as readers of sealed files do.
        """
        deadline = time.monotonic() + opening.CLOSE_SECONDS + POLL_SECONDS
        while True:
            listing = self._list(start)
            seen = _Remembering(self._reach)
            end = advance(start, listing, seen, NO_LIMITS)
            closing = (
                file
                for group, position in end.groups.items()
                if position.ahead and not position.read
                for file in listing.groups[group]
                if file.number == position.number and file.place is Place.LIVE
            )
            if next(closing, None) is None or time.monotonic() > deadline:
                return listing, seen.at_most
            time.sleep(0.5)


def _is_read(position: GroupPosition, files: Sequence[WalFile]) -> bool:
    """Whether a group was read as far as its listed files go; a file that is being split may still change."""
    if position.over or position.ahead:
        return position.over
    return position.read or files[-1].place is Place.LIVE


class _ArchiveSeen:
    """Lists the archive again only if it may have changed: files come to it from the live ones.

    While the names of the live files stay the same, none was archived. (A server that came and went between two
    listings would show nothing; so the listings must follow each other within seconds.)
    """

    def __init__(self, files: FileSystem, root: str) -> None:
        self._files = files
        self._root = root
        self._live: frozenset[str] = frozenset()
        self._listed_s = -ARCHIVE_SECONDS
        self._seen_s = -PAUSE_SECONDS
        self._archived: list[WalFile] = []

    def after(self, live: Sequence[WalFile]) -> list[WalFile]:
        """The archived files, given the live ones as just listed."""
        names, now_s = frozenset(file.name for file in live), time.monotonic()
        late = now_s - self._seen_s > PAUSE_SECONDS or now_s - self._listed_s > ARCHIVE_SECONDS
        if names != self._live or late:
            self._archived, self._listed_s = list_archive(self._files, self._root), now_s
        self._live, self._seen_s = names, time.monotonic()
        return self._archived


def list_certain(
    files: FileSystem,
    root: str,
    known: dict[str, int],
    archive_after: Callable[[Sequence[WalFile]], list[WalFile]] | None = None,
) -> CertainListing:
    """A listing that misses no file below the numbers that were known before it began (`wal.offsets.certain`).

    `known`: the highest number of each group that was seen before; this adds the numbers that are seen now.
    `archive_after`: lists the archive, given the live files; by default, all of it.
    """
    for _ in range(2):
        live = list_live(files, root)
        archived = list_archive(files, root) if archive_after is None else archive_after(live)
        listing = certain(live, archived, known)
        for file in (*live, *archived):
            known[file.group] = max(known.get(file.group, -1), file.number)
        if not listing.unsure:
            break
    return listing


class FileReach:
    """How far files can be read now: `wal.offsets.Reach`, by looking at them."""

    def __init__(self, files: FileSystem, root: str) -> None:
        self._files = files
        self._root = root
        self._lengths: dict[str, int] = {}  # of live files that are sealed
        self._standing: dict[str, tuple[int, float]] = {}  # of live files: bytes the NameNode lists too, since when
        self._can_skip: dict[str, bool] = {}
        self._failing: dict[str, float] = {}  # since when a file could not be read
        self.short: set[str] = set()
        """files that could not be read as far as they can be seen; the caller clears it"""

    def __call__(self, file: WalFile, offset: int, most: int | None, *, whole_entry: bool, newer: bool) -> Reached:
        """See `wal.offsets.Reach`."""
        try:
            found = self._reached(file, offset, most, whole_entry=whole_entry, newer=newer)
            self._failing.pop(file.name, None)
            return found
        except (FileNotFoundError, GapError):
            self.short.add(file.name)
            return Reached(offset, False)  # moved or deleted: the next listing shows which
        except TransientError as error:
            # HDFS may be recovering the lease of a dead server: look again later.
            if time.monotonic() - self._failing.setdefault(file.name, time.monotonic()) > PATIENCE_SECONDS:
                raise
            _log.warning("WAL file %s cannot be read now: %s", file.name, error)
            self.short.add(file.name)
            return Reached(offset, False)

    def _reached(self, file: WalFile, offset: int, most: int | None, *, whole_entry: bool, newer: bool) -> Reached:
        length = self._sealed_length(file)
        if length is None:
            return self._look(file, offset, most, whole_entry=whole_entry, newer=newer, sealed=False)
        # Some versions close an archived file late. Until then, less than its whole length is listed.
        stop = length if length == offset > 0 else max(length, offset + 1)
        if most is None or stop - offset <= most:
            return Reached(stop, True)
        return self._look(file, offset, most, whole_entry=whole_entry, newer=newer, sealed=True)

    def is_sealed(self, file: WalFile) -> bool:
        """Whether nobody writes to it any more, by the first two rules of `wal.files`."""
        return self._sealed_length(file) is not None

    def forget_all_but(self, names: Set[str]) -> None:
        """Keep what is known of these files only."""
        known: tuple[dict[str, Any], ...] = (self._lengths, self._standing, self._can_skip, self._failing)
        for of_files in known:
            for name in of_files.keys() - names:
                del of_files[name]

    def _sealed_length(self, file: WalFile) -> int | None:
        if file.place is Place.ARCHIVED:
            return file.length
        if file.name not in self._lengths and file.place is Place.LIVE and file.length:
            now = if_sealed(self._files, self._root, file)
            if now is not None:
                self._lengths[file.name] = now.length
        return self._lengths.get(file.name)

    def _look(
        self, file: WalFile, offset: int, most: int | None, *, whole_entry: bool, newer: bool, sealed: bool
    ) -> Reached:
        if self._skips(file):
            return self._look_at_entries(file, offset, most, whole_entry=whole_entry, newer=newer, sealed=sealed)
        return self._look_at_bytes(file, offset, most, newer=newer)

    def _skips(self, file: WalFile) -> bool:
        """Whether reading can start at any entry of the file; positions must then be where entries end."""
        if file.name not in self._can_skip:
            header = self._open(file, 0).header()
            if header is None:
                return True  # nothing can be read yet
            self._can_skip[file.name] = not header.compressed or header.encryption_key is not None
        return self._can_skip[file.name]

    def _look_at_bytes(self, file: WalFile, offset: int, most: int | None, *, newer: bool) -> Reached:
        """Look at a file with dictionaries: any position will do, since it is always read from its beginning."""
        path = self._open(file, offset).locate().path
        seen = sum(len(chunk) for chunk in self._files.read(path, offset, most))
        if seen == most:
            self.short.add(file.name)
        return Reached(offset + seen, self._stands(file, offset + seen, newer=newer))

    def _look_at_entries(
        self, file: WalFile, offset: int, most: int | None, *, whole_entry: bool, newer: bool, sealed: bool
    ) -> Reached:
        wal = self._open(file, offset, BATCH_BYTES if most is None else min(BATCH_BYTES, max(LEAST_BATCH_BYTES, most)))
        reached = offset
        try:
            for batch in wal:
                ends = batch.offset_end
                fit = len(ends) if most is None else int(np.searchsorted(ends, offset + most, side="right"))
                if fit < len(ends):
                    fit = max(fit, int(whole_entry and reached == offset))
                    self.short.add(file.name)
                    return Reached(int(ends[fit - 1]) if fit else reached, False)
                reached = int(ends[-1])
        except DamagedInputError:
            if reached == offset:
                raise
            return Reached(reached, False)
        if sealed or wal.unfinished is None or self._stands(file, wal.length, newer=newer):
            # What follows the last entry (the trailer, or part of an entry) counts as read too, where there is room.
            length = max(wal.length, reached)
            if most is None or length - offset <= most or (whole_entry and reached == offset):
                return Reached(length, True)
            self.short.add(file.name)
        return Reached(reached, False)

    def _stands(self, file: WalFile, length: int, *, newer: bool) -> bool:
        """Whether a file is sealed by the third rule of `wal.files`: its writer broke, and the server continued in the
        next file."""
        if not newer or file.place is not Place.LIVE or not ends_as_listed(self._files, file, length):
            self._standing.pop(file.name, None)
            return False
        known, since = self._standing.get(file.name, (-1, 0.0))
        if known != length:
            self._standing[file.name] = (length, time.monotonic())
            return False
        if time.monotonic() - since < opening.CLOSE_SECONDS:
            return False
        self._lengths[file.name] = length
        return True

    def _open(self, file: WalFile, start: int, batch_bytes: int = BATCH_BYTES) -> Wal:
        return open_wal(self._files, self._root, file, Until.NOW, start=start, batch_bytes=batch_bytes)


class _Remembering:
    """Remembers how far each file could be read, and lets later reads go no further."""

    def __init__(self, reach: Reach) -> None:
        self._reach = reach
        self._seen: dict[str, Reached] = {}

    def __call__(self, file: WalFile, offset: int, most: int | None, *, whole_entry: bool, newer: bool) -> Reached:
        found = self._reach(file, offset, most, whole_entry=whole_entry, newer=newer)
        self._seen[file.name] = found
        return found

    def at_most(self, file: WalFile, offset: int, most: int | None, *, whole_entry: bool, newer: bool) -> Reached:
        """How far the file can be read, but no further than was seen."""
        seen = self._seen.get(file.name)
        if seen is None:
            return Reached(offset, False)
        if most is None or seen.stop - offset <= most:
            return Reached(max(seen.stop, offset), seen.sealed)
        found = self._reach(file, offset, most, whole_entry=whole_entry, newer=newer)
        return found if found.stop < seen.stop else seen
