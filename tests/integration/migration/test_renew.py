"""A run without an end lets the source have its log back, and never a file that is not applied."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from integration.migration.moves import content, make_spec, run_of, unique
from walferry.embedded.cluster import Cluster
from walferry.hbase.mutate import Cell
from walferry.migration.context import Migration
from walferry.migration.follow import prepare_drain
from walferry.migration.protect import queued_files, renew
from walferry.migration.replay import replay

pytestmark = pytest.mark.cluster


@pytest.fixture
def draining(source: Cluster, target: Cluster, tmp_path: Path) -> Iterator[Migration]:
    """A run that drains into a table that is there on both sides."""
    table = unique()
    with run_of(make_spec(source, target, [table]), tmp_path) as migration:
        for client in (migration.source, migration.target):
            client.create_table(table, {"f": {}})
        prepare_drain(migration)
        yield migration


def write_and_roll(migration: Migration, value: bytes) -> None:
    table = migration.tables[0].source
    migration.source.put(table, [Cell(row, b"f", b"q", value, 1) for row in (b"a", b"b")])
    for server in migration.source.servers():
        migration.source.roll_wal(server)


def apply(migration: Migration, spark: SparkSession) -> None:
    replay(migration, spark, until=lambda: True)


def renewed(migration: Migration) -> str | None:
    return renew(migration, keep_hours=0)


def renew_at_last(migration: Migration, spark: SparkSession) -> None:
    """Goes on as drains do until the first peer is gone."""
    while renewed(migration) is None:
        write_and_roll(migration, b"4")
        apply(migration, spark)


def test_a_second_peer_takes_the_place_of_the_first_which_keeps_only_what_is_applied(
    draining: Migration, spark: SparkSession, source: Cluster, target: Cluster
) -> None:
    first, table = draining.peer, draining.tables[0].source
    for value in (b"1", b"2"):
        write_and_roll(draining, value)
        apply(draining, spark)
    assert renew(draining, keep_hours=1) is None
    assert [peer for peer in draining.source.peers() if peer.startswith(first)] == [first], "it is too early"
    kept = queued_files(draining, first)
    renew_at_last(draining, spark)

    (second,) = [peer for peer in draining.source.peers() if peer.startswith(first)]
    assert second == f"{first}_1"
    assert draining.source.peers()[second][0] is False
    assert not kept <= queued_files(draining)
    write_and_roll(draining, b"5")
    apply(draining, spark)
    assert len(content(target, table)) == 2
    assert content(target, table) == content(source, table)


def test_the_first_peer_stays_while_it_alone_keeps_a_file_that_is_not_applied(
    draining: Migration, spark: SparkSession
) -> None:
    apply(draining, spark)
    write_and_roll(draining, b"1")  # into logs that are closed before the second peer keeps anything
    waiting = queued_files(draining)
    assert renewed(draining) is None
    second = f"{draining.peer}_1"
    assert not waiting <= queued_files(draining, second)
    assert renewed(draining) is None
    assert waiting <= queued_files(draining, draining.peer)

    apply(draining, spark)
    assert renewed(draining) == draining.peer
    assert draining.peer not in draining.source.peers()


def test_a_renewal_that_was_killed_anywhere_is_taken_up_again(
    draining: Migration, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    steps = [(draining.source, "add_peer"), (draining.ledger, "object_made"), (draining.ledger, "object_removed")]
    for owner, method in steps:
        with monkeypatch.context() as patch:
            patch.setattr(owner, method, killed)
            with pytest.raises(KeyboardInterrupt):
                renew_at_last(draining, spark)
        write_and_roll(draining, b"5")
        apply(draining, spark)  # goes on in between
    assert renewed(draining) == draining.peer
    assert [peer for peer in draining.source.peers() if peer.startswith(draining.peer)] == [f"{draining.peer}_1"]
    apply(draining, spark)
