"""Read rows of both sides through Thrift, with HBase's own Java client: a reader that shares no code with walferry's.

Thrift shows the newest version of each column. Rows that differ are read again: a cell may have expired in between, or
an edit may have been under way.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from typing import TypeVar

from thriftpy2.thrift import TException

from walferry.clock import CLOCKS_APART_MS, now_ms, steady_s
from walferry.errors import WalferryError
from walferry.hbase.address import ClusterAddress
from walferry.hbase.thrift import connect
from walferry.migration.repairing.repair import raw_row
from walferry.migration.repairing.row_plan import TooLargeError, shown
from walferry.migration.sides.row_sides import FAMILY_MARKERS
from walferry.migration.sides.stored_sides import rules_of
from walferry.run.run import Run

EXPIRED_MS = CLOCKS_APART_MS + 60_000
"""a cluster whose clock is late may show a cell that expired at most this long before the reading"""
READS = 3
"""the fewest readings of rows that differ"""
PAUSE_SECONDS = 1.0
_PAUSES = 4
"""pauses after these readings, spread over the time that an edit may take"""
CONNECTIONS = 4
"""connections to each Thrift server"""
ROWS_AT_ONCE = 10
"""rows in one answer: a row may be large"""

_Question = TypeVar("_Question")
Shown = Mapping[bytes, tuple[bytes, int]]
"""a row as a client sees it: value and timestamp by column"""
Rows = dict[bytes, Shown]
Sides = tuple[Shown, Shown]
"""a row at the source and at the target; {} if a side has no such row"""


@dataclass(frozen=True)
class RowsToRead:
    """Rows of a table to be read from both sides."""

    around: Sequence[bytes] = ()
    """keys: for each key, its row and the next row in Thrift's own scan are read"""
    exactly: Sequence[bytes] = ()
    """only these rows"""


@dataclass(frozen=True)
class SecondReading:
    """What both sides of a table show."""

    rows: frozenset[bytes] = frozenset()
    """rows that either side has"""
    differing: Mapping[bytes, Sides] = field(default_factory=dict)
    """rows that differed at every reading, as last read"""
    under_way: frozenset[bytes] = frozenset()
    """rows in which other cells differed at the last reading than at the first, while both sides were written to"""
    why: str = ""
    """why all of this is unknown: a Thrift server failed"""


def read_both(
    run: Run, asked: Mapping[str, RowsToRead], seconds: float = 0.0, pause: Callable[[float], None] = time.sleep
) -> dict[str, SecondReading]:
    """Read rows of tables; read rows that differ again, READS times in all.

    `seconds`: how long an edit may take from one side to the other. If given, rows that differ are read again until
    that time has passed, and a row counts only if the same cell differed at the first and at the last reading.
    """
    readers = {table: _ThriftReader(run, table) for table in asked}
    found = {table: _tried(_first, readers[table], one) for table, one in asked.items()}
    first = {table: one.differing for table, one in found.items()}
    deadline, reads = steady_s() + seconds, 1
    while any(one.differing for one in found.values()) and (reads < READS or steady_s() < deadline):
        rest = max(PAUSE_SECONDS, min(seconds / _PAUSES, deadline - steady_s()))
        pause(PAUSE_SECONDS if reads < READS else rest)
        found = {table: _tried(_again, readers[table], one) if one.differing else one for table, one in found.items()}
        reads += 1
    return {table: _lasting(one, first[table]) if seconds else one for table, one in found.items()}


def still_differ(run: Run, table: str, before: Mapping[bytes, Sides]) -> set[bytes]:
    """The rows in which a cell that differed before still differs. If Thrift fails, all of them count as still
    differing."""
    if not before:
        return set()
    one = _tried(_again, _ThriftReader(run, table), SecondReading(differing=before))
    return set(before) if one.why else set(_lasting(one, before).differing)


def depends_on_the_moment(run: Run, table: str, row: bytes) -> bool:
    """Whether the two sides may show correct copies of a row differently. They may if a cell expires about now by the
    clock of one cluster, or if HBase's answer depends on what is flushed, as for cells with an empty qualifier and a
    delete of their family (docs/fine-print.md)."""
    pair, rules, at_ms = run.pair(table), rules_of(run.source.describe(table)), now_ms()
    for client, name in ((run.source, pair.source), (run.target, pair.target)):
        try:
            cells = raw_row(client, name, row)
        except TooLargeError:
            return False
        empty = {cell.family for cell in cells if not cell.qualifier and cell.type not in FAMILY_MARKERS}
        if any(cell.type in FAMILY_MARKERS and cell.family in empty for cell in cells):
            return True
        first, last = (shown(cells, rules, moment).keys() for moment in (at_ms - EXPIRED_MS, at_ms + CLOCKS_APART_MS))
        if first != last:
            return True
    return False


# ------------------------------------------------------------------ what lasts


def _tried(
    read: Callable[[_ThriftReader, _Question], SecondReading], reader: _ThriftReader, question: _Question
) -> SecondReading:
    """Read, and return the error of a Thrift server in `why`: Thrift is no part of a comparison, so its errors fail no
    comparison."""
    try:
        return read(reader, question)
    except (TException, OSError, WalferryError) as error:
        return SecondReading(why=f"reading by Thrift failed: {error}")


def _first(reader: _ThriftReader, asked: RowsToRead) -> SecondReading:
    rows, differing = reader.around(asked.around)
    more, others = reader.exactly(asked.exactly)
    return SecondReading(frozenset(rows | more), differing | others)


def _again(reader: _ThriftReader, one: SecondReading) -> SecondReading:
    _, differing = reader.exactly(sorted(one.differing))
    return SecondReading(one.rows, differing)


def _lasting(one: SecondReading, first: Mapping[bytes, Sides]) -> SecondReading:
    """The reading without rows that only differ because edits are under way."""
    lasting = {row: sides for row, sides in one.differing.items() if _cells(first[row]) & _cells(sides)}
    return SecondReading(one.rows, lasting, frozenset(one.differing.keys() - lasting.keys()), one.why)


def _cells(sides: Sides) -> set[tuple[int, bytes, tuple[bytes, int]]]:
    """The cells that only one side shows, with the side."""
    return {
        (number, column, cell)
        for number, (mine, other) in enumerate((sides, sides[::-1]))
        for column, cell in mine.items()
        if other.get(column) != cell
    }


# ------------------------------------------------------------------ HBase's own client


class _ThriftReader:
    """Both sides of a table as HBase's Java client shows them."""

    def __init__(self, run: Run, table: str) -> None:
        pair = run.pair(table)
        self._sides = ((run.source_address(), pair.source), (run.target_address(), pair.target))

    def around(self, keys: Sequence[bytes]) -> tuple[set[bytes], dict[bytes, Sides]]:
        """The rows at each key and after it, and which of them differ."""
        rows, differing = self._both(keys, _from_each)
        return rows, self.exactly(sorted(differing))[1]  # the other side's answer may have ended before such a row

    def exactly(self, rows: Sequence[bytes]) -> tuple[set[bytes], dict[bytes, Sides]]:
        """The rows that either side shows, and which of them differ."""
        return self._both(rows, _each)

    def _both(
        self, keys: Sequence[bytes], read: Callable[[ClusterAddress, str, Sequence[bytes]], Rows]
    ) -> tuple[set[bytes], dict[bytes, Sides]]:
        parts = [part for number in range(CONNECTIONS) if (part := keys[number::CONNECTIONS])]
        with ThreadPoolExecutor(2 * CONNECTIONS, thread_name_prefix="second reader") as readers:
            asked = [[readers.submit(read, *side, part) for part in parts] for side in self._sides]
            here, there = ({row: cells for part in of for row, cells in part.result().items()} for of in asked)
        rows = {*here, *there}
        return rows, {row: (here.get(row, {}), there.get(row, {})) for row in rows if here.get(row) != there.get(row)}


def _from_each(address: ClusterAddress, table: str, keys: Sequence[bytes]) -> Rows:
    with closing(connect(address)) as connection:
        opened = connection.table(table)
        return {
            row: cells
            for key in keys
            for row, cells in opened.scan(row_start=key, limit=2, batch_size=2, include_timestamp=True)
        }


def _each(address: ClusterAddress, table: str, rows: Sequence[bytes]) -> Rows:
    with closing(connect(address)) as connection:
        opened = connection.table(table)
        parts = (list(rows[first : first + ROWS_AT_ONCE]) for first in range(0, len(rows), ROWS_AT_ONCE))
        return {row: cells for some in parts for row, cells in opened.rows(some, include_timestamp=True)}
