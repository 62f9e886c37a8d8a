"""Who repairs rows and the replay of the same process never write at the same time."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, cast

import pytest

from walferry.apply.route import Route
from walferry.hbase.errors import RequestTimeoutError
from walferry.replay.rights import standstill as module
from walferry.replay.rights.lease import OutcomeUnknownError
from walferry.replay.rights.standstill import NoStandstillError, Standstill
from walferry.run.run import Run

RUN = cast(Run, None)
PATIENCE = 10.0


class Leases:
    """The leases of the target tables, in place of those in ZooKeeper."""

    def __init__(self) -> None:
        self.taken = threading.Lock()

    @contextmanager
    def applying(self, _: Any) -> Iterator[Route]:
        assert self.taken.acquire(timeout=PATIENCE)
        try:
            yield cast(Route, "route")
        finally:
            self.taken.release()


@pytest.fixture(autouse=True)
def leases(monkeypatch: pytest.MonkeyPatch) -> Leases:
    found = Leases()
    monkeypatch.setattr(module, "applying", found.applying)
    return found


def test_whoever_repairs_while_the_leases_are_kept_does_so_under_them(leases: Leases) -> None:
    """Before the target opens: the leases of a repair are no way in for another process."""
    standstill = Standstill()
    with standstill.kept(RUN) as kept:
        assert leases.taken.locked()
        with standstill.held(RUN) as route, standstill.beside(RUN) as other:
            assert route is other is kept
        assert leases.taken.locked()
    assert not leases.taken.locked()
    with standstill.held(RUN):
        assert leases.taken.locked(), "now under leases of its own"


def test_a_replay_and_those_who_repair_write_in_turns() -> None:
    standstill, over = Standstill(), threading.Event()
    writing: list[str] = []
    together: list[list[str]] = []
    turns = {"replay": 0, "one": 0, "other": 0}

    def write(who: str) -> None:
        writing.append(who)
        time.sleep(0.002)
        if writing != [who]:
            together.append(list(writing))
        writing.remove(who)
        turns[who] += 1

    def replay() -> None:
        with standstill.replaying(RUN):
            while not over.is_set():
                standstill.rest()
                write("replay")

    def repair(who: str) -> None:
        while not over.is_set():
            with standstill.held(RUN):
                write(who)

    threads = [threading.Thread(target=repair, args=(who,)) for who in ("one", "other")]
    threads.append(threading.Thread(target=replay))
    for thread in threads:
        thread.start()
    time.sleep(0.5)
    over.set()
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive()
    assert not together
    assert all(turns.values()), turns


def test_where_nothing_is_replayed_the_leases_are_taken_and_given_back(leases: Leases) -> None:
    with Standstill().held(RUN) as route:
        assert route is not None
        assert leases.taken.locked()
    assert not leases.taken.locked()


def test_a_replay_ends_only_after_those_who_write_under_its_leases(leases: Leases) -> None:
    standstill, writes, may_end = Standstill(), threading.Event(), threading.Event()

    def repair() -> None:
        with standstill.held(RUN):
            writes.set()
            assert may_end.wait(PATIENCE)
            assert leases.taken.locked(), "the leases are held until it has written"

    def replay() -> None:
        with standstill.replaying(RUN):
            begun.set()
            while not writes.is_set():
                resting = threading.Thread(target=standstill.rest, daemon=True)
                resting.start()
                resting.join(0.02)

    begun = threading.Event()
    replaying = threading.Thread(target=replay)
    replaying.start()
    assert begun.wait(PATIENCE)
    repairing = threading.Thread(target=repair)
    repairing.start()
    assert writes.wait(PATIENCE)
    replaying.join(0.1)
    assert replaying.is_alive()
    may_end.set()
    for thread in (repairing, replaying):
        thread.join(PATIENCE)
        assert not thread.is_alive()
    assert not leases.taken.locked()


def test_who_waits_for_a_replay_that_does_not_rest_gives_up_when_it_is_over() -> None:
    standstill = Standstill()
    deadline = time.monotonic() + 0.3
    with (
        standstill.replaying(RUN),
        pytest.raises(NoStandstillError),
        standstill.held(RUN, lambda: time.monotonic() > deadline),
    ):
        pass
    with standstill.replaying(RUN):
        standstill.rest()  # nobody waits any more


@pytest.mark.parametrize("sent", [True, False], ids=["it may have arrived", "it was not sent"])
def test_a_replay_does_not_go_on_under_leases_under_which_a_repair_may_still_write(sent: bool) -> None:
    """Hole: a late request of a repair came after newer edits of the same rows."""
    standstill, failed = Standstill(), threading.Event()

    def repair() -> None:
        with suppress(RequestTimeoutError), standstill.held(RUN):
            raise RequestTimeoutError("no answer", sent=sent)
        failed.set()

    repairing = threading.Thread(target=repair)
    refused: list[OutcomeUnknownError] = []
    with standstill.replaying(RUN):
        repairing.start()
        deadline = time.monotonic() + PATIENCE
        while not (failed.is_set() or refused) and time.monotonic() < deadline:
            try:
                standstill.rest()
            except OutcomeUnknownError as error:
                refused.append(error)
    repairing.join(PATIENCE)
    assert failed.is_set()
    assert bool(refused) == sent
    with standstill.replaying(RUN):
        standstill.rest()  # under the new leases nothing is in doubt


def test_while_a_replay_takes_its_leases_again_nobody_else_of_the_process_takes_them(leases: Leases) -> None:
    standstill = Standstill()
    with standstill.about_to_replay():
        with standstill.replaying(RUN):
            standstill.rest()
        assert not leases.taken.locked()
        deadline = time.monotonic() + 0.3
        with pytest.raises(NoStandstillError), standstill.held(RUN, lambda: time.monotonic() > deadline):
            pass
        with pytest.raises(NoStandstillError), standstill.beside(RUN):
            pass
    with standstill.held(RUN):
        assert leases.taken.locked()


def test_what_does_not_depend_on_the_order_of_edits_is_done_beside_the_replay_under_its_leases(leases: Leases) -> None:
    standstill = Standstill()
    with standstill.replaying(RUN) as route, standstill.beside(RUN) as own:
        assert own is route, "nobody waits for the replay to rest"
    assert not leases.taken.locked()
    with standstill.beside(RUN):
        assert leases.taken.locked(), "where nothing is replayed, no other process may begin meanwhile"
    assert not leases.taken.locked()


def test_nothing_is_done_beside_a_replay_that_has_no_leases_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    standstill, asked = Standstill(), threading.Event()

    @contextmanager
    def waiting(_: Any) -> Iterator[Route]:
        asked.set()
        with pytest.raises(NoStandstillError, match="is waiting for its leases"), standstill.beside(RUN):
            pass
        yield cast(Route, "route")

    monkeypatch.setattr(module, "applying", waiting)
    with standstill.replaying(RUN):
        assert asked.is_set()


def test_how_long_was_waited_for_the_replay_to_rest_is_known_apart_from_what_was_done_then() -> None:
    standstill, busy, over = Standstill(), threading.Event(), threading.Event()

    def replay() -> None:
        with standstill.replaying(RUN):
            busy.set()
            time.sleep(0.2)
            while not over.is_set():
                standstill.rest()

    thread = threading.Thread(target=replay)
    thread.start()
    assert busy.wait(PATIENCE)
    with standstill.held(RUN):
        waited = standstill.waited_s
        time.sleep(0.05)
    over.set()
    thread.join(PATIENCE)
    assert waited > 0.1
    assert standstill.waited_s == waited


def test_waiting_for_another_one_that_writes_counts_for_who_waits_alone() -> None:
    standstill, waited = Standstill(), list[float]()

    def second() -> None:
        with standstill.held(RUN):
            waited.append(standstill.waited_s)

    with standstill.held(RUN):
        thread = threading.Thread(target=second)
        thread.start()
        time.sleep(0.2)
    thread.join(PATIENCE)
    assert waited[0] > 0.1
    assert standstill.waited_s < 0.1
