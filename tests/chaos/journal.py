"""The journal of what the writer did: one line for each mutation, and what must be seen of them.

Of a table, only what the journal alone can decide is decided: columns that one thread writes with timestamps of the
server. Of a log, every mutation.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

Outcome = Literal["acked", "unknown"]
SLOW_S = 2.0
"""a mutation that took longer may have been sent more than once: an early copy may come late"""
SENDINGS = 10
"""how often such a one may have been sent besides"""


@dataclass(frozen=True)
class Entry:
    """One mutation: `what` is put, delete or add (an increment), `value` what a reader then sees of the column, or the
    amount. Edits of columns that are not decided have the kind of the edit as `what`, and perhaps several columns with
    + between them."""

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


@dataclass(frozen=True)
class Edit:
    """A cell of the log as far as the journal knows it: without a timestamp that a server gave, and without the value
    of a counter. `kind`: HBase's name of the cell's type."""

    table: str
    row: bytes
    family: str
    qualifier: bytes
    kind: str
    timestamp: int | None
    value: bytes | None

    @classmethod
    def of(
        cls, table: str, row: bytes, family: str, qualifier: bytes, kind: str, timestamp: int, value: bytes | None
    ) -> Edit:
        """Of a cell of the log; deletes have no value."""
        of_server = family in BY_SERVER
        known = value if kind == "Put" and family != "c" else None
        return cls(table, row, family, qualifier, kind, None if of_server else timestamp, known)


BY_SERVER = ("j", "c")
"""families whose timestamps the servers give"""
_KINDS = {
    "add": "Put",
    "delete": "DeleteColumn",
    "delete version": "Delete",
    "delete column": "DeleteColumn",
    "delete family": "DeleteFamily",
    "delete family version": "DeleteFamilyVersion",
}


def edits(entry: Entry) -> list[Edit]:
    """What the log has of a mutation."""
    what = entry.what.removeprefix("old ")
    kind = _KINDS.get(what, "Put")
    value = entry.value.encode() if kind == "Put" and what != "add" and entry.value is not None else None
    found = []
    for column in entry.column.split("+"):
        family, _, qualifier = column.partition(":")
        name = b"" if kind in ("DeleteFamily", "DeleteFamilyVersion") else qualifier.encode()
        found.append(Edit(entry.table, bytes.fromhex(entry.row), family, name, kind, entry.timestamp, value))
    return found


def against_log(entries: Iterable[Entry], seen: Iterable[Edit], due: Container[Entry]) -> list[str]:
    """What a log has otherwise than a journal says: each acknowledged edit of those that are `due` once, each other one
    once or not at all.

    An edit that may have been sent several times may be there as often."""
    least: Counter[Edit] = Counter()
    most: Counter[Edit] = Counter()
    for entry in entries:
        for edit in edits(entry):
            least[edit] += entry.outcome == "acked" and entry in due
            most[edit] += 1 + SENDINGS * entry.is_unsure
    found = Counter(seen)
    return [
        f"{edit} is there {found[edit]} times, by the journal {least[edit]} to {most[edit]}"
        for edit in sorted(least.keys() | found.keys(), key=str)
        if not least[edit] <= found[edit] <= most[edit]
    ]


def out_of_order(entries: Iterable[Entry], seen: Sequence[Edit]) -> list[str]:
    """Which edits of the rows of a log, in its order, are not in the order in which they were acknowledged."""
    places: dict[Edit, list[int]] = defaultdict(list)
    for place, edit in enumerate(seen):
        places[edit].append(place)
    last: dict[tuple[str, str], tuple[int, Entry]] = {}
    wrong = []
    for entry in entries:
        # Of an edit that is there several times, which one it was is not known.
        found = [places[edit][0] for edit in edits(entry) if len(places[edit]) == 1]
        if found and not entry.is_unsure:
            end, before = last.get((entry.table, entry.row), (-1, entry))
            if min(found) < end:
                wrong.append(f"{entry} comes before {before}, which was acknowledged before it was sent")
            last[entry.table, entry.row] = max(end, *found), entry
    return wrong


def _seen(entry: Entry | None) -> bytes | None:
    return entry.value.encode() if entry is not None and entry.what == "put" and entry.value is not None else None
