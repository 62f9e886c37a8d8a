"""When a WAL file is sealed: nobody writes to it any more, so what it holds and where it ends is final.

A file is sealed when one of these holds:

1. It is in oldWALs. HBase archives what is closed and flushed, and what it has split of a dead server's.
2. Its trailer is at its end. A writer leaves one when it closes the file. That a newer file of the group is listed is
   not enough: HBase makes the next file first and changes over to it later (AbstractFSWAL.rollWriter), so that a file
   may get edits until its trailer is there.
3. It has no trailer, but the NameNode knows its whole length, which it does not of a file that is open, and still does
   after `wal.open.CLOSE_SECONDS`: its writer broke (a DataNode failed), and the server wrote what was not acknowledged
   to the next file. Only a reader can tell (`wal.open`), since it knows how much there is to be read.

A file of a dead server that is being split (`-splitting`) is not sealed: it is once it is archived.
"""

from __future__ import annotations

from collections.abc import Iterable

from walferry.formats.wal import TRAILER_MAGIC
from walferry.storage import FileSystem
from walferry.wal.files import Place, WalFile, find_wal


def is_sealed(file_system: FileSystem, root: str, file: WalFile) -> bool:
    """Whether a file is sealed now, wherever it moved, by the first two rules; one that no longer exists is."""
    now = find_wal(file_system, root, file)
    if now is None or now.place is Place.ARCHIVED:
        return True
    if now.place is Place.SPLITTING or now.length < len(TRAILER_MAGIC):
        return False  # the length of an open file's last block is not known to the NameNode
    try:
        end = b"".join(file_system.read(now.path, now.length - len(TRAILER_MAGIC)))
    except FileNotFoundError:
        return is_sealed(file_system, root, file)  # moved on between the look and the read
    return end.endswith(TRAILER_MAGIC)


def listed_as_sealed(files: Iterable[WalFile]) -> set[str]:
    """Names of the files of one whole listing that are sealed as far as the listing alone can tell.

    Archived ones; and live ones with a newer file in their group and a length, for of a file that fits into one block
    the NameNode shows none before it is closed. Enough to tell people of it; whoever applies a file looks at its end.
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
