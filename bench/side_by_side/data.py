"""What the contenders work on, and how their results are checked by neither of them.

A data set is one table of the source, written within a span of time of its own and logged in files of its own: the WALs
are rolled before and after it. Every cell is distinct and takes about 80 bytes of the log; rows come in random order.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass

import numba
import numpy as np
import numpy.typing as npt
from bench.side_by_side.clusters import Clusters

from walferry.clock import now_ms
from walferry.errors import WalferryError
from walferry.formats.proto import hbase_pb2 as pb
from walferry.hbase import mutate
from walferry.hbase.address import ClusterAddress
from walferry.hbase.client import HBaseClient
from walferry.hbase.mutate import Cell
from walferry.ledger.rows import Base
from walferry.wal.files import WalFile, find_wal, list_wals

FAMILY = "f"
CELLS_A_ROW = 10
VALUE_BYTES = 40
REGIONS = 4
SKEW_SECONDS = 1
"""the clocks of servers on one machine: what walferry waits for after a window, and reads beyond its borders"""
_ROWS_A_BATCH = 500
_WRITERS = 2
_ROLL_SECONDS = 60.0
_QUIET_SECONDS = 2 * SKEW_SECONDS + 1
_EVERY = 1000
_SHUFFLE = 7_368_787
"""a prime: row numbers times this, modulo their count, come in a different order"""


@dataclass(frozen=True)
class Digest:
    """What a plain reader sees of a table: its cells, in HBase's order."""

    cells: int
    sha256: str


@dataclass(frozen=True)
class Data:
    """A table of the source and the log that holds it."""

    table: str
    rows: int
    digest: Digest
    start_ms: int
    end_ms: int
    logs: tuple[WalFile, ...]
    base: Base
    """a snapshot of the table from before it was written"""

    @property
    def cells(self) -> int:
        """The cells of the table."""
        return self.digest.cells


def create(client: HBaseClient, table: str, rows: int) -> None:
    """Create the table of a data set of so many rows."""
    splits = [_row(rows * index // REGIONS) for index in range(1, REGIONS) if rows >= REGIONS]
    client.create_table(table, {FAMILY: {}}, splits)


def changed_rows(data: Data) -> int:
    """How many rows `change_rows` changes."""
    return len(range(0, data.rows, _EVERY))


def change_rows(client: HBaseClient, data: Data) -> None:
    """Put another value into one cell of every thousandth row."""
    rows = [_row(number) for number in range(0, data.rows, _EVERY)]
    client.put(data.table, [Cell(row, FAMILY.encode(), b"q0", b"changed") for row in rows])


def make(clusters: Clusters, table: str, cells: int) -> Data:
    """Write a table of the source."""
    rows = max(1, cells // CELLS_A_ROW)
    width = min(cells, CELLS_A_ROW)
    create(clusters.source_client, table, rows)
    before = _roll(clusters)
    base = _base(clusters.source_client, table, before)
    time.sleep(_QUIET_SECONDS)
    start_ms = now_ms()
    with ProcessPoolExecutor(_WRITERS) as writers:
        address = clusters.source.address
        jobs = [writers.submit(_write, address, table, rows, width, index) for index in range(_WRITERS)]
        for job in jobs:
            job.result()
    end_ms = now_ms() + 1
    time.sleep(_QUIET_SECONDS)
    after = _roll(clusters)
    clusters.source_client.flush_table(table)
    files = list_wals(clusters.source_files, clusters.source.address.root_path)
    logs = tuple(file for file in files if before.get(file.group, 1 << 63) <= file.number < after.get(file.group, 0))
    found = digest(clusters.source_client, table)
    if found.cells != rows * width:
        raise WalferryError(f"{table} has {found.cells} cells, not {rows * width}")
    return Data(table, rows, found, start_ms, end_ms, logs, base)


def _base(client: HBaseClient, table: str, fence: dict[str, int]) -> Base:
    name, begun_ms = f"base-of-{table}", now_ms()
    client.snapshot(name, table)
    return Base(name, table, fence, begun_ms, now_ms(), 0)


def log_paths(clusters: Clusters, data: Data) -> list[str]:
    """Where the logs of the data are now: they are archived while nobody looks."""
    root = clusters.source.address.root_path
    found = [find_wal(clusters.source_files, root, log) for log in data.logs]
    return [log.path for log in found if log is not None and log.length > 0]


def log_bytes(clusters: Clusters, data: Data) -> int:
    """The length of the data's logs."""
    return sum(status.length for path in log_paths(clusters, data) if (status := clusters.source_files.status(path)))


def digest(client: HBaseClient, table: str) -> Digest:
    """Count and hash the cells of a table as an ordinary scan returns them, region by region."""

    def of(bounds: tuple[bytes, bytes]) -> tuple[int, bytes]:
        cells, hashed = 0, hashlib.sha256()
        for block in client.scan(table, *bounds):
            cells += _count(np.frombuffer(block, np.uint8))
            hashed.update(block)
        return cells, hashed.digest()

    with ThreadPoolExecutor(2) as readers:
        parts = list(readers.map(of, [(region.start, region.end) for region in client.regions(table)]))
    return Digest(sum(cells for cells, _ in parts), hashlib.sha256(b"".join(part for _, part in parts)).hexdigest())


def check(client: HBaseClient, table: str, expected: Digest, who: str) -> None:
    """Raise WalferryError unless the table holds exactly the expected cells."""
    found = digest(client, table)
    if found != expected:
        raise WalferryError(f"{who} left {found} in {table}, not {expected}")


@numba.njit(cache=True)  # type: ignore[untyped-decorator, unused-ignore]
def _count(block: npt.NDArray[np.uint8]) -> int:
    position, cells = 0, 0
    while position < len(block):
        length = 0
        for index in range(4):
            length = length << 8 | block[position + index]
        position += 4 + length
        cells += 1
    return cells


def _row(number: int) -> bytes:
    return b"%012d" % number


def _write(address: ClusterAddress, table: str, rows: int, width: int, writer: int) -> None:
    """Write every row whose turn it is for this writer, in a process of its own."""
    qualifiers = [b"q%d" % column for column in range(width)]
    turns = range(writer, rows, _WRITERS)
    with HBaseClient(address) as client:
        for first in range(0, len(turns), _ROWS_A_BATCH):
            client.mutate(table, list(_puts(turns[first : first + _ROWS_A_BATCH], rows, qualifiers)))


def _puts(turns: Sequence[int], rows: int, qualifiers: Sequence[bytes]) -> Iterator[pb.MutationProto]:
    values = os.urandom(VALUE_BYTES * len(turns) * len(qualifiers))
    at = 0
    for turn in turns:
        row = _row(turn * _SHUFFLE % rows)
        cells = []
        for qualifier in qualifiers:
            cells.append(Cell(row, FAMILY.encode(), qualifier, values[at : at + VALUE_BYTES]))
            at += VALUE_BYTES
        yield mutate.put(row, cells)


def _roll(clusters: Clusters) -> dict[str, int]:
    """Roll the WALs of the source; number of the newest by group."""
    before = _newest(clusters)
    for server in clusters.source_client.servers():
        clusters.source_client.roll_wal(server)
    deadline = time.monotonic() + _ROLL_SECONDS
    while True:
        now = _newest(clusters)
        if all(now.get(group, 0) > number for group, number in before.items()):
            return now
        if time.monotonic() > deadline:
            raise WalferryError(f"the WALs were not rolled within {_ROLL_SECONDS:.0f} s")
        time.sleep(0.2)


def _newest(clusters: Clusters) -> dict[str, int]:
    found: dict[str, int] = {}
    for file in list_wals(clusters.source_files, clusters.source.address.root_path):
        if "meta" not in file.name:
            found[file.group] = max(found.get(file.group, 0), file.number)
    return found
