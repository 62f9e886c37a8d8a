"""A region server of the source dies in the middle of the replay: its log is split, its regions open elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from pyspark.sql import SparkSession

from integration.migration.moves import skip
from integration.migration.test_rules import edit
from walferry.cutover import gates
from walferry.embedded.cluster import MiniCluster
from walferry.hbase.client import HBaseClient
from walferry.hbase.zookeeper import Server
from walferry.pipeline import retry_work
from walferry.replay.log import cut
from walferry.replay.rounds.follower import replay
from walferry.replay.rounds.rounds import drain
from walferry.run.run import Run

pytestmark = pytest.mark.cluster

StartRun = Callable[..., Run]
Sides = Callable[[Run], tuple[dict[str, object], dict[str, object]]]


def test_what_was_written_around_the_crash_of_a_region_server_comes_out_as_at_the_source(
    victim: Server,
    source: MiniCluster,
    at_source: HBaseClient,
    make_table: Callable[..., str],
    start_run: StartRun,
    sides: Sides,
    spark: SparkSession,
) -> None:
    table = make_table((b"h", b"m", b"q"))
    # A compaction drops markers, and the source then shows what is put behind them.
    at_source.modify_table(at_source.describe(table).with_attribute("COMPACTION_ENABLED", "false"))
    for region in at_source.regions(table)[::2]:
        at_source.move_region(region, victim)
    run = start_run(table)

    edit(at_source, table, 1)
    replay(run, spark, until=lambda: True)

    def write() -> None:
        with HBaseClient(source.address) as client:
            edit(client, table, 2)
            source.kill_region_server(1)
            source.start_region_server(1)  # until it is up nobody serves the dead one's regions
            for step in (3, 4):
                edit(client, table, step)

    with ThreadPoolExecutor(1) as threads:
        writer = threads.submit(write)
        retry_work(lambda: replay(run, spark, until=writer.done))
    writer.result()
    assert victim.name not in {region.server.name for region in at_source.regions(table) if region.server}
    skip(run, "replay", "write_stop")
    cut.end_fence(run)
    drain(run, spark)
    gates.after_drain(run)
    assert any(f.server == victim.name and f.length > 1000 for f in run.ledger.log.files())
    here, there = sides(run)
    assert len(here) > 30
    assert there == here
