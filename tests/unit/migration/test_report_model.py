"""What `walferry report --json` prints keeps its shape within a version."""

from __future__ import annotations

import json
from pathlib import Path

from unit.json_shape import keys_of, schema_of, undescribed, written_schema
from unit.migration.full_ledger import full
from walferry.ledger import Ledger
from walferry.migration.report import write
from walferry.migration.report_model import Report

KEYS = """
audit_head.hash, audit_head.sequence, cause, colour, copied_again.shop:orders.at_ms,
copied_again.shop:orders.by, copied_again.shop:orders.cells, copied_again.shop:orders.reason,
copied_again.shop:orders.request, copied_again.shop:orders.seconds, copied_again.shop:orders.size,
copied_again.shop:orders.text, counted_numbers[].accepted_by, counted_numbers[].accepted_ms,
counted_numbers[].numbers, counted_numbers[].places, counted_numbers[].reason, counted_numbers[].table,
counted_numbers[].text, coverage[].applied, coverage[].group, coverage[].sealed, coverage[].seen,
coverage[].table, coverage[].verified, data_docs, edits_applied, gaps, late_edits.undecided, ledger,
log_bytes, longest_lag_seconds, missing_numbers[].accepted_by, missing_numbers[].accepted_ms,
missing_numbers[].file_after, missing_numbers[].file_before, missing_numbers[].first,
missing_numbers[].found_ms, missing_numbers[].last, missing_numbers[].reason, missing_numbers[].region,
missing_numbers[].table, missing_numbers[].text, next_step, outcome, phases[].attempts, phases[].error,
phases[].error_class, phases[].phase, phases[].seconds, phases[].state, phases[].subject, quarantine,
read_only[], repaired.shop:orders.not-in-log, rounds, run, seconds_since_last_edit, standstills[].from_ms,
standstills[].text, standstills[].ttl_seconds, standstills[].until_ms, state,
tables.shop:orders.after_the_run, tables.shop:orders.differences.not-in-log,
tables.shop:orders.differences.unexplained, tables.shop:orders.dropped.source expired,
tables.shop:orders.equal_regions, tables.shop:orders.equal_since, tables.shop:orders.expiring,
tables.shop:orders.made_by, tables.shop:orders.regions, tables.shop:orders.rows[].accepted_by,
tables.shop:orders.rows[].detail, tables.shop:orders.rows[].kind, tables.shop:orders.rows[].reason,
tables.shop:orders.rows[].row, tables.shop:orders.rows[].table, tables.shop:orders.rows_since[].accepted_by,
tables.shop:orders.rows_since[].detail, tables.shop:orders.rows_since[].kind,
tables.shop:orders.rows_since[].reason, tables.shop:orders.rows_since[].row,
tables.shop:orders.rows_since[].table, tables.shop:orders.second_reader, tables.shop:orders.source_cells,
tables.shop:orders.source_digest, tables.shop:orders.source_rows, tables.shop:orders.target_cells,
tables.shop:orders.target_digest, tables.shop:orders.target_rows, tables.shop:orders.uncompared,
tables.shop:orders.undecided, tables.shop:orders.unexplained, uncompared, undecided, unexplained, unseen[],
waits_for, whom, write_stop_over, write_stop_seconds
"""
"""before there was a version"""
NEW = {"version", "kind", "topics", "receiving"}


def test_a_report_has_every_key_that_it_had_and_a_version(tmp_path: Path) -> None:
    with Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}", actor="tester") as book:
        text = write(full(book), tmp_path)
    printed = text.with_suffix(".json").read_text()
    assert keys_of(json.loads(printed)) == {key.strip() for key in KEYS.split(",")} | NEW
    assert Report.model_validate_json(printed).model_dump(mode="json") == json.loads(printed)


def test_the_docs_have_the_schema_of_a_report() -> None:
    path, written = written_schema("report")
    assert written == schema_of(Report), f"{path} should be:\n{schema_of(Report)}"
    assert undescribed(Report) == []
