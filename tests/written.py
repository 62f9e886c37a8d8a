"""Files of tests that are written whatever is there: `FileSystem.write` only creates."""

from __future__ import annotations

from collections.abc import Iterable

from walferry.storage import FileSystem


def write_anew(files: FileSystem, path: str, chunks: Iterable[bytes]) -> None:
    """Write a file in place of the one that may be there."""
    files.delete(path)
    files.write(path, chunks)
