"""The numbers of the leases rise, whatever became of the ZooKeeper that counted them (R8, R12)."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from unit.migration.filled_ledger import SPEC
from unit.replay.memory_zookeeper import MemoryZooKeeper
from walferry.errors import GateShutError, SidesDifferError, TransientError
from walferry.ledger import Ledger, RunLedger
from walferry.replay.rights import lease
from walferry.replay.rights.lease import HeldLease, LeaseHeldError, LeaseLostError, check, held_leases
from walferry.run.heartbeat import beating, gone, this_process
from walferry.run.notes.waits import begin_wait, end_wait
from walferry.run.progress.state import state_of

TABLE = "shop:orders"


@pytest.fixture
def run(tmp_path: Path) -> Iterator[RunLedger]:
    with Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}", actor="test") as ledger:
        yield ledger.of(ledger.open_run("move", "test", SPEC, "test").run_id)


def taken(zookeeper: MemoryZooKeeper, run: RunLedger) -> int:
    """Take the lease, record it, give it back; its number."""
    with held_leases(
        zookeeper.session(), [TABLE], holder="a run", request_seconds=0, wait_seconds=0, newest=run.leases.newest
    ) as leases:
        run.leases.take(TABLE, "a run", leases[TABLE].number)
    return leases[TABLE].number


def test_numbers_go_on_above_those_of_the_ledger_after_the_zookeeper_was_rebuilt(run: RunLedger) -> None:
    zookeeper = MemoryZooKeeper()
    assert [taken(zookeeper, run) for _ in range(3)] == [1, 2, 3]
    assert taken(MemoryZooKeeper(), run) == 4
    assert taken(zookeeper, run) == 5


def test_numbers_go_on_above_those_of_the_zookeeper_in_a_new_ledger(run: RunLedger) -> None:
    zookeeper = MemoryZooKeeper()
    for _ in range(3):
        with held_leases(zookeeper.session(), [TABLE], holder="another", request_seconds=0, wait_seconds=0):
            pass
    assert taken(zookeeper, run) == 4


def test_a_number_that_was_taken_while_one_looked_it_up_is_not_given_out_again(run: RunLedger) -> None:
    zookeeper, looks = MemoryZooKeeper(), 0

    def newest(table: str) -> int:
        nonlocal looks
        looks += 1
        number = run.leases.newest(table)
        if looks == 1:
            assert taken(zookeeper, run) == 1
        return number

    client = zookeeper.session()
    with held_leases(client, [TABLE], holder="slow", request_seconds=0, wait_seconds=0, newest=newest) as leases:
        assert (leases[TABLE].number, looks) == (2, 2)
        check(client, leases[TABLE])


def test_who_is_killed_while_it_waits_for_a_killed_ones_requests_leaves_that_wait_to_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    zookeeper = MemoryZooKeeper()
    waited: list[float] = []

    def killed(seconds: float) -> None:
        waited.append(seconds)
        if len(waited) == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr("time.sleep", lambda seconds: killed(round(seconds)))
    for seconds, wanted in ((40.0, []), (0.0, [40.0]), (0.0, [40.0, 40.0])):
        session = zookeeper.session()
        with suppress(KeyboardInterrupt):
            held_leases(session, [TABLE], holder="a run", request_seconds=seconds, wait_seconds=0).__enter__()
        assert waited == wanted
        zookeeper.expire(session)


@pytest.mark.parametrize(
    ("error", "waits"),
    [
        (GateShutError("the gate is shut"), []),
        (SidesDifferError("rows differ"), []),
        (TransientError("no answer"), [40]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_the_next_one_waits_for_requests_after_an_error_but_not_after_a_gate_s_no(
    error: Exception, waits: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hole: after a gate had found a late edit, the next drain waited for requests for 50 s, with writes stopped."""
    zookeeper, clock = MemoryZooKeeper(), Clock(monkeypatch)
    with (
        suppress(type(error)),
        held_leases(zookeeper.session(), [TABLE], holder="one", request_seconds=40, wait_seconds=0),
    ):
        raise error
    with held_leases(zookeeper.session(), [TABLE], holder="the next", request_seconds=40, wait_seconds=0):
        assert clock.slept == waits


# ---- after a kill -9


class Clock:
    """Sleeping takes no time, but is told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.slept: list[float] = []
        monkeypatch.setattr("time.sleep", lambda seconds: self.slept.append(round(seconds)))


@contextmanager
def held_by(**process: object) -> Iterator[MemoryZooKeeper]:
    """Let a lease be held by another process, whose requests take at most 40 s; its session goes on for a while."""
    zookeeper = MemoryZooKeeper()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lease, "this_process", lambda: this_process() | process)
        held = held_leases(zookeeper.session(), [TABLE], holder="run move-1 (kim)", request_seconds=40, wait_seconds=0)
        held.__enter__()
    yield zookeeper
    with suppress(KeyboardInterrupt):
        held.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)


@pytest.fixture
def killed() -> int:
    """The number of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_the_lease_of_a_process_that_was_killed_on_this_machine_is_taken_at_once(
    killed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not its session is waited for, but what it may have sent."""
    clock, told = Clock(monkeypatch), list[tuple[str, float]]()

    def tell(what: str, seconds: float) -> None:
        told.append((what, round(seconds)))

    with held_by(pid=killed) as zookeeper:
        client = zookeeper.session()
        with held_leases(client, [TABLE], holder="the next", request_seconds=40, wait_seconds=0, tell=tell) as leases:
            check(client, leases[TABLE])
            with pytest.raises(LeaseLostError):
                check(client, HeldLease(TABLE, 1))  # as its executors do before each request
    assert clock.slept == [40]
    assert told == [("until the requests of a process that did not release its lease have ended", 40)]


@pytest.mark.parametrize("elsewhere", [True, False], ids=["of another machine", "that lives"])
def test_the_lease_of_a_process_is_not_taken(elsewhere: bool, killed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    Clock(monkeypatch)
    process = {"pid": killed, "machine": "elsewhere"} if elsewhere else {}
    with (
        held_by(**process) as zookeeper,
        pytest.raises(LeaseHeldError, match="move-1"),
        held_leases(zookeeper.session(), [TABLE], holder="another", request_seconds=0, wait_seconds=0),
    ):
        pass


def test_who_looks_at_a_killed_holder_takes_nothing_from_the_one_that_came_after_it(
    killed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    Clock(monkeypatch)
    with held_by(pid=killed) as zookeeper:
        faster = zookeeper.session()
        held = held_leases(faster, [TABLE], holder="faster", request_seconds=0, wait_seconds=0)
        leases: dict[str, HeldLease] = {}

        def slowly(process: dict[str, object]) -> bool:
            monkeypatch.setattr(lease, "gone", gone)
            leases.update(held.__enter__())
            return True

        monkeypatch.setattr(lease, "gone", slowly)
        slow = held_leases(zookeeper.session(), [TABLE], holder="slow", request_seconds=0, wait_seconds=0)
        with pytest.raises(LeaseHeldError, match="faster"):
            slow.__enter__()
        check(faster, leases[TABLE])


def test_the_state_says_what_is_waited_for(run: RunLedger, monkeypatch: pytest.MonkeyPatch) -> None:
    run.phases.start("plan")
    with beating(run, "plan", "test"):
        begin_wait(run, "for the lease on shop:orders, held by run other-1 (kim)", 90)
        assert "; it waits for the lease on shop:orders, held by run other-1 (kim), at most 90 s" in state_of(run).cause
        end_wait(run)
        assert "waits" not in state_of(run).cause
        begin_wait(run, "for nothing", 0)
        assert "waits" not in state_of(run).cause
