"""Read regions of a pair on both sides, in the executors, and record the results."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from pyspark.sql import SparkSession

from walferry.amounts import rows_differ
from walferry.clock import now_ms
from walferry.ledger import PassDifference, PassRecord, PassRegion
from walferry.migration.comparing.written_rows import ROWS_AT_ONCE
from walferry.migration.pairs.pair_plan import Sight
from walferry.migration.pairs.pair_rows import PairRead, read_pair, still_differing, too_many
from walferry.migration.pairs.pair_shipping import Shipping
from walferry.migration.pairs.pair_spot_check import Drawn
from walferry.migration.sides.digest import RangePair
from walferry.migration.sides.stored_sides import rules_of
from walferry.run.run import Run
from walferry.spark.clients import workers
from walferry.spark.fan_out import fan_out

log = logging.getLogger(__name__)

NAMED_ROWS = 1_000
"""the most differing rows of a region that are named; any more are only counted"""


@dataclass(frozen=True)
class Todo:
    """A region to read: whole (`why`), or only these rows."""

    sight: Sight
    known: PassRegion | None
    why: str
    rows: tuple[bytes, ...]
    fragile: bool
    """whether cells written since the region was last read make it fragile"""
    sampled: int = 0
    """how many of its cells to draw for the second reader, if the region is read whole"""


def read_regions(
    run: Run, session: SparkSession | None, current: PassRecord, position: int, todo: Sequence[Todo], drawn: Drawn
) -> None:
    """Read regions on both sides, and record the findings and the rows that the second reader is to read."""
    pairs = {table: _table_pair(run, session, table) for table in {item.sight.table for item in todo}}
    parts = [(number, part) for number, item in enumerate(todo) for part in _parts(pairs[item.sight.table][0], item)]
    found: list[PairRead] = fan_out(session, read_pair, [part for _, part in parts], what="compare both sides")
    reads: list[list[PairRead]] = [[] for _ in todo]
    for (number, _), one in zip(parts, found, strict=True):
        reads[number].append(one)
    regions, differences = [], []
    for item, of in zip(todo, reads, strict=True):
        fragile = item.fragile or pairs[item.sight.table][1]
        region, rows = _region(replace(item, fragile=fragile), of, current, position)
        regions.append(region)
        differences += rows
        drawn.add(item.sight.table, (row for one in of for _, row in one.outcome.sample), item.rows)
    drawn.keep()
    run.ledger.passes.record(current, regions, differences)


def _table_pair(run: Run, session: SparkSession | None, table: str) -> tuple[RangePair, bool]:
    """The range of a whole table and its copy, and whether the two keep cells by different rules."""
    pair = run.pair(table)
    rules = rules_of(run.source.describe(pair.source))
    whole = RangePair(
        run.source_address(workers(session)), run.target_address(), pair.source, pair.target, "", b"", b"",
        rules, NAMED_ROWS, names_expiring=True,
    )  # fmt: skip
    return whole, rules != rules_of(run.target.describe(pair.target))


def _parts(whole: RangePair, item: Todo) -> Iterator[RangePair]:
    region = item.sight.region
    if item.why:
        yield replace(whole, region=region.encoded, start=region.start, stop=region.end, sampled=item.sampled)
    for first in range(0, len(item.rows), ROWS_AT_ONCE):
        some = item.rows[first : first + ROWS_AT_ONCE]
        yield replace(whole, region=region.encoded, start=some[0], stop=some[-1] + b"\0", named=len(some), rows=some)


def _region(
    item: Todo, reads: Sequence[PairRead], current: PassRecord, position: int
) -> tuple[PassRegion, list[PassDifference]]:
    """What is known about a region now. Differing rows count as under way until they are read again."""
    sight, at_ms = item.sight, now_ms()
    rows = sorted({row for one in reads for row in one.outcome.rows})[:NAMED_ROWS]
    differing = sum(one.outcome.differing for one in reads)
    whole_ms = at_ms if item.why or item.known is None else item.known.whole_ms
    fragile = item.fragile or any(one.fragile for one in reads)
    if not item.why and item.known is not None:
        fragile = fragile or item.known.fragile
    region = PassRegion(
        sight.table, sight.region.encoded, sight.target_table, sight.region.start, sight.region.end, sight.lines,
        current.number, position, bool(item.why), item.why, whole_ms, item.known.clean_ms if item.known else None,
        sum(one.rows for one in reads), sum(one.size for one in reads), fragile, differing - len(rows),
    )  # fmt: skip
    return region, [
        PassDifference(sight.table, row, sight.region.encoded, "under way", "not read again yet", at_ms) for row in rows
    ]


def settle(run: Run, session: SparkSession | None, current: PassRecord, shipping: Shipping) -> None:
    """Read differing rows again until late edits have arrived."""
    overflown = [region for region in run.ledger.passes.regions() if region.unnamed and region.number == current.number]
    if overflown and shipping.peer is not None:
        shipping.ship()
    elif overflown:
        time.sleep(run.spec.max_lag)
    for region in overflown:
        whole, _ = _table_pair(run, session, region.table)
        pair = replace(whole, region=region.region, start=region.start, stop=region.stop)
        one = fan_out(session, read_pair, [pair], what="compare both sides again")[0]
        rows, at_ms = one.outcome.rows[:NAMED_ROWS], now_ms()
        again = replace(
            region, rows_read=one.rows, bytes_read=one.size, unnamed=one.outcome.differing - len(rows),
        )  # fmt: skip
        items = [PassDifference(region.table, row, region.region, "under way", "", at_ms) for row in rows]
        run.ledger.passes.record(current, [again], items)
        if again.unnamed and shipping.peer is not None:  # nobody saw which rows these were before all was shipped
            shipping.leave_unjudged(too_many(region.table, NAMED_ROWS, of="a region of "))
    tables = {pair.source for pair in run.tables}
    found = [item for item in run.ledger.passes.differences() if item.table in tables]
    if found:
        log.info(
            "%s: %s so far; reading these rows again for %d s", run.run_id, rows_differ(len(found)), run.spec.max_lag
        )
        run.ledger.passes.settle(current, *still_differing(run, found, shipping))
