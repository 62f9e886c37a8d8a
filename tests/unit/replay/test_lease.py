"""The numbers of the leases rise, whatever became of the ZooKeeper that counted them (R8, R12)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from unit.migration.filled_ledger import SPEC
from unit.replay.memory_zookeeper import MemoryZooKeeper
from walferry.ledger import Ledger, RunLedger
from walferry.replay.lease import check, hold

TABLE = "shop:orders"


@pytest.fixture
def run(tmp_path: Path) -> Iterator[RunLedger]:
    with Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}", actor="test") as ledger:
        yield ledger.of(ledger.open_run("move", "test", SPEC, "test").run_id)


def taken(zookeeper: MemoryZooKeeper, run: RunLedger) -> int:
    """Take the lease, record it, give it back; its number."""
    with hold(
        zookeeper.session(), [TABLE], holder="a run", request_seconds=0, wait_seconds=0, newest=run.leases.newest
    ) as fences:
        run.leases.take(TABLE, "a run", fences[TABLE].number)
    return fences[TABLE].number


def test_numbers_go_on_above_those_of_the_ledger_after_the_zookeeper_was_rebuilt(run: RunLedger) -> None:
    zookeeper = MemoryZooKeeper()
    assert [taken(zookeeper, run) for _ in range(3)] == [1, 2, 3]
    assert taken(MemoryZooKeeper(), run) == 4
    assert taken(zookeeper, run) == 5


def test_numbers_go_on_above_those_of_the_zookeeper_in_a_new_ledger(run: RunLedger) -> None:
    zookeeper = MemoryZooKeeper()
    for _ in range(3):
        with hold(zookeeper.session(), [TABLE], holder="another", request_seconds=0, wait_seconds=0):
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
    with hold(client, [TABLE], holder="slow", request_seconds=0, wait_seconds=0, newest=newest) as fences:
        assert (fences[TABLE].number, looks) == (2, 2)
        check(client, fences[TABLE])


def test_who_is_killed_while_it_waits_for_a_killed_ones_requests_leaves_that_wait_to_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    zookeeper = MemoryZooKeeper()
    waited: list[float] = []

    def killed(seconds: float) -> None:
        waited.append(seconds)
        if len(waited) == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr("time.sleep", killed)
    for seconds, wanted in ((40.0, []), (0.0, [40.0]), (0.0, [40.0, 40.0])):
        session = zookeeper.session()
        with suppress(KeyboardInterrupt):
            hold(session, [TABLE], holder="a run", request_seconds=seconds, wait_seconds=0).__enter__()
        assert waited == wanted
        zookeeper.expire(session)
