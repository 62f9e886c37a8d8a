"""Between two rounds the open logs are followed: soon, in order, whatever moves or is killed meanwhile."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from pyspark.sql import SparkSession

from integration.migration.moves import content, skip
from integration.migration.test_rules import edit
from walferry.apply import by_group
from walferry.embedded.cluster import MiniCluster
from walferry.errors import TransientError
from walferry.hbase.client import HBaseClient
from walferry.replay.log import cut
from walferry.replay.pieces import bulk_pieces
from walferry.replay.rights import dirty
from walferry.replay.rights.applying import applying, lease_check_of
from walferry.replay.rounds import batch, follower
from walferry.replay.rounds import open_logs as following
from walferry.replay.rounds.follower import replay
from walferry.replay.rounds.open_logs import OpenLogs
from walferry.replay.rounds.rounds import drain, run_round
from walferry.request_meter import Service, counted
from walferry.run import between_rounds
from walferry.run.notes.sent_early import sent_early
from walferry.run.progress.lag import ahead_of, lag_by_group, lag_of
from walferry.run.run import Run

pytestmark = pytest.mark.cluster

StartRun = Callable[..., Run]
KILLS = 1
"""more cost time: each waits until the lease of the one before has ended"""
Sides = Callable[[Run], tuple[dict[str, object], dict[str, object]]]


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "PASS_SECONDS", 0.0)
    monkeypatch.setattr(following, "SECONDS_PER_GROUP", 0.0)


@contextmanager
def followed(run: Run, spark: SparkSession) -> Iterator[tuple[OpenLogs, Callable[[], None]]]:
    """The open logs after a round, and what does another round."""
    with applying(run) as route:
        open_logs = OpenLogs(run, route, lease_check_of(run, route))

        def one_round() -> None:
            run_round(run, spark, route, open_logs)

        one_round()
        yield open_logs, one_round


def passes(open_logs: OpenLogs) -> bool:
    """Pass over the open logs until nothing waits; whether no round is needed."""
    while open_logs.go_on():
        if not open_logs._sendable.waits:
            return True
    return False


def still(client: HBaseClient, table: str) -> None:
    """A compaction drops markers, and the source then shows what is put behind them."""
    client.modify_table(client.describe(table).with_attribute("COMPACTION_ENABLED", "false"))


def test_edits_are_at_the_target_before_their_log_is_rolled_and_again_nothing_changes_when_it_is(
    at_source: HBaseClient, make_table: Callable[..., str], start_run: StartRun, sides: Sides, spark: SparkSession
) -> None:
    table = make_table((b"h", b"m", b"q"))
    run = start_run(table)
    edit(at_source, table, 1)
    with followed(run, spark) as (open_logs, one_round):
        rounds, servers = run.ledger.rounds.totals().rounds, at_source.servers()
        for step in range(2, 6):
            edit(at_source, table, step)
            began_ms, asked = int(time.time() * 1000), counted()
            assert open_logs.go_on()
            if step > 2:  # the first pass looks up each log
                listed, opened = 1 + len(servers), 2 * len(servers)
                key = run.source_address().cluster, Service.NAMENODE
                assert counted()[key] - asked[key] == listed + opened, "as docs/platform.md says"
            here, there = sides(run)
            assert there == here
            covered = ahead_of(run.ledger)
            assert covered is not None
            assert began_ms <= covered.covered_ms <= time.time() * 1000
            assert {one.server for one in covered.groups.values()} == {server.name for server in servers}
            slowest = lag_by_group(run.ledger, lag_of(run.ledger))[0]
            assert 0 < slowest.read + slowest.apply <= slowest.seconds < 30
        assert run.ledger.rounds.totals().rounds == rounds, "no log was rolled"
        one_round()
        assert open_logs.go_on()
        here, there = sides(run)
        assert len(here) > 30
        assert there == here


@pytest.mark.parametrize("in_bulk", [False, True], ids=["by group", "in bulk"])
def test_bytes_that_a_log_had_shown_and_was_sealed_without_shut_the_gate_however_it_is_applied(
    in_bulk: bool, at_source: HBaseClient, make_table: Callable[..., str], start_run: StartRun, sides: Sides,
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Hole: only a batch by group looked whether they were taken back."""
    if in_bulk:
        monkeypatch.setattr(bulk_pieces, "BULK_FROM_BYTES", 1)
        monkeypatch.setattr(bulk_pieces, "BULK_REGION_BYTES", 0)
    table = make_table()
    run = start_run(table, apply="auto")
    with followed(run, spark) as (open_logs, one_round):
        edit(at_source, table, 1)
        assert open_logs.go_on()
        assert sent_early(run.ledger)
        one_round()
        assert not dirty.marks_of(run)
        assert not sent_early(run.ledger), "each was sealed with what it had shown"
        edit(at_source, table, 2)
        assert open_logs.go_on()
        for tail in open_logs._tails.values():  # as if HDFS had recovered the files without the last acknowledged bytes
            tail._prefix.crc ^= 1
        open_logs._note()
        one_round()
        marks = dirty.marks_of(run)
        assert {mark.table for mark in marks} == {run.pair(table).target}
        assert "edits that the source has lost" in marks[0].describe()
        assert not sent_early(run.ledger)
    here, there = sides(run)
    assert there == here
    dirty.remove(run, marks)


def test_a_region_that_moves_is_followed_without_a_round_and_without_asking_meta(
    source: MiniCluster, target: MiniCluster, at_source: HBaseClient, make_table: Callable[..., str],
    start_run: StartRun, spark: SparkSession, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    table = make_table((b"m",))
    still(at_source, table)
    run = start_run(table)
    with followed(run, spark) as (open_logs, one_round):
        edit(at_source, table, 1)
        assert open_logs.go_on()
        low = at_source.regions(table)[0]
        here, other = low.server, next(server for server in at_source.servers() if server != low.server)
        for step, server in enumerate([other, here, other, here], start=2):
            at_source.move_region(low, server)
            if step != 3:  # in between there may be no edit
                edit(at_source, table, step)
            with monkeypatch.context() as without:
                without.setattr(run.source, "regions", lambda *_: pytest.fail("hbase:meta was asked"))
                assert passes(open_logs), "a move needs no round"
            assert content(target, table) == content(source, table)
        edit(at_source, table, 8)  # what no pass has seen
        with monkeypatch.context() as without:
            without.setattr(batch, "place_rows", lambda *_: pytest.fail("rows were sorted"))
            one_round()
        assert content(target, table) == content(source, table)
        edit(at_source, table, 9)
        assert passes(open_logs)
        assert content(target, table) == content(source, table)


def test_nothing_is_sent_of_a_table_that_was_restored_from_a_snapshot(
    target: MiniCluster,
    at_source: HBaseClient,
    make_table: Callable[..., str],
    start_run: StartRun,
    spark: SparkSession,
) -> None:
    """Hole: its regions close and open with rising numbers, as ones that move."""
    table = make_table()
    at_source.snapshot(f"kept-{table}", table)
    edit(at_source, table, 1)
    at_source.flush_table(table)
    run = start_run(table)
    with followed(run, spark) as (open_logs, _):
        there = content(target, table)
        at_source.disable_table(table)
        at_source.restore_snapshot(f"kept-{table}")
        at_source.enable_table(table)
        edit(at_source, table, 2)
        assert not passes(open_logs), "a round is needed"
        assert content(target, table) == there
    at_source.delete_snapshot(f"kept-{table}")


def test_edits_of_a_region_that_was_split_wait_for_the_next_round(
    source: MiniCluster, target: MiniCluster, at_source: HBaseClient, make_table: Callable[..., str],
    start_run: StartRun, spark: SparkSession,
) -> None:  # fmt: skip
    table = make_table((b"m",))
    still(at_source, table)
    run = start_run(table)
    with followed(run, spark) as (open_logs, one_round):
        edit(at_source, table, 1)
        assert passes(open_logs)
        there = content(target, table)
        at_source.split_region(at_source.regions(table)[0], b"h")
        edit(at_source, table, 2)
        assert not passes(open_logs), "a round is needed"
        now = content(target, table)
        assert {key: cells for key, cells in now.items() if key < "b'm"} == {
            key: cells for key, cells in there.items() if key < "b'm"
        }
        assert now == {**now, **{key: cells for key, cells in content(source, table).items() if key > "b'm"}}
        assert now != there, "the region that stood still was followed"
        one_round()
        assert content(target, table) == content(source, table)
        edit(at_source, table, 3)
        assert passes(open_logs)
        assert content(target, table) == content(source, table)


def test_a_follower_that_is_killed_amid_rounds_moves_and_splits_still_ends_equal(
    source: MiniCluster, at_source: HBaseClient, make_table: Callable[..., str], start_run: StartRun, sides: Sides,
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    table = make_table((b"m", b"q"))
    still(at_source, table)
    run = start_run(table)
    dice, ends, passes = random.Random(5), [0], [0]
    send = by_group.send_entries

    def sometimes(*arguments: object) -> object:
        """Ends the process, as far as it can tell, before or after what it sends."""
        passes[0] += 1
        before, after = dice.random() < 0.3, dice.random() < 0.3
        if ends[0] < KILLS and before:
            ends[0] += 1
            raise KeyboardInterrupt
        refused = send(*arguments)  # type: ignore[arg-type]
        if ends[0] < KILLS and after:
            ends[0] += 1
            raise KeyboardInterrupt
        return refused

    monkeypatch.setattr(following, "send_entries", sometimes)
    monkeypatch.setattr(between_rounds, "PAUSE_SECONDS", (0.2, 0.5))
    monkeypatch.setattr(follower, "EARLY_SECONDS", 0.2)
    done = threading.Event()

    def write() -> None:
        with HBaseClient(source.address) as client:
            for step in range(2000):
                edit(client, table, step, edits=12)
                if step % 20 == 10:
                    region = random.Random(step).choice(client.regions(table))
                    client.move_region(region, next(s for s in client.servers() if s != region.server))
                if step % 15 == 5:
                    client.roll_wal(random.Random(step).choice(client.servers()))
                if step == 30:
                    client.split_region(client.regions(table)[0], b"h")
                if step > 60 and ends[0] >= KILLS:
                    break
        done.set()

    with ThreadPoolExecutor(1) as threads:
        writer = threads.submit(write)
        while not done.is_set():
            try:
                replay(run, spark, until=done.is_set)
            except (KeyboardInterrupt, TransientError):
                continue
        writer.result()
    assert ends[0] == KILLS
    skip(run, "replay", "write_stop")
    cut.end_fence(run)
    drain(run, spark)
    here, there = sides(run)
    assert len(here) > 30
    assert there == here
