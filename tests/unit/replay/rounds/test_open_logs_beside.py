"""Passes over the open logs beside a round, and the errors of a pass: which end the replay, and which do not."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession
from sqlalchemy import Connection

from unit.replay.rounds.open_logs_source import (
    NOW,
    ROUTE,
    SERVERS,
    TABLE,
    Follow,
    cut_of,
    roll,
    settle,
    write,
)
from walferry.errors import TransientError
from walferry.hbase.errors import RequestTimeoutError
from walferry.replay.log.cut import Cut
from walferry.replay.rights.dirty import UnmarkedRowsError
from walferry.replay.rights.lease import LeaseLostError, OutcomeUnknownError
from walferry.replay.rounds import open_logs as following
from walferry.replay.rounds import rounds
from walferry.replay.rounds.open_logs import OpenLogs
from walferry.replay.rounds.rounds import NotCutError
from walferry.run.notes.sent_early import sent_early
from walferry.run.progress.status import status
from walferry.run.run import Run


def test_a_process_that_has_lost_its_leases_notes_and_sends_nothing(run: Run, follow: Follow, sent: list[int]) -> None:
    follow()
    is_lost = False

    def lease_check(_: Connection) -> None:
        if is_lost:
            raise LeaseLostError("another process has taken it", table="orders", number=1)

    open_logs = OpenLogs(run, ROUTE, lease_check)
    open_logs.applied(cut_of(run, NOW - 5_000))
    is_lost = True
    write(run, SERVERS[0], 0, 1)
    with pytest.raises(LeaseLostError):
        open_logs.go_on()
    assert (sent, sent_early(run.ledger)) == ([], {})


def test_beside_a_round_passes_go_on_and_end_with_it(run: Run, follow: Follow, sent: list[int]) -> None:
    open_logs = follow()
    with open_logs.beside():
        write(run, SERVERS[0], 0, 1)
        deadline = time.monotonic() + 20
        while not sent and time.monotonic() < deadline:
            time.sleep(0.01)
    assert sent == [1]
    write(run, SERVERS[0], 0, 2)
    time.sleep(0.2)
    assert sent == [1]


def test_a_round_that_fails_is_left_once_no_request_is_under_way_and_tells_of_an_unknown_outcome(
    run: Run, follow: Follow, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hole: the replay went on after a log that could not be cut, beside a request of the thread, or without its
    verdict."""
    begun, done = threading.Event(), threading.Event()

    def send(*_: Any) -> list[Any]:
        begun.set()
        time.sleep(0.5)
        done.set()
        raise RequestTimeoutError("rs,1,1 does not answer", server=SERVERS[0], method="Multi", sent=True)

    open_logs = follow()
    monkeypatch.setattr(following, "send_entries", send)
    monkeypatch.setattr(following, "END_SECONDS", 0.01)
    write(run, SERVERS[0], 400)
    with ExitStack() as stack:
        stack.enter_context(pytest.raises(OutcomeUnknownError))
        stack.enter_context(open_logs.beside())
        assert begun.wait(20)
        raise NotCutError("a server does not answer")
    assert done.is_set()


def test_while_released_edits_are_applied_nothing_is_sent_and_a_log_that_cannot_be_cut_is_told(
    run: Run, follow: Follow, sent: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that are read again for them must be as new as all that was sent."""
    reached: list[str] = []

    def apply_released(*_: Any) -> None:
        write(run, SERVERS[0], 0, 1)
        time.sleep(0.3)
        reached.append(f"released after {len(sent)}")

    def cut(*_: Any) -> Cut:
        deadline = time.monotonic() + 20
        while not sent and time.monotonic() < deadline:
            time.sleep(0.01)
        raise TransientError("a server does not answer", server="rs,1,1")

    def no_master(*_: Any) -> None:
        raise TransientError("the master does not answer")  # which 2.x is asked for the peer

    open_logs = follow()
    for name in ("continue_batch", "lease_check_of", "kept_lines"):
        monkeypatch.setattr(rounds, name, lambda *_: None)
    monkeypatch.setattr(rounds, "shared_by_workers", lambda run, route, spark: route)
    monkeypatch.setattr(rounds, "apply_released", apply_released)
    monkeypatch.setattr(rounds, "_settled_cut", cut)
    with pytest.raises(NotCutError, match="a server does not answer") as raised:
        rounds.run_round(run, cast(SparkSession, None), ROUTE, open_logs)
    assert raised.value.server == "rs,1,1"
    monkeypatch.setattr(rounds, "_settled_cut", lambda *_: cut_of(run, NOW))
    monkeypatch.setattr(rounds, "check_complete", no_master)
    with pytest.raises(NotCutError, match="the master does not answer"):
        rounds.run_round(run, cast(SparkSession, None), ROUTE)
    reached.pop()
    assert (reached, sent) == (["released after 0"], [1])


def test_while_the_ledger_cannot_be_reached_no_pass_is_made(
    run: Run, follow: Follow, sent: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(_: Run) -> bool:
        raise TransientError("the ledger does not answer")

    open_logs = follow()
    write(run, SERVERS[0], 400)
    monkeypatch.setattr(following, "is_paused", away)
    with open_logs.beside():
        time.sleep(0.3)
    assert sent == []


def test_an_unknown_outcome_beside_a_round_keeps_a_batch_from_being_begun_and_ends_the_replay(
    run: Run, follow: Follow, monkeypatch: pytest.MonkeyPatch
) -> None:
    def send(*_: Any) -> list[Any]:
        raise RequestTimeoutError("rs,1,1 does not answer", server=SERVERS[0], method="Multi", sent=True)

    open_logs, reached = follow(), threading.Event()
    monkeypatch.setattr(following, "send_entries", send)
    write(run, SERVERS[0], 400)
    beside = open_logs.beside()
    with ExitStack() as stack:
        stack.enter_context(pytest.raises(OutcomeUnknownError))
        stack.enter_context(beside)
        time.sleep(0.3)
        reached.set()
        roll(run, SERVERS[0])
        with pytest.raises(OutcomeUnknownError):
            settle(run, open_logs)
    assert reached.is_set()


def test_an_error_of_any_kind_leaves_the_rounds_going_and_is_told(
    run: Run, follow: Follow, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: OpenLogs) -> bool:
        raise IndexError("index 7 is out of bounds")

    open_logs = follow()
    monkeypatch.setattr(OpenLogs, "_pass", broken)
    assert open_logs.go_on()
    assert open_logs.go_on()
    told = "open logs are not followed until the next round: index 7 is out of bounds"
    assert status(run.ledger).not_followed == told
    monkeypatch.undo()
    follow()
    assert status(run.ledger).not_followed == ""


@pytest.mark.parametrize("sent", [True, False], ids=["it may have arrived", "it was not sent"])
def test_a_request_that_may_still_be_carried_out_ends_the_leases(
    sent: bool, run: Run, follow: Follow, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hole: the next round sent a newer put of the same timestamp under the same leases, and the old one came last."""

    def send(*_: Any) -> list[Any]:
        raise RequestTimeoutError("rs,1,1 does not answer", server=SERVERS[0], method="Multi", sent=sent)

    open_logs = follow()
    write(run, SERVERS[0], 400)
    monkeypatch.setattr(following, "send_entries", send)
    if sent:
        with pytest.raises(OutcomeUnknownError, match="may not have arrived: rs,1,1 does not answer"):
            open_logs.go_on()
    else:
        assert open_logs.go_on()
        assert "does not answer" in status(run.ledger).not_followed


def test_rows_that_could_not_be_marked_end_the_replay(
    run: Run, follow: Follow, monkeypatch: pytest.MonkeyPatch
) -> None:
    def send(*_: Any) -> list[Any]:
        raise UnmarkedRowsError("rows are dirty", table=TABLE, first="a", last="b")

    open_logs = follow()
    write(run, SERVERS[0], 400)
    monkeypatch.setattr(following, "send_entries", send)
    with pytest.raises(UnmarkedRowsError):
        open_logs.go_on()
