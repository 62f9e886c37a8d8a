"""The two gates of a migration as phases of its run: after the copy, and after the drain."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from walferry.checks.gate import require, validate
from walferry.checks.suites import COPY_COLUMNS, DRAIN_COLUMNS
from walferry.errors import SidesDifferError
from walferry.migration.compare import UNEXPLAINED
from walferry.migration.context import Migration
from walferry.migration.copy import check_rows
from walferry.migration.cutover import GateShutError, gate, require_silence

if TYPE_CHECKING:
    import pandas as pd


def check_copy(migration: Migration, docs: Path) -> dict[str, Any]:
    """Gate after the copy: files, bytes, checksums, region borders, schema. Facts: where the Data Docs are."""

    def work() -> dict[str, Any]:
        rows = [row for pair in migration.tables for row in check_rows(migration, pair.source)]
        frame = _frame(rows, COPY_COLUMNS)
        result = validate("after_copy", frame, docs=docs, run_name=migration.run_id)
        require(result)
        return {"data_docs": str(result.docs_index), "rows": len(rows)}

    return migration.once("check_copy", work)


def drain_rows(migration: Migration) -> list[dict[str, Any]]:
    """What the gate after the drain looks at: a row for each region, with the newest comparison's two sides."""
    comparison = migration.ledger.comparison(migration.run_id)
    kinds: dict[tuple[str, str], Counter[bool]] = {}
    for difference in migration.ledger.differences(migration.run_id):
        for item in comparison:
            inside = item.start <= difference.row and (not item.stop or difference.row < item.stop)
            if item.table == difference.table and inside:
                kinds.setdefault((item.table, item.region), Counter())[difference.kind == UNEXPLAINED] += 1
    return [
        {name: getattr(item, name) for name in DRAIN_COLUMNS if hasattr(item, name)}
        | {
            "unexplained": kinds.get((item.table, item.region), Counter())[True],
            "explained": kinds.get((item.table, item.region), Counter())[False],
        }
        for item in comparison
    ]


def check_drain(migration: Migration, docs: Path) -> dict[str, Any]:
    """Gate after the drain: nothing written behind the end fence, no gap, both sides equal or explained."""

    def work() -> dict[str, Any]:
        migration.done("drain")
        for pair in migration.tables:
            migration.done("compare", pair.source)
        require_silence(migration)
        try:
            gate(migration, drained=True)
        except GateShutError:
            _again(migration, "drain")  # what the quarantine held back is applied when it is released
            raise
        result = validate(
            "after_drain", _frame(drain_rows(migration), DRAIN_COLUMNS), docs=docs, run_name=migration.run_id
        )
        if not result.passed:
            _again(migration)
            regions = sorted({region for failure in result.failures for region in failure.regions})
            raise SidesDifferError(
                f"source and target differ without an explanation in {', '.join(regions[:10])}; "
                f"see `walferry report {migration.run_id}` and {result.docs_index}",
                regions=regions,
                docs_index=str(result.docs_index),
            )
        return {"data_docs": str(result.docs_index)}

    return migration.once("check_drain", work)


def _again(migration: Migration, *phases: str) -> None:
    """Let the next attempt do these phases anew, and in any case the comparisons."""
    for phase in phases:
        migration.ledger.reopen_phase(migration.run_id, phase)
    for pair in migration.tables:
        migration.ledger.reopen_phase(migration.run_id, "compare", pair.source)


def _frame(rows: list[dict[str, Any]], columns: tuple[str, ...]) -> pd.DataFrame:
    import pandas as pd

    return pd.DataFrame(rows, columns=list(columns))
