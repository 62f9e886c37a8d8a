"""A stream says in each state what is so of a stream: it has no target, no cutover and no Spark."""

from __future__ import annotations

from pathlib import Path

import pytest

from unit.streams.stream_ledger import STATES, brought_to, follow, opened
from walferry.ledger import Ledger
from walferry.migration.report import render, summary
from walferry.run.notes.waits import begin_wait
from walferry.run.progress.state import state_of
from walferry.run.progress.states import OF_STREAMS, StateName
from walferry.run.progress.status import status, status_line

OF_MIGRATIONS = ("target", "replay", "Spark", "cutover", "cut over", "write stop", "writes", "copy", "applied", "%;")


@pytest.mark.usefixtures("still")
@pytest.mark.parametrize("owner", ["airflow manual__1", "cli kim"])
@pytest.mark.parametrize("name", STATES)
def test_no_text_of_a_stream_is_about_a_migration(book: Ledger, name: StateName, owner: str) -> None:
    run = opened(book, owner)
    brought_to(run, name)
    state, now = state_of(run), status(run)
    assert state.name == name
    said = "\n".join([state.cause, state.next_step, status_line(now), render(summary(run))])
    assert [word for word in OF_MIGRATIONS if word in said] == [], said
    assert "NAME" not in state.next_step


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("failed", "fix what the cause names, then clear the task `stream` in Airflow"),
        ("interrupted", "none if Airflow retries the task; otherwise clear the task `stream` in Airflow"),
        ("paused", "`walferry resume changes`"),
        ("following", "none: the stream goes on until `walferry abort changes --reason …`"),
        ("held", "`walferry quarantine list changes`, then `walferry quarantine release`"),
    ],
)
def test_the_next_step_in_airflow_is_one_that_a_person_can_take(book: Ledger, name: StateName, step: str) -> None:
    run = opened(book)
    brought_to(run, name)
    assert state_of(run).next_step == step


def test_a_gap_says_that_changes_are_lost_and_how_to_begin_anew(book: Ledger) -> None:
    run = opened(book)
    brought_to(run, "gap")
    state = state_of(run)
    assert "clear the task `stream` in Airflow; if it is lost, so are its changes: `walferry abort changes" in (
        state.next_step
    )
    assert "a higher `epoch`" in state.next_step


@pytest.mark.usefixtures("still")
def test_the_status_has_lag_rate_and_what_keeps_the_log(book: Ledger) -> None:
    run = opened(book)
    follow(run, 1)
    now = status(run)
    assert (now.kind, now.lag_seconds, now.edits_applied, now.edits_per_second) == ("stream", 1.0, 70, 7.0)
    assert now.log is not None
    assert now.log.kept_bytes == 5_000
    assert "stream: Sent: 70, 7.0/s; Backlog: 0.0MB and 1 open log; " in status_line(now)
    assert state_of(run).cause == "changes are sent: lag 1 s"


def test_what_the_stream_waits_for_is_said(book: Ledger) -> None:
    run = opened(book)
    follow(run, 300)
    begin_wait(run, "to try again, since Kafka does not answer", 30)
    assert state_of(run).cause.startswith(
        "changes are sent: lag 300 s; it waits to try again, since Kafka does not answer"
    )


def test_the_report_names_the_topic_of_each_table(book: Ledger) -> None:
    run = opened(book)
    follow(run, 1)
    lines = render(summary(run)).splitlines()
    assert "orders -> topic default.orders" in lines
    assert "shop:customers -> topic shop.customers" in lines
    assert "Log: 0.0 MB, 70 edits in 1 round; quarantine: 0" in lines


def test_the_docs_table_of_a_streams_states_is_the_codes() -> None:
    lines = (Path(__file__).parents[4] / "docs" / "board.md").read_text(encoding="utf-8").splitlines()
    rows = [f"| {name} | {kind.cause} | {kind.next_step} |" for name, kind in OF_STREAMS.items()]
    first = lines.index("| state of a stream | cause | next step |") + 2
    assert lines[first : lines.index("", first)] == rows
