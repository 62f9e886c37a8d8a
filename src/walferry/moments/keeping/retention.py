"""What is still needed to restore every moment that is promised, and what is not: pure functions.

A base has every edit that was acknowledged before its snapshot began. So it needs of the log only what may hold later
edits: in a WAL group of its fence the files from the fence on, and of other groups every file that was not closed when
the snapshot began. When a file was closed is not known by this machine's clock, but when it was copied, which is later.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from walferry.ledger.rows import Base

DAY_MS = 86_400_000


@dataclass(frozen=True)
class KeptLog:
    """A copy of a WAL in the folder."""

    name: str
    group: str
    number: int
    bytes: int
    copied_ms: int
    """when the copy of the closed file was complete; of pieces: when the last one was"""


def needs(base: Base, file: KeptLog) -> bool:
    """Whether a restore from this base may need a file of the log."""
    if file.group in base.fence:
        return file.number >= base.fence[file.group]
    return file.copied_ms >= base.begun_ms


def unneeded(bases: Collection[Base], files: Iterable[KeptLog]) -> set[str]:
    """Names of the files that no base needs; none while there is no base: one may be about to be taken."""
    if not bases:
        return set()
    return {file.name for file in files if not any(needs(base, file) for base in bases)}


def expired(bases: Iterable[Base], gone_ms: Mapping[str, int], before_ms: int) -> list[Base]:
    """The bases that no moment from `before_ms` on needs, oldest first: a newer one of the table was complete by then,
    or the table was gone by then (`gone_ms`: since when a table has not existed)."""
    found = []
    for table, of_table in _by_table(bases).items():
        found += [old for old, newer in pairwise(of_table) if newer.complete_ms <= before_ms]
        if gone_ms.get(table, before_ms + 1) <= before_ms:
            found += [base for base in of_table if base not in found]
    return sorted(found, key=_by_time)


def too_large(
    bases: Sequence[Base], files: Sequence[KeptLog], base_bytes: Mapping[str, int], most_bytes: float
) -> list[Base]:
    """The bases to drop before their time, oldest first, so that the folder has at most so many bytes. The newest base
    of each table, and the log since, stay whatever they take. `base_bytes`: bytes in the folder of each base alone, by
    its snapshot."""
    newest = {of_table[-1].snapshot for of_table in _by_table(bases).values()}
    left, dropped = sorted(bases, key=_by_time), list[Base]()

    def size() -> float:
        over = unneeded(left, files)
        log = sum(file.bytes for file in files if file.name not in over)
        return log + sum(base_bytes.get(base.snapshot, 0) for base in left)

    for base in sorted(bases, key=_by_time):
        if size() <= most_bytes:
            break
        if base.snapshot not in newest:
            left.remove(base)
            dropped.append(base)
    return dropped


def _by_table(bases: Iterable[Base]) -> dict[str, list[Base]]:
    found: dict[str, list[Base]] = {}
    for base in sorted(bases, key=_by_time):
        found.setdefault(base.table, []).append(base)
    return found


def _by_time(base: Base) -> tuple[int, str]:
    return base.complete_ms, base.snapshot
