"""Rounds with much log are loaded in bulk, and the rest of the log goes by rpc after them, without a gap."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from integration.migration.test_rules import edit, one_round
from walferry.hbase.client import HBaseClient
from walferry.hbase.mutate import delete_family
from walferry.ledger import Ledger
from walferry.replay.pieces import bulk_pieces
from walferry.replay.pieces.pieces import cut_groups
from walferry.replay.rights.applying import applying, lease_check_of, shared_by_workers
from walferry.replay.rounds import batch_bulk, rounds
from walferry.replay.rounds.batch import begin_batch, continue_batch
from walferry.replay.rounds.batch_work import Batch
from walferry.replay.rounds.rounds import run_round
from walferry.run.facts import kept_lines
from walferry.run.run import Run

pytestmark = pytest.mark.cluster

StartRun = Callable[..., Run]
Sides = Callable[[Run], tuple[dict[str, object], dict[str, object]]]
AUTO = bulk_pieces.BULK_FROM_BYTES


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Every batch is large enough for bulk; for each that was loaded, in how many pieces."""
    counts: list[int] = []
    load = bulk_pieces.load_pieces

    def counted(*args: Any) -> Any:
        outcomes = load(*args)
        counts.append(len(outcomes))
        assert sum(outcome.cells for outcome in outcomes) > 0
        return outcomes

    monkeypatch.setattr(batch_bulk, "load_pieces", counted)
    monkeypatch.setattr(bulk_pieces, "BULK_FROM_BYTES", 1)
    monkeypatch.setattr(bulk_pieces, "BULK_REGION_BYTES", 0)
    return counts


def roll(client: HBaseClient) -> None:
    for server in client.servers():
        client.roll_wal(server)


def move_all(client: HBaseClient, table: str) -> None:
    for region in client.regions(table):
        client.move_region(region, next(server for server in client.servers() if server != region.server))


@pytest.mark.long
def test_a_backlog_with_moves_and_splits_is_loaded_and_its_tail_is_sent(
    at_source: HBaseClient, at_target: HBaseClient, make_table: Callable[..., str], start_run: StartRun, sides: Sides,
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, loaded: list[int],
) -> None:  # fmt: skip
    table = make_table((b"m", b"q"))
    # A compaction after a split drops markers, and the source then shows what is put after them.
    at_source.modify_table(at_source.describe(table).with_attribute("COMPACTION_ENABLED", "false"))
    edit(at_source, table, 1)
    run = start_run(table)
    monkeypatch.setenv("WALFERRY_PIECE_BYTES", "4000")
    for step in (2, 3):
        edit(at_source, table, step)
        if step == 3:
            move_all(at_source, table)
        edit(at_source, table, 100 + step)
        at_source.mutate(table, [delete_family(b"b%d" % step, b"g", 3)])
        if step == 2:
            at_source.split_region(at_source.regions(table)[0], b"h")
    at_target.split_region(next(r for r in at_target.regions(table) if r.holds(b"h")), b"h4")

    finish, done = run.ledger.batches.finish, 0

    def killed(*args: Any) -> None:
        nonlocal done
        done += 1
        if done == 3:
            raise KeyboardInterrupt
        finish(*args)

    with monkeypatch.context() as patch:
        patch.setattr(run.ledger.batches, "finish", killed)
        with pytest.raises(KeyboardInterrupt):
            one_round(run, spark)
    pieces = run.ledger.batches.pieces()
    assert sum(piece.state == "done" for piece in pieces) == 2 < len(pieces) - 1
    edit(at_source, table, 5)
    one_round(run, spark)  # the rest of the batch, and a round of what came meanwhile
    first, second = run.ledger.rounds.all()
    assert loaded[0] == len(pieces) == first.pieces
    assert first.repeated >= 1, "what ran at the kill"
    assert len(loaded) == 2
    assert second.cells > 0
    here, there = sides(run)
    assert len(here) > 30
    assert there == here

    monkeypatch.setattr(bulk_pieces, "BULK_FROM_BYTES", AUTO)
    edit(at_source, table, 6)
    one_round(run, spark)
    assert len(loaded) == 2, "a small round is sent"
    here, there = sides(run)
    assert there == here
    monkeypatch.setattr(bulk_pieces, "BULK_FROM_BYTES", 1)
    edit(at_source, table, 7)
    one_round(run, spark)
    assert len(loaded) == 3
    here, there = sides(run)
    assert there == here


def recorded(run: Run) -> dict[str, Any]:
    """What a batch has left in the ledger, but for times and pieces."""
    ledger, tables = run.ledger, [pair.source for pair in run.tables]
    names = {region.encoded for table in tables for region in run.source.regions(table)}
    (done,) = ledger.rounds.all()
    return {
        "ranges": sorted(ledger.log.ranges(), key=repr),
        "regions": ledger.regions.known(tables, names),
        "numbers": ledger.numbers.last(names),
        "gaps": ledger.numbers.gaps(),
        "lines": kept_lines(run, "applied"),
        "files": sorted((file.name, file.state, file.length) for file in ledger.log.files()),
        "round": (done.number, done.files, done.bytes, done.entries, done.cells, done.backlog_bytes),
        "quarantine": ledger.quarantine.items(),
    }


@pytest.mark.long
def test_the_same_batch_leaves_the_same_in_the_ledger_and_at_the_target_by_group(
    at_source: HBaseClient, make_table: Callable[..., str], start_run: StartRun, sides: Sides, spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch, loaded: list[int], tmp_path: Path,
) -> None:  # fmt: skip
    calm, moving = make_table((b"h", b"q")), make_table((b"m",))
    run = start_run(calm, moving)

    def killed(*args: Any) -> None:
        begin_batch(*args)
        raise KeyboardInterrupt

    for step in range(3):
        edit(at_source, calm, step)
        edit(at_source, moving, step)
        if step == 1:
            move_all(at_source, moving)
        roll(at_source)
    with applying(run) as route:
        with monkeypatch.context() as patch:
            patch.setattr(rounds, "begin_batch", killed)
            with pytest.raises(KeyboardInterrupt):
                run_round(run, spark, route)
        with closing(sqlite3.connect(tmp_path / "ledger.db")) as mine, sqlite3.connect(tmp_path / "other.db") as copy:
            mine.backup(copy)
        continue_batch(run, spark, shared_by_workers(run, route, spark))
    in_bulk = recorded(run)
    assert len(loaded) == 1
    assert in_bulk["numbers"]
    assert in_bulk["regions"]
    here, there = sides(run)
    assert len(here) > 60
    assert there == here
    with Ledger.open(f"sqlite:///{tmp_path / 'other.db'}", actor="test") as book, Run(book, run.run_id) as other:
        with applying(other) as route:
            kept = other.ledger.batches.now()
            assert kept is not None
            plan = Batch.model_validate_json(kept.plan)
            assert plan.bulk
            assert plan.calm == {calm}
            by_group = plan.model_copy(update={"bulk": 0}).model_dump_json()
            other.ledger.batches.replan(by_group, cut_groups(plan.files, 1 << 20), lease_check_of(other, route))
            continue_batch(other, spark, shared_by_workers(other, route, spark))
        assert recorded(other) == in_bulk
    assert len(loaded) == 1
    here, there = sides(run)
    assert there == here, "edits that were loaded may be sent again in their order"
