"""Explain why rows differ: read both sides of each row again, live, and look for their edits in the log.

`row_sides` yields the cells, `wal_lookup` their edits in the log, and `difference_classes` the verdict.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import groupby

from pyspark.sql import SparkSession

from walferry.amounts import amount
from walferry.clock import CLOCKS_APART_MS, now_ms
from walferry.formats.resolve import FamilyRules
from walferry.hbase.address import ClusterAddress
from walferry.hbase.client import HBaseClient
from walferry.hbase.scan import split_rows
from walferry.ledger import Difference
from walferry.migration.explaining.client_writes import edits_of_clients
from walferry.migration.explaining.difference_classes import IN_FLIGHT, classify
from walferry.migration.explaining.since_opening import changed_since
from walferry.migration.explaining.wal_lookup import look_up
from walferry.migration.sides.row_sides import Bounds, Compressed, Question, RowSides, row_sides
from walferry.migration.sides.stored_sides import rules_of
from walferry.run.run import Run
from walferry.spark.clients import shared_client, workers
from walferry.spark.fan_out import fan_out

log = logging.getLogger(__name__)

_READ_AT_ONCE = 2_000
"""how many differing rows one job reads again"""
_PER_TASK = 100
"""how many of them one task reads again"""
_PER_SCAN = 25
"""how many of them one scan reads, if they are in one region"""
_AT_A_TIME = 8
"""how many scans a task has under way, since it mostly waits for answers"""
EQUAL_NOW = "equal when read again"
"""the detail of a row whose edit was under way"""
_LARGE_BYTES = 1 << 20
"""a scan with more bytes than this ends after the row that it has read, and all scans of the task after it go one at a
time, so that it goes on to hold few large rows"""


def explain(
    run: Run,
    spark: Callable[[], SparkSession],
    session: SparkSession | None,
    table: str,
    rows: Sequence[bytes],
) -> list[Difference]:
    """Determine the class of each differing row from the log and from both sides' raw cells, which are read again.

    The target must show every edit that is applied by now. The log is read after the rows, so that it holds every edit
    that they show. `session`: the comparison's Spark session, if the comparison needed one.
    """
    applied, until_ms = run.ledger.log.applied_for(table), now_ms()
    rules = rules_of(run.source.describe(table))
    bounds = Bounds.of_each(len(rows))
    since = changed_since(run, table, rows)
    sides = _read_again(run, session, table, rows, rules, bounds)
    questions: dict[bytes, Compressed[Question]] = {}
    for row, found in sides.items():
        if found is not None and not (value := found.value()).too_many:
            questions[row] = Compressed(value.question)
    logs = look_up(run, spark, table, questions, applied, until_ms, bounds)
    clients = edits_of_clients(run, table, list(questions), bounds)  # read after the rows, so it has all that they show
    differences = []
    for row, found in sides.items():
        if found is None:  # the difference was under way
            differences.append(Difference(table, row, IN_FLIGHT, EQUAL_NOW))
            continue
        explanation = classify(found.value(), logs.of(row), rules, clients(row), since.get(row, {}))
        differences.append(Difference(table, row, explanation.kind, explanation.detail, explanation.fingerprint))
    kinds = Counter(difference.kind for difference in differences)
    log.info("%s: %s", table, ", ".join(f"{amount(count, 'row')} {kind}" for kind, count in sorted(kinds.items())))
    return differences


def _read_again(
    run: Run,
    spark: SparkSession | None,
    table: str,
    rows: Sequence[bytes],
    rules: Mapping[bytes, FamilyRules],
    bounds: Bounds,
) -> dict[bytes, Compressed[RowSides] | None]:
    """Both sides of each row; None for those that are equal now."""
    source, target = run.source_address(workers(spark)), run.target_address()
    pair = run.pair(table)
    sides: dict[bytes, Compressed[RowSides] | None] = {}
    rows = borders = sorted(rows)  # of few rows each goes alone, without a look at hbase:meta
    if len(rows) > _AT_A_TIME:
        borders = sorted({region.start for region in (*run.source.regions(table), *run.target.regions(pair.target))})
    for first in range(0, len(rows), _READ_AT_ONCE):
        asked = [
            _Rows(
                source, target, pair.source, pair.target,
                tuple(_by_scan(rows[start : start + _PER_TASK], borders)), rules, bounds,
            )
            for start in range(first, min(first + _READ_AT_ONCE, len(rows)), _PER_TASK)
        ]  # fmt: skip
        sides |= fan_out(spark, _read_rows, asked, what="read rows that differ again")
    return {row: sides[row] for row in rows}


def _by_scan(rows: Sequence[bytes], borders: Sequence[bytes]) -> Iterator[tuple[bytes, ...]]:
    """Sorted rows in parts for one scan each, with rows of a single region: a scan opens all regions from its first row
    to its last. `borders`: where regions of either side begin, in order."""
    for _, of_region in groupby(rows, lambda row: bisect_right(borders, row)):
        some = tuple(of_region)
        for first in range(0, len(some), _PER_SCAN):
            yield some[first : first + _PER_SCAN]


@dataclass(frozen=True)
class _Rows:
    """Rows of a table and its copy, to read again."""

    source: ClusterAddress
    target: ClusterAddress
    source_table: str
    target_table: str
    parts: tuple[tuple[bytes, ...], ...]
    """each for one scan"""
    rules: Mapping[bytes, FamilyRules]
    bounds: Bounds


def _read_rows(asked: _Rows) -> Iterator[tuple[bytes, Compressed[RowSides] | None]]:
    """Read both sides of each row, in an executor; None for rows that are equal now."""
    source, target = shared_client(asked.source), shared_client(asked.target)

    def read(rows: tuple[bytes, ...]) -> tuple[list[bytes], list[bytes], int]:
        # The target first: otherwise an edit written and applied in between would look as if the source lacked it.
        there = _first_of(target, asked.target_table, rows)
        here = _first_of(source, asked.source_table, rows[: len(there)])
        return here, there, now_ms()

    at_once, large = 1, False  # until the size of the first rows is known
    left = deque(asked.parts)
    with ThreadPoolExecutor(_AT_A_TIME) as readers:
        while left:
            parts = [left.popleft() for _ in range(min(at_once, len(left)))]
            for rows, (here, there, read_ms) in zip(parts, readers.map(read, parts), strict=True):
                large |= max(sum(map(len, here)), sum(map(len, there))) > _LARGE_BYTES
                if rest := rows[len(here) :]:
                    left.appendleft(rest)
                for row, mine, its in zip(rows[: len(here)], here, there[: len(here)], strict=True):
                    sides = row_sides(mine, its, asked.rules, read_ms + CLOCKS_APART_MS, asked.bounds)
                    yield row, None if sides is None else Compressed(sides)
            at_once = 1 if large else _AT_A_TIME


def _first_of(client: HBaseClient, table: str, rows: Sequence[bytes]) -> list[bytes]:
    """The raw cells of each row, in order: of all these rows, or of the first ones if they have more than
    _LARGE_BYTES."""
    found: dict[bytes, bytes] = {}
    size = 0
    for block in client.scan_raw(table, rows[0], rows[-1] + b"\0", max_result_bytes=_LARGE_BYTES, rows=rows):
        found |= split_rows(block)
        size += len(block)
        if size > _LARGE_BYTES:
            rows = rows[: bisect_right(rows, max(found))]
            break
    return [found.get(row, b"") for row in rows]
