"""A second reader, which shares no code with the first: rows read from both sides through HBase's own Java client.

A comparison reads raw cells and resolves them itself. If it read or resolved wrongly, both sides would look alike. So
some rows are read once more as a client sees them, by the Thrift servers of both clusters: of each region a fair sample
of its cells, each row with the one that follows it in Thrift's own scan, which the comparison may have missed; and some
of the rows that were written last. Thrift shows the newest version of each column.
"""

from __future__ import annotations

import hashlib
import logging
import random
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

from pyspark.sql import SparkSession
from thriftpy2.thrift import TException

from walferry.clock import CLOCKS_APART_MS, now_ms, steady_s
from walferry.errors import WalferryError
from walferry.hbase.address import ClusterAddress
from walferry.hbase.thrift import connect
from walferry.ledger import Difference
from walferry.migration.compare import TableComparison
from walferry.migration.explain import IN_FLIGHT, UNEXPLAINED, WRITTEN_SINCE
from walferry.migration.reasons import explain
from walferry.migration.repair import raw_row
from walferry.migration.row_repair import TooLargeError, shown
from walferry.migration.row_sides import FAMILY_MARKERS
from walferry.migration.stored_sides import rules_of
from walferry.migration.written_rows import rows_by_file
from walferry.replay.cut import as_listed
from walferry.run.run import Run
from walferry.run.spot_check import SpotCheck, last_spot_check, note_spot_check, why_none
from walferry.wal.files import WalFile

log = logging.getLogger(__name__)

EXPIRED_MS = CLOCKS_APART_MS + 60_000
"""so long ago, at most, a cell may have expired that a cluster whose clock is late showed when rows were read"""
READS = 3
"""of rows that differ: a cell may have expired in between"""
PAUSE_SECONDS = 1.0
CONNECTIONS = 4
"""to each Thrift server"""
ROWS_AT_ONCE = 10
"""in one answer: a row may be large"""
MOST_LOG_BYTES = 64 << 20
"""that are read for the rows that were written last, but for the newest log"""
UNREAD = "HBase's own Java client showed different cells on both sides last time, and cannot be asked now"
ONLY_SECOND = "HBase's own Java client shows different cells on both sides, although raw scans show the same"

Shown = Mapping[bytes, tuple[bytes, int]]
"""a row as a client sees it: by column its value and timestamp"""
Rows = dict[bytes, Shown]


def spot_check(run: Run, spark: Callable[[], SparkSession], result: TableComparison) -> SpotCheck:
    """Read rows of a comparison's sample, those written last, and those that differed last time, by the second reader,
    and record what it found. Rows that differ for it alone are added to the comparison, without an explanation;
    so are those that differed last time if they cannot be read now.

    Raises the errors of finding out why rows differ.
    """
    began, table, known = steady_s(), result.table, {item.row for item in result.differences}
    before = last_spot_check(run.ledger, table)
    again = [row for row in map(bytes.fromhex, before.differing) if row not in known] if before else []
    faults = [Difference(table, row, UNEXPLAINED, UNREAD, hashlib.sha256(row).hexdigest()) for row in again]
    rows, excused, why = set[bytes](), 0, why_none(run)
    if not why:
        try:
            rows, differing = _read(run, table, result.sample, again)
        except (TException, OSError, WalferryError) as error:
            why = f"reading by Thrift failed: {error}"
        else:
            faults = _faults(run, spark, table, {row: sides for row, sides in differing.items() if row not in known})
            excused = len(differing) - len(faults)
    run.ledger.comparisons.add(result.compared, faults)
    found = SpotCheck(
        comparison=result.compared.attempt, rows=len(rows), seconds=round(steady_s() - began, 1),
        differing=tuple(item.row.hex() for item in faults), excused=excused, why=why,
    )  # fmt: skip
    note_spot_check(run.ledger, table, found)
    (log.warning if found.differing else log.info)("%s: %s", table, found.describe())
    return found


def _read(
    run: Run, table: str, sample: Sequence[bytes], again: Sequence[bytes]
) -> tuple[set[bytes], dict[bytes, Sides]]:
    """The rows that were read, and those of them that differ each time."""
    reader = _Reader(run, table)
    rows, differing = reader.around(sample)
    more, others = reader.exactly([*last_written(run, table, run.spec.spot_check // 3), *again])
    differing |= others
    for _ in range(READS - 1):
        if differing:
            time.sleep(PAUSE_SECONDS)
            differing = reader.exactly(sorted(differing))[1]
    return rows | more, differing


def last_written(run: Run, table: str, most: int) -> list[bytes]:
    """Some of the rows that the newest logs with cells of the table hold; [] if they cannot be read."""
    names = run.ledger.log.applied_for(table) - run.ledger.log.without_cells(table)
    files = sorted(run.ledger.log.known(names).values(), key=lambda file: file.number, reverse=True)
    some, size = list[WalFile](), 0
    for file in files:
        if some and size + file.length > MOST_LOG_BYTES:
            break
        some.append(as_listed(file))
        size += file.length
    try:
        found = rows_by_file(run, table, some)
    except (WalferryError, OSError) as error:
        log.warning("the rows of %s that were written last are left out of the spot check: %s", table, error)
        return []
    rows = sorted({row for of_file in found.values() for row in of_file.to_pylist()}) if isinstance(found, dict) else []
    return random.sample(rows, min(most, len(rows)))


def _faults(
    run: Run, spark: Callable[[], SparkSession], table: str, differing: Mapping[bytes, Sides]
) -> list[Difference]:
    """Those of the rows that the comparison's reader cannot explain either."""
    if not differing:
        return []
    found = []
    for item in explain(run, spark, None, table, sorted(differing)):
        if item.kind == WRITTEN_SINCE or (item.kind == IN_FLIGHT and _depends_on_the_moment(run, table, item.row)):
            continue
        if item.kind == IN_FLIGHT:
            shown = repr([sorted(side.items()) for side in differing[item.row]]).encode()
            item = Difference(table, item.row, UNEXPLAINED, ONLY_SECOND, hashlib.sha256(shown).hexdigest())
        found.append(item)
    return found


def _depends_on_the_moment(run: Run, table: str, row: bytes) -> bool:
    """Whether correct copies of a row may be shown differently: a cell expires about now, by the clock of one cluster;
    or HBase goes by what is flushed, as for cells with an empty qualifier and a delete of their family
    (docs/fine-print.md)."""
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


# ------------------------------------------------------------------ HBase's own client


Sides = tuple[Shown, Shown]
"""a row of the source and of the target; {} where there is none"""


class _Reader:
    """Both sides of a table as HBase's Java client shows them."""

    def __init__(self, run: Run, table: str) -> None:
        pair = run.pair(table)
        self._sides = ((run.source_address(), pair.source), (run.spec.target.address(), pair.target))

    def around(self, keys: Sequence[bytes]) -> tuple[set[bytes], dict[bytes, Sides]]:
        """The rows at each key and after it, and those of them that differ."""
        rows, differing = self._both(keys, _from_each)
        return rows, self.exactly(sorted(differing))[1]  # the other side's answer may have ended before such a row

    def exactly(self, rows: Sequence[bytes]) -> tuple[set[bytes], dict[bytes, Sides]]:
        """The rows that either side shows, and those of them that differ."""
        return self._both(rows, _each)

    def _both(
        self, keys: Sequence[bytes], read: Callable[[ClusterAddress, str, Sequence[bytes]], Rows]
    ) -> tuple[set[bytes], dict[bytes, Sides]]:
        parts = [part for number in range(CONNECTIONS) if (part := keys[number::CONNECTIONS])]
        with ThreadPoolExecutor(2 * CONNECTIONS, thread_name_prefix="spot check") as readers:
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
