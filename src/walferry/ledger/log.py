"""The log as one run has accounted for it: fences, WAL files, their ranges, and what is missing."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from sqlalchemy import ColumnElement, Connection, Table, delete, func, insert, select, update

from walferry.clock import now_ms
from walferry.errors import UsageError, WalferryError
from walferry.ledger.regions import RegionChanges, change_regions
from walferry.ledger.rows import (
    RANGE_STATES,
    Coverage,
    FenceKind,
    FileState,
    Gap,
    Position,
    RangeState,
    SeenFile,
    WalFile,
    WalRange,
    to_columns,
)
from walferry.ledger.store import Store, fetch


class Log:
    """The log as one run has accounted for it: fences, WAL files, their ranges, and what is missing."""

    def __init__(self, store: Store, run_id: str) -> None:
        self._store = store
        self._run_id = run_id

    def set_fence(self, kind: FenceKind, positions: Sequence[Position]) -> list[Position]:
        """Set a fence, one position for each WAL group.

        A start fence that is already set is kept and returned; an end fence may be set again, but only move forward.
        """
        fences = self._store.table("fences")
        if not positions:
            raise WalferryError(f"the {kind} fence of run {self._run_id} has no position: list the WAL groups first")
        if len({position.group for position in positions}) < len(positions):
            raise WalferryError(f"the {kind} fence of run {self._run_id} has two positions in one WAL group")
        with self._store.database.write() as connection:
            self._store.run(connection, self._run_id)
            recorded = self._fence(connection, kind)
            if recorded and kind == "start":
                return recorded
            _check_advance(self._run_id, recorded, positions)
            connection.execute(delete(fences).where(fences.c.run_id == self._run_id, fences.c.kind == kind))
            rows = [to_columns(position) | {"run_id": self._run_id, "kind": kind} for position in positions]
            connection.execute(insert(fences), rows)
            inputs = {"positions": {p.group: f"{p.file}@{p.offset}" for p in positions}}
            self._store.note(connection, f"set {kind} fence", self._run_id, inputs)
            return self._fence(connection, kind)

    def fence(self, kind: FenceKind) -> list[Position] | None:
        """The fence by WAL group; None while it is not set."""
        with self._store.database.read() as connection:
            return self._fence(connection, kind) or None

    def _fence(self, connection: Connection, kind: FenceKind) -> list[Position]:
        fences = self._store.table("fences")
        same = (fences.c.run_id == self._run_id, fences.c.kind == kind)
        return fetch(connection, Position, fences, *same, order=(fences.c.wal_group,))

    def see_files(self, files: Sequence[SeenFile]) -> None:
        """Record a listing. A file only moves forward (open -> sealed, longer, archived): an older listing that
        arrives late changes nothing. A missing file that is listed again is no longer missing."""
        wal_files = self._store.table("wal_files")
        at = now_ms()
        with self._store.database.write() as connection:
            self._store.run(connection, self._run_id)
            known = {file.name: file for file in self._files(connection)}
            before = dict(known)
            for seen in files:
                known[seen.name] = _merge(known.get(seen.name), seen, at)
            new = [file for name, file in known.items() if name not in before]
            changed = [file for name, file in known.items() if name in before and before[name] != file]
            if new:
                rows = [to_columns(file) | {"run_id": self._run_id} for file in new]
                connection.execute(insert(wal_files), rows)
            for file in changed:
                same = (wal_files.c.run_id == self._run_id, wal_files.c.name == file.name)
                connection.execute(update(wal_files).where(*same).values(to_columns(file)))
            sealed = [f for f in (*new, *changed) if f.state == "sealed" and not _was_sealed(before.get(f.name))]
            if new or sealed:
                inputs = {"new": [f.path for f in new], "sealed": {f.name: f.length for f in sealed}}
                self._store.note(connection, "see WAL files", self._run_id, inputs)

    def files(self) -> list[WalFile]:
        """Every WAL file seen, by group and number."""
        with self._store.database.read() as connection:
            return self._files(connection)

    def groups(self) -> frozenset[str]:
        """The WAL groups with at least one known file."""
        wal_files = self._store.table("wal_files")
        query = select(wal_files.c.wal_group).where(wal_files.c.run_id == self._run_id).distinct()
        with self._store.database.read() as connection:
            return frozenset(connection.scalars(query))

    def mark_missing(self, name: str) -> None:
        """Record that the file is no longer in any folder of the source; what of it is not applied is a gap."""
        wal_files = self._store.table("wal_files")
        same = (wal_files.c.run_id == self._run_id, wal_files.c.name == name)
        with self._store.database.write() as connection:
            known = fetch(connection, WalFile, wal_files, *same)
            if not known:
                raise WalferryError(f"run {self._run_id} never saw a WAL file {name}", run=self._run_id, file=name)
            if known[0].state != "missing":
                state: FileState = "missing"
                connection.execute(update(wal_files).where(*same).values(state=state))
                self._store.note(connection, "WAL file missing", self._run_id, {"file": name, "path": known[0].path})

    def read_to_end(self, lengths: Mapping[str, int]) -> None:
        """Record the true lengths, in bytes, of files that were read to their ends."""
        wal_files = self._store.table("wal_files")
        with self._store.database.write() as connection:
            for name, length in lengths.items():
                same = (wal_files.c.run_id == self._run_id, wal_files.c.name == name)
                connection.execute(update(wal_files).where(*same).values(length=length))

    def set_ranges(self, ranges: Sequence[WalRange], regions: RegionChanges | None = None) -> None:
        """Record ranges by (file, start, table). A state only moves forward, and an end only until it is applied.

        `regions`: what these files show about regions, recorded in the same transaction, so that nothing counts twice.

        The file must have been seen (`see_files`). Ranges of a file and table should tile it from 0 to its length,
        header and trailer included, since `gaps` covers every byte. Raises WalferryError that names the range that
        would move backwards; nothing is recorded then.
        """
        table = self._store.table("wal_ranges")
        with self._store.database.write() as connection:
            self._store.run(connection, self._run_id)
            unseen = {item.file for item in ranges} - {file.name for file in self._files(connection)}
            if unseen:
                raise WalferryError(
                    f"run {self._run_id} never saw WAL file {min(unseen)}: see_files comes before set_ranges",
                    run=self._run_id,
                    file=min(unseen),
                )
            known = {_range_key(item): item for item in self._ranges(connection, ranges)}
            before = dict(known)
            for item in ranges:
                _check_forward(known.get(_range_key(item)), item)
                known[_range_key(item)] = item
            new = [item for key, item in known.items() if key not in before]
            if new:
                connection.execute(insert(table), [to_columns(item) | {"run_id": self._run_id} for item in new])
            for key, item in known.items():
                if key in before and before[key] != item:
                    same = _same_range(table, self._run_id, item)
                    connection.execute(update(table).where(*same).values(to_columns(item)))
            change_regions(self._store, connection, self._run_id, regions or {})

    def applied_files(self) -> set[str]:
        """Names of the files that are completely applied, for every table of the run."""
        applied: dict[str, set[str]] = {}
        begun = set()
        for item in self.ranges():
            if item.state in ("applied", "verified"):
                applied.setdefault(item.file, set()).add(item.table)
            else:
                begun.add(item.file)
        run_tables = self._store.table("run_tables")
        with self._store.database.read() as connection:
            tables = set(connection.scalars(select(run_tables.c.table_name).where(run_tables.c.run_id == self._run_id)))
        return {name for name, done in applied.items() if tables <= done} - begun

    def ranges(
        self,
        *,
        file: str | None = None,
        state: RangeState | None = None,
        groups: Collection[str] | None = None,
    ) -> list[WalRange]:
        """Ranges (of a file, in a state, of WAL groups) by file, table and start."""
        table = self._store.table("wal_ranges")
        conditions = [table.c.run_id == self._run_id]
        if file is not None:
            conditions.append(table.c.file == file)
        if state is not None:
            conditions.append(table.c.state == state)
        if groups is not None:
            files = self._store.table("wal_files")
            of_groups = (files.c.run_id == self._run_id, files.c.wal_group.in_(sorted(groups)))
            conditions.append(table.c.file.in_(select(files.c.name).where(*of_groups)))
        order = (table.c.file, table.c.table_name, table.c.start_offset)
        with self._store.database.read() as connection:
            return fetch(connection, WalRange, table, *conditions, order=order)

    def mark_applied(self, files: Sequence[str], tables: Sequence[str] | None = None) -> None:
        """Record that the target has acknowledged every edit of these files (for `tables`; default all), in one
        transaction.

        Sealed ranges become applied; applied and verified ones stay. Raises WalferryError when a file has no range, or
        one that is not sealed and so may still grow.
        """
        table = self._store.table("wal_ranges")
        with self._store.database.write() as connection:
            self._store.run(connection, self._run_id)
            conditions = [table.c.run_id == self._run_id, table.c.file.in_(list(files))]
            if tables is not None:
                conditions.append(table.c.table_name.in_(list(tables)))
            found = fetch(connection, WalRange, table, *conditions)
            without = set(files) - {item.file for item in found}
            if without:
                raise WalferryError(
                    f"no range of WAL file {min(without)} is recorded", run=self._run_id, file=min(without)
                )
            for item in found:
                if item.state == "seen":
                    raise WalferryError(f"{_name(item)} is not sealed and cannot be applied", run=self._run_id)
            connection.execute(update(table).where(*conditions, table.c.state == "sealed").values(state="applied"))
            applied = [item for item in found if item.state == "sealed"]
            if applied:
                inputs = {"files": sorted({item.file for item in applied}), **_sums(applied)}
                self._store.note(connection, "apply ranges", self._run_id, inputs)

    def mark_verified(self, table: str, files: Collection[str]) -> None:
        """Record that a comparison found the table equal: its applied ranges of `files` become verified."""
        ranges = self._store.table("wal_ranges")
        of_table = (ranges.c.run_id == self._run_id, ranges.c.table_name == table, ranges.c.state == "applied")
        applied = (*of_table, ranges.c.file.in_(sorted(files)))
        with self._store.database.write() as connection:
            found = fetch(connection, WalRange, ranges, *applied)
            if found:
                connection.execute(update(ranges).where(*applied).values(state="verified"))
                self._store.note(connection, "verify ranges", self._run_id, {"table": table, **_sums(found)})

    def reached(self) -> dict[tuple[str, str], int]:
        """For each WAL group and table, the number of the newest file with an applied range."""
        files, ranges = self._store.table("wal_files"), self._store.table("wal_ranges")
        query = (
            select(files.c.wal_group, ranges.c.table_name, func.max(files.c.number))
            .join(ranges, (ranges.c.run_id == files.c.run_id) & (ranges.c.file == files.c.name))
            .where(files.c.run_id == self._run_id, ranges.c.state.in_(("applied", "verified")))
            .group_by(files.c.wal_group, ranges.c.table_name)
        )
        with self._store.database.read() as connection:
            return {(group, table): number for group, table, number in connection.execute(query)}

    def last_edit_ms(self) -> int | None:
        """Write time of the newest edit of the run's tables read so far; None before the first."""
        ranges = self._store.table("wal_ranges")
        query = select(func.max(ranges.c.last_write_ms)).where(ranges.c.run_id == self._run_id)
        with self._store.database.read() as connection:
            newest: int | None = connection.execute(query).scalar_one()
        return newest

    def coverage(self) -> list[Coverage]:
        """Bytes by state for each WAL group and table."""
        view = self._store.table("coverage")
        order = (view.c.wal_group, view.c.table_name)
        with self._store.database.read() as connection:
            return fetch(connection, Coverage, view, view.c.run_id == self._run_id, order=order)

    def gaps(self) -> list[Gap]:
        """Every byte between the fences that is not applied, by table; [] means that nothing is missing.

        The SQL view `gaps` defines it: each file of each group from the start fence to the end fence (or to the
        group's newest sealed file), for every table of the spec; files that are missing or not sealed; quarantined
        items and the regions that they hold. Raises UsageError when the run's spec names no table.
        """
        view, tables = self._store.table("gaps"), self._store.table("run_tables")
        order = (view.c.file, view.c.start_offset, view.c.table_name, view.c.reason)
        with self._store.database.read() as connection:
            self._store.run(connection, self._run_id)
            count = select(func.count()).where(tables.c.run_id == self._run_id)
            if not connection.execute(count).scalar_one():
                raise UsageError(f"the spec of run {self._run_id} names no table, so it has no gaps", run=self._run_id)
            return fetch(connection, Gap, view, view.c.run_id == self._run_id, order=order)

    def _files(self, connection: Connection) -> list[WalFile]:
        wal_files = self._store.table("wal_files")
        order = (wal_files.c.wal_group, wal_files.c.number, wal_files.c.name)
        return fetch(connection, WalFile, wal_files, wal_files.c.run_id == self._run_id, order=order)

    def _ranges(self, connection: Connection, like: Sequence[WalRange]) -> list[WalRange]:
        table = self._store.table("wal_ranges")
        files = sorted({item.file for item in like})
        return fetch(connection, WalRange, table, table.c.run_id == self._run_id, table.c.file.in_(files))


def _check_advance(run_id: str, recorded: Sequence[Position], positions: Sequence[Position]) -> None:
    """Raise WalferryError when a group's fence would move back."""
    before = {position.group: (position.number, position.offset) for position in recorded}
    for position in positions:
        if (position.number, position.offset) < before.get(position.group, (0, 0)):
            raise WalferryError(
                f"the end fence of run {run_id} in WAL group {position.group} cannot move back to {position.file}",
                run=run_id,
                group=position.group,
            )


def _was_sealed(file: WalFile | None) -> bool:
    return file is not None and file.sealed_ms is not None


def _merge(known: WalFile | None, seen: SeenFile, at: int) -> WalFile:
    if known is None:
        state: FileState = "sealed" if seen.sealed else "open"
        sealed_ms = at if seen.sealed else None
        return WalFile(seen.name, seen.group, seen.server, seen.number, seen.path, seen.length, state, at, sealed_ms)
    if _was_sealed(known) and not seen.sealed:  # an older listing
        seen = replace(seen, path=known.path, sealed=True)
    if seen.length < known.length:  # an older listing too, or one that shows less than was read
        path = seen.path if seen.sealed and not _was_sealed(known) else known.path
        seen = replace(seen, path=path, length=known.length)
    return replace(
        known,
        path=seen.path,
        length=seen.length,
        state="sealed" if seen.sealed else "open",
        sealed_ms=known.sealed_ms or (at if seen.sealed else None),
    )


def _range_key(item: WalRange) -> tuple[str, str, int]:
    return (item.file, item.table, item.start)


def _same_range(table: Table, run_id: str, item: WalRange) -> list[ColumnElement[bool]]:
    return [
        table.c.run_id == run_id,
        table.c.file == item.file,
        table.c.table_name == item.table,
        table.c.start_offset == item.start,
    ]


def _check_forward(known: WalRange | None, item: WalRange) -> None:
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
            f"{_name(known)} {problem}: a range only moves forward",
            file=known.file,
            start=known.start,
            end=known.end,
            table=known.table,
            state=known.state,
        )


def _name(item: WalRange) -> str:
    return f"range [{item.start}, {item.end}) of WAL file {item.file} for table {item.table}"


def _sums(ranges: Sequence[WalRange]) -> dict[str, int]:
    return {
        "bytes": sum(item.end - item.start for item in ranges),
        "entries": sum(item.entries for item in ranges),
        "cells": sum(item.cells for item in ranges),
    }
