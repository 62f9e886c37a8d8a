"""Fences, files and ranges only move forward: the rule for each, and the error when a change would break it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from walferry.errors import WalferryError
from walferry.ledger.rows import RANGE_STATES, FileState, LogPosition, RecordedFile, SeenFile, WalRange

MOST_NAMED = 5
"""most files that one line of the audit trail names"""


def check_advance(run_id: str, recorded: Sequence[LogPosition], positions: Sequence[LogPosition]) -> None:
    """Raise WalferryError when a group's fence would move back."""
    before = {position.group: (position.number, position.offset) for position in recorded}
    for position in positions:
        if (position.number, position.offset) < before.get(position.group, (0, 0)):
            raise WalferryError(
                f"the end fence of run {run_id} in WAL group {position.group} cannot move back to {position.file}",
                run=run_id,
                group=position.group,
            )


def was_sealed(file: RecordedFile | None) -> bool:
    """Whether the file was ever seen sealed."""
    return file is not None and file.sealed_ms is not None


def merge(known: RecordedFile | None, seen: SeenFile, at: int) -> RecordedFile:
    """Merge a listing at moment `at` into the record of a file. An older listing changes nothing."""
    if known is None:
        state: FileState = "sealed" if seen.sealed else "open"
        sealed_ms = at if seen.sealed else None
        return RecordedFile(
            seen.name, seen.group, seen.server, seen.number, seen.path, seen.length, state, at, sealed_ms
        )
    if was_sealed(known) and not seen.sealed:  # an older listing
        seen = replace(seen, path=known.path, sealed=True)
    if seen.length < known.length:  # an older listing too, or one that shows less than was read
        path = seen.path if seen.sealed and not was_sealed(known) else known.path
        seen = replace(seen, path=path, length=known.length)
    return replace(
        known,
        path=seen.path,
        length=seen.length,
        state="sealed" if seen.sealed else "open",
        sealed_ms=known.sealed_ms or (at if seen.sealed else None),
    )


def named(files: Sequence[RecordedFile]) -> dict[str, Any]:
    """Describe WAL files for the audit trail: number, bytes, and the names. Many names are replaced by a digest.

    The digest is the SHA-256 of one line for each file, sorted by name: name, blank, length.
    """
    summary: dict[str, Any] = {"files": len(files), "bytes": sum(file.length for file in files)}
    lines = sorted(f"{file.name} {file.length}" for file in files)
    if len(lines) > MOST_NAMED:
        return summary | {"sha256": hashlib.sha256("\n".join(lines).encode()).hexdigest()}
    return summary | {"names": [line.rpartition(" ")[0] for line in lines]}


def range_key(item: WalRange) -> tuple[str, str, int]:
    """What identifies a range: file, table, start."""
    return (item.file, item.table, item.start)


def check_forward(known: WalRange | None, item: WalRange) -> None:
    """Raise WalferryError that names the range when `item` would move the range backwards."""
    if known is None:
        return
    problem = ""
    if RANGE_STATES.index(item.state) < RANGE_STATES.index(known.state):
        problem = f"is {known.state} and cannot become {item.state} again"
    elif item.end < known.end:
        problem = f"cannot shrink to end at {item.end}"
    elif item.end > known.end and known.state in ("applied", "verified"):
        problem = f"is {known.state} and cannot grow to {item.end}"
    if problem:
        raise WalferryError(
            f"{range_name(known)} {problem}: a range only moves forward",
            file=known.file,
            start=known.start,
            end=known.end,
            table=known.table,
            state=known.state,
        )


def range_name(item: WalRange) -> str:
    """The range as text."""
    return f"range [{item.start}, {item.end}) of WAL file {item.file} for table {item.table}"


def sums(ranges: Sequence[WalRange]) -> dict[str, int]:
    """Bytes, entries and cells of ranges, for the audit trail."""
    return {
        "bytes": sum(item.end - item.start for item in ranges),
        "entries": sum(item.entries for item in ranges),
        "cells": sum(item.cells for item in ranges),
    }
