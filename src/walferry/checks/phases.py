"""The two gates of a migration as phases of its run: after the copy, and after the drain."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from walferry.checks.gate import require, validate
from walferry.checks.suites import COPY_COLUMNS, DRAIN_COLUMNS
from walferry.errors import SidesDifferError
from walferry.migration.compare import UNEXPLAINED
from walferry.migration.copy import check_rows
from walferry.migration.cutover import GateShutError, gate, require_silence
from walferry.run.run import Run

if TYPE_CHECKING:
    import pandas as pd


def check_copy(run: Run, docs: Path) -> dict[str, Any]:
    """Gate after the copy: files, bytes, checksums, region borders, schema. Facts: where the Data Docs are."""

    def work() -> dict[str, Any]:
        rows = [row for pair in run.tables for row in check_rows(run, pair.source)]
        frame = _frame(rows, COPY_COLUMNS)
        result = validate("after_copy", frame, docs=docs, run_name=run.run_id)
        require(result)
        return {"data_docs": str(result.docs_index), "rows": len(rows)}

    return run.once("check_copy", work)


def drain_rows(run: Run) -> list[dict[str, Any]]:
    """What the gate after the drain looks at: a row for each region, with the newest comparison's two sides."""
    comparison = run.ledger.comparisons.ranges()
    kinds: dict[tuple[str, str], Counter[bool]] = {}
    for difference in run.ledger.comparisons.differences():
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


def check_drain(run: Run, docs: Path) -> dict[str, Any]:
    """Gate after the drain: nothing written behind the end fence, no gap, both sides equal or explained."""

    def work() -> dict[str, Any]:
        require_silence(run)
        try:
            gate(run, drained=True)
        except GateShutError:
            _again(run, "drain")  # what the quarantine held back is applied when it is released
            raise
        result = validate("after_drain", _frame(drain_rows(run), DRAIN_COLUMNS), docs=docs, run_name=run.run_id)
        if not result.passed:
            _again(run)
            regions = sorted({region for failure in result.failures for region in failure.regions})
            raise SidesDifferError(
                f"source and target differ without an explanation in {', '.join(regions[:10])}; "
                f"see `walferry report {run.run_id}` and {result.docs_index}",
                regions=regions,
                docs_index=str(result.docs_index),
            )
        return {"data_docs": str(result.docs_index)}

    return run.once("check_drain", work)


def _again(run: Run, *phases: str) -> None:
    """Let the next attempt do these phases anew, and in any case the comparisons."""
    for phase in phases:
        run.ledger.phases.reopen(phase)
    for pair in run.tables:
        run.ledger.phases.reopen("compare", pair.source)


def _frame(rows: list[dict[str, Any]], columns: tuple[str, ...]) -> pd.DataFrame:
    import pandas as pd

    return pd.DataFrame(rows, columns=list(columns))
