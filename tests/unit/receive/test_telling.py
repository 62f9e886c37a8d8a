"""What a process tells once a minute, and that it stops once its run has ended."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import pytest

from unit.run.progress.received_ledger import OTHER, come, receiver, refuses
from walferry.errors import TransientError
from walferry.ledger import Ledger, RunLedger
from walferry.receive import telling as module
from walferry.receive.start import open_receive
from walferry.receive.telling import Sums, as_line, telling
from walferry.run.notes.left_out import leave_out
from walferry.run.receive_spec import ResolvedReceiveSpec

DEADLINE_S = 20.0


@pytest.fixture
def run(ledger: Ledger, spec: ResolvedReceiveSpec, monkeypatch: pytest.MonkeyPatch) -> RunLedger:
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.02)
    monkeypatch.setattr(module, "TELL_SECONDS", 0.02)
    return ledger.of(open_receive(ledger, spec, "kim").run_id)


def test_the_line_tells_what_came_since_the_last_one(run: RunLedger) -> None:
    before = Sums(1_700_000_000_000, 10, 3, 5, {})
    now = Sums(1_700_000_060_000, 640, 24, 6, {"shop:items": None, "shop:orders": 1_700_000_059_000})
    assert as_line(now.since(before)) == (
        "22:14:20 UTC  10.5 entries/s in 21 calls; 1 refused; shop:orders: newest write 22:14:19 UTC"
    )
    more = replace(now, left_out=7)
    assert "in 0 calls; 7 entries left out as older; shop:orders" in as_line(more.since(now))
    assert as_line(now.since(now)).startswith("22:14:20 UTC  0.0 entries/s in 0 calls; shop:orders")
    assert as_line(before.since(now)).endswith("nothing was applied yet")


def test_the_sums_are_those_of_all_processes(run: RunLedger) -> None:
    run.received.beat(refuses())
    run.received.beat(refuses(OTHER))
    come(run)
    come(run, table="shop:items")
    leave_out(run, "shop:orders", 2)
    leave_out(run, "shop:items", 1)
    sums = Sums.of(run)
    assert sums.left_out == 3
    assert (sums.entries, sums.calls, sums.refused, set(sums.newest_ms)) == (4, 2, 4, {"shop:items", "shop:orders"})


def test_it_is_told_again_and_again_and_each_call_once(run: RunLedger) -> None:
    came = list[dict[str, Any]]()
    told = threading.Semaphore(0)

    def tell(facts: dict[str, Any]) -> None:
        came.append(facts)
        told.release()

    run.received.beat(receiver())
    with telling(run, threading.Event(), tell):
        assert told.acquire(timeout=DEADLINE_S)
        come(run)
        for _ in range(3):
            assert told.acquire(timeout=DEADLINE_S)
    assert sum(facts["calls"] for facts in came) == 1


def test_the_process_stops_once_the_run_has_ended_and_not_before(run: RunLedger) -> None:
    stop, told = threading.Event(), threading.Event()
    with telling(run, stop, lambda facts: told.set()):
        assert told.wait(DEADLINE_S)
        assert not stop.is_set()
        run.end("aborted", "kim")
        assert stop.wait(DEADLINE_S)


def test_a_ledger_that_does_not_answer_is_asked_again(run: RunLedger, monkeypatch: pytest.MonkeyPatch) -> None:
    stop, asked, real = threading.Event(), threading.Event(), RunLedger.record

    def away(ledger: RunLedger) -> None:
        asked.set()
        raise TransientError("the ledger did not answer")

    monkeypatch.setattr(RunLedger, "record", property(away))
    with telling(run, stop, lambda facts: None):
        assert asked.wait(DEADLINE_S)
        run.end("aborted", "kim")
        monkeypatch.setattr(RunLedger, "record", real)
        assert stop.wait(DEADLINE_S)
