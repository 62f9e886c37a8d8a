"""The only way to read a WAL file: `open_wal`, wherever HBase has moved it, sealed or still being written."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from errno import ENOENT
from posixpath import basename

import numpy as np

from walferry.errors import (
    DamagedInputError,
    GapError,
    TransientError,
    UnfinishedInputError,
    WalKeyError,
    WrongWalKeyError,
)
from walferry.formats.wal import MAGIC, Ending, EntryBatch, WalReader
from walferry.formats.wal_header import WalHeader
from walferry.security.handed import WorkerLoginError
from walferry.storage import FileSystem
from walferry.wal.files import Place, WalFile, find_wal, parse_wal_name
from walferry.wal.keys import KEY_DAMAGED, is_damaged, master_keys

CLOSE_SECONDS = 20.0
BATCH_BYTES = 16 << 20
RECOVERED_EDITS = "recovered.edits"
"""the folder of a region in which HBase puts the edits of a dead server's logs"""
_HEADER_BYTES = 4096  # real headers have 80 to 170

_log = logging.getLogger(__name__)


class Until(Enum):
    """How far a file is read."""

    SEALED = "sealed"
    """to its true end: waits up to CLOSE_SECONDS for the file to be sealed (`wal.files`)"""
    NOW = "now"
    """what it holds now, sealed or not"""


def open_wal(
    files: FileSystem,
    root: str,
    file: WalFile,
    until: Until = Until.SEALED,
    *,
    start: int = 0,
    stop: int | None = None,
    batch_bytes: int = BATCH_BYTES,
    just_listed: bool = False,
) -> Wal:
    """Open a listed file below HBase's `root`, and follow it when it moves. Nothing is read yet.

    `start` (0, or where an entry ends) and `stop` are positions in the file in bytes: only entries that end after
    `start`, and at or before `stop`, are returned. A file with dictionaries is read from its beginning all the same.
    `stop` overrides `until`: the file is read up to `stop`, waiting for CLOSE_SECONDS while less of it is visible.
    A file that was `just_listed` is looked for only if it is no longer where it was listed.

    Reading raises GapError if the file no longer exists.
    """

    def locate() -> WalFile:
        nonlocal just_listed
        if just_listed:
            just_listed = False
            return file
        now = find_wal(files, root, file)
        if now is None:
            raise GapError(
                f"WAL file {file.name} is missing from WALs, -splitting and oldWALs; last seen at {file.path}. The "
                f"log has a gap: if you still have the file, put it into {root}/oldWALs and run again; if it is "
                "lost, abort this run and start over with a new snapshot",
                file=file.name,
                start=0,
                end=None,
            )
        return now

    return Wal(files, file.name, locate, until, batch_bytes, start, stop)


def open_wal_at(files: FileSystem, path: str, name: str | None = None, *, batch_bytes: int = BATCH_BYTES) -> Wal:
    """A file by its path, to be read as it is now; `name`, by default the path, names it in errors.

    A file below a WALs folder is followed when HBase moves it. Reading raises FileNotFoundError when it does not exist.
    """
    root, live, _ = path.rpartition("/WALs/")
    parsed = parse_wal_name(basename(path)) if live else None
    file = WalFile(basename(path), *(parsed or ("", "", 0)), path, Place.LIVE, 0)

    def locate() -> WalFile:
        if files.status(path) is not None:
            return file
        moved = find_wal(files, root, file) if parsed else None
        if moved is None:
            raise FileNotFoundError(ENOENT, "no such file", name or path)
        return moved

    return Wal(files, name or path, locate, Until.NOW, batch_bytes)


def ends_as_listed(files: FileSystem, file: WalFile, read: int) -> bool:
    """Whether the file, of which `read` bytes were read, ends where the NameNode lists its end, so that it may be
    closed.

    The listed end is before `read` if another replica had shown more, which was never acknowledged. The NameNode lists
    an open file without its last block, although that block's bytes can be read: such a file does not end there.
    """
    if not 0 < file.length < read:
        return 0 < file.length == read
    try:
        return next(iter(files.read(file.path, file.length, 1)), None) is None
    except FileNotFoundError:
        return False  # it moved


def is_length_final(files: FileSystem, file: WalFile) -> bool:
    """Whether the NameNode lists the length that a file has in the end. It does not before the file is closed, even if
    its trailer can be read, nor while the log of a dead server is recovered."""
    if file.place is Place.SPLITTING or (file.place is Place.LIVE and not file.length):
        return False
    try:
        return next(iter(files.read(file.path, file.length, 1)), None) is None
    except FileNotFoundError:
        return False  # it moved
    except WorkerLoginError:
        raise
    except TransientError as error:  # as while its data node is away
        _log.info("the length of %s is not known to be final: %s", file.path, error)
        return False


def bytes_held(files: FileSystem, root: str, file: WalFile) -> int:
    """How many bytes of a file certainly hold entries; 0 if it has none now. Reads only the file's beginning.

    The NameNode lists an open file with length 0, whatever it holds. A file that cannot be read counts as holding
    entries.
    """
    try:
        for batch in open_wal(files, root, file, Until.NOW, batch_bytes=_HEADER_BYTES):
            return int(batch.offset_end[-1])
    except (DamagedInputError, WalKeyError):
        return 1
    except GapError:
        pass  # deleted since it was listed
    return 0


class Wal:
    """The entries of one WAL file. Iterate once, or ask for the `header` alone.

    Both raise DamagedInputError after the entries that precede the damage, UnreadableInputError for a kind of file that
    cannot be read, WalKeyError for an encrypted one without its key (`wal.keys`), and the errors of `open_wal` or
    `open_wal_at`. Iterating until SEALED raises TransientError when the file is not sealed in time. Iterating up to a
    `stop` raises it when the file does not become visible up to there in time.
    """

    def __init__(
        self,
        file_system: FileSystem,
        name: str,
        locate: Callable[[], WalFile],
        until: Until,
        batch_bytes: int,
        start: int = 0,
        stop: int | None = None,
    ) -> None:
        self._file_system = file_system
        self._name = name
        self.locate = locate
        """where the file is now"""
        self._until = until
        self._batch_bytes = batch_bytes
        self._start = start
        self._stop = stop
        self._kept: WalReader | None = None
        self._midway = False
        """whether the last call of `more` was given up before its end"""
        self._path = ""
        self.length = 0
        """bytes in the file, known after the last entry"""
        self.unfinished: UnfinishedInputError | None = None
        """after the last entry: why the file has no proper end; None for one with a trailer"""

    def header(self) -> WalHeader | None:
        """Who wrote the file and how; None when its header is not complete yet."""
        while True:
            path = self.locate().path
            try:
                return self._reader(path, self._file_system.read(path, 0, _HEADER_BYTES), _HEADER_BYTES).header
            except FileNotFoundError:
                continue  # moved between locating and reading it
            except UnfinishedInputError:
                return None

    def more(self) -> Iterator[EntryBatch]:
        """The entries from the file's beginning or, when called again, those that have become visible since.

        Nothing is read twice, not even in a file with dictionaries. Use this instead of iterating, and consume it to
        the end each time. If the end was not reached, even because of an error, open the file again. The file is
        followed into the archive. Raises FileNotFoundError once HBase has started to split the file of a dead server,
        and the errors of iterating.
        """
        if self._midway:
            raise RuntimeError(
                f"{self._name} was not read to its end the last time, so it is unknown where to continue"
            )
        self._midway = True
        while True:
            path = self._path = self._path or self.locate().path
            try:
                if self._kept is None:
                    self._kept = self._reader(path, self._file_system.read(path), self._batch_bytes)
                else:
                    self._kept.resume(self._file_system.read(path, self._kept.needs))
                yield from self._kept
                break
            except UnfinishedInputError as error:
                self.unfinished, self._midway = error, False
                return
            except FileNotFoundError:
                now = self.locate()
                if now.path == path or now.place is not Place.ARCHIVED:
                    raise
                self._path = now.path
        self._midway = False
        self.length = self._kept.length
        self.unfinished = _no_trailer(self._name, self._kept) if self._kept.ending is Ending.UNFINISHED else None

    def __iter__(self) -> Iterator[EntryBatch]:
        deadline = time.monotonic() + CLOSE_SECONDS
        reader: WalReader | None = None
        while True:
            now = self.locate()
            ending = Ending.UNFINISHED
            try:
                if reader is None:
                    reader = self._begin(now.path)
                else:
                    reader.resume(self._file_system.read(now.path, reader.needs))
                for batch in reader:
                    yield from self._wanted(batch)
                    if self._stop is not None and reader.end >= self._stop:
                        return
                    del batch  # free its bytes before the next ones are read
                self.length, ending = reader.length, reader.ending
                self.unfinished = _no_trailer(self._name, reader) if ending is Ending.UNFINISHED else None
            except FileNotFoundError:
                continue  # moved between locating and reading it
            except UnfinishedInputError as error:
                # No complete header: the writer has only just started, or its server died at once.
                self.length, self.unfinished = now.length, error
            except DamagedInputError as error:
                if self._stop is not None and error.offset >= self._stop:
                    return
                raise
            except TransientError as error:
                # Up to `stop` it could be read a moment ago: HDFS may be recovering the lease of a dead server.
                late = self._stop is None or time.monotonic() > deadline
                if late or isinstance(error, WorkerLoginError):
                    raise
                time.sleep(0.5)
                continue
            if self._stop is None and self._until is Until.NOW:
                return
            if self._ends(now, ending, late=time.monotonic() > deadline):
                return
            time.sleep(0.5)

    def _ends(self, now: WalFile, ending: Ending, *, late: bool) -> bool:
        """Whether reading is over: the rest is not wanted, or there is none. Raises TransientError if that is still
        unknown when `late`.

        A sealed file may end before `stop`: bytes that only one replica had shown were never acknowledged.
        """
        if self._stop is not None and self.length >= self._stop:
            return True
        # The last one is the third rule of `wal.files`: its writer broke.
        broken = late and 0 < now.length == self.length
        if late and now.length < self._start:  # none of the bytes taken back were returned
            broken = ends_as_listed(self._file_system, now, self._start)
        if ending is Ending.WHOLE or now.place is Place.ARCHIVED or broken:
            if self._stop is not None:
                _log.warning(
                    "WAL file %s was sealed with %d bytes, although %d had been visible: the rest were never "
                    "acknowledged", self._name, now.length if broken else self.length, self._stop,
                )  # fmt: skip
            return True
        if not late:
            return False
        reason = f"is not closed yet ({now.place.value}); the next round tries again"
        if self._stop is not None:
            reason = f"shows {self.length} bytes, but had shown {self._stop}; another replica may show them: try again"
        raise TransientError(f"WAL file {self._name} {reason}", file=self._name)

    def _begin(self, path: str) -> WalReader:
        if self._start:
            try:
                reader = self._reader(path, self._file_system.read(path, 0, _HEADER_BYTES), self._batch_bytes)
                if reader.can_skip and self._start > reader.end:
                    reader.skip_to(self._start, self._file_system.read(path, self._start))
                    return reader
            except UnfinishedInputError:
                pass  # a longer header, or none yet
        return self._reader(path, self._file_system.read(path), self._batch_bytes)

    def _wanted(self, batch: EntryBatch) -> Iterator[EntryBatch]:
        """The entries that end past `start`, and at or before `stop`."""
        ends = batch.offset_end
        if ends[0] <= self._start or (self._stop is not None and ends[-1] > self._stop):
            stop = ends[-1] if self._stop is None else self._stop
            batch = batch.take(np.flatnonzero((ends > self._start) & (ends <= stop)))
        if len(batch):
            yield batch

    def _reader(self, path: str, chunks: Iterable[bytes], batch_bytes: int) -> WalReader:
        recovered = f"/{RECOVERED_EDITS}/" in path
        try:
            return WalReader(chunks, self._name, batch_bytes=batch_bytes, recovered=recovered, keys=master_keys)
        except WrongWalKeyError as error:
            if is_damaged(basename(self._name)):
                reason = f"the key in its header is damaged, according to {KEY_DAMAGED}"
                raise DamagedInputError(
                    f"{self._name} is damaged at byte {len(MAGIC)}: {reason}",
                    file=self._name,
                    offset=len(MAGIC),
                    reason=reason,
                ) from None
            raise WrongWalKeyError(
                f"{error.message}. If that key opens other WALs of the same time, this file is damaged: add its "
                f"name to {KEY_DAMAGED}, and it is quarantined like other damaged files",
                **error.facts,
            ) from None


def _no_trailer(name: str, reader: WalReader) -> UnfinishedInputError:
    left = reader.length - reader.end
    reason = "the file ends inside an entry" if left else "the file ends without a trailer"
    return UnfinishedInputError(
        f"{name} is unfinished at byte {reader.end}: {reason}; all {reader.end} bytes before it were read",
        file=name,
        offset=reader.end,
        reason=reason,
    )


def entry_at(wal: Iterable[EntryBatch], offset: int) -> tuple[bytes, int]:
    """The entry that begins at an offset of its file, as a plain entry, and the offset after it.

    Raises ValueError if no entry begins there.
    """
    for batch in wal:
        for entry in np.flatnonzero(batch.offset == offset):
            return batch.buffer[batch.start[entry] : batch.end[entry]].tobytes(), int(batch.offset_end[entry])
    raise ValueError(f"no entry begins at byte {offset}")


def edits_of(batch: EntryBatch, table: str) -> EntryBatch:
    """The entries with edits of one table, markers left out."""
    return batch.take(np.flatnonzero(batch.edits & batch.of_tables({table})))
