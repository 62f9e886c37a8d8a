"""What the board shows of a stream: lag and rate, topics, quarantine and the log kept, and nothing of a migration."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from unit.streams.stream_ledger import STATES, brought_to, opened
from walferry.airflow.board.app import create_app
from walferry.airflow.board.data import overview, run_page
from walferry.airflow.board.ledger_cache import LedgerCache
from walferry.ledger import Ledger
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
def test_the_page_of_each_state_has_what_a_stream_has_and_no_more(book: Ledger, name: StateName) -> None:
    facts = page_of(book, name)
    assert (facts["run"]["state"], facts["run"]["kind"]) == (name, "stream")
    assert (facts["readiness"], facts["passes"], facts["comparison"]["rows"]) == (None, None, [])
    assert facts["run"]["write_stop_seconds"] is None
    assert [phase["phase"] for phase in facts["phases"]] == ["plan", "protect", "fence", "stream"]
    assert [(row["source"], row["target"], row["topic"]) for row in facts["tables"]["rows"]] == [
        ("orders", None, "default.orders"), ("shop:customers", None, "shop.customers"),
    ]  # fmt: skip
    (line,) = overview(book)["runs"]["rows"]
    assert (line["state"], line["kind"], line["held"]) == (name, "stream", facts["quarantine"]["held"])


def test_a_stream_that_follows_shows_lag_rate_and_what_keeps_the_log(book: Ledger) -> None:
    facts = page_of(book, "following")
    now = facts["run"]
    assert now["lag_seconds"] == pytest.approx(1, abs=2)
    assert now["edits_per_second"] == pytest.approx(7, rel=0.5)
    assert now["log"]["text"].startswith("the log is kept by peer walferry_changes_1: 2 files")
    assert [block["state"] for block in facts["lanes"]["rows"][0]["blocks"]] == ["applied", "seen"]
    assert facts["charts"]["rate"]["edits"] == [pytest.approx(7, rel=0.1)]
    assert facts["alarms"] == []


def test_a_lag_above_the_limit_is_a_note_without_a_cutover(book: Ledger) -> None:
    (alarm,) = page_of(book, "catching up")["alarms"]
    assert re.fullmatch(r"The lag is 30\d s; max_lag is 30 s", alarm["text"])


def test_quarantine_is_shown_with_its_reason(book: Ledger) -> None:
    facts = page_of(book, "held")
    assert (facts["quarantine"]["held"], facts["quarantine"]["rows"][0]["reason"]) == (1, "too large")


def test_a_file_that_is_gone_is_a_gap_in_its_lane(book: Ledger) -> None:
    facts = page_of(book, "gap")
    assert facts["gaps"]["files"] == 1
    assert [block["state"] for block in facts["lanes"]["rows"][0]["blocks"]] == ["applied", "gap"]


def test_a_stream_that_was_ended_has_no_failed_phase(book: Ledger) -> None:
    facts = page_of(book, "aborted")
    assert {phase["state"] for phase in facts["phases"]} == {"done"}
    assert (facts["run"]["cause"], facts["run"]["colour"]) == ("no longer needed", "grey")


def test_the_pages_text_is_that_of_a_stream(book: Ledger) -> None:
    run = opened(book)
    brought_to(run, "following")
    client = TestClient(create_app(lambda: None, LedgerCache(book.url)))
    page = client.get("/runs/changes-1").text
    assert '<h1 data-run="changes-1" data-kind="stream"' in page
    body = re.sub(r"<[^>]*>", "", page.partition("<main")[2])
    for word in ("Target", "Comparison by region", "applied", "replay", "verified"):
        assert word not in body, word
    assert "sealed: waits to be sent" in body
    report = client.get("/runs/changes-1/report").text
    assert "orders -> topic default.orders" in report
