"""Whether copies of a source's log can be in a folder that an operator names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import takewhile
from posixpath import dirname
from uuid import uuid4

from walferry.errors import WalferryError
from walferry.hbase.address import ClusterAddress
from walferry.storage import FileSystem, WebHdfs
from walferry.wal.copies import as_url, open_folder

UNFINISHED = ".copying"
"""how the name of a file ends that no reader takes for a copy"""


def try_writing(files: FileSystem, folder: str) -> None:
    """Write a small file to a folder and delete it. Raises the file system's errors."""
    probe = f"{folder}/{uuid4().hex}{UNFINISHED}"
    try:
        files.write(probe, [b"walferry"])
    except BaseException:
        with suppress(Exception):  # the first error says more
            files.delete(probe)
        raise
    files.delete(probe)


def folder_faults(url: str, address: ClusterAddress) -> Iterator[str]:
    """Why copies of a source's log cannot be in a folder, given by its URL or path. It deletes what it writes."""
    try:
        files, folder = open_folder(as_url(url), address)
        missing = list(takewhile(lambda path: files.status(path) is None, _up_from(folder)))
        try:
            try_writing(files, folder)
        finally:
            _delete_empty(files, missing)
    except (WalferryError, OSError) as error:
        yield f"copies cannot be written to {url}: {error}"
        return
    if isinstance(files, WebHdfs):
        for name_node, why in files.behind():
            yield f"{url}: {name_node} {why}, so copies could be missing in what it lists: leave it out"


def _up_from(path: str) -> Iterator[str]:
    """A path and each folder above it."""
    while path != dirname(path):
        yield path
        path = dirname(path)


def _delete_empty(files: FileSystem, folders: Iterable[str]) -> None:
    """Delete folders, innermost first, up to one that somebody else has put something into."""
    with suppress(WalferryError, OSError):
        for path in folders:
            files.delete(path)
