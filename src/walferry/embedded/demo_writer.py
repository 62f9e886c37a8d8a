"""The demo's writer: an ordinary application on the source cluster, which keeps writing during the migration.

It writes through HBase's Thrift server (happybase), and uses Multi for what Thrift cannot express: deletes of one
version and of one family version, TTLs, increments, appends. It never uses the replication path.
"""

from __future__ import annotations

import json
import random
import signal
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import happybase
from thriftpy2.thrift import TException

from walferry.embedded import processes
from walferry.embedded.processes import ServerProcess
from walferry.errors import TransientError, WalferryError
from walferry.formats.proto import hbase_pb2 as pb
from walferry.hbase import mutate
from walferry.hbase.address import ClusterAddress
from walferry.hbase.client import HBaseClient
from walferry.hbase.mutate import Cell
from walferry.hbase.thrift import connect

NAMESPACE = "shop"
# Table -> region borders. The first four bytes of rows spread over all 32 bits.
TABLES: Mapping[str, tuple[bytes, ...]] = {
    f"{NAMESPACE}:orders": (b"\x40\0\0\0", b"\x80\0\0\0", b"\xc0\0\0\0"),
    "customers": (b"\x55\0\0\0", b"\xaa\0\0\0"),
}
FAMILIES: Mapping[str, Mapping[str, str]] = {"d": {"VERSIONS": "5"}, "c": {"VERSIONS": "3"}}
DATA, COUNTERS = b"d", b"c"

ENDPOINTS, STATUS, STOP_FILE = "endpoints.json", "writer.json", "writer.stop"
"""in the directory of `start_writer`"""
LOAD_SECONDS = 180.0
TICK_S = 0.1
FAILURES_IN_A_ROW = 30
_TTL_MS = (2_000, 60_000, 86_400_000)  # one expires before the comparison, one around it, one long after


@dataclass
class Count:
    """The writer's progress; `state` is `loading`, `writing` or `stopped: …` with the reason."""

    state: str = "loading"
    rows_loaded: int = 0
    cells_written: int = 0
    calls_refused: int = 0
    last_write_ms: int = 0


class DemoWriter:
    """Writes to one cluster's TABLES. The file `status` always holds the newest Count, as JSON."""

    def __init__(self, client: HBaseClient, address: ClusterAddress, status: Path, *, seed: int = 1) -> None:
        self._client = client
        self._address = address
        self._thrift: happybase.Connection = connect(address)
        self._status = status
        self._random = random.Random(seed)
        self._rows = 0
        self.count = Count()

    def create_tables(self) -> None:
        """Create the namespace and the tables, with several regions each, unless they exist."""
        if not self._client.namespace_exists(NAMESPACE):
            self._client.create_namespace(NAMESPACE)
        for table, borders in TABLES.items():
            if not self._client.table_exists(table):
                self._client.create_table(table, FAMILIES, borders)

    def load(self, rows: int) -> None:
        """Put `rows` rows of one cell each, spread evenly over the tables."""
        self._publish()
        for index, table in enumerate(TABLES):
            with self._thrift.table(table).batch(batch_size=5_000) as batch:
                for number in range(index, rows, len(TABLES)):
                    batch.put(row_key(number), {b"d:state": b"new %d" % number})
                    self.count.rows_loaded += 1
        self._rows = max(rows, 1)
        self._publish()

    def run(self, cells_per_second: int, stop: Callable[[], bool]) -> None:
        """Write until `stop()`, or until every table refuses writes because it is read-only.

        Calls that fail for another reason are counted and not repeated; after FAILURES_IN_A_ROW the error is raised.
        """
        self.count.state = "writing"
        writable = list(TABLES)
        failures = 0
        due = time.monotonic()
        while writable:
            if stop():
                self._end("stopped: asked to")
                return
            for table in list(writable):
                try:
                    self._write(table, int(cells_per_second * TICK_S / len(writable)))
                    failures = 0
                except (WalferryError, TException, OSError) as error:
                    self.count.calls_refused += 1
                    if self._client.describe(table).read_only:
                        writable.remove(table)
                        continue
                    failures += 1
                    if failures == FAILURES_IN_A_ROW:
                        self._end(f"stopped: {error}")
                        raise
                    self._thrift = connect(self._address)
            self._publish()
            due = max(due + TICK_S, time.monotonic() - 1)  # catch up by a second at most
            time.sleep(max(0.0, due - time.monotonic()))
        self._end("stopped: every table is read-only")

    def _write(self, table: str, cells: int) -> None:
        """Write about `cells` cells: a tenth by RPC, at least one of each kind, the rest through Thrift."""
        mutations = self._special(max(1, cells // 100))
        self._client.mutate(table, mutations)
        self._wrote(len(mutations))
        self._within_one_millisecond(table)

        plain = max(0, cells - len(mutations) - 3)
        with self._thrift.table(table).batch() as batch:
            for number in range(plain):
                row = self._any_row()
                if number % 40 == 0:
                    batch.delete(row, columns=[b"d:state"])
                elif number % 97 == 0:
                    batch.delete(row)
                else:
                    column = self._random.choice((b"d:state", b"d:note", b"d:", b"d:\x00\xff"))
                    batch.put(row, {column: self._random.randbytes(self._random.randint(0, 60))})
        self._wrote(plain)

    def _special(self, rounds: int) -> list[pb.MutationProto]:
        now = time.time_ns() // 1_000_000
        mutations: list[pb.MutationProto] = []
        for _ in range(rounds):
            old = now - self._random.randint(0, 5_000)
            row, other, third = self._any_row(), self._any_row(), self._any_row()
            mutations += [
                # Put two versions and delete one; then the same for all columns at one timestamp.
                mutate.put(row, [Cell(row, DATA, b"version", b"a", old), Cell(row, DATA, b"version", b"b", old + 1)]),
                mutate.delete_version(row, DATA, b"version", old),
                mutate.put(other, [Cell(other, DATA, b"x", b"1", old), Cell(other, DATA, b"y", b"2", old)]),
                mutate.delete_family_version(other, DATA, old),
                mutate.put(third, [Cell(third, DATA, b"lives-short", b"ttl")], ttl_ms=self._random.choice(_TTL_MS)),
                mutate.delete_column(self._any_row(), DATA, b"note"),
                mutate.delete_family(self._any_row(), DATA, old),
                mutate.increment(self._any_row(), COUNTERS, b"visits", self._random.randint(1, 9)),
                mutate.append(self._any_row(), COUNTERS, b"trail", b"."),
            ]
        return mutations

    def _within_one_millisecond(self, table: str) -> None:
        """Put, delete and put one column at one timestamp, in separate calls so that their order is certain."""
        row, now = self._any_row(), time.time_ns() // 1_000_000
        for mutation in (
            mutate.put(row, [Cell(row, DATA, b"same-ms", b"before", now)]),
            mutate.delete_column(row, DATA, b"same-ms", now),
            mutate.put(row, [Cell(row, DATA, b"same-ms", b"after", now)]),
        ):
            self._client.mutate(table, [mutation])
            self._wrote(1)

    def _any_row(self) -> bytes:
        """An existing row, or one time in ten a new one."""
        if self._random.random() < 0.1:
            self._rows += 1
        return row_key(self._random.randrange(self._rows))

    def _wrote(self, cells: int) -> None:
        self.count.cells_written += cells
        self.count.last_write_ms = time.time_ns() // 1_000_000

    def _end(self, state: str) -> None:
        self.count.state = state
        self._publish()

    def _publish(self) -> None:
        scratch = self._status.with_suffix(".new")
        scratch.write_text(json.dumps(asdict(self.count)))
        scratch.replace(self._status)


def row_key(number: int) -> bytes:
    """The binary row of a number: four bytes that spread rows over the regions, then the number itself."""
    return (number * 2_654_435_761 % 2**32).to_bytes(4, "big") + number.to_bytes(4, "big")


def read_count(status: Path) -> Count:
    """The newest count that a writer, perhaps in another process, has published; zeros before the first."""
    return Count(**json.loads(status.read_text())) if status.exists() else Count()


def start_writer(directory: Path, rows: int, cells_per_second: int) -> ServerProcess:
    """Start a process that loads `rows` rows into the source and then writes until STOP_FILE exists. The file ENDPOINTS
    in `directory` names the source."""
    command = [
        sys.executable, "-m", "walferry.embedded", "writer", "--endpoints", ENDPOINTS,
        "--status", STATUS, "--stop-file", STOP_FILE, "--rows", str(rows), "--cells-per-second", str(cells_per_second),
    ]  # fmt: skip
    return processes.start("writer", command, directory / "writer.log", folder=directory)


def await_load(directory: Path, writer: ServerProcess) -> None:
    """Wait until a writer has loaded its rows. Raises WalferryError if the writer ends first, and TransientError if
    loading takes longer than three minutes."""
    deadline = time.monotonic() + LOAD_SECONDS
    while read_count(directory / STATUS).state == "loading":
        if not writer.is_alive():
            raise WalferryError(f"the writer ended early:\n{writer.tail()}")
        if time.monotonic() > deadline:
            raise TransientError(f"the writer has not loaded its rows in {LOAD_SECONDS:.0f} s")
        time.sleep(0.5)


def write(address: ClusterAddress, status: Path, stop_file: Path, *, rows: int, cells_per_second: int) -> Count:
    """Create and load the tables, then write until `stop_file` exists, SIGTERM or SIGINT comes, or writes are refused.

    Call this in the main thread, since it sets signal handlers.
    """
    asked: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda received, _: asked.append(received))
    with HBaseClient(address) as client:
        writer = DemoWriter(client, address, status)
        writer.create_tables()
        writer.load(rows)
        writer.run(cells_per_second, stop=lambda: bool(asked) or stop_file.exists())
        return writer.count
