"""A source's logs are rolled only where something is new (R6)."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from unit.migration.filled_ledger import SPEC
from walferry.errors import TransientError
from walferry.hbase.zookeeper import Server
from walferry.ledger import Ledger
from walferry.replay.log.idle import REST_MS, idle_servers
from walferry.run.run import Run

A, B = Server("a", 1, 2), Server("b", 1, 2)
TABLE = "shop:orders"


@dataclass
class Source:
    """What each server counts."""

    counts: dict[str, dict[str, int] | None] = field(default_factory=lambda: {"a": {"r": 1}, "b": {}})

    def write_counts(self, server: Server, tables: Collection[str], attempts: int = 1) -> dict[str, int] | None:
        assert set(tables) == {TABLE}
        if server.host not in self.counts:
            raise TransientError(f"{server.host} refuses the connection")
        counts = self.counts[server.host]
        return None if counts is None else dict(counts)

    def close(self) -> None:
        """Nothing is open."""


@pytest.fixture
def source() -> Source:
    return Source()


@pytest.fixture
def run(tmp_path: Path, source: Source) -> Iterator[Run]:
    with Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}", actor="test") as ledger:
        run = Run(ledger, ledger.open_run("move", "test", SPEC, "test").run_id)
        run.__dict__["source"] = source
        yield run


def idle(run: Run, at_ms: int = 0, *, may_rest: bool = True) -> set[str]:
    resting, remember = idle_servers(run, [A, B], at_ms, may_rest=may_rest)
    remember()
    return resting


def test_a_server_rests_after_two_rolls_with_equal_counts_until_it_counts_again(run: Run, source: Source) -> None:
    """A request is counted before its edit is in the log: the first of the rolls may come in between."""
    assert [idle(run), idle(run), idle(run)] == [set(), set(), {A.name, B.name}]
    source.counts["a"] = {"r": 2}
    assert [idle(run), idle(run), idle(run)] == [{B.name}, {B.name}, {A.name, B.name}]


def test_a_region_that_came_or_went_wakes_its_server(run: Run, source: Source) -> None:
    for _ in range(3):
        idle(run)
    source.counts = {"a": {}, "b": {"r": 0}}
    assert idle(run) == set()


def test_nothing_rests_when_regions_moved(run: Run) -> None:
    for _ in range(3):
        idle(run)
    assert idle(run, may_rest=False) == set()


def test_nobody_rests_for_longer_than_ten_minutes(run: Run) -> None:
    for _ in range(2):
        idle(run)
    assert idle(run, REST_MS - 1) == {A.name, B.name}
    assert idle(run, REST_MS) == set()
    assert idle(run, REST_MS + 1) == {A.name, B.name}


def test_a_server_that_cannot_be_asked_is_always_rolled(run: Run, source: Source) -> None:
    source.counts["b"] = None
    assert [idle(run) for _ in range(4)][-1] == {A.name}


def test_a_server_that_does_not_answer_is_rolled_and_keeps_no_other_from_resting(run: Run, source: Source) -> None:
    del source.counts["b"]
    assert [idle(run) for _ in range(4)][-1] == {A.name}


def test_a_server_that_was_started_again_is_another_one(run: Run) -> None:
    for _ in range(3):
        idle(run)
    assert idle_servers(run, [Server("a", 1, 3)], 0, may_rest=True)[0] == set()


def test_a_cut_that_was_interrupted_does_not_count_as_a_roll(run: Run) -> None:
    for _ in range(2):
        idle_servers(run, [A, B], 0, may_rest=True)
    assert [idle(run), idle(run), idle(run)] == [set(), set(), {A.name, B.name}]
