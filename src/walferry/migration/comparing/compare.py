"""Compare: whether source and target are equal, and why a row differs.

Both sides of a row range are read raw in parallel, from snapshots (`stored_sides`) or by scans. One function resolves
both sides at one moment, and the visible cells are compared: row, family, qualifier, timestamp, type, value, tags
(`digest`). `explain_rows` finds out why rows differ.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from pyspark.sql import SparkSession

from walferry.amounts import amount, rows_differ
from walferry.clock import now_ms, steady_s
from walferry.errors import TransientError, WalferryError
from walferry.formats.resolve import Fate
from walferry.ledger import ComparedTable, Difference, RangeComparison
from walferry.ledger.comparisons import Decision, lacks_explanation, needs_decision
from walferry.ledger.rows import Purpose
from walferry.migration.comparing.parts import Parts, Start, drop_parts
from walferry.migration.explaining.difference_classes import IN_FLIGHT, UNEXPLAINED
from walferry.migration.explaining.explain_rows import EQUAL_NOW, explain
from walferry.migration.sides.digest import (
    SHOWN_ROWS,
    Outcome,
    RangePair,
    compare_pairs,
)
from walferry.migration.sides.stored_sides import compare_stored, rules_of, snapshots_taken, why_scanned
from walferry.migration.touching import equality
from walferry.replay.rights import dirty
from walferry.run.facts import opened_ms
from walferry.run.heartbeat import alive
from walferry.run.notes.last_comparison import last_drain
from walferry.run.notes.newest import clients_from, note_newest
from walferry.run.notes.spot_check import sampled
from walferry.run.progress.lag import covered_ms
from walferry.run.progress.write_stop import note_comparing
from walferry.run.run import Run
from walferry.spark.clients import workers
from walferry.spark.session import session_for

log = logging.getLogger(__name__)

EXPLAINED_ROWS = 20_000
"""if more rows of a table differ, nobody can examine each, and only the first SHOWN_ROWS are explained"""
MANY_ROWS = 500
"""if more rows differ while the log is followed, their whole ranges are read again before single rows are"""
PASSES = 3
"""the most readings of ranges in which many rows differ"""
NAMED_AGAIN = 100_000
"""the most rows of a range that these readings name"""
NAMED_TOGETHER = 1_000_000
"""the most rows of all ranges that they name, since this process holds them"""
_LOOK_SECONDS = 0.5


@dataclass(frozen=True)
class TableComparison:
    """The result for one table, as recorded in the ledger."""

    compared: ComparedTable
    ranges: list[RangeComparison]
    differences: list[Difference]
    decided: Collection[Decision]
    """the differences that a person has accepted"""
    sample: Sequence[bytes] = ()
    """randomly drawn rows of each region, for the second reader"""

    @property
    def table(self) -> str:
        """The source table."""
        return self.compared.table

    @property
    def differing_rows(self) -> int:
        """The number of all rows that differ, explained or not."""
        return self.compared.differing_rows

    @property
    def unexplained(self) -> int:
        """The number of rows that nothing explains and nobody has accepted, including rows that were not examined."""
        explained = sum(not lacks_explanation(difference, self.decided) for difference in self.differences)
        return self.differing_rows - explained

    @property
    def undecided(self) -> int:
        """The number of rows that are not in the log and that nobody has accepted."""
        return sum(needs_decision(difference, self.decided) for difference in self.differences)

    @property
    def uncompared(self) -> int:
        """The number of cells that expired while they were read, and that only one side held."""
        return sum(item.uncompared for item in self.ranges)

    @property
    def names_all(self) -> bool:
        """Whether every row that differs is named, and every cell was compared."""
        return len({item.row for item in self.differences}) == self.differing_rows and not self.uncompared

    @property
    def shuts_the_gate(self) -> bool:
        """Whether the tables do not count as equal."""
        return bool(self.unexplained or self.undecided or self.uncompared)

    def describe(self) -> str:
        """The result as a line."""
        kinds = f", {self.unexplained} without an explanation, {self.undecided} without a decision"
        left = f"; {amount(self.uncompared, 'cell was', 'cells were')} not compared" if self.uncompared else ""
        found = f"{rows_differ(self.differing_rows)}{kinds}" if self.differing_rows else "equal"
        return f"{self.table}: {found}, {amount(len(self.ranges), 'region')}{left}"

    def facts(self) -> dict[str, Any]:
        """The result as plain values, for display and for the ledger."""
        return {
            "table": self.table, "regions": len(self.ranges), "differing_rows": self.differing_rows,
            "unexplained": self.unexplained, "undecided": self.undecided, "uncompared_cells": self.uncompared,
        }  # fmt: skip


def compare(
    run: Run,
    spark: Callable[[], SparkSession],
    table: str,
    purpose: Purpose = "verify",
    parts: Parts | None = None,
) -> TableComparison:
    """Compare one table, by regions of the source, and record the result as the newest in the ledger.

    Calls `spark` if the table is large, or if rows differ and the log is large.

    `purpose`: "phase" only for the run's own phase, which must be running: the last gate uses no other comparison.
    `parts`: the parts of a comparison to start or continue; with them, this also raises the errors of `Parts.compared`.
    """
    start = parts.start if parts else Start.now(run, table, keeps_equality=_may_be_cut_over(run, purpose))
    if start.begun is not None:
        run.known_rows.collect(table)
    before = _began(run, table, purpose, start.at_ms)
    session = session_for(spark, run.source.held_bytes().get(table, 0), run.writing.here_bytes)
    began = steady_s()
    pairs, outcomes = _both_sides(run, session, table, purpose, parts)
    note_comparing(run.ledger, table, parts.seconds if parts else steady_s() - began)
    start = parts.start if parts else start
    newest = max((outcome.newest for outcome in outcomes), default=-1)
    note_newest(run.ledger, table, newest, before.began_ms, whole=True)
    settled: list[bytes] = []
    if purpose == "verify" and is_followed(run):
        outcomes, settled = _read_until_settled(run, session, pairs, outcomes)
    ranges = [_range(table, pair, outcome) for pair, outcome in zip(pairs, outcomes, strict=True)]
    count, rows = _differing(session, pairs, outcomes)
    differences = explain(run, spark, session, table, rows) if rows else []
    if count > len(rows):
        # The gate uses recorded rows: left-out rows must not pass along with the explained rows of their region.
        message = f"{count - len(rows)} more rows from here on differ, too many to examine each"
        differences.append(Difference(table, rows[-1], UNEXPLAINED, message))
    differences += [Difference(table, row, IN_FLIGHT, EQUAL_NOW) for row in settled]
    ended = ComparedTable(**vars(before) | {"ended_ms": now_ms(), "differing_rows": count + len(settled)})
    compared = run.ledger.comparisons.record(ended, ranges, differences)
    run.ledger.comparisons.record_look(table, ())
    sample = sorted({row for outcome in outcomes for _, row in outcome.sample})
    result = TableComparison(compared, ranges, differences, run.ledger.comparisons.accepted().keys(), sample)
    marks = [rows for rows in dirty.marks(run.target.zk, run.pair(table).target) if rows.name in start.marks]
    dirty.compared(run, compared, marks, equal=not result.shuts_the_gate)
    if start.begun is not None and result.names_all:  # the next look reads differing rows again
        fragile = sum((outcome.fragile for outcome in outcomes), start.fragile)  # with parts, the start has them
        if equality.keep_whole(run, start.begun, compared, fragile):
            run.ledger.log.mark_verified(table, start.applied)
    elif not result.shuts_the_gate:
        run.ledger.log.mark_verified(table, start.applied)
    if parts:
        drop_parts(run.ledger, table)
    log.info("%s", result.describe())
    return result


def _may_be_cut_over(run: Run, purpose: Purpose) -> bool:
    """Whether this comparison may spare the write stop a whole comparison. If so, rows touched after it must be
    recorded."""
    record = run.ledger.record
    unfinished = record.kind == "migration" and record.state == "running"
    return purpose == "verify" and unfinished and opened_ms(run.ledger) is None


def _began(run: Run, table: str, purpose: Purpose, began_ms: int) -> ComparedTable:
    attempt = 0
    if purpose == "phase":
        phase = run.ledger.phases.find("compare", table)
        assert phase is not None, "the phase is running"
        attempt = phase.attempts
    return ComparedTable(table, 0, purpose, attempt, *last_drain(run.ledger), began_ms, began_ms, 0)


def _both_sides(
    run: Run, spark: SparkSession | None, table: str, purpose: Purpose, parts: Parts | None = None
) -> tuple[list[RangePair], list[Outcome]]:
    """Compare the rows of every source region, from snapshots or by scans."""

    def compared(pairs: Sequence[RangePair], read: Callable[[Sequence[RangePair]], list[Outcome]]) -> list[Outcome]:
        return parts.compared(pairs, read, workers(spark)) if parts else read(pairs)

    second = purpose == "phase" or parts is None  # the comparison ahead has no second reader
    asked = run.spec.compare
    because = "the spec says so" if asked == "scans" else why_scanned(run, table) if asked == "auto" else None
    if because is None:
        try:
            with snapshots_taken(run, table, purpose) as stored:
                pairs = _pairs(run, spark, table, ((r.name, r.start, r.end) for r in stored.source), second)
                return pairs, compared(pairs, lambda some: compare_stored(run, spark, some, stored))
        except TransientError:
            raise
        except (WalferryError, OSError) as error:
            if asked == "snapshots":
                raise
            log.warning("%s cannot be compared from snapshots, so it is compared by scans: %s", table, error)
    else:
        log.info("%s is compared by scans: %s", table, because)
    # A scan continues when a region is moved, split or merged.
    regions = sorted(run.source.regions(table), key=lambda region: region.start)
    pairs = _pairs(run, spark, table, ((region.encoded, region.start, region.end) for region in regions), second)
    return pairs, compared(pairs, partial(compare_pairs, spark))


def _pairs(
    run: Run, spark: SparkSession | None, table: str, regions: Iterable[tuple[str, bytes, bytes]], second_reader: bool
) -> list[RangePair]:
    """A range for each source region. `regions`: encoded name, first row, and the row after the last one."""
    pair = run.pair(table)
    rules = rules_of(run.source.describe(table))
    source, target = run.source_address(workers(spark)), run.target_address()
    borders = list(regions)
    # So that few ranges must be read again to name the rows that differ.
    named = max(SHOWN_ROWS, EXPLAINED_ROWS // max(1, len(borders)))
    # Clients write to an open target; their writes are not compared.
    first, followed = _clients_from(run, table), is_followed(run)
    cells = sampled(run, len(borders)) if second_reader else 0
    return [
        RangePair(
            source, target, pair.source, pair.target, name, start, end, rules, named,
            sampled=cells, clients_from=first, names_expiring=followed,
        )
        for name, start, end in borders
    ]  # fmt: skip


def _differing(
    spark: SparkSession | None, pairs: Sequence[RangePair], outcomes: Sequence[Outcome]
) -> tuple[int, list[bytes]]:
    """How many rows differ, and which: all of them, or only the first SHOWN_ROWS if more than EXPLAINED_ROWS differ."""
    count = sum(outcome.differing for outcome in outcomes)
    rows = {row for outcome in outcomes for row in outcome.rows}
    if len(rows) < count <= EXPLAINED_ROWS:
        # Read again the ranges in which more rows differ than were named. Rows that are equal by then were in flight.
        again = [
            replace(pair, named=EXPLAINED_ROWS)
            for pair, outcome in zip(pairs, outcomes, strict=True)
            if outcome.differing > len(outcome.rows)
        ]
        found = compare_pairs(spark, again)
        rows |= {row for outcome in found for row in outcome.rows}
        count = len(rows) + sum(outcome.differing - len(outcome.rows) for outcome in found)
    return count, sorted(rows)[: SHOWN_ROWS if count > EXPLAINED_ROWS else EXPLAINED_ROWS]


def _clients_from(run: Run, table: str) -> int | None:
    """The timestamp from which on cells at the target are its clients'. None once the run has ended: comparisons then
    leave no cells out."""
    return clients_from(run.ledger, table) if run.ledger.record.state == "running" else None


def is_followed(run: Run) -> bool:
    """Whether edits may be on their way from source to target. The phase's record is not enough: a killed process
    leaves its phase recorded as running."""
    replay = run.ledger.phases.find("replay")
    running = replay is not None and replay.state == "running" and "replay" in alive(run.ledger)
    return running and not run.ledger.record.paused


def _read_until_settled(
    run: Run, spark: SparkSession | None, pairs: Sequence[RangePair], outcomes: Sequence[Outcome]
) -> tuple[list[Outcome], list[bytes]]:
    """Read ranges again while many rows differ, each time after all earlier writes are applied.

    Returns the newest outcomes, in which a row counts as differing only if it differed each time. Also returns some of
    the rows that differed at first but were equal when they were read again: these were under way.
    """
    found, left = list(outcomes), [_named(outcome) for outcome in outcomes]
    others: set[bytes] = set()
    for _ in range(PASSES):
        again = [number for number, outcome in enumerate(found) if outcome.differing]
        if sum(outcome.differing for outcome in found) <= MANY_ROWS or not _await_applied(run, now_ms()):
            break
        most = max(SHOWN_ROWS, min(NAMED_AGAIN, NAMED_TOGETHER // len(again)))
        read = compare_pairs(spark, [replace(pairs[number], named=most) for number in again])
        for number, outcome in zip(again, read, strict=True):
            before, now = left[number], _named(outcome)
            if before is not None and now is not None:
                others.update(list(before - now)[:SHOWN_ROWS])
                now &= before
                outcome = replace(outcome, differing=len(now), rows=tuple(sorted(now)))
            found[number], left[number] = outcome, now
    differing = set().union(*(outcome.rows for outcome in found))
    settled = sorted(others - differing)[:SHOWN_ROWS]
    if settled:
        first, last = (sum(outcome.differing for outcome in some) for some in (outcomes, found))
        log.info("%s differed at first, but only %d each time: the others were under way", amount(first, "row"), last)
    return found, settled


def _named(outcome: Outcome) -> set[bytes] | None:
    """The rows that differ; None unless all of them are named."""
    return set(outcome.rows) if len(outcome.rows) == outcome.differing else None


def _await_applied(run: Run, moment_ms: int) -> bool:
    """Wait until everything written before a moment is applied; False if that takes much longer than allowed."""
    deadline = steady_s() + 3 * run.spec.max_lag
    log.info("many rows differ while the log is followed; waiting until the edits written so far are applied")
    while steady_s() < deadline and is_followed(run):
        covered = covered_ms(run.ledger)
        if covered is not None and covered >= moment_ms:
            return True
        time.sleep(_LOOK_SECONDS)
    return False


def _range(table: str, pair: RangePair, outcome: Outcome) -> RangeComparison:
    dropped = {
        side: {fate.name.lower(): int(counts[fate]) for fate in Fate if fate is not Fate.VISIBLE}
        for side, counts in zip(("source", "target"), outcome.dropped, strict=True)
    }
    return RangeComparison(
        table=table, region=pair.region, start=pair.start, stop=pair.stop,
        source_rows=outcome.source.rows, source_cells=outcome.source.cells,
        source_digest=f"{outcome.source.total:032x}",
        target_rows=outcome.target.rows, target_cells=outcome.target.cells,
        target_digest=f"{outcome.target.total:032x}",
        dropped=dropped, expiring=outcome.expiring, uncompared=outcome.uncompared,
        first_ms=outcome.first_ms, last_ms=outcome.last_ms,
    )  # fmt: skip
