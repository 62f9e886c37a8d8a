"""What a watch of a run that receives tells, and for how long it waits before it does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from unit.receive.two_clusters import KEYS
from unit.run.progress.received_ledger import OTHER, REFUSED, come, receiver, refuses
from walferry.ledger import Ledger, RunLedger
from walferry.receive.watching import LONGEST_WAIT_MS, look
from walferry.run.notes.history import History

NOW = 1_700_000_000_000


class Clock:
    """The clock of every module that a look asks."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.now = NOW
        for module in ("clock", "ledger.received", "ledger.notes", "run.progress.receiving", "receive.watching"):
            patch.setattr(f"walferry.{module}.now_ms", lambda: self.now)

    def on(self, seconds: float) -> None:
        self.now += int(seconds * 1000)


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


@pytest.fixture
def run(tmp_path: Path, time: Clock) -> Iterator[RunLedger]:
    with Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}", actor="kim") as book:
        yield book.of(book.open_run("east", "kim", KEYS | {"max_lag": 30}, "kim", "receive").run_id)


def told(run: RunLedger, tolerated_s: float = 120) -> list[tuple[str, str]]:
    return [(one.event, one.key) for one in look(run, tolerated_s).troubles]


def test_a_run_that_receives_has_no_trouble(run: RunLedger) -> None:
    run.received.beat(receiver())
    run.received.beat(receiver(OTHER, ago_s=70))
    come(run)
    seen = look(run, 120)
    assert (seen.state, seen.troubles, seen.lag_seconds, seen.processes, seen.refused) == ("receiving", (), 1.0, 1, 0)


def test_that_nobody_serves_is_told_once_it_has_lasted_longer_than_is_tolerated(run: RunLedger, time: Clock) -> None:
    run.received.beat(receiver(ago_s=0))
    time.on(119)
    assert look(run, 120).state == "no receiver"
    assert told(run) == []
    time.on(1)
    (trouble,) = look(run, 120).troubles
    assert (trouble.event, trouble.key) == ("receive", "no receiver")
    assert trouble.text.startswith("no process serves: the last one, east-1.example:16040")
    assert "the source keeps its log" in trouble.text


def test_refusals_are_told_once_they_have_lasted_although_the_source_waits_longer_and_longer(
    run: RunLedger, time: Clock
) -> None:
    for seconds in (0, 40, 50):
        time.on(seconds)
        run.received.beat(refuses(ago_s=0))
        assert told(run) == []
    time.on(60)
    run.received.beat(receiver(last_refusal=REFUSED, last_refusal_ms=time.now - 60_000, refused=3))
    assert look(run, 120).state == "idle"
    assert told(run) == []
    time.on(230)
    run.received.beat(refuses(ago_s=0))
    (trouble,) = look(run, 120).troubles
    assert (trouble.event, trouble.key) == ("receive", "refusing")
    assert trouble.text.startswith("calls of the source have been refused for 6 min 20 s: east-1.example:16040 refused")
    assert REFUSED in trouble.text


def test_refusals_are_over_once_none_has_come_for_longer_than_a_source_waits(run: RunLedger, time: Clock) -> None:
    run.received.beat(refuses(ago_s=0))
    assert told(run, 0) == [("receive", "refusing")]
    refused_ms = time.now
    time.on(LONGEST_WAIT_MS / 1000)
    run.received.beat(receiver(last_refusal=REFUSED, last_refusal_ms=refused_ms, refused=2))
    assert told(run, 0) == []
    time.on(60)
    run.received.beat(refuses(ago_s=0))
    assert told(run, 1) == []


def test_a_copy_that_cannot_go_on_is_told_and_refusals_for_other_reasons_meanwhile(run: RunLedger, time: Clock) -> None:
    keys = KEYS | {"receive": {"path": None, "history": "scan"}}
    copies = run.whole.of(run.whole.open_run("copies", "kim", keys, "kim", "receive").run_id)
    copies.received.beat(receiver())
    History(waits="the source does not answer", waits_ms=NOW).keep(copies, "shop:orders")
    time.on(119)
    copies.received.beat(receiver())
    assert told(copies) == []
    time.on(2)
    copies.received.beat(refuses())
    assert told(copies) == [("receive", "history of shop:orders")]
    History("east", 7, 0, ((b"", b""),), 1).keep(copies, "shop:orders")
    time.on(300)
    copies.received.beat(refuses())
    assert told(copies) == [("receive", "refusing")]


def test_a_lag_above_the_runs_own_is_told_at_once(run: RunLedger) -> None:
    run.received.beat(receiver())
    come(run, age_s=30)
    assert told(run) == []
    come(run, age_s=31, table="shop:items")
    (trouble,) = look(run, 120).troubles
    assert (trouble.event, trouble.text) == (
        "lag", "the newest edits were 31 s old when they were applied; max_lag is 30 s",
    )  # fmt: skip
