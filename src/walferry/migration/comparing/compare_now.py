"""The comparison that a person asks for with `walferry verify`: at any moment of a run, and also after its end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql import SparkSession

from walferry.migration.comparing.compare import TableComparison, compare
from walferry.migration.comparing.spot_check import spot_check
from walferry.run.notes.spot_check import SpotCheck
from walferry.run.run import Run


@dataclass(frozen=True)
class Verified:
    """A comparison of a table, including rows that only the second reader found, and the second reader's result."""

    result: TableComparison
    second: SpotCheck

    def facts(self) -> dict[str, Any]:
        """Both results as plain values."""
        return self.result.facts() | {"second_reader": self.second.facts()}


def compare_now(run: Run, spark: Callable[[], SparkSession], table: str) -> Verified:
    """Compare a table as a whole, then have the second reader read some of the equal rows once more. Both results are
    recorded."""
    result = compare(run, spark, table)
    second = spot_check(run, spark, result)
    if not second.differing:
        return Verified(result, second)
    compared = replace(result.compared, differing_rows=result.differing_rows + len(second.differing))
    differences = run.ledger.comparisons.differences([compared])
    return Verified(replace(result, compared=compared, differences=differences), second)
