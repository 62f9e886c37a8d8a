"""What a person is told before anything is repaired, and what they asked for: the shell and Airflow have the same."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from unit.migration.filled_ledger import SPEC
from walferry.errors import SidesDifferError, UsageError
from walferry.ledger import Ledger, RepairedRow
from walferry.migration.repairing import asked_repairs
from walferry.migration.repairing.asked_repairs import ask
from walferry.migration.repairing.repair import Planned
from walferry.migration.repairing.row_plan import RawCell, RowRepair
from walferry.run.progress.repair_times import Repaired, note_repaired
from walferry.run.run import Run

TABLE = "shop:orders"
PUT = RawCell(b"f", b"q", 5, 4, b"v", b"", b"12345")
SEND = RowRepair((), (PUT,), ())
PURGE = RowRepair((PUT,), (), ())


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    """Two regions of the target, of 7 and 9 MB."""
    with Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}", actor="test") as ledger:
        run = Run(ledger, ledger.open_run("move", "test", SPEC, "test").run_id)
        regions = [SimpleNamespace(start=b"m", bytes=9_000_000), SimpleNamespace(start=b"", bytes=7_000_000)]
        target = SimpleNamespace(
            regions=lambda table: regions, region_bytes=lambda region: region.bytes, held_bytes=dict[str, int]
        )
        source = SimpleNamespace(regions=lambda table: [1], held_bytes=lambda: {TABLE: 30_000_000})
        run.__dict__ |= {"source": source, "target": target}
        yield run


def planned(monkeypatch: pytest.MonkeyPatch, *rows: Planned) -> list[str]:
    monkeypatch.setattr(asked_repairs, "plan_repair", lambda run, table, wanted, refuses: list(rows) if wanted else [])
    return [f"{row.row.decode()}" for row in rows]


def test_a_plan_tells_what_repairing_costs_beside_copying_the_table_again(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = planned(monkeypatch, Planned(b"a", SEND), Planned(b"b", PURGE), Planned(b"c", PURGE), Planned(b"z", SEND))
    run.ledger.phases.start("check_copy")
    run.ledger.phases.finish("check_copy", {})
    found = ask(run, TABLE, names, dry_run=True)
    (ways,) = found.ways
    assert (ways.rows, ways.sent_bytes, ways.regions, ways.region_bytes) == (4, 10, 1, 7_000_000)
    assert (ways.repair.seconds, ways.copy_bytes) == (None, 30_000_000)
    assert found.lines()[-2:] == [
        f"{TABLE}, repairing 4 rows: 0.0 MB are sent, 1 region of the target compacted, 7 MB; "
        "time unknown (this run has not compacted enough for an estimate)",
        f"{TABLE}, copying it again: 30 MB as stored; "
        "time unknown (its first copy gives no rate, and it has not been compared in this run)",
    ]
    note_repaired(run.ledger, Repaired(rows=2, row_seconds=4.0, regions=1, region_bytes=1_000_000, region_seconds=1.0))
    facts: dict[str, Any] = ask(run, TABLE, names, dry_run=True).facts()
    assert facts["dry_run"]
    assert facts["ways"][0]["repair"] == {"seconds": 8.0 + 1.0, "basis": "estimated from this run's repairs"}
    assert [row["row"] for row in facts["rows"]] == names


def test_a_table_that_cannot_be_copied_again_is_told_with_the_reason(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    names = planned(monkeypatch, Planned(b"a", SEND))
    lines = ask(run, TABLE, names, dry_run=True).lines()
    assert lines[-1].startswith(f"{TABLE}, copying it again: {TABLE} is still being copied for the first time")


def test_a_plan_counts_only_rows_that_can_be_repaired(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    names = planned(monkeypatch, Planned(b"a", None, "clients have written to the row"))
    found = ask(run, TABLE, names, dry_run=True)
    assert found.ways[0].rows == 0
    with pytest.raises(SidesDifferError, match="1 row of move-1 cannot be repaired now"):
        found.require_all()
    assert ask(run, None, dry_run=True).lines() == ["no row of move-1 is known to differ"]


def test_what_was_repaired_is_told_without_a_plan(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    made = RepairedRow(TABLE, b"a", "unexplained", "send 1 cell", 1, "", 5)
    monkeypatch.setattr(asked_repairs, "repair_now", lambda run, wanted: [made, replace(made, row=b"b")] * 15)
    found = ask(run, TABLE, ["a", "b"])
    assert (len(found.lines()), found.ways) == (22, ())
    assert found.lines()[-1].startswith("repaired: 30 of 30.")
    found.require_all()


def test_a_run_that_is_over_and_rows_of_no_table_are_refused(run: Run) -> None:
    with pytest.raises(UsageError, match="name the table of the rows with --table"):
        ask(run, None, ["a"])
    with pytest.raises(UsageError, match="has no table 'nothing'"):
        ask(run, "nothing", dry_run=True)
    run.ledger.end("aborted", "kim")
    with pytest.raises(UsageError, match="only rows of an unfinished migration are repaired"):
        ask(run, None)
