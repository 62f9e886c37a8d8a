"""The states of a run to which a source replicates, and what status and report show of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from unit.migration.filled_ledger import SPEC
from unit.run.progress.received_ledger import OTHER, REFUSED, SERVER, come, receiver, refuses
from walferry.ledger import Ledger, RunLedger
from walferry.migration.report import render, summary
from walferry.run.heartbeat import NOTE
from walferry.run.notes.history import History
from walferry.run.notes.left_out import leave_out
from walferry.run.notes.loads import TOLD_MS, tell_of_load
from walferry.run.progress.lag import RECEIVED_MS, lag_of
from walferry.run.progress.receiving import IDLE_MS, REFUSING_MS
from walferry.run.progress.state import state_of
from walferry.run.progress.states import OF_RECEIVING
from walferry.run.progress.status import status, status_line

NOW = 1_700_000_000_000
TABLES = ["shop:orders", {"source": "shop:items", "target": "east:items"}]


class Clock:
    """The clock of every module that the state is derived in."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.now = NOW
        for module in ("clock", "ledger.notes", "ledger.received", "run.notes.loads", "run.progress.receiving"):
            patch.setattr(f"walferry.{module}.now_ms", lambda: self.now)


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


@pytest.fixture
def run(tmp_path: Path, time: Clock) -> Iterator[RunLedger]:
    with Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}", actor="kim") as book:
        yield book.of(book.open_run("east", "kim", SPEC | {"name": "east", "tables": TABLES}, "kim", "receive").run_id)


@pytest.fixture
def copies(tmp_path: Path, time: Clock) -> Iterator[RunLedger]:
    keys = SPEC | {"name": "east", "tables": TABLES, "receive": {"path": None, "history": "scan"}}
    with Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}", actor="kim") as book:
        yield book.of(book.open_run("east", "kim", keys, "kim", "receive").run_id)


def test_what_tables_had_already_is_copied_first_and_told_table_by_table(copies: RunLedger) -> None:
    copies.received.beat(refuses())
    assert state_of(copies).name == "refusing", "a refusal that is not for the copy comes first"
    copies.received.beat(receiver())
    assert state_of(copies).cause == (
        "shop:items: what it has already is not copied yet; 1 other table to be copied, too"
    )
    far = History("east", 7, 0, ((b"row6", b""),), 3, 10, 2_000_000, 60.0)
    far.keep(copies, "shop:items")
    state = state_of(copies)
    assert (state.name, state.cause) == (
        "copying",
        "shop:items: what it has already is being copied: 2 of 3 regions, 10 cells, 2.0 MB, about 30 s left; 1 other "
        "table to be copied, too",
    )
    History(waits="the source has no peer that leads here", waits_ms=NOW).keep(copies, "shop:orders")
    assert state_of(copies).cause.startswith(
        "shop:orders: copying what it has already waits: the source has no peer that leads here; 1 other table"
    )
    shown = status(copies).receiving
    assert shown is not None
    assert [one.history for one in shown.tables] == [
        far.describe(), "copying what it has already waits: the source has no peer that leads here",
    ]  # fmt: skip


def test_calls_of_which_nothing_was_applied_are_told(run: RunLedger) -> None:
    run.received.beat(receiver(since_s=10, calls=3))
    assert state_of(run).cause == "1 process serves; the source has sent nothing that was to be applied yet"
    run.received.beat(receiver(since_s=10, calls=0))
    assert state_of(run).cause == "1 process serves; the source has sent nothing yet"


def test_once_all_is_copied_the_run_is_in_the_states_of_others(copies: RunLedger) -> None:
    copies.received.beat(receiver())
    for table in ("shop:items", "shop:orders"):
        assert state_of(copies).name == "copying"
        History("east", 7, 0, (), 3, 10, 2_000_000, 60.0).keep(copies, table)
    assert state_of(copies).name == "idle"
    copies.received.beat(refuses())
    assert state_of(copies).name == "refusing"
    shown = status(copies).receiving
    assert shown is not None
    assert {one.history for one in shown.tables} == {"what it had already is copied, 10 cells, 2.0 MB"}


def test_a_run_that_no_process_has_served_says_how_one_is_started(run: RunLedger) -> None:
    state = state_of(run)
    assert (state.name, state.colour, state.cause) == ("no receiver", "red", "no process has served yet")
    assert "`walferry receive SPEC`" in state.next_step


def test_a_run_whose_processes_are_gone_or_have_left_names_the_last_one(run: RunLedger) -> None:
    run.received.beat(receiver(ago_s=3600))
    run.received.beat(receiver(OTHER, ago_s=60))
    state = state_of(run)
    assert (state.name, state.since_ms) == ("no receiver", NOW - 60_000)
    assert state.cause.startswith("no process serves: the last one, east-2.example:16040, sent its last heartbeat at ")
    run.received.beat(receiver(ago_s=1, state="left"))
    assert "the last one, east-1.example:16040, ended at 2023-11-14 22:13:19 UTC" in state_of(run).cause


def test_one_process_that_serves_is_enough(run: RunLedger) -> None:
    run.received.beat(receiver(ago_s=3600))
    run.received.beat(receiver(OTHER, since_s=10, calls=0))
    state = state_of(run)
    assert (state.name, state.cause, state.since_ms) == (
        "receiving", "1 process serves; the source has sent nothing yet", NOW - 10_000,
    )  # fmt: skip


def test_the_cause_tells_how_old_edits_were_and_whether_that_is_above_max_lag(run: RunLedger, time: Clock) -> None:
    run.received.beat(receiver())
    run.received.beat(receiver(OTHER))
    come(run, age_s=30)
    come(run, age_s=2, table="shop:items")
    assert state_of(run).cause == "2 processes serve; the newest edits were 30 s old when applied"
    time.now += RECEIVED_MS + 1
    run.received.beat(receiver())
    assert state_of(run).cause == "1 process serves; no edit came within the last minute"
    come(run, age_s=31)
    state = state_of(run)
    assert state.name == "receiving"
    assert "31 s old when applied, above `max_lag` (30 s): the source sends what has piled up" in state.cause


def test_a_run_is_idle_ten_minutes_after_the_last_call_and_says_since_when(run: RunLedger, time: Clock) -> None:
    run.received.beat(receiver())
    come(run)
    time.now += IDLE_MS - 1
    run.received.beat(receiver())
    assert state_of(run).name == "receiving"
    time.now += 1
    state = state_of(run)
    assert (state.name, state.since_ms) == ("idle", NOW)
    assert state.cause == "the source has sent nothing since 2023-11-14 22:13:20 UTC"
    assert "`walferry replicate status`" in state.next_step


def test_a_bulk_load_that_lasts_is_told_as_long_as_somebody_tells_of_it(run: RunLedger, time: Clock) -> None:
    come(run)
    time.now += IDLE_MS
    run.received.beat(receiver())
    tell_of_load(run, "t1", "a load is being applied: 40%")
    assert state_of(run).name == "receiving"
    assert state_of(run).cause == "1 process serves; no edit came within the last minute; a load is being applied: 40%"
    time.now += TOLD_MS
    run.received.beat(receiver())
    assert state_of(run).name == "idle"


def test_a_process_that_has_just_begun_is_not_idle_however_old_the_last_call_is(run: RunLedger, time: Clock) -> None:
    run.received.beat(receiver())
    come(run)
    time.now += 10 * IDLE_MS
    run.received.beat(receiver(since_s=5))
    assert state_of(run).name == "receiving"


def test_a_refusal_is_told_for_a_minute_with_its_reason_and_by_whom(run: RunLedger, time: Clock) -> None:
    run.received.beat(refuses(ago_s=9))
    run.received.beat(refuses(OTHER, ago_s=5, why="edits of another cluster"))
    come(run)
    state = state_of(run)
    assert (state.name, state.colour, state.since_ms) == ("refusing", "red", NOW - 5_000)
    assert state.cause == (
        "east-2.example:16040 refused a call at 22:13:15 UTC: edits of another cluster; so have east-1.example:16040"
    )
    time.now += REFUSING_MS - 5_000
    run.received.beat(receiver())
    run.received.beat(refuses(OTHER, ago_s=REFUSING_MS / 1000))
    assert state_of(run).name == "receiving"


def test_a_refusal_of_a_process_that_is_gone_is_not_told(run: RunLedger) -> None:
    come(run)
    run.received.beat(refuses())
    run.received.beat(receiver(OTHER, state="left", last_refusal=REFUSED, last_refusal_ms=NOW))
    assert state_of(run).name == "refusing"
    run.received.beat(receiver(SERVER))
    assert state_of(run).name == "receiving"


def test_a_ticket_that_ends_is_told(run: RunLedger) -> None:
    run.received.beat(receiver())
    run.notes.keep(NOTE, {"tickets": {"ferry@OLD": "the ticket of ferry@OLD ends at 02:00"}}, "receive a")
    assert (state_of(run).name, state_of(run).cause) == ("ticket ending", "the ticket of ferry@OLD ends at 02:00")


def test_an_aborted_run_says_that_the_sources_peer_is_still_there(run: RunLedger) -> None:
    run.received.beat(receiver())
    run.end("aborted", "kim", "moved on")
    state = state_of(run)
    assert (state.name, state.cause) == ("aborted", "moved on")
    assert "remove_peer" in state.next_step


def test_the_lag_is_that_of_the_table_farthest_behind_and_unknown_while_nothing_comes(
    run: RunLedger, time: Clock
) -> None:
    assert (lag_of(run).seconds, lag_of(run).unknown) == (None, "no edit came within the last minute")
    come(run, age_s=30)
    come(run, age_s=-2, table="shop:items")  # the source's clock is ahead
    assert lag_of(run).seconds == 30.0
    time.now += RECEIVED_MS + 1
    come(run, age_s=-2, table="shop:items")
    assert lag_of(run).seconds == 0.0


def test_the_status_has_processes_tables_and_rate(run: RunLedger, time: Clock) -> None:
    run.received.beat(refuses(ago_s=90))
    run.received.beat(receiver(OTHER, ago_s=3600))
    come(run, age_s=1.5)
    time.now += 300_001
    run.received.beat(refuses(ago_s=90))
    come(run, age_s=1, late=1)
    now = status(run)
    assert (now.phase, now.edits_applied, now.edits_per_second, now.lag_seconds) == ("receive", 12, 0.0, 1.0)
    assert "Applied: 12, 0.0/s; Time: " in status_line(now)
    assert "Lag: 1.0s; State: receiving; ETA: N/A" in status_line(now)
    assert now.receiving is not None
    assert [one.text for one in now.receiving.tables] == [
        "shop:items -> east:items: 0 entries in 0 calls; nothing was applied yet",
        "shop:orders -> shop:orders: 4 entries, 2 repeated, 1 out of order in 2 calls; newest write 2023-11-14 "
        "22:18:19 UTC",
    ]
    assert [(one.server, one.state) for one in now.receiving.processes] == [(SERVER, "serving"), (OTHER, "gone")]
    assert now.receiving.processes[0].text == (
        "east-1.example:16040: serves since 2023-11-14 21:18:20 UTC, writes shop:orders; 12 calls, 2 refused, the last "
        "at 2023-11-14 22:16:50 UTC: the target does not answer"
    )


def test_what_is_left_out_as_older_adds_up_and_is_shown_of_each_table_also_if_nothing_was_applied(
    run: RunLedger,
) -> None:
    leave_out(run, "shop:orders", 3)
    leave_out(run, "shop:items", 1)
    leave_out(run, "shop:orders", 2)
    come(run)
    now = status(run)
    assert now.receiving is not None
    items, orders = now.receiving.tables
    assert (items.left_out, orders.left_out) == (1, 5)
    assert items.text.startswith("shop:items -> east:items: 0 entries in 0 calls, 1 left out as older; nothing")
    assert orders.text.startswith("shop:orders -> shop:orders: 2 entries, 1 repeated in 1 call, 5 left out as older; ")


def test_a_run_that_only_leaves_out_old_entries_for_long_is_not_idle(run: RunLedger, time: Clock) -> None:
    run.received.beat(receiver())
    time.now += 1_200_000
    leave_out(run, "shop:orders", 3)
    run.received.beat(receiver(since_s=1200))
    assert state_of(run).name == "receiving"
    assert "the source has sent nothing that was to be applied yet" in state_of(run).cause
    time.now += 600_000
    run.received.beat(receiver(since_s=1800))
    assert state_of(run).name == "idle"


def test_the_rate_is_that_of_the_last_five_minutes(run: RunLedger, time: Clock) -> None:
    for _ in range(100):
        come(run)
    assert status(run).edits_per_second == 2.0
    time.now += 300_001
    assert status(run).edits_per_second == 0.0


def test_the_report_shows_tables_and_processes_and_no_log(run: RunLedger) -> None:
    run.received.beat(receiver())
    come(run)
    lines = render(summary(run)).splitlines()
    assert any(line.startswith("shop:orders -> shop:orders: 2 entries, 1 repeated in 1 call") for line in lines)
    assert any(line.startswith("east-1.example:16040: serves since") for line in lines)
    assert not any(line.startswith(("Log:", "Longest lag", "Phase ")) for line in lines)


def test_runs_of_other_kinds_have_nothing_of_it(run: RunLedger) -> None:
    other = run.whole.of(run.whole.open_run("move", "kim", SPEC, "kim").run_id)
    assert status(other).receiving is None


def test_the_docs_table_of_these_states_is_the_codes() -> None:
    lines = (Path(__file__).parents[4] / "docs" / "board.md").read_text(encoding="utf-8").splitlines()
    rows = [f"| {name} | {kind.cause} | {kind.next_step} |" for name, kind in OF_RECEIVING.items()]
    first = lines.index("| state of a run that receives | cause | next step |") + 2
    assert lines[first : lines.index("", first)] == rows


def test_a_run_into_kafka_shows_the_topics(tmp_path: Path, time: Clock) -> None:
    with Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}", actor="kim") as book:
        spec = {key: SPEC[key] for key in ("source",)} | {"tables": ["shop:orders"], "topic": "east.{table}"}
        keys = spec | {"name": "topics", "kafka": {"bootstrap": "b:1"}, "max_lag": 30}
        run = book.of(book.open_run("topics", "kim", keys, "kim", "receive").run_id)
        run.received.beat(receiver())
        come(run)
        shown = status(run).receiving
        assert shown is not None
        assert (shown.into_kafka, shown.tables[0].target) == (True, "east.orders")
        assert shown.tables[0].text.startswith(
            "shop:orders -> topic east.orders: 2 entries, 1 repeated in 1 call; newest"
        )
        assert state_of(run).name == "receiving"
        assert "shop:orders -> topic east.orders" in render(summary(run))
