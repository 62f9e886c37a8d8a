"""Compare: whether source and target are equal, and why a row differs.

Both sides of a row range are read raw in parallel, from snapshots (`stored_sides`) or by scans, and resolved by one
function at one moment; the cells that are then visible are compared: row, family, qualifier, timestamp, type, value,
tags (`digest`). Rows that differ are read again, live, and explained from both sides and from the log (`row_sides`,
`wal_lookup`, `explain`).
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql import SparkSession

from walferry.apply.writer_protocol import Limits
from walferry.clock import CLOCKS_APART_MS, now_ms, steady_s
from walferry.errors import TransientError, WalferryError
from walferry.formats.resolve import FamilyRules, Fate
from walferry.hbase.address import ClusterAddress
from walferry.ledger import ComparedTable, Difference, RangeComparison
from walferry.ledger.comparisons import Decision, lacks_explanation, needs_decision
from walferry.ledger.rows import Purpose
from walferry.migration import touched
from walferry.migration.clients import edits_of_clients
from walferry.migration.digest import (
    SHOWN_ROWS,
    Outcome,
    RangePair,
    compare_pairs,
)
from walferry.migration.explain import IN_FLIGHT, UNEXPLAINED, classify
from walferry.migration.fragile_rows import NONE
from walferry.migration.row_sides import Bounds, Packed, Question, RowSides, row_sides
from walferry.migration.since_opening import changed_since
from walferry.migration.stored_sides import compare_stored, rules_of, snapshots_taken, why_scanned
from walferry.migration.wal_lookup import look_up
from walferry.replay import dirty
from walferry.run.facts import opened_ms
from walferry.run.heartbeat import alive
from walferry.run.lag import covered_ms
from walferry.run.last_comparison import attempt_done, end_fence_digest
from walferry.run.newest import clients_from, note_newest
from walferry.run.run import Run
from walferry.run.spot_check import sampled
from walferry.run.write_stop import note_comparing
from walferry.spark.clients import shared_client, workers
from walferry.spark.fan_out import fan_out
from walferry.spark.session import session_for

log = logging.getLogger(__name__)

EXPLAINED_ROWS = 20_000
"""of a table; if more differ, nobody can examine each, and only the first SHOWN_ROWS are explained"""
_READ_AT_ONCE = 2_000
"""rows that differ, read again by one job"""
_PER_TASK = 100
"""and by one task"""
_AT_A_TIME = 8
"""requested by one task, which mostly waits for the answers"""
EQUAL_NOW = "equal when read again"
"""of a row that was under way"""
MANY_ROWS = 500
"""that differ while the log is followed: of more, their whole ranges are read again before each row is"""
PASSES = 3
"""over ranges in which many rows differ, at most"""
NAMED_AGAIN = 100_000
"""rows of a range that are named then"""
NAMED_TOGETHER = 1_000_000
"""and of all ranges: this process holds them"""
_LOOK_SECONDS = 0.5
_LARGE_BYTES = 1 << 20
"""of a row, after which the next one is requested by itself, so that no task holds many such"""


@dataclass(frozen=True)
class TableComparison:
    """The result for one table, as recorded in the ledger."""

    compared: ComparedTable
    ranges: list[RangeComparison]
    differences: list[Difference]
    decided: Collection[Decision]
    """what a person has accepted"""
    sample: Sequence[bytes] = ()
    """rows of each region, drawn by chance, for the second reader"""

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
        """The number of rows that nothing explains and nobody has accepted, also of those that were not examined."""
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
        rows = "1 row differs" if self.differing_rows == 1 else f"{self.differing_rows} rows differ"
        kinds = f", {self.unexplained} without an explanation, {self.undecided} without a decision"
        left = f"; {self.uncompared} cells were not compared" if self.uncompared else ""
        found = f"{rows}{kinds}" if self.differing_rows else "equal"
        return f"{self.table}: {found}, {len(self.ranges)} regions{left}"

    def facts(self) -> dict[str, Any]:
        """The result as plain values, for display and for the ledger."""
        return {
            "table": self.table, "regions": len(self.ranges), "differing_rows": self.differing_rows,
            "unexplained": self.unexplained, "undecided": self.undecided, "uncompared_cells": self.uncompared,
        }  # fmt: skip


def compare(run: Run, spark: Callable[[], SparkSession], table: str, purpose: Purpose = "verify") -> TableComparison:
    """Compare one table, by regions of the source, and record the result as the newest in the ledger.

    Spark is asked for if the table is large, and, if rows differ, for a large log.

    `purpose`: "phase" only for the run's own phase, which is running now: the last gate uses no other comparison.
    """
    marks = dirty.marks(run.target.zk, run.pair(table).target)
    begun = touched.begin(run, table) if _may_be_cut_over(run, purpose) else None
    before = _began(run, table, purpose)
    applied = applied_files(run, table)
    session = session_for(spark, run.source.held_bytes().get(table, 0), Limits().here_bytes)
    began = steady_s()
    pairs, outcomes = _both_sides(run, session, table, purpose)
    note_comparing(run.ledger, table, steady_s() - began)
    newest = max((outcome.newest for outcome in outcomes), default=-1)
    note_newest(run.ledger, table, newest, before.began_ms, whole=True)
    settled: list[bytes] = []
    if purpose == "verify" and _is_followed(run):
        outcomes, settled = _read_until_settled(run, session, pairs, outcomes)
    ranges = [_range(table, pair, outcome) for pair, outcome in zip(pairs, outcomes, strict=True)]
    count, rows = _differing(session, pairs, outcomes)
    differences = explain(run, spark, session, table, rows) if rows else []
    if count > len(rows):
        # The gate uses recorded rows: rows that were left out must not pass with the explained ones of their region.
        message = f"{count - len(rows)} more rows from here on differ, too many to examine each"
        differences.append(Difference(table, rows[-1], UNEXPLAINED, message))
    differences += [Difference(table, row, IN_FLIGHT, EQUAL_NOW) for row in settled]
    ended = ComparedTable(**vars(before) | {"ended_ms": now_ms(), "differing_rows": count + len(settled)})
    compared = run.ledger.comparisons.record(ended, ranges, differences)
    run.ledger.comparisons.record_look(table, ())
    sample = sorted({row for outcome in outcomes for _, row in outcome.sample})
    result = TableComparison(compared, ranges, differences, run.ledger.comparisons.accepted().keys(), sample)
    dirty.compared(run, compared, marks, equal=not result.shuts_the_gate)
    if begun is not None and result.names_all:  # those that differ are read again by the next look
        touched.keep_whole(run, begun, compared, sum((outcome.fragile for outcome in outcomes), NONE))
        run.ledger.log.mark_verified(table, applied)
    elif not result.shuts_the_gate:
        run.ledger.log.mark_verified(table, applied)
    log.info("%s", result.describe())
    return result


def applied_files(run: Run, table: str) -> set[str]:
    """Names of the WAL files all of whose edits of the table the target has."""
    return run.ledger.log.applied_for(table)


def _may_be_cut_over(run: Run, purpose: Purpose) -> bool:
    """Whether a comparison may spare the write stop a whole one, so that what touches the table after it counts."""
    record = run.ledger.record
    unfinished = record.kind == "migration" and record.state == "running"
    return purpose == "verify" and unfinished and opened_ms(run.ledger) is None


def _began(run: Run, table: str, purpose: Purpose) -> ComparedTable:
    phases = {(phase.phase, phase.subject): phase for phase in run.ledger.phases.all()}
    attempt = phases["compare", table].attempts if purpose == "phase" else 0
    drain = attempt_done(phases, "drain")
    began_ms = now_ms()
    return ComparedTable(table, 0, purpose, attempt, drain, end_fence_digest(run.ledger), began_ms, began_ms, 0)


def _both_sides(
    run: Run, spark: SparkSession | None, table: str, purpose: Purpose
) -> tuple[list[RangePair], list[Outcome]]:
    """The rows of every source region, compared from snapshots or by scans."""
    asked = run.spec.compare
    because = "the spec says so" if asked == "scans" else why_scanned(run, table) if asked == "auto" else None
    if because is None:
        try:
            with snapshots_taken(run, table, purpose) as stored:
                pairs = _pairs(run, spark, table, ((r.name, r.start, r.end) for r in stored.source), purpose)
                return pairs, compare_stored(run, spark, pairs, stored)
        except TransientError:
            raise
        except (WalferryError, OSError) as error:
            if asked == "snapshots":
                raise
            log.warning("%s cannot be compared from snapshots, so its region servers are asked: %s", table, error)
    else:
        log.info("%s is compared by scans: %s", table, because)
    # A scan continues when a region is moved, split or merged.
    regions = sorted(run.source.regions(table), key=lambda region: region.start)
    pairs = _pairs(run, spark, table, ((region.encoded, region.start, region.end) for region in regions), purpose)
    return pairs, compare_pairs(spark, pairs)


def _pairs(
    run: Run, spark: SparkSession | None, table: str, regions: Iterable[tuple[str, bytes, bytes]], purpose: Purpose
) -> list[RangePair]:
    """A range for every region of the source: its encoded name, first row, and the one after its last."""
    pair = run.pair(table)
    rules = rules_of(run.source.describe(table))
    source, target = run.source_address(workers(spark)), run.spec.target.address()
    borders = list(regions)
    # So few ranges have to be read again for the names of the rows that differ.
    named = max(SHOWN_ROWS, EXPLAINED_ROWS // max(1, len(borders)))
    # Clients write to a target that is open. What they wrote is not to be compared.
    first, followed = _clients_from(run, table), _is_followed(run)
    cells = sampled(run, len(borders)) if purpose == "phase" else 0
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
        # Ranges in which more rows differ than were named are read again. Rows that are then equal were in flight.
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
    """From which timestamp on cells at the target are its clients', as far as a comparison leaves those out: until the
    run has ended."""
    return clients_from(run.ledger, table) if run.ledger.record.state == "running" else None


def _is_followed(run: Run) -> bool:
    """Whether edits are on their way from source to target: a process that was killed leaves its phase as running."""
    replay = run.ledger.phases.find("replay")
    running = replay is not None and replay.state == "running" and "replay" in alive(run.ledger)
    return running and not run.ledger.record.paused


def _read_until_settled(
    run: Run, spark: SparkSession | None, pairs: Sequence[RangePair], outcomes: Sequence[Outcome]
) -> tuple[list[Outcome], list[bytes]]:
    """Read ranges again, each time once what was written before is applied, while many rows differ.

    Returns the newest outcomes, in which only those rows differ that differed each time, and some of the others: those
    were under way, and equal when they were read again.
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
        log.info("%d rows differed at first and %d each time: the others were under way", first, last)
    return found, settled


def _named(outcome: Outcome) -> set[bytes] | None:
    """The rows that differ, if all of them are named."""
    return set(outcome.rows) if len(outcome.rows) == outcome.differing else None


def _await_applied(run: Run, moment_ms: int) -> bool:
    """Wait until everything written before a moment is applied; False if that takes much longer than it may."""
    deadline = steady_s() + 3 * run.spec.max_lag
    log.info("many rows differ while the log is followed: waiting until what is written by now is applied")
    while steady_s() < deadline and _is_followed(run):
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


# ------------------------------------------------------------------ why does a row differ


def explain(
    run: Run,
    spark: Callable[[], SparkSession],
    session: SparkSession | None,
    table: str,
    rows: Sequence[bytes],
) -> list[Difference]:
    """Determine the class of each differing row, from both sides' raw cells, read again, and from the log.

    What is applied by now, the target must show. The log is read after the rows, so that it holds every edit that they
    show. `session` is the comparison's, if it needed one.
    """
    applied, until_ms = applied_files(run, table), now_ms()
    rules = rules_of(run.source.describe(table))
    bounds = Bounds.of_each(len(rows))
    since = changed_since(run, table, rows)
    sides = _read_again(run, session, table, rows, rules, bounds)
    questions: dict[bytes, Packed[Question]] = {}
    for row, found in sides.items():
        if found is not None and not (value := found.value()).too_many:
            questions[row] = Packed(value.question)
    logs = look_up(run, spark, table, questions, applied, until_ms, bounds)
    clients = edits_of_clients(run, table, list(questions), bounds)  # read last: they show the other's later edits
    differences = []
    for row, found in sides.items():
        if found is None:  # what differed was under way
            differences.append(Difference(table, row, IN_FLIGHT, EQUAL_NOW))
            continue
        explanation = classify(found.value(), logs.of(row), rules, clients(row), since.get(row, {}))
        differences.append(Difference(table, row, explanation.kind, explanation.detail, explanation.fingerprint))
    kinds = Counter(difference.kind for difference in differences)
    log.info("%s: %s", table, ", ".join(f"{count} rows {kind}" for kind, count in sorted(kinds.items())))
    return differences


def _read_again(
    run: Run,
    spark: SparkSession | None,
    table: str,
    rows: Sequence[bytes],
    rules: Mapping[bytes, FamilyRules],
    bounds: Bounds,
) -> dict[bytes, Packed[RowSides] | None]:
    """Both sides of each row; None for those that are equal now."""
    source, target = run.source_address(workers(spark)), run.spec.target.address()
    pair = run.pair(table)
    sides: dict[bytes, Packed[RowSides] | None] = {}
    for first in range(0, len(rows), _READ_AT_ONCE):
        asked = [
            _Rows(source, target, pair.source, pair.target, tuple(rows[start : start + _PER_TASK]), rules, bounds)
            for start in range(first, min(first + _READ_AT_ONCE, len(rows)), _PER_TASK)
        ]
        sides |= fan_out(spark, _read_rows, asked, what="read rows that differ again")
    return sides


@dataclass(frozen=True)
class _Rows:
    """Rows of a table and its copy, to read again."""

    source: ClusterAddress
    target: ClusterAddress
    source_table: str
    target_table: str
    rows: tuple[bytes, ...]
    rules: Mapping[bytes, FamilyRules]
    bounds: Bounds


def _read_rows(asked: _Rows) -> Iterator[tuple[bytes, Packed[RowSides] | None]]:
    """In an executor: both sides of each row; None if they are equal now."""
    source, target = shared_client(asked.source), shared_client(asked.target)

    def read(row: bytes) -> tuple[bytes, bytes, int]:
        # The target first: what is written and applied meanwhile would look as if the source did not have it.
        there = b"".join(bytes(block) for block in target.scan_raw(asked.target_table, row, row + b"\x00"))
        here = b"".join(bytes(block) for block in source.scan_raw(asked.source_table, row, row + b"\x00"))
        return here, there, now_ms()

    large = True  # until the first one is known
    done = 0
    with ThreadPoolExecutor(_AT_A_TIME) as readers:
        while done < len(asked.rows):
            rows = asked.rows[done : done + (1 if large else _AT_A_TIME)]
            done += len(rows)
            large = False
            for row, (here, there, read_ms) in zip(rows, readers.map(read, rows), strict=True):
                sides = row_sides(here, there, asked.rules, read_ms + CLOCKS_APART_MS, asked.bounds)
                large |= max(len(here), len(there)) > _LARGE_BYTES
                yield row, None if sides is None else Packed(sides)
