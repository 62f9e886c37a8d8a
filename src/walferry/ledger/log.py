"""The log as one run has accounted for it: fences, WAL files, their ranges, and what is missing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import ColumnElement, Connection, Table, func, insert, select, update

from walferry.clock import now_ms
from walferry.errors import UsageError, WalferryError
from walferry.ledger.batches import Change
from walferry.ledger.columns import to_columns
from walferry.ledger.fences import fence_of, set_fence
from walferry.ledger.folding import chains, folded, write_folded
from walferry.ledger.forward import check_forward, merge, named, range_key, range_name, sums, was_sealed
from walferry.ledger.log_rows import LogRows
from walferry.ledger.packing import PackedFile, add_verified
from walferry.ledger.regions import RegionChanges, change_regions
from walferry.ledger.rows import (
    RANGE_STATES,
    Coverage,
    FenceKind,
    FileState,
    Gap,
    LogPosition,
    RangeState,
    RecordedFile,
    SeenFile,
    WalRange,
)
from walferry.ledger.store import Store, chunks, fetch


class Log:
    """The log as one run has accounted for it: fences, WAL files, their ranges, and what is missing."""

    def __init__(self, store: Store, run_id: str) -> None:
        self._store = store
        self._run_id = run_id
        self._rows = LogRows(store, run_id)

    def set_fence(
        self, kind: FenceKind, positions: Sequence[LogPosition], also: Change = lambda connection: None
    ) -> list[LogPosition]:
        """Set a fence, one position for each WAL group, in one transaction with `also`.

        A start fence that is already set is kept and returned, without `also`; an end fence may be set again, but only
        move forward.
        """
        return set_fence(self._store, self._run_id, kind, positions, also)

    def fence(self, kind: FenceKind) -> list[LogPosition] | None:
        """The fence by WAL group; None while it is not set."""
        with self._store.database.read() as connection:
            return fence_of(self._store, connection, self._run_id, kind) or None

    def see_files(self, files: Sequence[SeenFile]) -> None:
        """Record a listing. A file only moves forward (open -> sealed, longer, archived): an older listing that
        arrives late changes nothing. A missing file that is listed again is no longer missing."""
        wal_files = self._store.table("wal_files")
        at = now_ms()
        with self._store.database.write() as connection:
            self._store.run(connection, self._run_id)
            before = self._rows.named(connection, {seen.name for seen in files})
            known = dict(before)
            gone = folded(connection, wal_files, self._run_id, [seen.name for seen in files])
            for seen in (seen for seen in files if seen.name not in gone):
                known[seen.name] = merge(known.get(seen.name), seen, at)
            new = [file for name, file in known.items() if name not in before]
            changed = [file for name, file in known.items() if name in before and before[name] != file]
            if new:
                connection.execute(insert(wal_files), [to_columns(file) | {"run_id": self._run_id} for file in new])
            for file in changed:
                connection.execute(update(wal_files).where(*self._rows.of_file(file.name)).values(to_columns(file)))
            self._rows.unpack(connection, [file.name for file in changed if file.length > before[file.name].length])
            sealed = [f for f in (*new, *changed) if f.state == "sealed" and not was_sealed(before.get(f.name))]
            if new or sealed:
                inputs = {"new": named(new), "sealed": named(sealed)}
                self._store.note(connection, "see WAL files", self._run_id, inputs)

    def files(self, groups: Collection[str] | None = None) -> list[RecordedFile]:
        """Every WAL file seen (of these groups), by group and number. Too slow for a round: reads them all."""
        wal_files = self._store.table("wal_files")
        conditions = [wal_files.c.run_id == self._run_id]
        if groups is not None:
            conditions.append(wal_files.c.wal_group.in_(sorted(groups)))
        with self._store.database.read() as connection:
            return fetch(connection, RecordedFile, wal_files, *conditions, order=_by_number(wal_files))

    def known(self, names: Collection[str]) -> dict[str, RecordedFile]:
        """The named files that the run has seen."""
        with self._store.database.read() as connection:
            return self._rows.named(connection, names)

    def unapplied(self) -> list[RecordedFile]:
        """The seen files that are not applied for every table of the run, by group and number.

        The cost depends on the number of these files, not on how many files the run has ever seen.
        """
        wal_files = self._store.table("wal_files")
        waiting = (wal_files.c.run_id == self._run_id, wal_files.c.applied_end.is_(None), ~wal_files.c.applied)
        with self._store.database.read() as connection:
            return fetch(connection, RecordedFile, wal_files, *waiting, order=_by_number(wal_files))

    def applied(self, names: Iterable[str]) -> set[str]:
        """The named files that every table of the run has applied."""
        wal_files = self._store.table("wal_files")
        wanted, found = set(names), set[str]()
        with self._store.database.read() as connection:
            for some in chunks(wanted):
                query = select(wal_files.c.name).where(
                    wal_files.c.run_id == self._run_id, wal_files.c.name.in_(some), wal_files.c.applied
                )
                found |= set(connection.scalars(query))
            return found | folded(connection, wal_files, self._run_id, wanted - found)

    def fold(self, listed: Collection[str]) -> None:
        """Let one row stand for neighbouring files of a group that are applied and no longer exist at the source.

        `listed`: the names of all files that exist. Packed files older than these are folded, except files that a fence
        names. The first file's row then stands for all.
        """
        wal_files, fences = self._store.table("wal_files"), self._store.table("fences")
        columns = (wal_files.c.name, wal_files.c.wal_group, wal_files.c.applied_end, wal_files.c.folded_to)
        query = select(*columns).where(wal_files.c.run_id == self._run_id).order_by(*_by_number(wal_files))
        with self._store.database.write() as connection:
            kept = set(connection.scalars(select(fences.c.file).where(fences.c.run_id == self._run_id)))
            rows = ((n, group, end is not None, last is not None) for n, group, end, last in connection.execute(query))
            tables = self._rows.tables(connection)
            count = sum(
                write_folded(connection, wal_files, self._run_id, self._rows.packed(connection, chain), tables)
                for chain in chains(rows, listed, kept)
            )
            if count:
                self._store.note(connection, "fold WAL files", self._run_id, {"rows_less": count})

    def pending(self, names: Collection[str]) -> set[str]:
        """The named files that at least one table still needs: the table has not applied the file, and quarantine does
        not hold all of the table's part of it.

        A batch writes its ranges last: holds without ranges belong to a batch that must be repeated.
        """
        ranges, holds = self._store.table("wal_ranges"), self._store.table("held_regions")
        left = set(names) - self.applied(names)
        handled: dict[str, set[str]] = defaultdict(set)
        with self._store.database.read() as connection:
            tables = self._rows.tables(connection).keys()
            held = select(holds.c.file, holds.c.table_name).where(holds.c.run_id == self._run_id)
            waiting = {(file, table) for file, table in connection.execute(held)}
            for some in chunks(left):
                query = select(ranges.c.file, ranges.c.table_name, ranges.c.state)
                of_files = (ranges.c.run_id == self._run_id, ranges.c.file.in_(some))
                for file, table, state in connection.execute(query.where(*of_files)):
                    if state in ("applied", "verified") or (file, table) in waiting:
                        handled[file].add(table)
        return {name for name in left if not tables or not tables <= handled[name]}

    def groups(self) -> frozenset[str]:
        """The WAL groups with at least one known file."""
        files, sums = self._store.table("wal_files"), self._store.table("applied_groups")
        queries = (
            select(files.c.wal_group).where(files.c.run_id == self._run_id, files.c.applied_end.is_(None)).distinct(),
            select(sums.c.wal_group).where(sums.c.run_id == self._run_id),
        )
        with self._store.database.read() as connection:
            return frozenset(group for query in queries for group in connection.scalars(query))

    def mark_missing(self, name: str) -> None:
        """Record that the file is no longer in any folder of the source. Its unapplied bytes become gaps."""
        wal_files = self._store.table("wal_files")
        with self._store.database.write() as connection:
            known = self._rows.named(connection, [name])
            if not known:
                raise WalferryError(f"run {self._run_id} never saw a WAL file {name}", run=self._run_id, file=name)
            if known[name].state != "missing":
                state: FileState = "missing"
                connection.execute(update(wal_files).where(*self._rows.of_file(name)).values(state=state))
                self._store.note(connection, "WAL file missing", self._run_id, {"file": name, "path": known[name].path})

    def set_ranges(
        self,
        ranges: Sequence[WalRange],
        regions: RegionChanges | None = None,
        also: Change | None = None,
        lengths: Mapping[str, int] | None = None,
    ) -> None:
        """Record ranges by (file, start, table). A state only moves forward, and an end only until it is applied.

        So that nothing counts twice, the same transaction records what these files show about `regions`, the true
        `lengths`, in bytes, of files that were read to their ends, and what `also` records.

        The file must have been seen (`see_files`). Ranges of a file and table should tile it from 0 to its length,
        header and trailer included, since `gaps` covers every byte. Raises WalferryError that names the range that
        would move backwards; nothing is recorded then.
        """
        with self._store.database.write() as connection:
            self._store.run(connection, self._run_id)
            names, lengths = {item.file for item in ranges}, lengths or {}
            seen = self._rows.named(connection, names | lengths.keys())
            if unseen := names - seen.keys():
                raise WalferryError(
                    f"run {self._run_id} never saw WAL file {min(unseen)}: see_files comes before set_ranges",
                    run=self._run_id,
                    file=min(unseen),
                )
            self._correct_lengths(connection, seen, lengths)
            before = {range_key(item): item for item in self._rows.ranges(connection, names)}
            known = dict(before)
            for item in ranges:
                check_forward(known.get(range_key(item)), item)
                known[range_key(item)] = item
            self._rows.replace(connection, before, known)
            change_regions(self._store, connection, self._run_id, regions or {})
            if also is not None:
                also(connection)

    def _correct_lengths(
        self, connection: Connection, seen: Mapping[str, RecordedFile], lengths: Mapping[str, int]
    ) -> None:
        """Record the lengths that differ from those of the `seen` files."""
        wal_files = self._store.table("wal_files")
        wrong = {name: length for name, length in lengths.items() if name in seen and length != seen[name].length}
        self._rows.unpack(connection, [name for name, length in wrong.items() if length > seen[name].length])
        for name, length in wrong.items():
            connection.execute(update(wal_files).where(*self._rows.of_file(name)).values(length=length))

    def ranges(
        self,
        *,
        file: str | None = None,
        state: RangeState | None = None,
        groups: Collection[str] | None = None,
        since_ms: int | None = None,
    ) -> list[WalRange]:
        """Ranges (of a file, in a state, of WAL groups) by file, table and start. With `since_ms`, files that are
        applied for every table contribute only ranges with an entry that was written then or later.

        Reads every range ever applied, unless `file` or a state before `applied` is given: too slow for a round.
        """
        table, files = self._store.table("wal_ranges"), self._store.table("wal_files")
        conditions = [table.c.run_id == self._run_id]
        packed = [files.c.run_id == self._run_id, files.c.applied_end.is_not(None)]
        if file is not None:
            conditions.append(table.c.file == file)
            packed.append(files.c.name == file)
        if state is not None:
            conditions.append(table.c.state == state)
        if groups is not None:
            of_groups = (files.c.run_id == self._run_id, files.c.wal_group.in_(sorted(groups)))
            conditions.append(table.c.file.in_(select(files.c.name).where(*of_groups)))
            packed.append(files.c.wal_group.in_(sorted(groups)))
        with self._store.database.read() as connection:
            found = fetch(connection, WalRange, table, *conditions)
            if state in (None, "applied", "verified"):
                tables = self._rows.tables(connection)
                rows = connection.execute(select(files).where(*packed)).mappings()
                unpacked = (item for row in rows for item in PackedFile.of(row).ranges(tables, since_ms))
                found += [item for item in unpacked if state in (None, item.state)]
        return sorted(found, key=range_key)

    def least_states(self, groups: Collection[str]) -> dict[str, RangeState]:
        """For each file of these groups with a range of every table of the run, the least state of its ranges."""
        files, ranges = self._store.table("wal_files"), self._store.table("wal_ranges")
        of_groups = (files.c.run_id == self._run_id, files.c.wal_group.in_(sorted(groups)))
        others = select(ranges.c.file, ranges.c.table_name, ranges.c.state).where(
            ranges.c.run_id == self._run_id, ranges.c.file.in_(select(files.c.name).where(*of_groups))
        )
        found: dict[str, dict[str, list[RangeState]]] = defaultdict(lambda: defaultdict(list))
        with self._store.database.read() as connection:
            tables = self._rows.tables(connection)
            rows = connection.execute(select(files).where(*of_groups, files.c.applied_end.is_not(None))).mappings()
            least: dict[str, RangeState] = {
                file.name: "verified" if len(file.verified) >= len(tables) else "applied"
                for file in map(PackedFile.of, rows)
            }
            for name, table, state in connection.execute(others):
                found[name][table].append(state)
        for name, states in found.items():
            if tables.keys() <= states.keys():
                least[name] = min((state for some in states.values() for state in some), key=RANGE_STATES.index)
        return least

    def applied_for(self, table: str, *, verified: bool = False) -> set[str]:
        """Names of the files whose edits of the table are all applied; with `verified`, only files that a comparison
        verified: it found the table equal after these files were applied."""
        files, ranges = self._store.table("wal_files"), self._store.table("wal_ranges")
        of_table = (ranges.c.run_id == self._run_id, ranges.c.table_name == table)
        packed = select(files).where(files.c.run_id == self._run_id, files.c.applied_end.is_not(None))
        states = ("verified",) if verified else ("applied", "verified")
        with self._store.database.read() as connection:
            names = set(connection.scalars(select(ranges.c.file).where(*of_table, ranges.c.state.in_(states))))
            number = self._rows.tables(connection).get(table)
            if number is None:
                return names
            if not verified:
                return names | set(connection.scalars(packed.with_only_columns(files.c.name)))
            found = map(PackedFile.of, connection.execute(packed).mappings())
            return names | {file.name for file in found if number in file.verified}

    def without_cells(self, table: str) -> set[str]:
        """Names of the files that were read and hold no cell of the table."""
        files, ranges = self._store.table("wal_files"), self._store.table("wal_ranges")
        packed = (files.c.run_id == self._run_id, files.c.applied_end.is_not(None))
        of_table = (ranges.c.run_id == self._run_id, ranges.c.table_name == table)
        counted = select(ranges.c.file).where(*of_table).group_by(ranges.c.file).having(func.sum(ranges.c.cells) == 0)
        with self._store.database.read() as connection:
            found = set(connection.scalars(counted))
            number = self._rows.tables(connection).get(table)
            if number is not None:
                rows = connection.execute(select(files).where(*packed)).mappings()
                found |= {file.name for file in map(PackedFile.of, rows) if not file.holds(number)}
        return found

    def mark_applied(
        self, files: Sequence[str], tables: Sequence[str] | None = None, lease_check: Change = lambda connection: None
    ) -> None:
        """Record that the target has acknowledged every edit of these files (for `tables`; default all), in one
        transaction.

        Sealed ranges become applied; applied and verified ones stay. Raises WalferryError when a file has no range, or
        one that is not sealed and so may still grow. Also raises what `lease_check` raises.
        """
        with self._store.database.write() as connection:
            self._store.run(connection, self._run_id)
            lease_check(connection)
            before = {range_key(item): item for item in self._rows.ranges(connection, files)}
            found = [item for item in before.values() if tables is None or item.table in tables]
            without = set(files) - {item.file for item in found}
            if without:
                raise WalferryError(
                    f"no range of WAL file {min(without)} is recorded", run=self._run_id, file=min(without)
                )
            for item in found:
                if item.state == "seen":
                    raise WalferryError(f"{range_name(item)} is not sealed and cannot be applied", run=self._run_id)
            applied = [replace(item, state="applied") for item in found if item.state == "sealed"]
            self._rows.replace(connection, before, before | {range_key(item): item for item in applied})
            if applied:
                inputs = {"files": sorted({item.file for item in applied}), **sums(applied)}
                self._store.note(connection, "apply ranges", self._run_id, inputs)

    def mark_verified(self, table: str, files: Collection[str]) -> None:
        """Record that a comparison found the table equal: its applied ranges of `files` become verified."""
        ranges, wal_files = self._store.table("wal_ranges"), self._store.table("wal_files")
        found: list[WalRange] = []
        added: dict[tuple[str, str], int] = {}
        with self._store.database.write() as connection:
            tables = self._rows.tables(connection)
            for some in chunks(files):
                of_table = (ranges.c.run_id == self._run_id, ranges.c.table_name == table, ranges.c.state == "applied")
                found += fetch(connection, WalRange, ranges, *of_table, ranges.c.file.in_(some))
                connection.execute(update(ranges).where(*of_table, ranges.c.file.in_(some)).values(state="verified"))
                for file in self._rows.packed(connection, some) if table in tables else ():
                    if tables[table] not in file.verified:
                        numbers = " ".join(map(str, sorted(file.verified | {tables[table]})))
                        connection.execute(
                            update(wal_files).where(*self._rows.of_file(file.name)).values(verified=numbers)
                        )
                        found += [item for item in file.ranges(tables) if item.table == table]
                        added[file.group, table] = added.get((file.group, table), 0) + file.end
            if found:
                add_verified(connection, self._run_id, added)
                self._store.note(connection, "verify ranges", self._run_id, {"table": table, **sums(found)})

    def reached(self) -> dict[tuple[str, str], int]:
        """For each WAL group and table, the number of the newest file with an applied range."""
        files, ranges = self._store.table("wal_files"), self._store.table("wal_ranges")
        packed = self._store.table("applied_groups")
        query = (
            select(files.c.wal_group, ranges.c.table_name, func.max(files.c.number))
            .join(ranges, (ranges.c.run_id == files.c.run_id) & (ranges.c.file == files.c.name))
            .where(ranges.c.run_id == self._run_id, ranges.c.state.in_(("applied", "verified")))
            .group_by(files.c.wal_group, ranges.c.table_name)
        )
        with self._store.database.read() as connection:
            newest = {(group, table): number for group, table, number in connection.execute(query)}
            tables = self._rows.tables(connection)
            sums = select(packed.c.wal_group, packed.c.newest).where(packed.c.run_id == self._run_id)
            for group, number in connection.execute(sums):
                for table in tables:
                    newest[group, table] = max(number, newest.get((group, table), 0))
        return newest

    def last_edit_ms(self) -> int | None:
        """Write time of the newest edit of the run's tables read so far; None before the first."""
        with self._store.database.read() as connection:
            newest = [
                connection.execute(
                    select(func.max(table.c.last_write_ms)).where(table.c.run_id == self._run_id)
                ).scalar_one()
                for table in (self._store.table("wal_ranges"), self._store.table("applied_groups"))
            ]
        return max((at_ms for at_ms in newest if at_ms is not None), default=None)

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


def _by_number(files: Table) -> tuple[ColumnElement[Any], ...]:
    return files.c.wal_group, files.c.number, files.c.name
