"""The overview of the board costs the same however much was applied (R14)."""

from __future__ import annotations

from pathlib import Path

from unit.replay.rounds.test_round_cost import Cost, counted, run_of
from walferry.airflow.board.data import overview


def cost_after(folder: Path, applied: int) -> Cost:
    run, _ = run_of(folder, applied)
    with run.ledger.whole as ledger:
        cost = Cost()
        with counted(ledger, cost):
            assert [row["run"] for row in overview(ledger)["runs"]["rows"]] == [run.run_id]
        return cost


def test_the_overview_costs_the_same_after_fifty_files_and_after_five_thousand(tmp_path: Path) -> None:
    few, many = cost_after(tmp_path / "few", 50), cost_after(tmp_path / "many", 5_000)
    assert few.rows
    assert many.within(few), (few, many)
