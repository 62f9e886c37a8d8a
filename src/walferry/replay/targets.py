"""Whether edits can be applied to the target tables."""

from __future__ import annotations

from walferry.run.run import Run


def target_faults(run: Run) -> list[str]:
    """The reasons why edits cannot be applied to the target tables, as text: missing tables, missing families."""
    faults = []
    for pair in run.tables:
        if not run.source.table_exists(pair.source):
            faults.append(f"there is no table {pair.source} at the source")
        elif not run.target.table_exists(pair.target):
            faults.append(f"there is no table {pair.target} at the target; a replay needs one with the same families")
        else:
            here, there = run.source.describe(pair.source), run.target.describe(pair.target)
            lacking = sorted(here.families.keys() - there.families.keys())
            if lacking:
                faults.append(f"target table {pair.target} lacks the families {', '.join(lacking)}")
    return faults
