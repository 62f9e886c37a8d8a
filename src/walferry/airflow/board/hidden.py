"""What the board shows to who may not see the rows of tables: neither row keys nor cells of rows that differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from walferry.migration.explaining.accept import DifferenceShown
from walferry.migration.report_model import Report

HIDDEN = "hidden: Airflow does not let you trigger the DAG hbase_migrate"
ROW = "(hidden)"


def without_rows(report: Report) -> Report:
    """The report of a run without its rows that differ; their number and classes stay."""
    tables = {
        table: found.model_copy(update={"rows": _hidden(found.rows), "rows_since": _hidden(found.rows_since)})
        for table, found in report.tables.items()
    }
    return report.model_copy(update={"tables": tables})


def hidden_rows(shown: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The same of differences as plain values."""
    return [{**difference, "row": ROW, "detail": HIDDEN} for difference in shown]


def hidden_inputs(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Inputs of a line of the audit trail, without the rows that a person has decided about."""
    return {
        name: HIDDEN if name == "differences" and isinstance(value, list) else value for name, value in inputs.items()
    }


def _hidden(rows: Sequence[DifferenceShown]) -> tuple[DifferenceShown, ...]:
    return tuple(replace(row, row=ROW, detail=HIDDEN) for row in rows)
