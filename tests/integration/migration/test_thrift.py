"""A target that is written through Thrift: what it can say arrives in order, the rest waits and has a way out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from integration.migration.moves import begin, copy_tables, make_spec, run_of, skip
from walferry.cutover import gates
from walferry.embedded.cluster import MiniCluster
from walferry.hbase.client import HBaseClient
from walferry.hbase.mutate import Cell, delete_column, delete_family, delete_version
from walferry.replay import quarantine
from walferry.replay.log import cut
from walferry.replay.rounds.follower import replay
from walferry.replay.rounds.rounds import drain

pytestmark = pytest.mark.cluster


def test_what_thrift_cannot_say_waits_until_it_is_sent_past_thrift(
    source: MiniCluster, target: MiniCluster, at_source: HBaseClient, make_table: Callable[..., str],
    spark: SparkSession, sides: Callable[..., tuple[dict[str, object], dict[str, object]]], tmp_path: Path,
) -> None:  # fmt: skip
    table = make_table((b"m",))
    with run_of(make_spec(source, target, [table], apply="thrift"), tmp_path) as run:
        begin(run)
        copy_tables(run)
        for step in range(3):  # in both regions: the same cells again and again, deletes between them
            at_source.put(table, [Cell(row, b"f", b"", b"%d" % step, 5) for row in (b"a", b"b", b"x")])
            at_source.put(table, [Cell(row, b"g", b"q", b"%d" % step, 5 + step) for row in (b"a", b"x", b"y")])
            at_source.mutate(table, [delete_column(b"y", b"g", b"q", 5), delete_family(b"b", b"f", 4)])
        replay(run, spark, until=lambda: True)
        assert run.ledger.quarantine.items() == []
        here, there = sides(run)
        assert len(here) > 4
        assert there == here

        at_source.mutate(table, [delete_version(b"a", b"g", b"q", 7)])
        at_source.put(table, [Cell(row, b"f", b"late", b"v", 9) for row in (b"a", b"x")])
        replay(run, spark, until=lambda: True)
        (item,) = run.ledger.quarantine.items("held")
        assert "DELETE" in item.reason
        here, there = sides(run)
        waiting = {key for key in here if there.get(key) != here[key]}
        assert waiting == {f"{table} b'a' {column!r}" for column in (b"f:late", b"g:q")}

        quarantine.release(run, item.quarantine_id, "rpc", "Thrift cannot say it")
        skip(run, "replay", "write_stop")
        cut.end_fence(run)
        drain(run, spark)
        gates.after_drain(run)
        here, there = sides(run)
        assert there == here
