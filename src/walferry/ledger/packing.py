"""Packs a file that every table of its run has applied: `wal_files.packed` replaces one row for each table.

For each table with entries in the file, `packed` has the table's number in `run_tables`, entries, cells, first write
time (ms after the number in the file's name) and last write time (ms after the first); ':' in between, blanks between
tables. A table that `packed` does not name has no entry in the file. `verified` has the numbers of the tables for which
the file is verified. The sums in `applied_groups` and `verified_groups` include the bytes, so that no caller reads
every file to add them up.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, text

from walferry.ledger.rows import RecordedFile, WalRange

_ADD_TO_GROUPS = text(
    "INSERT INTO applied_groups (run_id, wal_group, files, bytes, newest, last_write_ms)"
    " VALUES (:run_id, :wal_group, :files, :bytes, :newest, :last_write_ms)"
    " ON CONFLICT (run_id, wal_group) DO UPDATE SET"
    " files = applied_groups.files + excluded.files, bytes = applied_groups.bytes + excluded.bytes,"
    " newest = CASE WHEN excluded.newest > applied_groups.newest THEN excluded.newest ELSE applied_groups.newest END,"
    " last_write_ms = CASE WHEN applied_groups.last_write_ms IS NULL"
    " OR excluded.last_write_ms > applied_groups.last_write_ms"
    " THEN excluded.last_write_ms ELSE applied_groups.last_write_ms END"
)
_ADD_TO_VERIFIED = text(
    "INSERT INTO verified_groups (run_id, wal_group, table_name, bytes)"
    " VALUES (:run_id, :wal_group, :table_name, :bytes)"
    " ON CONFLICT (run_id, wal_group, table_name) DO UPDATE SET bytes = verified_groups.bytes + excluded.bytes"
)


@dataclass(frozen=True)
class PackedFile:
    """A packed file; every table of the run has applied [0, end)."""

    name: str
    group: str
    number: int
    end: int
    packed: str
    verified: frozenset[int]
    """numbers of tables"""
    last: int
    """number of the last file that it stands for (`folding`)"""

    @classmethod
    def of(cls, row: Mapping[Any, Any]) -> PackedFile:
        """From a row of `wal_files`."""
        verified = frozenset(int(number) for number in row["verified"].split())
        last = row["number"] if row["folded_to"] is None else row["folded_to"]
        return cls(row["name"], row["wal_group"], row["number"], row["applied_end"], row["packed"], verified, last)

    def ranges(self, tables: Mapping[str, int], since_ms: int | None = None) -> list[WalRange]:
        """The ranges that were packed; `tables`: the run's, with their numbers.

        `since_ms`: only of tables with an entry that was written then or later.
        """
        held = {int(part.partition(":")[0]): part for part in self.packed.split()}
        found = []
        for table, number in tables.items():
            entries, cells, first, last = _counts(held.get(number, "::::"), self.number)
            if since_ms is not None and (last is None or last < since_ms):
                continue
            state = "verified" if number in self.verified else "applied"
            found.append(WalRange(self.name, 0, self.end, table, entries, cells, first, last, state))  # type: ignore[arg-type]
        return found

    def holds(self, number: int) -> bool:
        """Whether the file has cells of the table of that number."""
        return any(int(part.partition(":")[0]) == number and part.split(":")[2] != "0" for part in self.packed.split())


def _counts(part: str, file_number: int) -> tuple[int, int, int | None, int | None]:
    _, entries, cells, first, last = part.split(":")
    first_ms = file_number + int(first) if first else None
    last_ms = first_ms + int(last) if first_ms is not None and last else None
    return int(entries or 0), int(cells or 0), first_ms, last_ms


def pack(file: RecordedFile, ranges: Sequence[WalRange], tables: Mapping[str, int]) -> PackedFile | None:
    """The file as one row; None unless all tables have one range each, applied, of one length, and it is sealed."""
    whole = {item.table: item for item in ranges if item.table in tables}
    ends = {item.end for item in whole.values()}
    if (
        file.sealed_ms is None
        or len(whole) < len(tables)
        or len(ranges) > len(whole)
        or len(ends) != 1
        or max(ends) < file.length
        or any(item.start or item.state not in ("applied", "verified") for item in whole.values())
    ):
        return None
    verified = frozenset(tables[item.table] for item in whole.values() if item.state == "verified")
    text = pack_text(whole.values(), file.number, tables)
    return PackedFile(file.name, file.group, file.number, ends.pop(), text, verified, file.number)


def pack_text(ranges: Iterable[WalRange], file_number: int, tables: Mapping[str, int]) -> str:
    """What `packed` has of these ranges, one of each table."""
    return " ".join(
        f"{tables[item.table]}:{item.entries}:{item.cells}:{_after(item.first_write_ms, file_number)}"
        f":{_after(item.last_write_ms, item.first_write_ms)}"
        for item in ranges
        if item.entries or item.cells or item.first_write_ms is not None
    )


def _after(at_ms: int | None, start_ms: int | None) -> str:
    return "" if at_ms is None or start_ms is None else str(at_ms - start_ms)


def add_up(
    connection: Connection, run_id: str, files: Iterable[PackedFile], tables: Mapping[str, int], sign: int = 1
) -> None:
    """Add packed files to the sums of their groups, or subtract them (`sign` -1)."""
    groups: dict[str, dict[str, Any]] = {}
    verified: dict[tuple[str, str], int] = {}
    names = {number: table for table, number in tables.items()}
    for file in files:
        last = max((item.last_write_ms or 0 for item in file.ranges(tables)), default=0) or None
        sums = groups.setdefault(
            file.group,
            {"run_id": run_id, "wal_group": file.group, "files": 0, "bytes": 0, "newest": 0, "last_write_ms": None},
        )
        sums["files"] += sign
        sums["bytes"] += sign * file.end
        sums["newest"] = max(sums["newest"], file.number)
        sums["last_write_ms"] = max(sums["last_write_ms"] or 0, last or 0) or None
        for number in file.verified:
            key = file.group, names[number]
            verified[key] = verified.get(key, 0) + sign * file.end
    if groups:
        connection.execute(_ADD_TO_GROUPS, list(groups.values()))
    add_verified(connection, run_id, verified)


def add_verified(connection: Connection, run_id: str, sums: Mapping[tuple[str, str], int]) -> None:
    """Add bytes, by WAL group and table, to those that are verified."""
    rows = [
        {"run_id": run_id, "wal_group": group, "table_name": table, "bytes": count}
        for (group, table), count in sums.items()
    ]
    if rows:
        connection.execute(_ADD_TO_VERIFIED, rows)
