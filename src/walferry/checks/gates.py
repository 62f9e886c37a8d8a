"""The gates of a run: after the copy, before the cutover, after the drain. New checks go in here or into `suites`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from walferry.checks.suites import COPY_COLUMNS, DRAIN_COLUMNS
from walferry.checks.validation import require, validate
from walferry.errors import GateShutError, SidesDifferError
from walferry.migration.compare import UNEXPLAINED
from walferry.migration.copy import check_rows
from walferry.migration.cutover import require_silence
from walferry.replay.lineage import missing_tables
from walferry.run.progress import caught_up
from walferry.run.run import Run

if TYPE_CHECKING:
    import pandas as pd


# ------------------------------------------------------------------ gates without data: what the ledger and schemas say


def before_cutover(run: Run) -> None:
    """Raise GateShutError with every reason against a cutover: quarantine, missing tables, schemas, a pause, lag."""
    reasons = _faults(run)
    if run.ledger.record.paused:
        reasons.append(f"the run is paused: `walferry resume {run.record.name}`")
    if not caught_up(run.ledger):
        reasons.append(f"the lag is above {run.spec.max_lag} s")
    _require_open(reasons)


def after_drain(run: Run) -> None:
    """Raise GateShutError unless every byte between the fences is accounted for and nothing else holds the run back."""
    gaps = run.ledger.log.gaps()
    _require_open([*_faults(run), *(f"{g.file} [{g.start}, {g.end}) of {g.table}: {g.reason}" for g in gaps[:10])])


def _require_open(reasons: Sequence[str]) -> None:
    if reasons:
        raise GateShutError(f"the gate is shut: {'; '.join(reasons)}", reasons=list(reasons))


def _faults(run: Run) -> list[str]:
    reasons = []
    held = run.ledger.quarantine.items("held")
    if held:
        listed = f"walferry quarantine list {run.run_id}"
        reasons.append(f"{len(held)} items in quarantine, the first: {held[0].reason} ({listed})")
    waiting = {hold.table for hold in run.ledger.quarantine.holds()}
    if waiting and not held:
        reasons.append(f"edits of {', '.join(sorted(waiting))} still wait for a released quarantine item")
    reasons += [f"table {table} is gone at the source" for table in missing_tables(run)]
    if not reasons:
        reasons += schema_differences(run)
    return reasons


def schema_differences(run: Run) -> list[str]:
    """Families and their attributes that are not alike on both sides; [] when the schemas agree."""
    differences = []
    for pair in run.tables:
        source, target = run.source.describe(pair.source), run.target.describe(pair.target)
        for name in sorted(source.families.keys() | target.families.keys()):
            here, there = source.families.get(name), target.families.get(name)
            if here is None or there is None:
                differences.append(f"family {name} of {pair.source} is only at the {'source' if here else 'target'}")
                continue
            for key in sorted(here.attributes.keys() | there.attributes.keys()):
                if here.attributes.get(key) != there.attributes.get(key):
                    differences.append(
                        f"{key} of {pair.source} family {name} is {here.attributes.get(key)} at the source, "
                        f"{there.attributes.get(key)} at the target"
                    )
    return differences


# ------------------------------------------------------------------ gates over data, by Great Expectations


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
    """Gate after the drain: nothing written past the end fence, no gap, both sides equal or explained."""

    def work() -> dict[str, Any]:
        require_silence(run)
        try:
            after_drain(run)
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
