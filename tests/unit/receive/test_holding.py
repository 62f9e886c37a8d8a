"""Who holds which table, and what ends that."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
from kazoo.exceptions import ConnectionLoss

from walferry.apply.writer_protocol import WriteLimits
from walferry.clock import steady_s
from walferry.errors import TransientError, UsageError
from walferry.hbase.errors import ZooKeeperError
from walferry.receive import holding
from walferry.receive.holding import HeldTables, Holding, NotHeldError, OutOfTimeError, StillAtWorkError
from walferry.receive.target_table import LEAST_REQUEST_SECONDS, TargetTable, _Until
from walferry.replay.rights import lease
from walferry.replay.rights.lease import LeaseHeldError
from walferry.run.spec import TablePair

Prepare = Callable[[Callable[[], bool], Callable[[str], None]], bool]
TABLES = [TablePair(source=name, target=name) for name in ("a", "b", "c")]


class Leases:
    """The leases of a run's tables, in memory, for processes of that run."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.holders: dict[str, str] = {}
        self.taken: list[str] = []
        self.members = ["p1"]
        self.fails: Callable[[], None] = lambda: None
        self.guard: Callable[[], None] = lambda: None
        self.prepare: Prepare = lambda wanted, tell: True
        for name, seconds in (("LOOK_SECONDS", 0.01), ("AGAIN_SECONDS", 0.02), ("END_SECONDS", 5.0)):
            monkeypatch.setattr(holding, name, seconds)

    @contextmanager
    def opened(self, process: str, pair: TablePair) -> Iterator[Holding]:
        self.fails()
        if (other := self.holders.get(pair.target)) is not None:
            raise LeaseHeldError("another", table=pair.target, holder=f"run east-1 ({other})")
        self.holders[pair.target] = process
        self.taken.append(pair.target)
        nothing: Any = None
        self.last = Holding(pair, lambda: self.guard(), nothing, nothing, nothing, threading.Lock())
        try:
            yield self.last
        finally:
            del self.holders[pair.target]

    @contextmanager
    def process(self, name: str) -> Iterator[HeldTables[Holding]]:
        to: Any = SimpleNamespace(
            pairs=TABLES, run_id="east-1", zk=None, lease_of=str, opened=lambda pair: self.opened(name, pair),
            prepare=lambda holding, wanted, tell: self.prepare(wanted, tell),
        )  # fmt: skip
        tables: HeldTables[Holding] = HeldTables(to, lambda: self.members, name)
        tables.begin()
        try:
            yield tables
        finally:
            tables.end()


@pytest.fixture
def leases(monkeypatch: pytest.MonkeyPatch) -> Leases:
    return Leases(monkeypatch)


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_processes_share_the_tables_and_take_those_of_one_that_has_left(leases: Leases) -> None:
    with leases.process("p1") as first:
        until(lambda: len(first.held) == 3)
        leases.members = ["p2", "p1"]
        with leases.process("p2") as second:
            until(lambda: set(first.held) == {"a", "c"} and set(second.held) == {"b"})
            assert first.trouble == second.trouble == {}, "a lease that is about to be given back is no trouble"
            leases.members = ["p1"]
        until(lambda: len(first.held) == 3)
    assert leases.holders == {}


@pytest.mark.parametrize("error", [ConnectionLoss(), TransientError("the ledger is away"), RuntimeError("a bug")])
def test_no_error_keeps_a_table_from_being_tried_again(leases: Leases, error: Exception) -> None:
    def fails() -> None:
        raise error

    leases.fails = fails
    with leases.process("p1") as tables:
        until(lambda: len(tables.trouble) == 3)
        leases.fails = lambda: None
        until(lambda: len(tables.held) == 3)
        assert tables.trouble == {}


def test_why_a_table_was_given_back_is_known_until_it_is_held_again(leases: Leases) -> None:
    with leases.process("p1") as tables:
        until(lambda: len(tables.held) == 3)
        given_back, held = leases.last, threading.Event()
        leases.prepare = lambda wanted, tell: held.wait(10)
        given_back.fault, given_back.stale = "Kafka is away", True
        until(lambda: tables.trouble == {given_back.pair.target: "Kafka is away"})
        held.set()
        until(lambda: len(tables.held) == 3)
        assert tables.trouble == {}


def test_what_only_a_person_can_mend_is_tried_less_and_less_often(leases: Leases) -> None:
    tries: list[float] = []

    def fails() -> None:
        tries.append(time.monotonic())
        raise UsageError("the topic has another number of partitions")

    leases.fails = fails
    with leases.process("p1") as tables:
        until(lambda: len(tries) >= 15)  # of three tables
        assert tries[-1] - tries[0] > 0.04 + 0.08 + 0.16 + 0.32
        leases.fails = lambda: None
        until(lambda: len(tables.held) == 3)


def is_prepared(tables: HeldTables[Holding], table: str) -> bool:
    try:
        tables.require_prepared(table)
    except StillAtWorkError as error:
        return str(error) != "rows are copied"
    return True


def test_no_call_uses_a_table_before_it_is_prepared_and_another_process_goes_on_with_that(leases: Leases) -> None:
    ready = threading.Event()

    def prepare(wanted: Callable[[], bool], tell: Callable[[str], None]) -> bool:
        while wanted():
            tell("rows are copied")
            if ready.is_set():
                return True
        return False

    leases.prepare = prepare
    with leases.process("p1") as first:
        until(lambda: len(leases.holders) == 3)
        for pair in TABLES:
            until(lambda pair=pair: not is_prepared(first, pair.target))  # type: ignore[misc]
        assert first.held == {}
        leases.members = ["p2"]
        with leases.process("p2") as second:
            until(lambda: set(leases.holders.values()) == {"p2"})
            ready.set()
            until(lambda: len(second.held) == 3)
            assert second.trouble == {}
            assert all(is_prepared(second, pair.target) for pair in TABLES)


def test_a_lease_that_is_lost_is_taken_again(leases: Leases) -> None:
    with leases.process("p1") as tables:
        until(lambda: len(tables.held) == 3)
        before = len(leases.taken)

        def lost() -> None:
            leases.guard = lambda: None
            raise lease.LeaseLostError("lost", table="a", number=1)

        leases.guard = lost
        until(lambda: len(leases.taken) == before + 1 and len(tables.held) == 3)


def test_a_table_is_given_back_once_its_calls_have_ended_and_takes_no_new_ones(leases: Leases) -> None:
    with leases.process("p1") as tables:
        until(lambda: "b" in tables.held)
        mine, go_on = tables.holding("b"), threading.Event()
        with mine.used():
            leases.members = ["p1", "p2"]
            until(lambda: "b" not in tables.held)
            assert leases.holders["b"] == "p1", "a call is under way"
            with pytest.raises(NotHeldError), mine.used():
                go_on.set()
        until(lambda: "b" not in leases.holders)
    assert not go_on.is_set()


def test_what_may_lack_a_record_is_read_again(leases: Leases) -> None:
    with leases.process("p1") as tables:
        until(lambda: "a" in tables.held)
        before = tables.holding("a")
        before.stale = True
        with pytest.raises(NotHeldError), before.used():
            pass
        until(lambda: "a" in tables.held and tables.holding("a") is not before)


def test_a_zookeeper_that_does_not_answer_may_answer_later(leases: Leases, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> str:
        raise ConnectionLoss

    monkeypatch.setattr(lease, "holder_of", fails)
    with leases.process("p1") as tables, pytest.raises(ZooKeeperError, match="does not say who writes a"):
        tables.holder("a")


def test_after_the_deadline_no_request_begins_and_what_is_under_way_is_judged_by_the_lease_alone() -> None:
    asked: list[str] = []

    class Guard:
        def __call__(self, tables: Sequence[str]) -> None:
            asked.append("guard")

        def wait_turn(self, tables: Sequence[str], cells: int, size: int) -> None:
            asked.append("turn")

    guard: Any = Guard()
    late, early = _Until(guard, steady_s() - 1), _Until(guard, steady_s() + 60)
    early.wait_turn(["a"], 1, 1)
    late(["a"])
    with pytest.raises(OutOfTimeError, match="edits of a were not all applied in time"):
        late.wait_turn(["a"], 1, 1)
    assert asked == ["turn", "guard", "turn"]


def test_a_request_takes_no_longer_than_its_call_has_left(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = WriteLimits(
        mutations=1, bytes=1, aim_bytes=1, lanes=4, read_ahead=1, ahead_bytes=1, piece_bytes=1, here_bytes=1,
        request_seconds=30, settle_seconds=10, claim_seconds=10,
    )  # fmt: skip

    @dataclass(frozen=True)
    class Route:
        guard: Any
        limits: WriteLimits

    route: Any = Route(None, limits)
    nothing: Any = None
    one = TargetTable(TABLES[0], nothing, nothing, nothing, nothing, threading.Lock(), route)
    assert one.route_until(steady_s() + 100).limits.request_seconds == 30
    assert 19 < one.route_until(steady_s() + 20).limits.request_seconds <= 20
    assert one.route_until(steady_s() - 1).limits.request_seconds == LEAST_REQUEST_SECONDS
    assert one.route_until(steady_s() + 100).limits.lanes == 1
