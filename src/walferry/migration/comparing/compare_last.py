"""The comparison after the drain: the phase `compare`. Rows that differ are repaired, and a second reader reads some of
the equal rows once more."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from pyspark.sql import SparkSession

from walferry.migration.comparing.compare import EXPLAINED_ROWS, TableComparison, compare
from walferry.migration.comparing.parts import Parts
from walferry.migration.comparing.spot_check import spot_check
from walferry.migration.repairing.repair import finish_repair, repair
from walferry.migration.repairing.repairable import repairable, why_not
from walferry.replay.rights.standstill import Standstill
from walferry.run.facts import opened_ms
from walferry.run.run import Run

log = logging.getLogger(__name__)

REPAIRS = 3
"""the most repairs of a table, each followed by a comparison"""


def compare_last(run: Run, spark: Callable[[], SparkSession], table: str, standstill: Standstill | None = None) -> None:
    """Compare a table as a whole after the drain. Rows that differ are repaired unless the target is open, and the
    table is compared again. The gate that follows judges the differences."""

    standstill = standstill or Standstill()

    def work() -> dict[str, Any]:
        finish_repair(run, standstill, table)
        result = _compare(run, spark, table)
        for _ in range(REPAIRS):
            if opened_ms(run.ledger) is not None or not _repair_found(run, standstill, result):
                break
            result = _compare(run, spark, table)
        second = spot_check(run, spark, result)
        return result.facts() | {"comparison": result.compared.attempt, "second_reader": second.describe()}

    run.once("compare", work, table)


def _compare(run: Run, spark: Callable[[], SparkSession], table: str) -> TableComparison:
    """Compare a table, continuing from regions that a killed process may have compared."""
    return compare(run, spark, table, "phase", Parts(run, table, keeps_equality=False))


def _repair_found(run: Run, standstill: Standstill, result: TableComparison) -> int:
    """Repair the rows that a comparison found to differ, if this needs no request by a person. Returns how many were
    repaired or are equal by now."""
    kinds = {item.row: item.kind for item in result.differences if repairable(item, result.decided)}
    if not kinds or result.differing_rows > EXPLAINED_ROWS:
        return 0
    if refusal := why_not(run, result.table, kinds):
        log.warning("%s", refusal)
        return 0
    return len(kinds) - sum(bool(row.fault) for row in repair(run, standstill, result.table, kinds))
