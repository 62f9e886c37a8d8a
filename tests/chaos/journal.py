"""The journal of what the writer did: one line for each mutation, and what must be seen of them.

Only what the journal alone can decide is decided: columns that one thread writes with timestamps of the server.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

Outcome = Literal["acked", "unknown"]
SLOW_S = 2.0
"""a mutation that took longer may have been sent more than once: an early copy may come late"""


@dataclass(frozen=True)
class Entry:
    """One mutation: `what` is put, delete or add (an increment), `value` what a reader then sees of the column, or the
    amount. Edits of columns that are not decided have the kind of the edit as `what`."""

    table: str
    row: str
    column: str
    what: str
    value: str | None
    began_ms: int
    took_ms: int
    outcome: Outcome
    timestamp: int | None = None

    @property
    def is_unsure(self) -> bool:
        """Whether it may have been done later than it seems, or not at all."""
        return self.outcome != "acked" or self.took_ms > SLOW_S * 1000


class Journal:
    """Appends entries to a file, each as soon as its outcome is known."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", buffering=1)
        self.entries = 0

    def write(self, entry: Entry) -> None:
        self._file.write(json.dumps(asdict(entry)) + "\n")
        self.entries += 1

    def close(self) -> None:
        self._file.close()


def read(folder: Path) -> Iterator[Entry]:
    """The entries of all journals of a folder, in each one's order."""
    for path in sorted(folder.glob("journal-*.jsonl")):
        for line in path.read_text().splitlines():
            yield Entry(**json.loads(line))


@dataclass(frozen=True)
class Column:
    """A column of a source table."""

    table: str
    row: bytes
    name: bytes


def allowed(folder: Path) -> Mapping[Column, set[bytes | None]]:
    """What a reader may see of each column that the journal decides; None: nothing."""
    puts: dict[Column, list[Entry]] = defaultdict(list)
    for entry in read(folder):
        if entry.what in ("put", "delete"):
            puts[Column(entry.table, bytes.fromhex(entry.row), entry.column.encode())].append(entry)
    found: dict[Column, set[bytes | None]] = {}
    for column, entries in puts.items():
        last = max((i for i, entry in enumerate(entries) if entry.outcome == "acked"), default=-1)
        sure = entries[last] if last >= 0 else None
        may = {_seen(sure)}
        may |= {_seen(e) for i, e in enumerate(entries) if i > last or e.is_unsure}
        found[column] = may
    return found


def counters(folder: Path) -> Mapping[Column, tuple[int, int]]:
    """The least and the largest value that each counter may have."""
    found: dict[Column, tuple[int, int]] = {}
    for entry in read(folder):
        if entry.what == "add":
            column = Column(entry.table, bytes.fromhex(entry.row), entry.column.encode())
            least, most = found.get(column, (0, 0))
            amount = int(entry.value or 0)
            found[column] = (least + amount if entry.outcome == "acked" else least, most + amount)
    return found


def _seen(entry: Entry | None) -> bytes | None:
    return entry.value.encode() if entry is not None and entry.what == "put" and entry.value is not None else None
