"""`walferry wal cat` beside HBase's own WALPrettyPrinter, on one real WAL: `python bench/wal_cat.py`.

Boots a cluster, writes cells through a client, rolls the log and takes the closed file to this machine. Then both
programs print it in turn as JSON, values included, each in a process of its own whose output is read to the end.
A log of a few cells, printed the same way, tells what starting Python or the JVM costs.
"""

from __future__ import annotations

import os
import platform
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Annotated

import typer

from walferry.embedded import tools
from walferry.embedded.cluster import MiniCluster
from walferry.errors import WalferryError
from walferry.formats.proto import hbase_pb2 as pb
from walferry.hbase import mutate
from walferry.hbase.client import HBaseClient
from walferry.hbase.mutate import Cell
from walferry.spark.clients import shared_files
from walferry.storage import FileSystem
from walferry.wal.files import WalFile, find_wal, list_wals

TABLE = "bench"
CELLS_A_ROW = 5
VALUE_BYTES = 50
ROWS_A_BATCH = 500
ROLL_SECONDS = 30.0
START_MS = 1_700_000_000_000


@dataclass(frozen=True)
class Log:
    """A closed WAL on this machine."""

    path: Path
    cells: int


def main(
    rows: Annotated[int, typer.Option(help="rows of the log, 5 cells each", min=1)] = 60_000,
    rounds: Annotated[int, typer.Option(help="how often each program runs", min=1)] = 3,
) -> None:
    """Measure, and print one line a program and the ratio of the medians."""
    with tempfile.TemporaryDirectory() as folder:
        with MiniCluster.start(Path(folder) / "cluster", thrift=False) as cluster:
            small, large = (make_log(cluster, Path(folder), count) for count in (1, rows))
        size = large.path.stat().st_size
        print(f"{large.cells} cells, {size / 1e6:.1f} MB; Python {platform.python_version()}, {os.cpu_count()} cores")
        programs: Mapping[str, Callable[[Path], object]] = {
            "walferry wal cat": walferry_prints,
            "WALPrettyPrinter -j -p": lambda path: tools.run(
                cluster, tools.WAL_PRETTY_PRINTER, ["-j", "-p", path.as_uri()], timeout_s=1800
            ),
        }
        measured = {}
        for log in (small, large):
            times = in_turn({name: _print_of(program, log) for name, program in programs.items()}, rounds)
            measured[log] = {name: median(seconds) for name, seconds in times.items()}
        for name, seconds in measured[large].items():
            start = measured[small][name]
            print(
                f"{name:24} {seconds:7.2f} s (median of {rounds}), {large.cells / seconds:9.0f} cells/s; "
                f"a log of {small.cells} cells {start:.2f} s"
            )
        ours, theirs = measured[large].values()
        our_start, their_start = measured[small].values()
        print(f"ratio: WALPrettyPrinter takes {theirs / ours:.2f} times as long; "
              f"{(theirs - their_start) / (ours - our_start):.2f} times without the start of the process")  # fmt: skip


def make_log(cluster: MiniCluster, folder: Path, rows: int) -> Log:
    """Write `rows` rows, close the log that holds them by a roll, and copy it below `folder`."""
    files = shared_files(cluster.address)
    root = cluster.address.root_path
    with HBaseClient(cluster.address) as client:
        if not client.table_exists(TABLE):
            client.create_table(TABLE, {"f": {}})
        (server,) = client.servers()
        roll(client, files, root)
        (log,) = (file for file in list_wals(files, root) if file.number == newest(files, root).number)
        for batch in batches(rows):
            client.mutate(TABLE, batch)
        roll(client, files, root)
        print(f"{rows} rows written to {log.name} of {server.name}", file=sys.stderr)
    path = folder / f"{rows}.wal"
    path.write_bytes(closed_bytes(files, root, log))
    return Log(path, rows * CELLS_A_ROW)


def batches(rows: int) -> Iterator[list[pb.MutationProto]]:
    """Puts with random values, the same at every run, a few hundred rows at a time."""
    random_bytes = random.Random(1)
    for first in range(0, rows, ROWS_A_BATCH):
        puts = []
        for number in range(first, min(rows, first + ROWS_A_BATCH)):
            row = b"row-%010d" % number
            cells = [
                Cell(row, b"f", b"column-%d" % column, random_bytes.randbytes(VALUE_BYTES), START_MS + number)
                for column in range(CELLS_A_ROW)
            ]
            puts.append(mutate.put(row, cells))
        yield puts


def newest(files: FileSystem, root: str) -> WalFile:
    """The log that the only region server writes to now."""
    return max(list_wals(files, root), key=lambda file: file.number)


def roll(client: HBaseClient, files: FileSystem, root: str) -> None:
    """Roll the only region server's log and wait until it goes on in a new file."""
    before = newest(files, root).number
    for server in client.servers():
        client.roll_wal(server)
    deadline = time.monotonic() + ROLL_SECONDS
    while newest(files, root).number == before:
        if time.monotonic() > deadline:
            raise WalferryError(f"the log was not rolled within {ROLL_SECONDS:.0f} s")
        time.sleep(0.2)


def closed_bytes(files: FileSystem, root: str, log: WalFile) -> bytes:
    """The bytes of a rolled log once its writer has closed it."""
    deadline = time.monotonic() + ROLL_SECONDS
    while time.monotonic() < deadline:
        now = find_wal(files, root, log)
        data = b"".join(files.read(now.path)) if now else b""
        if data.endswith(b"LAWP"):
            return data
        time.sleep(0.2)
    raise WalferryError(f"{log.name} was not closed within {ROLL_SECONDS:.0f} s", file=log.name)


def walferry_prints(path: Path) -> None:
    """Run the command as a user does."""
    command = [str(Path(sys.executable).parent / "walferry"), "wal", "cat", str(path)]
    subprocess.run(command, check=True, capture_output=True, text=True)


def _print_of(program: Callable[[Path], object], log: Log) -> Callable[[], object]:
    return lambda: program(log.path)


def in_turn(works: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Seconds of each work, round by round; an unmeasured round goes before (page cache, compiled kernels)."""
    seconds: dict[str, list[float]] = {name: [] for name in works}
    for number in range(rounds + 1):
        for name, work in works.items():
            begun = time.perf_counter()
            work()
            if number:
                seconds[name].append(time.perf_counter() - begun)
    return seconds


if __name__ == "__main__":
    typer.run(main)
