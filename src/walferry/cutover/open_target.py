"""Open the target: the rows written since the last comparison are compared, so that clients need not wait for a whole
one.

A whole comparison of the source, which stands still, follows in any case; it gives its verdict before `release`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

from pyspark.sql import SparkSession

from walferry.amounts import amount, rows_differ
from walferry.clock import now_ms, steady_s
from walferry.cutover.conditions import ask, asked_at, reasons
from walferry.errors import WalferryError, is_transient
from walferry.hbase.server_pages import COUNTED_LATE_MS
from walferry.migration.comparing.written_rows import compare_written, differing
from walferry.migration.explaining.since_opening import NOTHING, Fragile
from walferry.migration.repairing.known_differences import RepairMeans, repair_differing
from walferry.migration.repairing.repair import finish_repair
from walferry.migration.sides.fragile_rows import NONE
from walferry.migration.sides.store_files import stood_still, store_files
from walferry.migration.touching import touched
from walferry.replay.rights.applying import UntilRecorded
from walferry.replay.rights.lease import LeaseHeldError
from walferry.replay.rights.standstill import Standstill
from walferry.run.facts import OpenFacts, note_opened
from walferry.run.notes.last_comparison import whole_comparison
from walferry.run.notes.newest import keeps_closed
from walferry.run.run import Run

log = logging.getLogger(__name__)

TABLES_AT_ONCE = 4
READINGS = 4
"""touched rows are read at most this often: again if rows were repaired, or regions flushed or compacted"""
MOST_LOG_BYTES = 256 << 20
"""the most log that is read in the write stop to find out why rows differ"""
COMPACTED_BYTES = 256 << 20
"""the largest target region that is compacted in the write stop"""


def open_target(run: Run, spark: Callable[[], SparkSession], standstill: Standstill | None = None) -> OpenFacts:
    """The phase `open_target`: record the moment from which clients may use the target, or why they must wait for the
    whole comparison and its gate.

    Rows that differ are repaired, unless that needs a compaction of a large region. Until the opening is recorded, no
    other process writes to the target for this run: when a `walferry repair` that waited for the leases gets them, it
    sees that the target is open.
    """

    standstill, until_recorded = standstill or Standstill(), UntilRecorded()

    def work() -> dict[str, Any]:
        began, tables = steady_s(), [pair.source for pair in run.tables]
        try:
            until_recorded.under(run, standstill.kept(run))
        except LeaseHeldError as error:
            return OpenFacts(at_ms=None, why=(f"another process writes to the target: {error}",)).model_dump()
        for table in tables:
            finish_repair(run, standstill, table)
        why = reasons(ask(run, asked_at("opening")))
        rows, explained = dict[str, int](), dict[str, int]()
        if not why:
            why = [*_look(run)]
        if not why:
            with ThreadPoolExecutor(TABLES_AT_ONCE, thread_name_prefix="written rows") as at_once:
                means = partial(_compare, run, spark, standstill)
                found = dict(zip(tables, at_once.map(means, tables), strict=True))
            why = [one.why for one in found.values() if one.why]
            rows = {table: one.rows for table, one in found.items() if not one.why}
            explained = {table: one.explained for table, one in found.items() if one.explained}
        why = why or [text for table in tables if (text := keeps_closed(run.ledger, table, now_ms()))]
        if why:
            log.info("clients may use the target after the whole comparison: %s", "; ".join(why))
            return OpenFacts(at_ms=None, why=tuple(why), rows=rows).model_dump()
        for table, one in found.items():
            one.fragile.keep(run.ledger, table)
        at_ms = now_ms()
        log.info(
            "THE TARGET IS OPEN: clients may use it. %s written since the last comparison and equal%s "
            "(%.1f s); the whole comparison goes on", amount(sum(rows.values()), "row was", "rows were"),
            f", but for {sum(explained.values())} that differ for a known reason" if explained else "",
            steady_s() - began,
        )  # fmt: skip
        return OpenFacts(at_ms=at_ms, rows=rows, explained=explained).model_dump()

    with until_recorded:
        facts = OpenFacts.model_validate(run.once("open_target", work, lease_check=until_recorded.lease_check))
        note_opened(run.ledger)
    return facts


def _look(run: Run) -> Iterator[str]:
    """Find rows that something other than the log touched. If these rows are unknown, yields the reason. Servers count
    writes that skip the log a little late. If there were such writes, this waits until all of them are counted after
    the write stop."""
    stopped = run.ledger.phases.facts("write_stop")
    counted_ms = (stopped["at_ms"] if stopped else now_ms()) + COUNTED_LATE_MS
    try:
        touched.look(run)
        if touched.skips_log(run) and now_ms() < counted_ms:
            seconds = (counted_ms - now_ms()) / 1000
            log.info("writes to source tables skip the log (SKIP_WAL): waiting %.0f s until all are counted", seconds)
            time.sleep(seconds)
            touched.look(run)
    except (WalferryError, OSError) as error:
        if is_transient(error):
            raise
        yield f"rows touched by something other than the source's log are unknown: {error}"


@dataclass(frozen=True)
class _Compared:
    """The comparison of the rows written to a table since its last clean comparison."""

    rows: int = 0
    explained: int = 0
    """how many of the rows differ for a known reason"""
    why: str = ""
    """why the table does not count as equal"""
    fragile: Fragile = NOTHING
    """rows that may change by themselves after the last reading"""


def _compare(run: Run, spark: Callable[[], SparkSession], standstill: Standstill, table: str) -> _Compared:
    since = whole_comparison(run.ledger, table)
    if since is None:
        return _Compared(why=f"no whole comparison of {table} was made before")
    reads = partial(differing, run, table)
    means = RepairMeans(spark, standstill, reads, MOST_LOG_BYTES, COMPACTED_BYTES, without_reasons=True)
    try:
        for _ in range(READINGS):
            found = compare_written(run, table, since, watched=True)
            if found.why:
                return _Compared(why=found.why)
            if left := repair_differing(run, table, found.differing, means).left:
                row, fault = next(iter(left.items()))
                shown = f"{row!r}: {fault}" if fault else repr(row)
                return _Compared(why=f"{rows_differ(len(left))} among those of {table} touched last, such as {shown}")
            explained = len(reads(sorted(found.differing))) if found.differing else 0
            fragile = found.equal.fragile if found.equal is not None else NONE
            after = store_files(run, table, fragile.marked)
            if stood_still(found.before, after, fragile) and explained == len(found.differing):
                return _Compared(found.rows, explained, fragile=Fragile.of(fragile, after, found.differing))
            log.info("%s: rows were repaired, or regions compacted or flushed: touched rows are read again", table)
    except (WalferryError, OSError) as error:
        if is_transient(error):
            raise
        return _Compared(why=f"what was written to {table} since its comparison cannot be read: {error}")
    return _Compared(
        why=f"the rows of {table} touched last were read {READINGS} times; each time, rows had to be repaired, or "
        "regions with delete markers were flushed or compacted meanwhile"
    )
