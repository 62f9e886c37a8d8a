"""What it costs to prove a table equal again after some of its rows were written, beside reading it whole:
`python -m bench.reread_cost`, or `make bench-reread`.

Two real clusters; a table is moved up to its replay, compared whole, and then a part of its rows is written at the
source and applied. Counted is what the region servers of both clusters say that they sent (`sentBytes` of their RPC
servers, by JMX), the cells that were compared, and the log that was read for the rows' names.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import requests
import typer
from bench.side_by_side import data
from bench.side_by_side.clusters import Clusters, booted

from walferry.hbase.client import HBaseClient
from walferry.hbase.mutate import Cell
from walferry.ledger import Ledger
from walferry.migration.comparing.compare import compare
from walferry.migration.comparing.written_rows import compare_written
from walferry.migration.copying import copy
from walferry.migration.plan import plan_run
from walferry.migration.touching import touched
from walferry.replay.keeping import objects, protect
from walferry.replay.log import cut
from walferry.replay.rounds.follower import replay
from walferry.run.notes.last_comparison import whole_comparison
from walferry.run.run import Run
from walferry.run.spec import ResolvedSpec
from walferry.spark.session import opened_once

TABLE = "reread"
JMX_SECONDS = 12.0
"""after which a server's counts are those of now: they are kept for ten seconds"""


@dataclass(frozen=True)
class Cost:
    """Of one reading."""

    what: str
    seconds: float
    rows: int
    cells: int | None
    sent: int
    """bytes, by the region servers of both sides"""
    log: int
    """bytes of log that were read"""

    def line(self) -> str:
        """For people."""
        cells = "" if self.cells is None else f"{self.cells} cells, "
        return (
            f"{self.what}: {self.rows} rows, {cells}{self.sent / 1e6:.1f} MB sent by the region servers, "
            f"{self.log / 1e6:.1f} MB of log read, {self.seconds:.1f} s"
        )


def main(
    cells: Annotated[int, typer.Option(help="of the table")] = 10_000_000,
    share: Annotated[float, typer.Option(help="of the rows that are written")] = 0.01,
) -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory(prefix="walferry-bench-") as folder, booted(Path(folder)) as clusters:
        made = data.make(clusters, TABLE, cells)
        with Ledger.open(f"sqlite:///{folder}/ledger.db", actor="bench") as ledger:
            spec = spec_of(clusters)
            run = Run(ledger, ledger.open_run(spec.name, "bench", spec.model_dump(), "bench").run_id)
            try:
                whole, again = measured(clusters, run, made, share)
            finally:
                objects.release(run)
                run.close()
    for cost in (whole, again):
        print(cost.line())
    print(f"again / whole: {again.sent / whole.sent:.4f} of the bytes, {again.seconds / whole.seconds:.3f} of the time")


def measured(clusters: Clusters, run: Run, made: data.Data, share: float) -> tuple[Cost, Cost]:
    """The whole reading, and the one of what was written since."""
    spark = opened_once("bench")
    plan_run(run)
    protect.protect(run)
    cut.start_fence(run)
    copy.snapshot(run, TABLE)
    copy.copy(run, spark, TABLE)
    copy.clone(run, TABLE)
    replay(run, spark(), until=lambda: True)
    found: dict[str, Any] = {}

    def read_whole() -> None:
        found["whole"] = compare(run, spark, TABLE)

    def read_again() -> None:
        since = whole_comparison(run.ledger, TABLE)
        assert since is not None, "the comparison names all rows"
        touched.look(run)
        found["again"] = compare_written(run, TABLE, since)

    seconds, sent = counted(clusters, read_whole)
    ranges = found["whole"].ranges
    assert not found["whole"].differing_rows
    rows, cells = (sum(getattr(r, f"source_{of}") for r in ranges) for of in ("rows", "cells"))
    whole = Cost("whole", seconds, rows, 2 * cells, sent, 0)
    written = [b"%012d" % number for number in range(0, made.rows, round(1 / share))]
    clusters.source_client.put(TABLE, [Cell(row, data.FAMILY.encode(), b"q0", b"changed") for row in written])
    replay(run, spark(), until=lambda: True)
    seconds, sent = counted(clusters, read_again)
    assert not found["again"].why, found["again"].why
    assert not found["again"].differing
    again = found["again"]
    return whole, Cost(f"again, {share:.0%} of the rows written", seconds, again.rows, None, sent, again.log_bytes)


def counted(clusters: Clusters, work: Callable[[], None]) -> tuple[float, int]:
    """How long some work takes, and what the region servers of both sides sent for it."""
    before = sent_bytes(clusters)
    began = time.perf_counter()
    work()
    seconds = time.perf_counter() - began
    return seconds, sent_bytes(clusters) - before


def sent_bytes(clusters: Clusters) -> int:
    """What the region servers of both sides have sent so far, by their own count."""
    time.sleep(JMX_SECONDS)
    return sum(of_cluster(client) for client in (clusters.source_client, clusters.target_client))


def of_cluster(client: HBaseClient) -> int:
    """The same, of one cluster."""
    found = 0
    for server in client.servers():
        port = (client.settings(server) or {}).get("hbase.regionserver.info.port")
        url = f"http://{server.host}:{port}/jmx"
        answer = requests.get(url, params={"qry": "Hadoop:service=HBase,name=RegionServer,sub=IPC"}, timeout=10)
        found += int(answer.json()["beans"][0]["sentBytes"])
    return found


def spec_of(clusters: Clusters) -> ResolvedSpec:
    """The move of the table."""
    sides = {
        side: {
            name: getattr(cluster.address, name)
            for name in ("zookeeper", "znode", "webhdfs", "rootdir", "waldir", "wal_webhdfs")
        }
        for side, cluster in (("source", clusters.source), ("target", clusters.target))
    }
    return ResolvedSpec.model_validate({"name": "bench", "tables": [{"source": TABLE, "target": TABLE}], **sides})


if __name__ == "__main__":
    typer.run(main)
