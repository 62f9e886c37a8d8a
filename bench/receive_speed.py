"""How fast a source ships a backlog to `walferry receive`, beside HBase's own sink: `python -m bench.receive_speed`,
or `make bench-receive`.

Two real clusters on this machine. Rows are written while the peer is disabled. Then it is enabled, and the time counts
until the target has the last row of each region, and by a scan all of them. HBase's sink is the target itself, by a
peer that leads to it. The contenders take turns; each round has tables of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import numpy as np
import psutil
import typer
import yaml
from bench.receivers import add_peer, command
from bench.stream_speed import REGIONS, processor_seconds, write

from walferry.embedded.cluster import MiniCluster
from walferry.formats.cells import cell_starts
from walferry.hbase.client import HBaseClient
from walferry.hbase.peers import enable_peer

PATIENCE_SECONDS = 600.0


def main(
    rows: Annotated[int, typer.Option(help="rows to write, one cell each; a multiple of 1,000")] = 500_000,
    value_bytes: Annotated[int, typer.Option(help="bytes of each value")] = 100,
    rounds: Annotated[int, typer.Option(help="how often each way is timed")] = 3,
    receivers: Annotated[int, typer.Option(help="processes that receive")] = 1,
) -> None:
    """Print one line for each round, and JSON with the best rates."""
    with tempfile.TemporaryDirectory(prefix="walferry-bench") as folder, ExitStack() as opened:
        clusters = [
            opened.enter_context(MiniCluster.start(Path(folder) / side, thrift=False)) for side in ("source", "target")
        ]
        source, target = clusters
        rates: dict[str, list[float]] = {"receive": [], "native": []}
        for number in range(rounds):
            for way, found in rates.items():
                table = f"{way}{number}"
                seconds, used = shipped_seconds(
                    Path(folder) / table, source, target, table, rows, value_bytes, receivers * (way == "receive")
                )
                found.append(rows / seconds)
                each = {what: round(1e6 * cost / rows) for what, cost in used.items()}
                print(f"{way}: {rows} edits, {found[-1]:,.0f}/s; µs of processors each: {each}", flush=True)
    best = {way: round(max(found)) for way, found in rates.items()}
    print(json.dumps(best | {"ratio": round(best["receive"] / best["native"], 2)}))


def shipped_seconds(
    folder: Path, source: MiniCluster, target: MiniCluster, table: str, rows: int, value_bytes: int, receivers: int
) -> tuple[float, dict[str, float]]:
    """How long it takes until what was written before a peer was enabled is at the target, and what it costs: processor
    seconds of source, target and receivers. Without receivers, the peer leads to the target."""
    folder.mkdir()
    with HBaseClient(source.address) as here, HBaseClient(target.address) as there, ExitStack() as opened:
        for client in (here, there):
            borders = tuple(b"row%d" % region for region in range(1, REGIONS))
            client.create_table(table, {"f": {"REPLICATION_SCOPE": "1"}}, borders)
        sink = target.address
        processes: list[subprocess.Popen[bytes]] = []
        if receivers:
            sink = replace(sink, znode=f"/walferry/receive/{table}")
            processes = opened.enter_context(receiving(folder, source, target, table, receivers))
        add_peer(here, table, sink.cluster_key, [table])
        opened.callback(here.remove_peer, table)
        write(here, table, rows, value_bytes)
        before, began = costs(source, target, processes), time.monotonic()
        enable_peer(here, table)
        last = [b"row%d-row-%d" % (row % REGIONS, row) for row in range(rows - REGIONS, rows)]
        deadline = began + PATIENCE_SECONDS
        while last:
            last = [row for row in last if not any(there.scan(table, row, row + b"\0"))]
            if time.monotonic() > deadline:
                raise SystemExit(f"{table}: {last} did not arrive")
            time.sleep(0.05)
        count = sum(len(cell_starts(np.frombuffer(block, np.uint8))) for block in there.scan(table, b"", b""))
        took = time.monotonic() - began
        if count != rows:
            raise SystemExit(f"{table}: {count} of {rows} rows are at the target")
        after = costs(source, target, processes)
        return took, {what: after[what] - before[what] for what in after}


def costs(source: MiniCluster, target: MiniCluster, processes: list[subprocess.Popen[bytes]]) -> dict[str, float]:
    """What has used how much of the processors so far, in seconds."""
    times = [psutil.Process(process.pid).cpu_times() for process in processes]
    of_receivers = sum(one.user + one.system for one in times)
    return {
        "source": processor_seconds(source), "target": processor_seconds(target), "receivers": of_receivers
    }  # fmt: skip


@contextmanager
def receiving(
    folder: Path, source: MiniCluster, target: MiniCluster, table: str, count: int
) -> Iterator[list[subprocess.Popen[bytes]]]:
    """So many processes of a run for one table, once they are ready."""
    sides = {
        side: {
            "zookeeper": cluster.address.zookeeper, "webhdfs": cluster.address.webhdfs, "rootdir": cluster.rootdir,
        }
        for side, cluster in (("source", source), ("target", target))
    }  # fmt: skip
    (folder / "receive.yaml").write_text(yaml.safe_dump({"name": table, "tables": [table], **sides}))
    environment = os.environ | {"WALFERRY_LEDGER": f"sqlite:///{folder / 'ledger.db'}"}
    logs = [folder / f"log{number}" for number in range(count)]
    begin = command(folder / "receive.yaml")
    with ExitStack() as opened:
        processes = [
            subprocess.Popen(begin, cwd=folder, env=environment, stdout=output, stderr=output)
            for output in (opened.enter_context(log.open("w")) for log in logs)
        ]
        try:
            deadline = time.monotonic() + PATIENCE_SECONDS
            while not any("is held by" in log.read_text() for log in logs):
                if any(process.poll() is not None for process in processes) or time.monotonic() > deadline:
                    raise SystemExit("".join(log.read_text() for log in logs))
                time.sleep(0.2)
            yield processes
        finally:
            for process in processes:
                process.terminate()
            for process in processes:
                process.wait()


if __name__ == "__main__":
    typer.run(main)
