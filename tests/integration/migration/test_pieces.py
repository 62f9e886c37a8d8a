"""One region of a table moves all the time: the others go by group, and a kill costs the pieces that were running."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from pyspark.sql import SparkSession

from walferry.apply.by_row import RowsApplied, RowTask, place_rows
from walferry.hbase.client import HBaseClient
from walferry.hbase.mutate import Cell, delete_column, delete_version
from walferry.replay.rounds import batch
from walferry.replay.rounds.follower import replay
from walferry.run.progress.batch_progress import batch_progress
from walferry.run.run import Run

pytestmark = pytest.mark.cluster

BORDERS = (b"2", b"4", b"6", b"8")
EDITS = 12_000


def write(client: HBaseClient, table: str, step: int) -> int:
    """Puts and deletes of few rows at few timestamps, half of them in the first region; how many those are."""
    chance = random.Random(step)
    cells, first = [], 0
    for number in range(EDITS):
        row = b"%d%02d" % (chance.choice([0, 0, 0, 0, 1, 3, 5, 7, 9]), chance.randrange(40))
        first += row < BORDERS[0]
        cells.append(
            Cell(row, b"f", b"q%d" % chance.randrange(3), b"%d-%d" % (step, number) * 12, chance.randint(1, 4))
        )
    for begin in range(0, EDITS, 1000):
        client.put(table, cells[begin : begin + 1000])
        row = chance.choice(cells).row
        kind = chance.choice([delete_version, delete_column])
        client.mutate(table, [kind(row, b"f", b"q1", chance.randint(1, 4))])
        first += row < BORDERS[0]
    return first


def kill_at(calls: int, real: Callable[..., Any]) -> Callable[..., Any]:
    """As `real`, but interrupted at so many calls."""
    left = [calls]

    def kill(*args: Any) -> Any:
        left[0] -= 1
        if not left[0]:
            raise KeyboardInterrupt
        return real(*args)

    return kill


def test_a_kill_costs_the_pieces_that_were_running_and_what_stood_still_is_never_sorted(
    at_source: HBaseClient, make_table: Callable[..., str], start_run: Callable[..., Run],
    sides: Callable[[Run], tuple[dict[str, object], dict[str, object]]], spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    table = make_table(BORDERS)
    # A compaction after a move drops markers, and the source then shows older puts that come after them.
    at_source.modify_table(at_source.describe(table).with_attribute("COMPACTION_ENABLED", "false"))
    run = start_run(table)
    in_first = 0
    for step in range(3):
        in_first += write(at_source, table, step)
        moving = min(at_source.regions(table), key=lambda region: region.start)
        at_source.move_region(moving, next(server for server in at_source.servers() if server != moving.server))
        for server in at_source.servers():
            at_source.roll_wal(server)
    monkeypatch.setenv("WALFERRY_PIECE_BYTES", str(1 << 20))
    sorted_cells = 0
    record_group = batch._record_group

    def count(spark: SparkSession | None, task: RowTask) -> Callable[[int, str], RowsApplied]:
        apply = place_rows(spark, task)

        def counted(number: int, what: str) -> RowsApplied:
            nonlocal sorted_cells
            applied = apply(number, what)
            sorted_cells += applied.cells
            return applied

        return counted

    def killed(module: object, name: str, real: Callable[..., Any]) -> Sequence[str]:
        """What is left of the batch after a kill at the third call."""
        with monkeypatch.context() as patch:
            patch.setattr(module, name, kill_at(3, real))
            with pytest.raises(KeyboardInterrupt):
                replay(run, spark, until=lambda: True)
        return [piece.subject for piece in run.ledger.batches.pieces() if piece.state != "done"]

    before_groups = killed(batch, "_record_group", record_group)
    made = batch_progress(run.ledger)
    assert made is not None
    assert made.done == 2
    assert made.pieces > 4
    before_rows = killed(run.ledger.batches, "finish", run.ledger.batches.finish)
    assert len(before_rows) < len(before_groups)
    monkeypatch.setattr(batch, "place_rows", count)
    replay(run, spark, until=lambda: True)
    first, *_ = run.ledger.rounds.all()
    assert 2 <= first.repeated <= 4, "what ran at the two kills"
    assert sorted_cells <= in_first
    assert first.cells >= 3 * EDITS
    here, there = sides(run)
    assert len(here) > 200
    assert there == here
