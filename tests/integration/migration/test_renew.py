"""A run without an end lets the source have its log back, and never a file that is not applied."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from integration.migration.moves import content, make_spec, run_of, unique
from walferry.embedded.cluster import MiniCluster
from walferry.hbase.mutate import Cell
from walferry.replay.keeping import by_peer
from walferry.replay.keeping.by_peer import kept, let_go
from walferry.replay.keeping.protect import protect
from walferry.replay.log.cut import start_fence
from walferry.replay.rounds import follower
from walferry.replay.rounds.follower import replay
from walferry.run import between_rounds
from walferry.run.run import Run

pytestmark = pytest.mark.cluster


@pytest.fixture
def draining(source: MiniCluster, target: MiniCluster, tmp_path: Path) -> Iterator[Run]:
    """A run that drains into a table that is there on both sides."""
    table = unique()
    with run_of(make_spec(source, target, [table]), tmp_path, "drain") as run:
        for client in (run.source, run.target):
            client.create_table(table, {"f": {}})
        protect(run)
        start_fence(run)
        yield run


def write_and_roll(run: Run, value: bytes) -> None:
    table = run.tables[0].source
    run.source.put(table, [Cell(row, b"f", b"q", value, 1) for row in (b"a", b"b")])
    for server in run.source.servers():
        run.source.roll_wal(server)


def apply(run: Run, spark: SparkSession) -> None:
    replay(run, spark, until=lambda: True)


def renewed(run: Run) -> str | None:
    return let_go(run, keep_hours=0)


def renew_at_last(run: Run, spark: SparkSession) -> None:
    """Goes on as drains do until the first peer is gone."""
    while renewed(run) is None:
        write_and_roll(run, b"4")
        apply(run, spark)


def test_a_second_peer_takes_the_place_of_the_first_which_keeps_only_what_is_applied(
    draining: Run, spark: SparkSession, source: MiniCluster, target: MiniCluster
) -> None:
    first, table = draining.peer, draining.tables[0].source
    for value in (b"1", b"2"):
        write_and_roll(draining, value)
        apply(draining, spark)
    assert let_go(draining, keep_hours=1) is None
    assert [peer for peer in draining.source.peers() if peer.startswith(first)] == [first], "it is too early"
    queued = kept(draining, first)
    renew_at_last(draining, spark)

    (second,) = [peer for peer in draining.source.peers() if peer.startswith(first)]
    assert second == f"{first}_R1"
    assert draining.source.peers()[second][0] is False
    assert not queued <= kept(draining)
    write_and_roll(draining, b"5")
    apply(draining, spark)
    assert len(content(target, table)) == 2
    assert content(target, table) == content(source, table)


def test_a_replay_that_goes_on_lets_go_of_what_is_applied_once_a_queue_is_long(
    draining: Run, spark: SparkSession, source: MiniCluster, target: MiniCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follower, "RENEW_SECONDS", 0.0)
    monkeypatch.setattr(by_peer, "FULL_QUEUE", 6)
    first, table, rounds = draining.peer, draining.tables[0].source, 0

    def first_is_gone() -> bool:
        nonlocal rounds
        rounds += 1
        assert rounds < 20
        gone = first not in draining.source.peers()
        if not gone:
            write_and_roll(draining, b"%d" % rounds)
        return gone

    monkeypatch.setattr(between_rounds, "PAUSE_SECONDS", (0.0, 0.0))
    replay(draining, spark, until=first_is_gone)
    assert rounds > 4, "a short queue is kept"
    apply(draining, spark)
    assert len(content(target, table)) == 2
    assert content(target, table) == content(source, table)


def test_the_first_peer_stays_while_it_alone_keeps_a_file_that_is_not_applied(
    draining: Run, spark: SparkSession
) -> None:
    apply(draining, spark)
    write_and_roll(draining, b"1")  # into logs that are closed before the second peer keeps anything
    waiting = kept(draining)
    assert renewed(draining) is None
    second = f"{draining.peer}_R1"
    assert not waiting <= kept(draining, second)
    assert renewed(draining) is None
    assert waiting <= kept(draining, draining.peer)

    apply(draining, spark)
    assert renewed(draining) == draining.peer
    assert draining.peer not in draining.source.peers()


def test_a_renewal_that_was_killed_anywhere_is_taken_up_again(
    draining: Run, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(follower, "_let_go", lambda _: None)  # so that replay does not take it up first

    steps = [(draining.source, "add_peer"), (draining.ledger.objects, "made"), (draining.ledger.objects, "removed")]
    for owner, method in steps:
        with monkeypatch.context() as patch:
            patch.setattr(owner, method, killed)
            with pytest.raises(KeyboardInterrupt):
                renew_at_last(draining, spark)
        write_and_roll(draining, b"5")
        apply(draining, spark)  # goes on in between
    assert renewed(draining) == draining.peer
    assert [peer for peer in draining.source.peers() if peer.startswith(draining.peer)] == [f"{draining.peer}_R1"]
    apply(draining, spark)
