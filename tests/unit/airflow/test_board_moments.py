"""What the board shows of a run that keeps moments: what a loss would cost, and what can be restored."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from unit.moments.keep_ledger import STATES, TABLES, brought_to, opened
from walferry.airflow.board.app import create_app
from walferry.airflow.board.data import overview, run_page
from walferry.airflow.board.ledger_cache import LedgerCache
from walferry.ledger import Ledger, LogPosition
from walferry.run.notes.kept_moments import note_trouble
from walferry.run.progress.states import StateName


@pytest.fixture
def book(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}", actor="tester") as ledger:
        yield ledger


def page_of(book: Ledger, name: StateName) -> dict[str, Any]:
    run = opened(book)
    brought_to(run, name)
    return run_page(book, run.record)


@pytest.mark.parametrize("name", STATES)
def test_the_page_of_each_state_has_tables_without_a_target(book: Ledger, name: StateName) -> None:
    facts = page_of(book, name)
    assert (facts["run"]["state"], facts["run"]["kind"]) == (name, "keep")
    assert [(row["source"], row["target"]) for row in facts["tables"]["rows"]] == [(table, None) for table in TABLES]
    assert [phase["phase"] for phase in facts["phases"]] == ["plan", "protect", "keep"]
    (line,) = overview(book)["runs"]["rows"]
    assert (line["state"], line["kind"]) == (name, "keep")


def test_each_table_has_the_first_moment_that_can_be_restored(book: Ledger) -> None:
    facts = page_of(book, "following")
    first = {row["source"]: row["since_ms"] for row in facts["tables"]["rows"]}
    assert first == facts["run"]["moments"]["since_ms"]
    assert None not in first.values()
    assert facts["alarms"] == []


def test_a_table_without_a_new_base_and_a_loss_beside_another_state_are_alarms(book: Ledger) -> None:
    run = opened(book)
    brought_to(run, "exposed")
    note_trouble(run, "orders", "it is disabled", gone=False)
    assert [alarm["text"] for alarm in run_page(book, run.record)["alarms"]] == [
        "No new base of orders: it is disabled"
    ]
    book.set_paused(run.run_id, True, "kim")
    told = [alarm["text"] for alarm in run_page(book, book.run(run.run_id))["alarms"]]
    assert told[0].startswith("A loss of the source now would cost 5 min")


def test_logs_that_are_only_kept_are_no_gap(book: Ledger) -> None:
    run = opened(book)
    run.log.set_fence("start", [LogPosition("g", "g.10", 10, 0)])
    brought_to(run, "following")
    facts = run_page(book, run.record)
    assert (facts["gaps"]["files"], facts["alarms"]) == (0, [])
    assert overview(book)["runs"]["rows"][0]["gaps"] == 0


def test_the_page_has_no_section_that_such_a_run_has_nothing_for(book: Ledger) -> None:
    run = opened(book)
    client = TestClient(create_app(lambda: None, LedgerCache(book.url)))
    page = client.get(f"/runs/{run.run_id}").text
    assert 'data-kind="keep"' in page
    for section in ("coverage", "lag", "comparison", "quarantine"):
        assert f'id="{section}"' not in page
