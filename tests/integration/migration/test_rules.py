"""The rules that replay keeps, on real clusters: row order, no gap, and repeated batches that converge."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import SparkSession

from integration.migration.moves import skip, taken_away
from walferry.cutover import gates, late_edits
from walferry.errors import GapError, GateShutError
from walferry.hbase.client import HBaseClient
from walferry.hbase.mutate import Cell, delete_column, delete_version, put
from walferry.ledger import Hold, QuarantineItem
from walferry.replay.log import cut
from walferry.replay.rights.applying import applying
from walferry.replay.rights.lease import LeaseLostError
from walferry.replay.rounds import batch, rounds
from walferry.replay.rounds.batch import begin_batch
from walferry.replay.rounds.completeness import NotQueuedError, check_complete
from walferry.replay.rounds.follower import replay
from walferry.replay.rounds.rounds import drain, run_round
from walferry.run.run import Run

pytestmark = pytest.mark.cluster

StartRun = Callable[..., Run]
Sides = Callable[[Run], tuple[dict[str, object], dict[str, object]]]
ROWS = [b"%c%d" % (letter, number) for letter in b"bhmqt" for number in range(8)]


def one_round(run: Run, spark: SparkSession) -> None:
    replay(run, spark, until=lambda: True)


def edit(client: HBaseClient, table: str, step: int, edits: int = 60, deletes: float = 0.15) -> None:
    """Puts and deletes of few rows at few timestamps, so that the order of equal ones decides."""
    chance = random.Random(step)
    for number in range(edits):
        row, timestamp = chance.choice(ROWS), chance.randint(1, 4)
        if chance.random() < deletes:
            client.mutate(table, [chance.choice([delete_version, delete_column])(row, b"f", b"q", timestamp)])
        else:
            value = b"%d-%d" % (step, number)
            family = chance.choice([b"f", b"g"])
            client.mutate(table, [put(row, [Cell(row, family, b"q", value, timestamp)])])


def test_equal_timestamps_come_out_as_at_the_source_while_regions_stand_still(
    at_source: HBaseClient, make_table: Callable[..., str], start_run: StartRun, sides: Sides, spark: SparkSession
) -> None:
    table = make_table((b"h", b"m", b"q"))
    run = start_run(table)
    for step in range(6):
        edit(at_source, table, step)
        for server in at_source.servers():  # several files a group in one batch
            at_source.roll_wal(server)
    one_round(run, spark)
    here, there = sides(run)
    assert len(here) > 30
    assert there == here


def test_equal_timestamps_and_deletes_come_out_as_at_the_source_while_regions_move_split_and_merge(
    at_source: HBaseClient, make_table: Callable[..., str], start_run: StartRun, sides: Sides, spark: SparkSession
) -> None:
    table = make_table((b"m", b"q"))
    # A compaction behind a split drops markers, and the source then shows what is put behind them.
    at_source.modify_table(at_source.describe(table).with_attribute("COMPACTION_ENABLED", "false"))
    run = start_run(table)
    for step in range(3):
        edit(at_source, table, step)
        for region in at_source.regions(table):
            others = [server for server in at_source.servers() if server != region.server]
            at_source.move_region(region, others[0])
        edit(at_source, table, 100 + step)
        if step == 1:
            at_source.split_region(at_source.regions(table)[0], b"h")
            edit(at_source, table, 200)
            one_round(run, spark)
            at_source.merge_regions(at_source.regions(table)[2:])
    assert [region.start for region in at_source.regions(table)] == [b"", b"h", b"m"]
    one_round(run, spark)
    here, there = sides(run)
    assert len(here) > 30
    assert there == here


def test_a_batch_that_was_applied_but_not_recorded_is_repeated_and_changes_nothing(
    at_source: HBaseClient,
    make_table: Callable[..., str],
    start_run: StartRun,
    sides: Sides,
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table = make_table()
    run = start_run(table)
    edit(at_source, table, 1)

    def crash(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(batch, "record_reports", crash)
        with pytest.raises(KeyboardInterrupt):
            one_round(run, spark)
    edit(at_source, table, 2)
    one_round(run, spark)
    here, there = sides(run)
    assert there == here


@pytest.mark.parametrize("moved", [False, True], ids=["by group", "by row"])
def test_edits_that_the_target_did_not_acknowledge_are_not_recorded_and_come_with_the_next_round(
    moved: bool,
    at_source: HBaseClient,
    at_target: HBaseClient,
    make_table: Callable[..., str],
    start_run: StartRun,
    sides: Sides,
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table = make_table()
    run = start_run(table)
    edit(at_source, table, 1)
    if moved:
        region = at_source.regions(table)[0]
        at_source.move_region(region, next(server for server in at_source.servers() if server != region.server))
    lease = f"/walferry/leases/{table}/holder"

    def lose_the_lease(*batch: Any) -> None:
        begin_batch(*batch)
        at_target.zk.set(lease, b"{}")  # no request goes out any more

    with applying(run) as route:
        held, _ = at_target.zk.get(lease)
        monkeypatch.setattr(rounds, "begin_batch", lose_the_lease)
        with pytest.raises(LeaseLostError):
            run_round(run, spark, route)
        monkeypatch.undo()
        at_target.zk.set(lease, held)
        assert run.ledger.log.ranges(state="applied") == []
        assert run.ledger.log.gaps() != []
        run_round(run, spark, route)
    here, there = sides(run)
    assert len(here) > 10
    assert there == here


def test_a_cut_knows_the_final_length_of_what_it_has_closed(
    at_source: HBaseClient, make_table: Callable[..., str], start_run: StartRun
) -> None:
    table = make_table(())
    run = start_run(table)
    edit(at_source, table, 1, 20)
    home = at_source.regions(table)[0].server
    assert home is not None
    closed = next(file for file in cut.see(run, cut.cut_log(run)) if file.server == home.name)
    now = run.source_files.status(closed.path)
    assert now is None or closed.length == now.length > 0


def test_a_vanished_wal_file_stops_the_run_and_is_named(
    at_source: HBaseClient, make_table: Callable[..., str], start_run: StartRun, spark: SparkSession
) -> None:
    table = make_table(())
    run = start_run(table)
    edit(at_source, table, 1, 20)
    made = cut.cut_log(run)
    home = at_source.regions(table)[0].server
    assert home is not None
    lost = next(f for f in cut.see(run, made) if f.server == home.name)
    with taken_away(run.source_files, lost.path), pytest.raises(GapError, match=lost.name) as stopped:
        one_round(run, spark)
    assert stopped.value.exit_code == 6
    assert any(gap.file == lost.name for gap in run.ledger.log.gaps())
    with pytest.raises(GateShutError, match=f"{lost.name} .*: missing"):
        gates.after_drain(run)


def test_a_wal_file_that_only_the_queue_of_the_peer_knows_is_missed_too(
    at_source: HBaseClient, make_table: Callable[..., str], start_run: StartRun, spark: SparkSession
) -> None:
    table = make_table(())
    run = start_run(table)
    edit(at_source, table, 1, 20)
    made = cut.cut_log(run)  # not recorded
    home = at_source.regions(table)[0].server
    assert home is not None
    # One with edits that are not flushed: any other is archived soon after the cut, at a moment of HBase's own.
    lost = next(file for file in run.fences().within(made.below()) if file.server == home.name)
    with taken_away(run.source_files, lost.path), pytest.raises(GapError, match=lost.name):
        one_round(run, spark)


def test_a_log_that_somebody_took_out_of_the_queue_stops_the_round_while_it_is_written(
    at_source: HBaseClient, make_table: Callable[..., str], start_run: StartRun, spark: SparkSession
) -> None:
    run = start_run(make_table(()))
    one_round(run, spark)
    log = cut.cut_log(run).begun()[0]
    zookeeper = at_source.zookeeper
    path = f"/hbase/replication/rs/{log.server}/{run.peer}/{log.name}"
    value, _ = zookeeper.client.get(path)
    zookeeper.client.delete(path)
    try:
        with pytest.raises(NotQueuedError, match=f"is in no queue of the peer {run.peer}"):
            check_complete(run, run.wal_listing.live())
    finally:
        zookeeper.client.create(path, value)
    check_complete(run, run.wal_listing.live())


@pytest.mark.parametrize("moved", [False, True], ids=["by group", "by row"])
def test_nothing_of_a_held_region_is_applied_and_the_gate_stays_shut(
    moved: bool,
    at_source: HBaseClient,
    make_table: Callable[..., str],
    start_run: StartRun,
    sides: Sides,
    spark: SparkSession,
) -> None:
    table = make_table()
    run = start_run(table)
    held, other = at_source.regions(table)
    earlier = QuarantineItem("earlier", 0, 9, table, held.encoded, 1, "the target refused it", b"")
    (item,) = run.ledger.quarantine.put([earlier])
    run.ledger.quarantine.hold([Hold("earlier", table, held.encoded, 0, item)])
    if moved:
        at_source.move_region(other, next(server for server in at_source.servers() if server != other.server))
    at_source.put(table, [Cell(row, b"f", b"q", b"later", 1) for row in (b"a", b"x")])
    one_round(run, spark)
    _, there = sides(run)
    assert list(there) == [f"{table} b'x' b'f:q'"]
    assert {hold.file for hold in run.ledger.quarantine.holds()} > {"earlier"}
    with pytest.raises(GateShutError, match="in quarantine"):
        gates.after_drain(run)


def test_an_idle_source_is_followed_to_its_end(
    make_table: Callable[..., str], start_run: StartRun, spark: SparkSession
) -> None:
    run = start_run(make_table())
    one_round(run, spark)
    skip(run, "replay", "write_stop")
    cut.end_fence(run)
    drain(run, spark)
    gates.after_drain(run)


def test_a_late_edit_shuts_the_gate_and_the_end_fence_moves_on(
    at_source: HBaseClient, make_table: Callable[..., str], start_run: StartRun, sides: Sides, spark: SparkSession
) -> None:
    table = make_table()
    run = start_run(table)
    edit(at_source, table, 1, 20)
    one_round(run, spark)
    skip(run, "replay", "write_stop")
    cut.end_fence(run)
    drain(run, spark)
    late_edits.require_silence(run)
    edit(at_source, table, 2, 20)
    with pytest.raises(GateShutError, match=table):
        late_edits.require_silence(run)
    assert late_edits.apply(run, "a retry", "test")
    cut.end_fence(run)
    drain(run, spark)
    late_edits.require_silence(run)
    gates.after_drain(run)
    here, there = sides(run)
    assert there == here
