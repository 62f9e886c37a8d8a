"""How the log of one run is stored: WAL files, and their ranges, packed into the file's row or not (`packing`)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from sqlalchemy import ColumnElement, Connection, delete, insert, select, update

from walferry.errors import WalferryError
from walferry.ledger.columns import to_columns
from walferry.ledger.forward import range_key
from walferry.ledger.packing import PackedFile, add_up, pack
from walferry.ledger.rows import RecordedFile, WalRange
from walferry.ledger.store import Store, chunks, fetch

Ranges = Mapping[tuple[str, str, int], WalRange]
"""by `range_key`"""


class LogRows:
    """The rows of one run's files and ranges, within the caller's transaction."""

    def __init__(self, store: Store, run_id: str) -> None:
        self._store = store
        self._run_id = run_id

    def of_file(self, name: str) -> tuple[ColumnElement[bool], ...]:
        """Selects the row of a file."""
        wal_files = self._store.table("wal_files")
        return wal_files.c.run_id == self._run_id, wal_files.c.name == name

    def named(self, connection: Connection, names: Iterable[str]) -> dict[str, RecordedFile]:
        """The named files that the run has seen."""
        wal_files = self._store.table("wal_files")
        return {
            file.name: file
            for some in chunks(names)
            for file in fetch(
                connection, RecordedFile, wal_files, wal_files.c.run_id == self._run_id, wal_files.c.name.in_(some)
            )
        }

    def tables(self, connection: Connection) -> dict[str, int]:
        """The run's tables with their numbers in packed files."""
        tables = self._store.table("run_tables")
        query = select(tables.c.table_name, tables.c.table_number).where(tables.c.run_id == self._run_id)
        return {row.table_name: row.table_number for row in connection.execute(query)}

    def packed(self, connection: Connection, names: Iterable[str]) -> list[PackedFile]:
        """The named files that are packed."""
        wal_files = self._store.table("wal_files")
        of_run = (wal_files.c.run_id == self._run_id, wal_files.c.applied_end.is_not(None))
        return [
            PackedFile.of(row)
            for some in chunks(names)
            for row in connection.execute(select(wal_files).where(*of_run, wal_files.c.name.in_(some))).mappings()
        ]

    def ranges(self, connection: Connection, names: Collection[str]) -> list[WalRange]:
        """The ranges of files, packed or not."""
        table, tables = self._store.table("wal_ranges"), self.tables(connection)
        found = [item for file in self.packed(connection, names) for item in file.ranges(tables)]
        for some in chunks(names):
            found += fetch(connection, WalRange, table, table.c.run_id == self._run_id, table.c.file.in_(some))
        return found

    def replace(self, connection: Connection, before: Ranges, after: Ranges) -> None:
        """Write the changed ranges of some files. Pack each file that every table has now applied."""
        wal_files, table = self._store.table("wal_files"), self._store.table("wal_ranges")
        tables = self.tables(connection)
        touched = {key[0] for key, item in after.items() if before.get(key) != item}
        self.unpack(connection, touched)
        stored: dict[str, list[WalRange]] = defaultdict(list)
        for key, item in after.items():
            if key[0] in touched:
                stored[key[0]].append(item)
        files, with_rows = self.named(connection, touched), {key[0] for key in before}
        packed, new = [], []
        for name, ranges in stored.items():
            whole = pack(files[name], ranges, tables)
            states = {item.state for item in ranges}
            done = states <= {"applied", "verified"} and tables.keys() <= {item.table for item in ranges}
            values: dict[str, Any] = {"applied": done}
            if whole is not None:
                numbers = " ".join(map(str, sorted(whole.verified)))
                values |= {"applied_end": whole.end, "packed": whole.packed, "verified": numbers}
                packed.append(whole)
                if name in with_rows:
                    connection.execute(delete(table).where(table.c.run_id == self._run_id, table.c.file == name))
            else:
                changed = [item for item in ranges if before.get(range_key(item)) != item]
                for item in changed:
                    if range_key(item) in before:
                        same = (table.c.table_name == item.table, table.c.start_offset == item.start)
                        of_file = (table.c.run_id == self._run_id, table.c.file == item.file)
                        connection.execute(update(table).where(*of_file, *same).values(to_columns(item)))
                    else:
                        new.append(to_columns(item) | {"run_id": self._run_id})
            if done or name in with_rows:
                connection.execute(update(wal_files).where(*self.of_file(name)).values(values))
        if new:
            connection.execute(insert(table), new)
        add_up(connection, self._run_id, packed, tables)

    def unpack(self, connection: Connection, names: Collection[str]) -> None:
        """Turn the packed text of these files into rows again, before a range changes."""
        packed = self.packed(connection, names)
        if not packed:
            return
        if any(file.last > file.number for file in packed):
            name = min(file.name for file in packed if file.last > file.number)
            raise WalferryError(
                f"WAL file {name} is applied and no longer exists at the source: its record cannot change",
                run=self._run_id,
                file=name,
            )
        wal_files, tables = self._store.table("wal_files"), self.tables(connection)
        add_up(connection, self._run_id, packed, tables, -1)
        rows = [to_columns(item) | {"run_id": self._run_id} for file in packed for item in file.ranges(tables)]
        connection.execute(insert(self._store.table("wal_ranges")), rows)
        for file in packed:
            empty = {"applied_end": None, "packed": "", "verified": ""}
            connection.execute(update(wal_files).where(*self.of_file(file.name)).values(empty))
