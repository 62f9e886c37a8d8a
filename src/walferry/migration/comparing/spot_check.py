"""The second reader after a comparison of a run: HBase's own Java client reads rows that the comparison found equal.

A comparison reads raw cells and resolves them itself. If it read or resolved wrongly, both sides would look alike. So
some rows are read once more as a client sees them (`second_reader`). These are the rows of a fair sample of each
region's cells, and some of the rows written last. With each sampled row, the row that follows it in Thrift's own scan
is read, too: the comparison may have missed that row.
"""

from __future__ import annotations

import hashlib
import logging
import random
from collections.abc import Callable, Mapping

from pyspark.sql import SparkSession

from walferry.clock import steady_s
from walferry.errors import WalferryError
from walferry.ledger import Difference
from walferry.migration.comparing.compare import TableComparison, is_followed
from walferry.migration.comparing.second_reader import (
    RowsToRead,
    SecondReading,
    Sides,
    depends_on_the_moment,
    read_both,
    still_differ,
)
from walferry.migration.comparing.written_rows import rows_by_file
from walferry.migration.explaining.difference_classes import IN_FLIGHT, UNEXPLAINED, WRITTEN_SINCE
from walferry.migration.explaining.explain_rows import EQUAL_NOW, explain
from walferry.replay.log.cut import as_listed
from walferry.run.notes.spot_check import SpotCheck, last_spot_check, note_spot_check, why_none
from walferry.run.run import Run
from walferry.wal.files import WalFile

log = logging.getLogger(__name__)

MOST_LOG_BYTES = 64 << 20
"""the most log that is read for the rows written last; the newest log is read in any case"""
UNREAD = "HBase's own Java client showed different cells on both sides last time, and cannot be asked now"
ONLY_SECOND = "HBase's own Java client shows different cells on both sides, although raw scans show the same"


def spot_check(run: Run, spark: Callable[[], SparkSession], result: TableComparison) -> SpotCheck:
    """Have the second reader read rows of a comparison's sample, rows written last and rows that differed last time,
    and record the result. Rows that differ only for the second reader are added to the comparison as unexplained, and
    so are rows that differed last time if they cannot be read now.

    Raises the errors of `explain`.
    """
    began, table, known = steady_s(), result.table, {item.row for item in result.differences}
    before = last_spot_check(run.ledger, table)
    again = [row for row in map(bytes.fromhex, before.differing) if row not in known] if before else []
    reading = SecondReading(why=why_none(run))
    live = result.compared.purpose == "verify" and is_followed(run)  # then edits may be on their way
    if not reading.why:
        rows = [*last_written(run, table, run.spec.spot_check // 3), *again]
        asked = {table: RowsToRead(result.sample, rows)}
        reading = read_both(run, asked, run.spec.max_lag if live else 0)[table]
    if reading.why:
        faults = [Difference(table, row, UNEXPLAINED, UNREAD, hashlib.sha256(row).hexdigest()) for row in again]
    else:
        differing = {row: sides for row, sides in reading.differing.items() if row not in known}
        faults = _faults(run, spark, table, differing, live)
    excused = len(reading.differing) + len(reading.under_way) - len(faults) if not reading.why else 0
    run.ledger.comparisons.add(result.compared, faults)
    found = SpotCheck(
        comparison=result.compared.attempt, rows=len(reading.rows), seconds=round(steady_s() - began, 1),
        differing=tuple(item.row.hex() for item in faults), excused=excused, why=reading.why,
    )  # fmt: skip
    note_spot_check(run.ledger, table, found, result.compared.purpose)
    (log.warning if found.differing else log.info)("%s: %s", table, found.describe())
    return found


def last_written(run: Run, table: str, most: int) -> list[bytes]:
    """Some rows from the newest logs with cells of the table; [] if these logs cannot be read."""
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
        log.warning("the spot check leaves out the rows of %s that were written last: %s", table, error)
        return []
    rows = sorted({row for of_file in found.values() for row in of_file.to_pylist()}) if isinstance(found, dict) else []
    return random.sample(rows, min(most, len(rows)))


def _faults(
    run: Run, spark: Callable[[], SparkSession], table: str, differing: Mapping[bytes, Sides], live: bool
) -> list[Difference]:
    """The differences among these rows that the comparison's own reader cannot explain either.

    `live`: both sides are written to, so an edit may be on its way, or may have arrived during the search for the
    reason.
    """
    if not differing:
        return []
    found = explain(run, spark, None, table, sorted(differing))
    equal = {item.row: differing[item.row] for item in found if item.kind == IN_FLIGHT and item.detail == EQUAL_NOW}
    late = equal.keys() - still_differ(run, table, equal) if live else set()
    faults = []
    for item in found:
        if item.kind == WRITTEN_SINCE or item.row in late:
            continue
        if item.kind == IN_FLIGHT:
            if (live and item.row not in equal) or depends_on_the_moment(run, table, item.row):
                continue
            shown = repr([sorted(side.items()) for side in differing[item.row]]).encode()
            item = Difference(table, item.row, UNEXPLAINED, ONLY_SECOND, hashlib.sha256(shown).hexdigest())
        faults.append(item)
    return faults
