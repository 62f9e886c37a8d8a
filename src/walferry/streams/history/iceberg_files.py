"""Files of Iceberg tables, as pyiceberg asks for them, on walferry's own file systems: pyiceberg knows no WebHDFS.

pyiceberg and all engines name a file by its location, a URL such as hdfs://nameservice/history/orders/…. All files of a
history's tables lie below one such location, its folder's.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass, field
from posixpath import dirname
from types import TracebackType
from typing import Any, Self, cast

from pyiceberg.io import FileIO, InputFile, OutputFile

from walferry.errors import UsageError
from walferry.storage import FileSystem, temporary

FOLDER = "walferry.folder"
"""the property of a catalogue that has the `Folder`"""
BUFFER = 1 << 16
"""bytes that are read at least: the end of a Parquet file"""


@dataclass(frozen=True)
class Folder:
    """A history's folder, and how engines name it. Both without a trailing slash."""

    files: FileSystem
    path: str
    location: str
    doomed: list[str] = field(default_factory=list)
    """locations that pyiceberg has asked to delete; who has started a commit knows when they may be deleted"""

    def path_of(self, location: str) -> str:
        """The path of a file below the location. Raises UsageError for one elsewhere."""
        scheme, host, path = _parts(location)
        own_scheme, own_host, own_path = _parts(self.location)
        # Hadoop shortens file:///path to file:/path, and fills in the default host of hdfs:///path.
        is_own = scheme == own_scheme and (host == own_host or not host or not own_host)
        if not is_own or not path.startswith(f"{own_path}/"):
            raise UsageError(
                f"{location} is not below {self.location}, where this history is: the Iceberg table with it is another "
                "history's, or was moved. Set another name for the table in the spec (iceberg)",
                location=location,
            )
        return f"{self.path}{path.removeprefix(own_path)}"

    def has(self, location: str) -> bool:
        """Whether there is a file at a location."""
        return self.files.status(self.path_of(location)) is not None

    def location_of(self, path: str) -> str:
        """The location of a file of the folder; `path`: as the file system has it."""
        return f"{self.location}/{path.removeprefix(f'{self.path}/')}"


class FolderIO(FileIO):
    """Reads and writes the files of a `Folder`, which is the property FOLDER."""

    def __init__(self, properties: Mapping[str, Any]) -> None:
        """pyiceberg calls it, with the properties of the catalogue and of the table."""
        super().__init__(cast(dict[str, str], properties))
        self._folder: Folder = properties[FOLDER]

    def new_input(self, location: str) -> InputFile:
        """A file to read."""
        return _File(location, self._folder)

    def new_output(self, location: str) -> OutputFile:
        """A file to write."""
        return _File(location, self._folder)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        """Note a file that is to be deleted."""
        self._folder.doomed.append(location if isinstance(location, str) else location.location)


class _File(InputFile, OutputFile):
    def __init__(self, location: str, folder: Folder) -> None:
        super().__init__(location)
        self._folder, self._path = folder, folder.path_of(location)

    def __len__(self) -> int:
        return _length(self._folder.files, self._path)

    def exists(self) -> bool:
        return self._folder.has(self.location)

    def open(self, seekable: bool = True) -> Any:
        return io.BufferedReader(_Reading(self._folder.files, self._path), BUFFER)

    def to_input_file(self) -> InputFile:
        return self

    def create(self, overwrite: bool = False) -> Any:
        return _Writing(self._folder.files, self._path, overwrite)


class _Reading(io.RawIOBase):
    """A file that is read from any place; its length is asked for when it is opened."""

    def __init__(self, files: FileSystem, path: str) -> None:
        super().__init__()
        self._files, self._path, self._at = files, path, 0
        self._length = _length(files, path)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._length}[whence]
        return self._at

    def readinto(self, buffer: Any) -> int:
        content = self._read(min(len(buffer), self._length - self._at))
        buffer[: len(content)] = content
        return len(content)

    def readall(self) -> bytes:
        return self._read(self._length - self._at)

    def _read(self, length: int) -> bytes:
        content = b"".join(self._files.read(self._path, self._at, length)) if length > 0 else b""
        self._at += len(content)
        return content


class _Writing:
    """A file that is written as a whole, when it is closed; not after an error."""

    def __init__(self, files: FileSystem, path: str, overwrite: bool) -> None:
        self._files, self._path, self._overwrite = files, path, overwrite
        self._content: io.BytesIO | None = io.BytesIO()

    def write(self, content: bytes) -> int:
        assert self._content is not None, "the file is closed"
        return self._content.write(content)

    def tell(self) -> int:
        assert self._content is not None, "the file is closed"
        return self._content.tell()

    def close(self) -> None:
        content, self._content = self._content, None
        if content is None:
            return
        if not self._overwrite:
            self._files.write(self._path, [content.getvalue()])
            return
        with temporary(self._files, dirname(self._path)) as begun:
            self._files.write(begun, [content.getvalue()])
            self._files.replace(begun, self._path)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()


def _parts(location: str) -> tuple[str, str, str]:
    """Scheme, host and path of a location: nothing in it is percent-decoded, nor are there queries."""
    scheme, _, rest = location.partition(":")
    host, slash, path = rest[2:].partition("/") if rest.startswith("//") else ("", rest[:1], rest[1:])
    return scheme, host, slash + path


def _length(files: FileSystem, path: str) -> int:
    status = files.status(path)
    if status is None:
        raise FileNotFoundError(f"{path} is gone")
    return status.length
