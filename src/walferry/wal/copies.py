"""Copies of WALs in folders of walferry's own (`protect: stage`), shown where HBase would archive the files.

Code that lists or reads the source's log then finds the copy once the original is gone, without knowing of copies. A
file without a closed copy is shown with what was copied while it was open (`wal.pieces`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from errno import ENOENT
from posixpath import basename, dirname

from walferry.hbase.address import ClusterAddress
from walferry.storage import FileStatus, FileSystem, Owner, WebHdfs, open_file_system, open_hdfs
from walferry.wal import pieces
from walferry.wal.files import parse_wal_name

ARCHIVE = "oldWALs"


def with_copies(files: FileSystem, folders: Sequence[str], address: ClusterAddress) -> FileSystem:
    """A cluster's file system whose archive also shows the WALs in these folders (URLs) that it lacks itself.

    The path of a copy is its URL.
    """
    if not folders:
        return files
    return _WithCopies(files, [_Folder(url, *open_folder(url, address)) for url in folders])


def files_of(address: ClusterAddress) -> FileSystem:
    """The file system of a cluster, or the copy of its root, whose archive also shows the copies of its WALs."""
    if address.root_copy is not None:
        files, _ = open_folder(address.root_copy, address)
        return with_copies(files, address.copies, address)
    return with_copies(hdfs_of(address), address.copies, address)


def log_files_of(address: ClusterAddress) -> FileSystem:
    """The file system that has a cluster's WALs, as `files_of` that of its root."""
    return files_of(address.of_log)


def hdfs_of(address: ClusterAddress) -> WebHdfs:
    """The HDFS of a cluster itself, without copies of its WALs."""
    if address.webhdfs is None:
        raise ValueError(f"the address of the cluster at {address.zookeeper} names no WebHDFS")
    return open_hdfs(address.webhdfs, address.user, address.name_node, address.meter(), address.security)


def open_folder(url: str, address: ClusterAddress) -> tuple[FileSystem, str]:
    """The file system of a folder given by its URL, and the path on it, for the identity at a cluster; a user in the
    URL counts more than the cluster's."""
    named = "@" in url.partition("://")[2].partition("/")[0]
    return open_file_system(url, user=None if named else address.user, security=address.security)


def as_url(folder: str) -> str:
    """A folder as a URL. A plain path means a folder on this machine, or one that all machines mount."""
    return (folder if "://" in folder else f"file://{folder}").rstrip("/")


@dataclass(frozen=True)
class _Folder:
    url: str
    files: FileSystem
    path: str

    def named(self, status: FileStatus) -> FileStatus:
        return replace(status, path=f"{self.url}/{basename(status.path)}")

    def status(self, name: str) -> FileStatus | None:
        found = self.files.status(f"{self.path}/{name}")
        return None if found is None else self.named(found)

    def open_names(self) -> list[str]:
        """The files that have pieces."""
        return pieces.names_with_pieces(self.files, self.path)

    def list(self) -> list[FileStatus]:
        try:
            return [self.named(status) for status in self.files.list(self.path)]
        except FileNotFoundError:
            return []  # its run has ended

    def open_status(self, name: str) -> FileStatus | None:
        """What the pieces of a file have, as one file; None without pieces."""
        found = pieces.list_pieces(self.files, self.path, name)
        length = pieces.length_of(found)
        if not length:
            return None
        changed = max(piece.modified_ms for piece in found)
        return FileStatus(f"{self.url}/{pieces.FOLDER}/{name}", length, False, changed, 0, 1)

    def read_open(self, name: str, offset: int, length: int | None) -> Iterator[bytes]:
        """The bytes of a file's pieces. Raises FileNotFoundError without pieces: the closed copy is there then."""
        found = pieces.list_pieces(self.files, self.path, name)
        if not found:
            raise FileNotFoundError(ENOENT, "no such file", f"{self.url}/{pieces.FOLDER}/{name}")
        yield from pieces.read_pieces(self.files, found, offset, length)


@dataclass(frozen=True)
class _Copy:
    """A copy in a folder, or what the pieces of a file have (`open`)."""

    folder: _Folder
    name: str
    open: bool

    def status(self) -> FileStatus | None:
        return self.folder.open_status(self.name) if self.open else self.folder.status(self.name)

    def read(self, offset: int, length: int | None) -> Iterator[bytes]:
        if self.open:
            return self.folder.read_open(self.name, offset, length)
        return self.folder.files.read(f"{self.folder.path}/{self.name}", offset, length)


class _WithCopies:
    """A file system with copies in its archive; see `walferry.storage.FileSystem`."""

    def __init__(self, files: FileSystem, folders: Sequence[_Folder]) -> None:
        self._files = files
        self._folders = folders

    def list(self, path: str) -> list[FileStatus]:
        """A folder's entries, sorted by name; for the archive also the copies of files that it lacks."""
        if basename(path) != ARCHIVE:
            return self._files.list(path)
        try:
            here = self._files.list(path)
        except FileNotFoundError:
            here = []
        names = {status.name for status in here}
        copies = {
            status.name: status
            for folder in self._folders
            for status in folder.list()
            if status.name not in names and parse_wal_name(status.name)
        }
        ends = {name for folder in self._folders for name in folder.open_names() if parse_wal_name(name)}
        found = [self._longest_end(name) for name in ends - names - copies.keys()]
        return sorted([*here, *copies.values(), *filter(None, found)], key=lambda status: status.name)

    def status(self, path: str) -> FileStatus | None:
        """The path's status, or that of its copy; None if neither exists."""
        if (found := self._copied(path)) is not None:
            return found.status()
        if (here := self._files.status(path)) is not None or basename(dirname(path)) != ARCHIVE:
            return here
        name = basename(path)
        if parse_wal_name(name) is None:
            return None
        closed = (folder.status(name) for folder in self._folders)
        return next((copy for copy in closed if copy is not None), None) or self._longest_end(name)

    def read(self, path: str, offset: int = 0, length: int | None = None) -> Iterator[bytes]:
        """Stream the bytes from `offset`."""
        found = self._copied(path)
        return self._files.read(path, offset, length) if found is None else found.read(offset, length)

    def write(self, path: str, chunks: Iterable[bytes], *, block_size: int | None = None) -> None:
        """Create the file on the cluster's own file system."""
        self._files.write(path, chunks, block_size=block_size)

    def rename(self, source: str, destination: str) -> None:
        """Rename a file or folder of the cluster's own."""
        self._files.rename(source, destination)

    def replace(self, source: str, destination: str) -> None:
        """Give a file of the cluster's own the name of another one."""
        self._files.replace(source, destination)

    def delete(self, path: str, recursive: bool = False) -> bool:
        """Delete a file or folder of the cluster's own."""
        return self._files.delete(path, recursive)

    def mkdirs(self, path: str, permission: int | None = None) -> None:
        """Create a folder on the cluster's own file system."""
        self._files.mkdirs(path, permission)

    def set_permission(self, path: str, permission: int) -> None:
        self._files.set_permission(path, permission)

    def give(self, path: str, owner: Owner) -> None:
        self._files.give(path, owner)

    def checksum(self, path: str) -> str | None:
        """The checksum of a file of the cluster's own."""
        return self._files.checksum(path)

    def close(self) -> None:
        """Close the idle connections to the cluster and to the folders."""
        for files in (self._files, *(folder.files for folder in self._folders)):
            files.close()

    def _longest_end(self, name: str) -> FileStatus | None:
        """What the pieces of a file have, in the folder that has most of it."""
        found = [status for folder in self._folders if (status := folder.open_status(name)) is not None]
        return max(found, key=lambda status: status.length, default=None)

    def _copied(self, path: str) -> _Copy | None:
        """The copy, if the path is that of a copy."""
        parent, name = dirname(path), basename(path)
        for folder in self._folders:
            if parent in (folder.url, f"{folder.url}/{pieces.FOLDER}"):
                return _Copy(folder, name, parent != folder.url)
        return None
