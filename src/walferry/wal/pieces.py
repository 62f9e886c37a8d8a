"""The ends of open logs in a run's folder: what was visible of each file, in pieces, until its closed copy is there.

A piece is `open/<WAL name>/<first byte>-<end>`, both with 16 digits. Pieces may overlap, since several processes may
write them, and a rewritten one replaces many: each has the same bytes of the file. A piece past a hole counts only once
the hole is filled.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from walferry.storage import FileSystem

FOLDER = "open"
_NAME = re.compile(r"^(\d{16})-(\d{16})$")


@dataclass(frozen=True)
class Piece:
    """Bytes of a WAL from `first` to before `end`."""

    path: str
    first: int
    end: int
    modified_ms: int


def folder_of(folder: str, name: str) -> str:
    """Where the pieces of a WAL are, in a run's folder."""
    return f"{folder}/{FOLDER}/{name}"


def is_of_pieces(path: str) -> bool:
    """Whether a listed file is put together from pieces (`wal.copies`): it has no closed copy."""
    return path.rpartition("/")[0].endswith(f"/{FOLDER}")


def piece_name(first: int, end: int) -> str:
    """The name of a piece with the bytes from `first` to before `end`."""
    return f"{first:016d}-{end:016d}"


def names_with_pieces(files: FileSystem, folder: str) -> list[str]:
    """The WALs that have pieces in a run's folder, or had some."""
    try:
        return [status.name for status in files.list(f"{folder}/{FOLDER}") if status.is_dir]
    except FileNotFoundError:
        return []


def list_pieces(files: FileSystem, folder: str, name: str) -> list[Piece]:
    """The pieces of a WAL, by their first byte; [] if it has none."""
    try:
        listed = files.list(folder_of(folder, name))
    except FileNotFoundError:
        return []
    pieces = []
    for status in listed:
        match = _NAME.match(status.name)
        if match is not None:
            first = int(match[1])
            # A machine that lost its power may have kept less of a file than its name says.
            end = min(int(match[2]), first + status.length)
            pieces.append(Piece(status.path, first, end, status.modified_ms))
    return sorted(pieces, key=lambda piece: (piece.first, -piece.end))


def parts(pieces: Iterable[Piece]) -> Iterator[tuple[Piece, int, int]]:
    """Which bytes to take of which pieces to read a WAL from its beginning without a hole: (piece, first, end)."""
    position = 0
    for piece in pieces:
        if piece.first > position:
            return
        if piece.end > position:
            yield piece, position, piece.end
            position = piece.end


def length_of(pieces: Iterable[Piece]) -> int:
    """How many bytes of a WAL its pieces have from its beginning without a hole."""
    return max((end for _, _, end in parts(pieces)), default=0)


def read_pieces(
    files: FileSystem, pieces: Iterable[Piece], offset: int = 0, length: int | None = None
) -> Iterator[bytes]:
    """The bytes of a WAL from `offset`, out of its pieces. Raises FileNotFoundError if a piece is gone: the closed copy
    is there then."""
    stop = None if length is None else offset + length
    for piece, first, end in parts(pieces):
        begin, until = max(first, offset), end if stop is None else min(end, stop)
        if begin < until:
            yield from files.read(piece.path, begin - piece.first, until - begin)
