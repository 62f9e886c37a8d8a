"""When the target opens before its whole comparison, and why it does not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from pyspark.sql import SparkSession

from unit.migration.filled_ledger import SPEC
from walferry.ledger import Difference, Ledger
from walferry.migration import known_differences, open_target
from walferry.migration.written_rows import Written
from walferry.run.run import Run
from walferry.spark.session import NoSparkError

TABLE = "shop:orders"
ROW = b"r1"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    """A run after its drain; one row that was written last differs."""
    monkeypatch.setattr(open_target, "_reasons", lambda run, gate: ())
    monkeypatch.setattr(open_target, "_look", lambda run: ())
    monkeypatch.setattr(open_target, "whole_comparison", lambda ledger, table: SimpleNamespace())
    found = Written(frozenset(), rows=1, differing={ROW: "cells"})
    monkeypatch.setattr(open_target, "compare_written", lambda run, table, since: found)
    monkeypatch.setattr(open_target, "differing", lambda run, table, rows: dict.fromkeys(rows, "cells"))
    with Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}", actor="test") as ledger:
        run = Run(ledger, ledger.open_run("move", "test", SPEC, "test").run_id)
        run.ledger.phases.start("drain")
        run.ledger.phases.finish("drain", {})
        yield run


def no_spark() -> SparkSession:
    raise NoSparkError("there is none here")


def test_in_a_task_without_spark_a_row_with_a_large_log_keeps_clients_waiting_and_is_told(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(known_differences, "log_bytes", lambda run, table: 200_000_000)
    monkeypatch.setattr(known_differences, "explain", lambda run, spark, *_: spark())
    run.ledger.comparisons.accept([Difference(TABLE, b"other", "not-in-log", "known", "1f")], "known", "kim")
    opened = open_target.open_target(run, no_spark, lambda run: None)
    assert opened.at_ms is None
    (why,) = opened.why
    assert why.startswith(f"of what was touched last of {TABLE}, 1 row differs")
    assert "no reason found: 200 MB of log would have to be read" in why
