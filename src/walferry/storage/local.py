"""The local file system."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from walferry.storage.filesystem import FileStatus, Owner, PermissionDeniedError, QuotaExceededError

CHUNK_BYTES = 4 << 20
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)
"""of file systems without hard links"""


class Local:
    """The local file system; see `walferry.storage.FileSystem`."""

    def list(self, path: str) -> list[FileStatus]:
        """A folder's entries, sorted by name."""
        with _translated(path):
            return [_status(entry) for entry in sorted(Path(path).iterdir())]

    def status(self, path: str) -> FileStatus | None:
        """The path's status; None if it does not exist."""
        with _translated(path):
            try:
                return _status(Path(path))
            except (FileNotFoundError, NotADirectoryError):
                return None

    def read(self, path: str, offset: int = 0, length: int | None = None) -> Iterator[bytes]:
        """Stream the bytes from `offset`."""
        with _translated(path), Path(path).open("rb") as file:
            file.seek(offset)
            left = length
            while left is None or left > 0:
                chunk = file.read(CHUNK_BYTES if left is None else min(left, CHUNK_BYTES))
                if not chunk:
                    return
                if left is not None:
                    left -= len(chunk)
                yield chunk

    def write(self, path: str, chunks: Iterable[bytes], *, block_size: int | None = None) -> None:
        """Create the file and its parent folders."""
        with _translated(path):
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            with Path(path).open("xb") as file:
                for chunk in chunks:
                    file.write(chunk)

    def rename(self, source: str, destination: str) -> None:
        """Rename a file or folder."""
        if os.path.lexists(destination):
            raise FileExistsError(f"{destination} already exists; {source} was not renamed")
        with _translated(source):
            if Path(source).is_file() and not Path(source).is_symlink():
                try:
                    os.link(source, destination)  # unlike rename, it never replaces a file
                except OSError as error:
                    if error.errno not in _NO_LINKS:
                        raise
                else:
                    Path(source).unlink()
                    return
            os.rename(source, destination)

    def replace(self, source: str, destination: str) -> None:
        """Give a file the name of another one, which is gone then."""
        with _translated(source):
            if Path(destination).is_dir():
                raise FileExistsError(f"{destination} already exists, and is a folder")
            os.replace(source, destination)

    def delete(self, path: str, recursive: bool = False) -> bool:
        """Delete a file, or a folder with `recursive`."""
        with _translated(path):
            if not os.path.lexists(path):
                return False
            try:
                if not Path(path).is_dir() or Path(path).is_symlink():
                    Path(path).unlink()
                elif recursive:
                    _remove_tree(path)
                else:
                    Path(path).rmdir()
            except FileNotFoundError:
                return False  # another process was faster
            return True

    def mkdirs(self, path: str, permission: int | None = None) -> None:
        """Create a folder and its parents."""
        with _translated(path):
            Path(path).mkdir(parents=True, exist_ok=True)
            if permission is not None:
                self.set_permission(path, permission)

    def set_permission(self, path: str, permission: int) -> None:
        """Set the mode of a file or folder."""
        with _translated(path):
            Path(path).chmod(permission)

    def give(self, path: str, owner: Owner) -> None:
        """Make a file or folder belong to somebody."""
        with _translated(path):
            shutil.chown(path, owner.user, owner.group)

    def checksum(self, path: str) -> str | None:
        """None: local file systems keep no checksums."""
        return None

    def close(self) -> None:
        """There is nothing to close."""


def _remove_tree(path: str) -> None:
    """Delete a folder with all that is in it, also while another process does so, too."""
    while os.path.lexists(path):
        try:
            shutil.rmtree(path)
        except FileNotFoundError:
            continue  # the other process was faster with something in it


def _status(path: Path) -> FileStatus:
    facts = path.stat()
    return FileStatus(
        path=str(path),
        length=facts.st_size,
        is_dir=path.is_dir(),
        modified_ms=facts.st_mtime_ns // 1_000_000,
        block_size=facts.st_blksize,
        replication=1,
    )


@contextmanager
def _translated(path: str) -> Iterator[None]:
    """Turn the operating system's errors into those of `FileSystem`."""
    try:
        yield
    except PermissionError as error:
        user = str(os.getuid())
        message = f"permission denied: {path} for the user with id {user}; give that user the right"
        raise PermissionDeniedError(message, path=path, user=user) from error
    except OSError as error:
        if error.errno in _NO_SPACE:
            message = f"no space or quota left while writing {path}; free some and run again"
            raise QuotaExceededError(message, path=path) from error
        raise
