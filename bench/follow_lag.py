"""The lag while the log is followed, as a client of both clusters sees it: `python -m bench.follow_lag`, or
`make bench-lag`.

Two real clusters, the demo's writer, and `walferry start`, whose question nobody answers. Rows are put at the source
beside the load, ten times a second; the lag of one is the time from its acknowledgement until HBase's Thrift server at
the target shows it. First with regions that stand still, then while one moves again and again, then with a split, and
last a killed region server.
"""

from __future__ import annotations

import json
import os
import pty
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
import yaml
from thriftpy2.thrift import TException

from walferry.embedded import processes
from walferry.embedded.cluster import MiniCluster, Ports, boot, shut_down
from walferry.embedded.demo_writer import ENDPOINTS, TABLES, await_load, start_writer
from walferry.errors import WalferryError
from walferry.hbase.address import ClusterAddress
from walferry.hbase.client import HBaseClient
from walferry.hbase.thrift import connect

PROBERS = 4
PROBE_SECONDS = 0.4
LOOK_SECONDS = 0.02
BEGIN_SECONDS = 600.0
ROWS = 50_000


@dataclass
class Probes:
    """Rows that were put at the source; `lags` are of those that the target has shown, in seconds."""

    lags: list[float] = field(default_factory=list)
    outstanding: dict[tuple[str, bytes], float] = field(default_factory=dict)
    ended: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def put(self, address: ClusterAddress, number: int) -> None:
        """Put rows until the end, spread over all regions."""
        dice, count = random.Random(number), 0
        while not self.ended.is_set():
            with suppress(TException, OSError), closing(connect(address)) as connection:
                while not self.ended.wait(PROBE_SECONDS):
                    table, count = dice.choice(list(TABLES)), count + 1
                    row = dice.randbytes(4) + b"probe %d %d" % (number, count)
                    connection.table(table).put(row, {b"d:state": b"probe"})
                    with self.lock:
                        self.outstanding[table, row] = time.monotonic()

    def look(self, address: ClusterAddress) -> None:
        """Look for them at the target until the end."""
        while not self.ended.is_set():
            with suppress(TException, OSError), closing(connect(address)) as connection:
                while not self.ended.wait(LOOK_SECONDS):
                    for table in TABLES:
                        with self.lock:
                            rows = [row for name, row in self.outstanding if name == table]
                        shown = [row for row, _ in connection.table(table).rows(rows)] if rows else []
                        now = time.monotonic()
                        with self.lock:
                            self.lags += [now - self.outstanding.pop((table, row)) for row in shown]

    def told(self) -> np.ndarray:
        """The lags since the last call; those of rows that are not there yet count as far as they have come."""
        with self.lock:
            now = time.monotonic()
            found = [*self.lags, *(now - since for since in self.outstanding.values())]
            self.lags = []
        return np.array(found)


def main(
    cells_per_second: Annotated[int, typer.Option(help="of the writer")] = 5_000,
    seconds: Annotated[float, typer.Option(help="for which each part lasts")] = 60.0,
    move_every: Annotated[float, typer.Option(help="seconds between two moves")] = 8.0,
) -> None:
    """Measure and print."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="walferry-bench-")))
        source, target = stack.enter_context(booted(folder))
        stack.enter_context(writing(folder, source, cells_per_second))
        spec = folder / "move.yaml"
        sides = {name: addresses(one) for name, one in (("source", source), ("target", target))}
        spec.write_text(yaml.safe_dump({"name": "lag", "tables": list(TABLES), **sides}))
        await_question(*stack.enter_context(following(folder, spec)))
        client = stack.enter_context(HBaseClient(source.address))
        probes = stack.enter_context(probing(source, target))

        def move() -> None:
            region = random.choice(client.regions(random.choice(list(TABLES))))
            client.move_region(region, next(server for server in client.servers() if server != region.server))

        def split() -> None:
            region = client.regions("customers")[0]
            client.split_region(region, b"\x20")

        parts: list[tuple[str, Callable[[], object], float]] = [
            ("regions stand still", lambda: None, seconds),
            (f"a region moves every {move_every:.0f} s", move, move_every),
            ("a region is split", split, seconds),
            ("a region server is killed", lambda: source.kill("regionserver-1"), seconds),
        ]
        for what, act, every in parts:
            probes.told()
            until = time.monotonic() + seconds
            while time.monotonic() < until:
                began = time.monotonic()
                try:
                    act()
                except WalferryError as error:
                    print(f"{what}: {error}", file=sys.stderr)
                time.sleep(max(0.0, min(began + every, until) - time.monotonic()))
            p50, p90, p99, longest = np.percentile(lags := probes.told(), [50, 90, 99, 100])
            print(
                f"{what}: p50 {p50:.2f} s, p90 {p90:.2f} s, p99 {p99:.2f} s, longest {longest:.2f} s ({len(lags)} rows)"
            )


def addresses(cluster: MiniCluster) -> dict[str, str]:
    """As a spec names a cluster."""
    return {key: getattr(cluster.address, key) for key in ("zookeeper", "znode", "webhdfs", "rootdir", "thrift")}


@contextmanager
def booted(folder: Path) -> Iterator[tuple[MiniCluster, MiniCluster]]:
    """A source of two region servers and a target, with Thrift."""
    source, target = MiniCluster(folder / "source", Ports.free(2)), MiniCluster(folder / "target", Ports.free())
    boot(source, target)
    try:
        yield source, target
    finally:
        shut_down(source, target)


@contextmanager
def writing(folder: Path, source: MiniCluster, cells_per_second: int) -> Iterator[None]:
    """The demo's writer, in a process of its own, from the end of its loading on."""
    (folder / ENDPOINTS).write_text(json.dumps({"source": addresses(source)}))
    writer = start_writer(folder, ROWS, cells_per_second)
    try:
        await_load(folder, writer)
        yield
    finally:
        processes.stop([writer])


@contextmanager
def following(folder: Path, spec: Path) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """`walferry start`, in a terminal where its question waits; and the file of what it says."""
    terminal, slave = pty.openpty()
    said = folder / "walferry.log"
    with said.open("w") as log:
        command = subprocess.Popen(
            [sys.executable, "-m", "walferry.cli", "start", str(spec)],
            cwd=folder, stdin=slave, stdout=log, stderr=log, start_new_session=True,
            env={**os.environ, "WALFERRY_LEDGER": f"sqlite:///{folder}/ledger.db"},
        )  # fmt: skip
    processes.leash.hold(command.pid)
    try:
        yield command, said
    finally:
        with suppress(ProcessLookupError):
            os.killpg(command.pid, signal.SIGKILL)
        command.wait()
        processes.leash.release(command.pid)
        os.close(terminal)
        os.close(slave)


@contextmanager
def probing(source: MiniCluster, target: MiniCluster) -> Iterator[Probes]:
    """Probes, from now on."""
    probes = Probes()
    threads = [threading.Thread(target=probes.put, args=(source.address, n), daemon=True) for n in range(PROBERS)]
    threads.append(threading.Thread(target=probes.look, args=(target.address,), daemon=True))
    for thread in threads:
        thread.start()
    try:
        yield probes
    finally:
        probes.ended.set()
        for thread in threads:
            thread.join(timeout=30)


def await_question(command: subprocess.Popen[bytes], said: Path) -> None:
    """Wait until the log is followed and each table was compared, so that the first question waits."""
    deadline = time.monotonic() + BEGIN_SECONDS
    while "Cut over" not in said.read_text():
        if command.poll() is not None or time.monotonic() > deadline:
            sys.exit(f"walferry does not ask whether to cut over: {said.read_text()[-2000:]}")
        time.sleep(0.5)


if __name__ == "__main__":
    typer.run(main)
