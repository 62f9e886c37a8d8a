"""What the holder of the leases publishes reaches every process that sends, and whoever waits ends with the lease."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from unit.replay.memory_zookeeper import MemoryZooKeeper
from walferry.errors import UsageError
from walferry.hbase.address import ClusterAddress
from walferry.ledger import Ledger
from walferry.replay.rights import throttle_share
from walferry.replay.rights.lease import HeldLease, LeaseLostError
from walferry.replay.rights.pace import Pace
from walferry.replay.rights.throttle_share import Order, Turns, publishing, sending, turns_at
from walferry.run.notes.throttle import changed, set_throttle, throttle_of, throttle_text
from walferry.run.run import Run, RunEndedError
from walferry.run.spec import Throttle

SPEC = {"tables": [{"source": "t", "target": "t"}], "throttle": {"write_bytes": 5e6, "write_cells": None}}


@dataclass
class Node:
    """What a process reads; `say` tells it at once."""

    order: Order = field(default_factory=Order)
    watch: Callable[[object], None] = lambda _: None
    reads: int = 0

    def read(self, watch: Callable[[object], None]) -> Order:
        self.reads += 1
        self.watch = watch
        return self.order

    def say(self, order: Order) -> None:
        self.order = order
        self.watch("changed")


class Waiting:
    """A process that waits for its turn in a thread."""

    def __init__(self, turns: Turns, confirm: Callable[[], None] = lambda: None) -> None:
        self.failure: BaseException | None = None
        self._over = threading.Event()

        def work() -> None:
            try:
                turns.wait(confirm, 1, 1)
            except BaseException as error:
                self.failure = error
            self._over.set()

        threading.Thread(target=work, daemon=True).start()

    def is_over(self, within_s: float = 5.0) -> bool:
        return self._over.wait(within_s)


def test_a_process_reads_once_and_then_goes_by_its_watch() -> None:
    node = Node()
    turns = Turns(node.read)
    for _ in range(100):
        turns.wait(lambda: None, 1, 1)
    assert node.reads == 1
    node.say(Order(write_cells=1e9))
    turns.wait(lambda: None, 1, 1)
    assert node.reads == 2


def test_a_paused_process_waits_and_goes_on_when_the_run_is_resumed() -> None:
    node = Node(Order(paused=True))
    waiting = Waiting(Turns(node.read))
    assert not waiting.is_over(0.2)
    node.say(Order())
    assert waiting.is_over()
    assert waiting.failure is None


def test_a_process_that_waits_confirms_its_lease_and_ends_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(throttle_share, "CONFIRM_SECONDS", 0.05)

    def lost() -> None:
        raise LeaseLostError("another run applies")

    waiting = Waiting(Turns(Node(Order(paused=True)).read), lost)
    assert waiting.is_over()
    assert isinstance(waiting.failure, LeaseLostError)


def test_a_process_that_waits_ends_when_the_run_is_aborted() -> None:
    node = Node(Order(paused=True))
    waiting = Waiting(Turns(node.read))
    node.say(Order(paused=True, ended="aborted: enough"))
    assert waiting.is_over()
    assert isinstance(waiting.failure, RunEndedError)


def test_each_process_has_its_share() -> None:
    node = Node(Order(write_bytes=3e6, write_cells=900, processes=3))
    told: list[tuple[float | None, float | None]] = []
    pace = SimpleNamespace(allow=lambda size, cells: told.append((size, cells)), take=lambda cells, size: 0.0)
    turns = Turns(node.read, cast(Pace, pace))
    turns.wait(lambda: None, 1, 1)
    node.say(Order(write_cells=900, processes=2))
    turns.wait(lambda: None, 1, 1)
    assert told == [(1e6, 300), (None, 450)]


# ------------------------------------------------------------------ publishing


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    with Ledger.open(f"sqlite:///{tmp_path}/ledger.db", actor="test") as ledger:
        record = ledger.open_run("move", "me", SPEC, "me")
        yield cast(Run, SimpleNamespace(ledger=ledger.of(record.run_id), run_id=record.run_id))


@pytest.fixture
def zookeeper() -> MemoryZooKeeper:
    return MemoryZooKeeper()


def soon(zookeeper: MemoryZooKeeper, order: Order) -> None:
    """Within a second, a node says that."""
    until = time.monotonic() + 1
    while Order(**json.loads(zookeeper.nodes["/n"].data)) != order:
        assert time.monotonic() < until, zookeeper.nodes["/n"].data
        time.sleep(0.01)


def test_what_the_ledger_says_is_published_within_a_second(run: Run, zookeeper: MemoryZooKeeper) -> None:
    with publishing(run, zookeeper.session(), "/n"):
        soon(zookeeper, Order(write_bytes=5e6))
        set_throttle(run.ledger, Throttle(write_cells=100), "me")
        soon(zookeeper, Order(write_cells=100))
        run.ledger.whole.set_paused(run.run_id, True, "me")
        soon(zookeeper, Order(write_cells=100, paused=True))
        with sending(run), sending(run):
            soon(zookeeper, Order(write_cells=100, processes=2, paused=True))
        run.ledger.whole.set_paused(run.run_id, False, "me")
        soon(zookeeper, Order(write_cells=100))
    assert "/n" not in zookeeper.nodes


def test_tables_that_one_process_loads_at_once_share_the_limits(run: Run, zookeeper: MemoryZooKeeper) -> None:
    with publishing(run, zookeeper.session(), "/n"), publishing(run, zookeeper.session(), "/other"):
        soon(zookeeper, Order(write_bytes=5e6, processes=2))
        assert zookeeper.nodes["/other"].data == zookeeper.nodes["/n"].data


def test_a_process_whose_holder_is_gone_sends_nothing_more(
    zookeeper: MemoryZooKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(throttle_share, "shared_client", lambda _: SimpleNamespace(zk=zookeeper.session()))
    with pytest.raises(LeaseLostError, match="has ended"):
        turns_at(ClusterAddress("zk:1"), "/gone", HeldLease("t", 1)).wait(lambda: None, 1, 1)


# ------------------------------------------------------------------ limits


def test_the_spec_has_the_first_limits_and_what_is_set_later_counts_and_is_audited(run: Run) -> None:
    assert throttle_of(run.ledger) == Throttle(write_bytes=5e6)
    set_throttle(run.ledger, Throttle(), "alice")
    assert throttle_of(run.ledger) == Throttle()
    line = run.ledger.whole.audit_trail()[-1]
    assert (line.actor, line.action) == ("alice", "throttle run")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("50000", 5e4),
        ("50k", 5e4),
        ("20MB", 2e7),
        ("20 MB/s", 2e7),
        ("1.5M", 1.5e6),
        ("64KiB", 65536),
        ("1GiB", 1 << 30),
    ],
)
def test_a_rate_is_a_number_with_or_without_a_unit(text: str, value: float) -> None:
    assert changed(Throttle(write_cells=7), {"write_bytes": text, "write_cells": None}, False) == Throttle(
        write_bytes=value, write_cells=7
    )


@pytest.mark.parametrize("text", ["0", "0MB", "-5", "-1k", "many", "", "1e3", "inf", "5 5"])
def test_a_rate_that_is_none_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(UsageError, match=r"^--write-cells '.*': give a number.*--off removes the limits") as refused:
        changed(Throttle(), {"write_bytes": None, "write_cells": text}, False)
    assert "\n" not in str(refused.value)


def test_off_removes_all_limits_and_goes_with_no_other_option() -> None:
    assert changed(Throttle(write_cells=7), {}, True) == Throttle()
    with pytest.raises(UsageError, match="no other option"):
        changed(Throttle(), {"write_cells": "5"}, True)


def test_limits_read_as_a_phrase() -> None:
    assert throttle_text(Throttle(write_bytes=2e7, write_cells=5e4)) == "at most 20.0 MB/s and 50000 cells/s"
    assert throttle_text(Throttle(write_bytes=900)) == "at most 900 bytes/s"
    assert throttle_text(Throttle()) == "without a limit"
