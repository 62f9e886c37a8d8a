"""WAL files on a cluster's file system: names, groups, places, and which are sealed.

Layout (HBase: AbstractFSWALProvider): live files in `<root>/WALs/<server>/`, those of a dead server in
`<root>/WALs/<server>-splitting/`, closed and flushed ones in `<root>/oldWALs/`, flat or by server.
A file's name is `<group>.<number>`; the group names server and WAL, the number rises within the group. A server has
one group, or with `hbase.wal.provider=multiwal` several, by the strategy of RegionGroupingProvider: `bounded`
(`<server>.<server>.regiongroup-0`), `namespace` (`<server>.<server>.<namespace>`) or `identity` (`<server>.<region>`).

A WAL file is sealed when nobody writes to it any more: its contents and its end are final. It is sealed if one of these
rules holds:

1. It is in oldWALs. HBase archives files that are closed and flushed, and a dead server's files once they are split.
2. It ends with a trailer, which a writer leaves when it closes the file. A newer file of the group in the listing is
   not enough: HBase creates the next file first and switches to it later (AbstractFSWAL.rollWriter), so a file may
   receive edits until it has its trailer.
3. It has no trailer, but after `wal.open.CLOSE_SECONDS` the NameNode lists its whole length, which the NameNode
   does not do for an open file. So the file's writer broke (a DataNode failed), and the server wrote what was not
   acknowledged to the next file. Another replica may have shown more before (`wal.open.ends_as_listed`).
   Only a reader can decide this (`wal.open`), since it knows how many bytes there are.

A dead server's file that is being split (`-splitting`) is not sealed until it is archived.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from posixpath import basename
from typing import NamedTuple
from urllib.parse import unquote

from walferry.errors import TransientError, UsageError
from walferry.formats.wal import TRAILER_MAGIC
from walferry.storage import FileStatus, FileSystem

_GROUP = re.compile(r"^(?P<host>.+?)%2C(?P<port>\d+)%2C(?P<start>\d+)")
_LISTING_ATTEMPTS = 5


class Place(Enum):
    """Where a WAL file is, in the order of its life."""

    LIVE = "live"
    SPLITTING = "splitting"
    ARCHIVED = "archived"


@dataclass(frozen=True)
class WalFile:
    """One WAL file as listed. `length` is what the NameNode says: often 0 for a file that is still open."""

    name: str
    group: str
    server: str
    number: int
    path: str
    place: Place
    length: int
    modified_ms: int = 0
    """of an archived file: when it was closed, by the NameNode's clock"""


class WalName(NamedTuple):
    """The parts of a WAL file's name; `server` is "host,port,startcode"."""

    group: str
    server: str
    number: int


def parse_wal_name(name: str) -> WalName | None:
    """Split a file name.

    None for files that do not hold edits of user tables: `.meta` files, the master's own region, procedure WALs.
    """
    group, _, number = name.rpartition(".")
    if not number.isdecimal():
        return None
    server = _server_of(group)
    return WalName(group, server, int(number)) if server else None


def live_file(root: str, name: str) -> WalFile | None:
    """The file of that name as if it were still live, for readers that look up where it is now (`find_wal`). None as
    from `parse_wal_name`."""
    parsed = parse_wal_name(name)
    return parsed and WalFile(name, *parsed, f"{root}/WALs/{parsed.server}/{name}", Place.LIVE, 0)


@lru_cache(maxsize=4096)
def _server_of(group: str) -> str | None:
    """The server of a WAL group: a listing has many files of few groups."""
    match = _GROUP.match(group)
    if match is None or unquote(group).startswith("pv2-"):
        return None
    return ",".join((unquote(match["host"]), match["port"], match["start"]))


def list_wals(file_system: FileSystem, root: str) -> list[WalFile]:
    """List every WAL file of user tables below `root`, each once, ordered by group and number.

    Live folders are listed before the archive, so that a file that moves between the two listings is seen at least
    once; if it is seen twice, its later place counts. Raises TransientError if folders keep moving.
    """
    return with_archived(list_live(file_system, root), list_archive(file_system, root))


def with_archived(live: Iterable[WalFile], archived: Iterable[WalFile]) -> list[WalFile]:
    """Both lists, each file once, ordered by group and number. A file that moved in between has its later place.

    A copy (`wal.copies`) counts only once the file itself no longer exists.
    """
    found = {file.name: file for file in live}
    found.update((file.name, file) for file in archived if file.name not in found or not is_copy(file.path))
    return sorted(found.values(), key=by_number)


def is_copy(path: str) -> bool:
    """Whether a listed path is that of a copy: those are URLs."""
    return "://" in path


def list_live(file_system: FileSystem, root: str) -> list[WalFile]:
    """List the WAL files of user tables that are not archived, as `list_wals` does. Raises UsageError without WALs/."""
    for _ in range(_LISTING_ATTEMPTS):
        try:
            return sorted(_list_live(file_system, f"{root}/WALs").values(), key=by_number)
        except FileNotFoundError:
            continue  # a folder was renamed to -splitting or removed between the two listings
    if file_system.status(f"{root}/WALs") is None:
        raise UsageError(
            f"there is no folder {root}/WALs, so this is not HBase's root folder, or HBase keeps its logs elsewhere: "
            "check `rootdir` and `webhdfs`, or the path that you gave; if hbase.wal.dir is set, set `waldir` to it, "
            "and `wal_webhdfs` if that is on another HDFS than the root folder",
            path=f"{root}/WALs",
        )
    raise TransientError(f"the folders below {root}/WALs kept moving while they were listed; try again", path=root)


def find_archived(file_system: FileSystem, root: str, name: str) -> WalFile | None:
    """Look up a file in the archive; None if it is not there, or is not a log of user tables.

    A copy (`wal.copies`) counts only once the file itself is in none of the archive's folders.
    """
    parsed = parse_wal_name(name)
    copy = None
    for folder in (f"{root}/oldWALs", f"{root}/oldWALs/{parsed.server}") if parsed else ():
        status = file_system.status(f"{folder}/{name}")
        if status is not None and not is_copy(status.path):
            return _wal(status, Place.ARCHIVED)
        copy = copy or status
    return None if copy is None else _wal(copy, Place.ARCHIVED)


def by_number(file: WalFile) -> tuple[str, int]:
    """Orders files by group, and within it by number."""
    return file.group, file.number


def find_wal(file_system: FileSystem, root: str, file: WalFile) -> WalFile | None:
    """Look up a file again after it moved; None if it no longer exists."""
    # An archived file stays where it is, so one request suffices. Others are looked up in the order of their moves.
    if file.place is Place.ARCHIVED and (archived := find_archived(file_system, root, file.name)):
        return archived
    server_folder = f"{root}/WALs/{file.server}"
    for folder, place in ((server_folder, Place.LIVE), (f"{server_folder}-splitting", Place.SPLITTING)):
        status = file_system.status(f"{folder}/{file.name}")
        if status is not None:
            return _wal(status, place)
    return find_archived(file_system, root, file.name)


def _list_live(file_system: FileSystem, folder: str) -> dict[str, WalFile]:
    found: dict[str, WalFile] = {}
    for server in file_system.list(folder):
        if server.is_dir:
            place = Place.SPLITTING if server.path.endswith("-splitting") else Place.LIVE
            _collect(found, file_system.list(server.path), place)
    return found


def list_archive(file_system: FileSystem, root: str) -> list[WalFile]:
    """List the WAL files of user tables that are archived, in no order."""
    found: dict[str, WalFile] = {}
    try:
        entries = file_system.list(f"{root}/oldWALs")
    except FileNotFoundError:
        return []
    _collect(found, entries, Place.ARCHIVED)
    for entry in entries:
        if entry.is_dir:
            try:
                _collect(found, file_system.list(entry.path), Place.ARCHIVED)
            except FileNotFoundError:
                continue  # the cleaner removes a server's folder once it is empty
    return list(found.values())


def _collect(found: dict[str, WalFile], entries: Iterable[FileStatus], place: Place) -> None:
    for entry in entries:
        file = None if entry.is_dir else _wal(entry, place)
        if file is not None:
            found[file.name] = file


def _wal(status: FileStatus, place: Place) -> WalFile | None:
    name = basename(status.path)
    parsed = parse_wal_name(name)
    if parsed is None:
        return None
    return WalFile(name, *parsed, status.path, place, status.length, status.modified_ms)


def if_sealed(file_system: FileSystem, root: str, file: WalFile) -> WalFile | None:
    """The file as it is now, with its final length, if it is sealed by the first two rules; None if not.

    A file that no longer exists counts as sealed and is returned unchanged.
    """
    now = find_wal(file_system, root, file)
    if now is None or now.place is Place.ARCHIVED:
        return now or file
    if now.place is Place.SPLITTING or now.length < len(TRAILER_MAGIC):
        return None  # the NameNode does not know the length of an open file's last block
    try:
        end = b"".join(file_system.read(now.path, now.length - len(TRAILER_MAGIC)))
    except FileNotFoundError:
        return if_sealed(file_system, root, file)  # moved between locating and reading it
    return now if end.endswith(TRAILER_MAGIC) else None


def listed_as_sealed(files: Iterable[WalFile]) -> set[str]:
    """Names of the files of one complete listing that are sealed, judged by the listing alone.

    Archived files are sealed. So are live files that have a length and a newer file in their group: the NameNode shows
    length 0 for an open file that fits into one block. This is enough for an announcement; before a file is applied,
    its end is checked.
    """
    listed = list(files)
    newest: dict[str, int] = {}
    for file in listed:
        newest[file.group] = max(newest.get(file.group, 0), file.number)
    return {
        file.name
        for file in listed
        if file.place is Place.ARCHIVED
        or (file.place is Place.LIVE and file.number < newest[file.group] and file.length)
    }
