"""A process sends only under a lease that it knows to have been held a moment ago (R13)."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable
from typing import cast

import pytest
from kazoo.client import KazooClient

from unit.replay.memory_zookeeper import MemoryZooKeeper, Session
from walferry.hbase.address import ClusterAddress
from walferry.replay.rights import claims, dirty
from walferry.replay.rights.claims import Claims, Confirmation
from walferry.replay.rights.lease import (
    Attempt,
    HeldLease,
    LeaseLostError,
    LeaseUnknownError,
    check,
    held_leases,
    supersede,
)
from write_limits import write_limits

TABLE, L = "shop:orders", 10.0
TARGET = ClusterAddress("zk:1")
HELD = HeldLease(TABLE, 1)


class Clock:
    """The clocks that confirmations go by; sleeping moves it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(claims, "steady_s", lambda: self.now)
        monkeypatch.setattr("time.sleep", self.forward)

    def forward(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


class Lease:
    """A lease as ZooKeeper shows it: each read takes `seconds`, and then raises `error` or returns."""

    def __init__(self, clock: Clock) -> None:
        self.reads = 0
        self.seconds = 0.0
        self.error: Exception | None = None
        self.meanwhile: Callable[[], None] = lambda: None
        self._clock = clock

    def read(self) -> None:
        self.reads += 1
        self._clock.forward(self.seconds)
        self.meanwhile()
        if self.error is not None:
            raise self.error


@pytest.fixture
def held(clock: Clock) -> Lease:
    return Lease(clock)


@pytest.fixture
def claim(held: Lease) -> Confirmation:
    return Confirmation(HELD, None, L, held.read)


LOST = LeaseLostError("it is lost", table=TABLE, number=1)
UNKNOWN = LeaseUnknownError("nobody knows", table=TABLE, number=1)


def test_it_is_read_at_the_first_request_and_again_only_when_it_gets_old(
    claim: Confirmation, held: Lease, clock: Clock
) -> None:
    for seconds, reads in ((0, 1), (0, 1), (4.9, 1), (0.2, 2), (4.8, 2), (100, 3)):
        clock.forward(seconds)
        claim.require()
        assert held.reads == reads


def test_its_age_counts_from_before_the_question(claim: Confirmation, held: Lease, clock: Clock) -> None:
    """The answer may have been true only when the question arrived."""
    held.seconds = 4
    claim.require()
    clock.forward(1.5)
    claim.require()
    assert held.reads == 2


def test_an_answer_that_took_longer_than_the_claim_lasts_confirms_nothing(claim: Confirmation, held: Lease) -> None:
    """As after a process was suspended between question and answer."""
    held.seconds = L
    with pytest.raises(LeaseUnknownError, match="could not be confirmed within 10 s"):
        claim.require()


def test_a_process_that_was_suspended_asks_before_it_sends(claim: Confirmation, held: Lease, clock: Clock) -> None:
    claim.require()
    clock.forward(120)
    held.error = LOST
    with pytest.raises(LeaseLostError, match="it is lost"):
        claim.require()


def test_an_event_ends_it_at_once(claim: Confirmation, held: Lease) -> None:
    claim.require()
    held.error = LOST
    claim.require()
    claim.end()
    with pytest.raises(LeaseLostError, match="it is lost"):
        claim.require()


def test_an_event_between_the_answer_and_its_use_is_not_lost(claim: Confirmation, held: Lease) -> None:
    def end_once() -> None:
        held.meanwhile = lambda: None
        claim.end()

    held.meanwhile = end_once
    claim.require()
    assert held.reads == 2


def test_what_was_lost_is_asked_for_again_each_time(claim: Confirmation, held: Lease) -> None:
    claim.require()
    claim.end()
    held.error = LOST
    for _ in range(2):
        with pytest.raises(LeaseLostError):
            claim.require()
    assert held.reads == 3


def test_while_zookeeper_fails_it_lasts_as_long_as_it_was_confirmed_for_and_no_longer(
    claim: Confirmation, held: Lease, clock: Clock
) -> None:
    claim.require()
    held.error = UNKNOWN
    clock.forward(9)
    claim.require()
    clock.forward(1)
    with pytest.raises(LeaseUnknownError, match="nobody knows"):
        claim.require()
    assert held.reads == 2 + claims.READS


def test_a_session_that_has_to_be_renewed_first_does_not_end_it(claim: Confirmation, held: Lease) -> None:
    def recover() -> None:
        if held.reads == 3:
            held.error = None

    held.error, held.meanwhile = UNKNOWN, recover
    claim.require()
    assert held.reads == 3


def test_one_thread_asks_while_the_others_go_on(claim: Confirmation, held: Lease, clock: Clock) -> None:
    claim.require()
    clock.forward(6)
    asking, answered = threading.Event(), threading.Event()

    def wait() -> None:
        asking.set()
        assert answered.wait(5)

    held.meanwhile = wait
    thread = threading.Thread(target=claim.require)
    thread.start()
    assert asking.wait(5)
    claim.require()
    assert held.reads == 2
    answered.set()
    thread.join()


def test_a_successor_waits_for_the_claim_the_request_and_what_the_server_has_begun() -> None:
    assert write_limits(claim_seconds=1, request_seconds=2, settle_seconds=4).quiet_seconds == 7


# ---- with a ZooKeeper


@pytest.fixture
def zookeeper() -> MemoryZooKeeper:
    """That of the target."""
    return MemoryZooKeeper()


@pytest.fixture
def own(zookeeper: MemoryZooKeeper, monkeypatch: pytest.MonkeyPatch) -> Session:
    """The session by which this process asks it."""
    client = zookeeper.session()

    class Client:
        zk = client

    monkeypatch.setattr(claims, "shared_client", lambda address: Client)
    monkeypatch.setattr(claims, "_known", {})
    return cast(Session, client)


def test_a_followers_lag_is_waited_out_before_each_read(zookeeper: MemoryZooKeeper) -> None:
    client = zookeeper.session()
    with held_leases(client, [TABLE], holder="a run", request_seconds=0, wait_seconds=0) as leases:
        check(client, leases[TABLE])
    asked = cast(Session, client).asked
    assert asked
    assert asked == ["sync", "get"] * (len(asked) // 2)


def test_a_replays_claims_end_with_its_lease_and_do_not_come_back_with_anothers(
    zookeeper: MemoryZooKeeper, own: Session, clock: Clock
) -> None:
    driver = zookeeper.session()
    held = held_leases(driver, [TABLE], holder="run one", request_seconds=0, wait_seconds=0)
    mine = pickle.loads(pickle.dumps(Claims(TARGET, dict(held.__enter__()), "one-1", L, 50)))
    mine([TABLE])
    mine([TABLE])
    assert own.asked == ["sync", "get"]
    zookeeper.expire(driver)
    with pytest.raises(LeaseLostError, match="no longer held"):
        mine([TABLE])
    other = zookeeper.session()
    with held_leases(other, [TABLE], holder="run two", request_seconds=0, wait_seconds=0) as leases:
        Claims(TARGET, dict(leases), "two-1", L, 50)([TABLE])
        with pytest.raises(LeaseLostError, match="no longer held"):
            mine([TABLE])


def test_a_session_that_is_suspended_or_lost_ends_all_claims_of_the_process(
    zookeeper: MemoryZooKeeper, own: Session, clock: Clock
) -> None:
    driver = zookeeper.session()
    with held_leases(driver, [TABLE], holder="run one", request_seconds=0, wait_seconds=0) as leases:
        mine = Claims(TARGET, dict(leases), "one-1", L, 50)
        for state, reads in (("CONNECTED", 1), ("SUSPENDED", 2), ("LOST", 3)):
            mine([TABLE])
            for listener in own.listeners:
                listener(state)
            mine([TABLE])
            assert own.asked.count("get") == reads


def test_an_attempt_that_spark_repeats_elsewhere_loses_its_claim_and_the_next_one_waits_until_it_knows(
    zookeeper: MemoryZooKeeper, own: Session, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The executor may only have lost the driver, or have been suspended; the lease is the same."""
    monkeypatch.setattr(claims, "_supersede", claims._supersede.__wrapped__)
    driver = zookeeper.session()
    with held_leases(driver, [TABLE], holder="run one", request_seconds=0, wait_seconds=0) as leases:
        mine = Claims(TARGET, dict(leases), "one-1", L, 50)
        first, other = mine.of_attempt("7-3", 0), mine.of_attempt("7-30", 0)
        assert clock.now == 100
        first([TABLE])
        second = mine.of_attempt("7-3", 1)
        assert clock.now == 150
        with pytest.raises(LeaseLostError, match="gave up attempt 0 at a task that writes to target table shop:orders"):
            first([TABLE])
        for goes_on in (second, other, mine):
            goes_on([TABLE])
        third = pickle.loads(pickle.dumps(mine)).of_attempt("7-3", 2)
        for lost in (first, second):
            with pytest.raises(LeaseLostError, match="gave up"):
                lost([TABLE])
        third([TABLE])
        assert clock.now == 200
    with held_leases(driver, [TABLE], holder="run two", request_seconds=0, wait_seconds=0) as leases:
        assert [path for path in zookeeper.nodes if "7-3" in path] == []
        Claims(TARGET, dict(leases), "two-1", L, 50).of_attempt("7-3", 0)([TABLE])


def test_the_claim_of_an_attempt_ends_at_once_when_another_begins(
    zookeeper: MemoryZooKeeper, own: Session, clock: Clock
) -> None:
    with held_leases(zookeeper.session(), [TABLE], holder="run one", request_seconds=0, wait_seconds=0) as leases:
        first = Claims(TARGET, dict(leases), "one-1", L, 50).of_attempt("7-3", 0)
        first([TABLE])
        supersede(zookeeper.session(), leases[TABLE], Attempt("7-3", 1))
        with pytest.raises(LeaseLostError, match="gave up"):
            first([TABLE])


def test_an_attempt_under_a_lease_that_was_taken_meanwhile_begins_nothing(
    zookeeper: MemoryZooKeeper, own: Session, clock: Clock
) -> None:
    with held_leases(zookeeper.session(), [TABLE], holder="run one", request_seconds=0, wait_seconds=0) as leases:
        before = leases[TABLE]
    with (
        held_leases(zookeeper.session(), [TABLE], holder="run two", request_seconds=0, wait_seconds=0),
        pytest.raises(LeaseLostError, match="no longer held"),
    ):
        supersede(zookeeper.session(), before, Attempt("7-3", 1))


def test_a_worker_that_does_thousands_of_tasks_leaves_no_watch_behind_for_each(
    zookeeper: MemoryZooKeeper, own: Session, clock: Clock
) -> None:
    with held_leases(zookeeper.session(), [TABLE], holder="run one", request_seconds=0, wait_seconds=0) as leases:
        mine = Claims(TARGET, dict(leases), "one-1", L, 50)
        for task in range(100):
            mine.of_attempt(f"{task}-0", 0)([TABLE])
        assert [len(watches) for watches in zookeeper.watches.values()] == [1, 1]


def test_late_rows_are_marked_by_a_session_of_their_own(
    zookeeper: MemoryZooKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[KazooClient] = []

    class Own:
        def __init__(self) -> None:
            opened.append(zookeeper.session())
            self.client = opened[-1]

        @classmethod
        def of(cls, address: ClusterAddress) -> Own:
            return cls()

        def close(self) -> None: ...

    monkeypatch.setattr(dirty, "ZooKeeper", Own)
    mine = Claims(TARGET, {TABLE: HeldLease(TABLE, 7)}, "move-1", L, 50)
    mine.mark_dirty({TABLE: (b"a\x00", b"z" * 100)})
    (found,) = dirty.marks(zookeeper.session(), TABLE)
    assert (found.table, found.first, found.run, found.number) == (TABLE, "'a\\x00'", "move-1", 7)
    assert found.last == "'" + "z" * dirty.SHOWN_BYTES + "'…"
    assert len(opened) == 1
