"""The file system operations that walferry uses, and the errors that every implementation raises."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Protocol
from uuid import uuid4

from walferry.errors import WalferryError


class PermissionDeniedError(WalferryError):
    """The user lacks permission for the operation: facts `path`, `user`."""


class QuotaExceededError(WalferryError):
    """A quota of the file system is used up: fact `path`."""


@dataclass(frozen=True)
class Owner:
    """Whom a file or folder belongs to."""

    user: str
    group: str


@dataclass(frozen=True)
class FileStatus:
    """One file or folder as the file system lists it.

    `length` is in bytes; for an open HDFS file it counts finished blocks only, so it is often 0 although
    `FileSystem.read` returns data. `modified_ms` is in milliseconds since the epoch.
    """

    path: str
    length: int
    is_dir: bool
    modified_ms: int
    block_size: int
    replication: int
    owner: Owner | None = None
    """None if the file system does not tell"""
    mode: int | None = None
    """such as 0o750; with an ACL, the group's part is the most that its entries allow. None if not told"""
    has_acl: bool = False
    """whether HDFS keeps an ACL for it, beside its mode"""
    encrypted: bool = False
    """whether it lies in an encryption zone of HDFS"""

    @property
    def name(self) -> str:
        """Last part of the path."""
        return self.path.rsplit("/", 1)[-1]


class FileSystem(Protocol):
    """Files by absolute path.

    Every method raises FileNotFoundError for a missing path (unless its docstring says otherwise),
    PermissionDeniedError, QuotaExceededError, and TransientError for failures that may pass.
    """

    def list(self, path: str) -> list[FileStatus]:
        """A folder's entries, sorted by name; not recursive. Raises NotADirectoryError for a file."""
        ...

    def status(self, path: str) -> FileStatus | None:
        """The path's status; None if it does not exist."""
        ...

    def read(self, path: str, offset: int = 0, length: int | None = None) -> Iterator[bytes]:
        """Stream the bytes from `offset`, in chunks of at most 4 MiB, to the real end of the file.

        The real end of a file that is still being written lies past its listed length. An offset at or past the end
        yields nothing. The file is opened when the caller takes the first chunk.
        """
        ...

    def write(self, path: str, chunks: Iterable[bytes], *, block_size: int | None = None) -> None:
        """Create the file and its parent folders. Raises FileExistsError if the file exists.

        After an error the file may exist, whole or in part.
        """
        ...

    def rename(self, source: str, destination: str) -> None:
        """Rename a file or folder. Raises FileExistsError when `destination` exists; of two renames of files to one
        destination at the same moment, only one happens. After a broken connection, that of another process may count
        as this one."""
        ...

    def replace(self, source: str, destination: str) -> None:
        """Give a file the name of another one, which is gone then, at once; it need not be there. Raises
        FileExistsError if `destination` is a folder.

        `source` must be a name that no other file has before or after (`temporary`): then a request that a server
        carries out late, after it was given up and repeated, finds no file.
        """
        ...

    def delete(self, path: str, recursive: bool = False) -> bool:
        """Delete a file, or with `recursive` a folder; False if the path did not exist."""
        ...

    def mkdirs(self, path: str, permission: int | None = None) -> None:
        """Create a folder and its parents; no error if the folder exists.

        `permission`: the folder's own mode, such as 0o711, regardless of the umask; also set on an existing folder.
        """
        ...

    def set_permission(self, path: str, permission: int) -> None:
        """Set the mode of a file or folder, such as 0o666."""
        ...

    def give(self, path: str, owner: Owner) -> None:
        """Make a file or folder belong to somebody, which only a superuser of the file system may."""
        ...

    def checksum(self, path: str) -> str | None:
        """The file system's own checksum as "algorithm:hex"; None if the file system keeps none.

        Comparable only between file systems of one kind, with equal block and chunk sizes.
        """
        ...

    def close(self) -> None:
        """Close idle connections; later calls open new ones."""
        ...


@contextmanager
def temporary(files: FileSystem, folder: str) -> Iterator[str]:
    """A path in a folder, with a name of its own, for a file that is to be written and then renamed inside the block.

    After an error what there is of it is deleted, as far as possible.
    """
    path = f"{folder}/{uuid4().hex}"
    try:
        yield path
    except BaseException:
        with suppress(WalferryError, OSError):
            files.delete(path)
        raise
