"""Folds packed files that no longer exist at the source: the first file's row stands for its neighbours in the group.

That row has the sums of all files, and `wal_files.folded_to` has the number of the last file. A lookup of any of these
files by name finds it applied, so that no file is applied again. A list of all files has only the first file, with the
times and counts of all.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby

from sqlalchemy import Connection, Table, delete, select, update

from walferry.ledger.packing import PackedFile, pack_text
from walferry.ledger.rows import WalRange


def chains(
    files: Iterable[tuple[str, str, bool, bool]], listed: Collection[str], kept: Collection[str]
) -> list[list[str]]:
    """Names of neighbours to fold: the oldest files of each group that are packed and no longer exist.

    `files`: name, group, whether it is packed, and whether it is folded already, by group and number; `listed`: names
    of all files at the source; `kept`: names of files that stay as they are.
    """
    found: list[list[str]] = []
    group, ended = None, False
    for name, of_group, packed, folded in files:
        if of_group != group:
            group, ended = of_group, False
            found.append([])
        if name in kept:
            found.append([])
        elif ended or not packed or (name in listed and not folded):
            ended = True
        else:
            found[-1].append(name)
    return [chain for chain in found if len(chain) > 1]


def write_folded(
    connection: Connection, table: Table, run_id: str, files: Iterable[PackedFile], tables: Mapping[str, int]
) -> int:
    """Fold neighbours of a group that are verified for the same tables. Returns the number of deleted rows."""
    count = 0
    ordered = sorted(files, key=lambda file: file.number)
    for _, alike in groupby(ordered, key=lambda file: file.verified):
        neighbours = list(alike)
        if len(neighbours) > 1:
            whole = _fold(neighbours, tables)
            values = {"length": whole.end, "applied_end": whole.end, "packed": whole.packed, "folded_to": whole.last}
            of_run = table.c.run_id == run_id
            connection.execute(update(table).where(of_run, table.c.name == whole.name).values(values))
            of_group = (of_run, table.c.wal_group == whole.group)
            inside = (table.c.number > whole.number, table.c.number <= whole.last)
            connection.execute(delete(table).where(*of_group, *inside))
            count += len(neighbours) - 1
    return count


def folded(connection: Connection, table: Table, run_id: str, names: Collection[str]) -> set[str]:
    """The names that a folded row of `wal_files` stands for."""
    if not names:
        return set()
    query = select(table.c.wal_group, table.c.number, table.c.folded_to)
    spans: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for group, first, last in connection.execute(query.where(table.c.run_id == run_id, table.c.folded_to.is_not(None))):
        spans[group].append((first, last))
    found = set()
    for name in names if spans else ():
        group, _, number = name.rpartition(".")
        if number.isdigit() and any(first <= int(number) <= last for first, last in spans.get(group, ())):
            found.add(name)
    return found


def _fold(files: Sequence[PackedFile], tables: Mapping[str, int]) -> PackedFile:
    """Merge neighbours of a group, sorted by number and verified for the same tables, into one."""
    first = files[0]
    sums: dict[str, WalRange] = {}
    for item in (item for file in files for item in file.ranges(tables)):
        known = sums.get(item.table, replace(item, entries=0, cells=0))
        firsts = [at_ms for at_ms in (known.first_write_ms, item.first_write_ms) if at_ms is not None]
        lasts = [at_ms for at_ms in (known.last_write_ms, item.last_write_ms) if at_ms is not None]
        sums[item.table] = replace(
            known, entries=known.entries + item.entries, cells=known.cells + item.cells,
            first_write_ms=min(firsts, default=None), last_write_ms=max(lasts, default=None),
        )  # fmt: skip
    text = pack_text(sums.values(), first.number, tables)
    return replace(first, end=sum(file.end for file in files), packed=text, last=files[-1].last)
