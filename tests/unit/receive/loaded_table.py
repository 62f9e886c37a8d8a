"""A table of a source with files, and its copy under a lease: what bulk loads are tried on."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import numpy as np
import pytest

from unit.receive.call_builder import REGION, Sent
from unit.receive.processes import HERE, SOURCE, TARGET, Process, running
from walferry.apply import by_group
from walferry.apply.route import Route
from walferry.apply.writer_protocol import WriteLimits
from walferry.formats import hfile, hfile_writer
from walferry.formats.cells import cells_to_arrow, encode_cell, index_cells
from walferry.formats.hfile_writer import StoreFormat, WrittenFile, hfile_chunks
from walferry.formats.proto import hbase_pb2 as pb
from walferry.formats.wal import cluster_ids
from walferry.hbase.address import ClusterAddress
from walferry.ledger import Ledger
from walferry.ledger.batches import in_one
from walferry.receive import loads, receiver
from walferry.receive.holding import not_held
from walferry.receive.into_cluster import TargetCluster
from walferry.receive.seen import Applied, Seen
from walferry.receive.target_table import TargetTable
from walferry.run.spec import TablePair
from walferry.storage import Local

FILE, OTHER = "0a_SeqId_7_", "0b_SeqId_7_"
LIMITS = WriteLimits(
    mutations=1, bytes=1 << 20, aim_bytes=1 << 20, lanes=2, read_ahead=1, ahead_bytes=1 << 20, piece_bytes=1,
    here_bytes=1, request_seconds=5, settle_seconds=0, claim_seconds=1,
)  # fmt: skip


class Guard:
    """A lease that is never lost."""

    def __init__(self) -> None:
        self.dirty: list[tuple[Any, str]] = []

    def __call__(self, tables: Any) -> None: ...

    def wait_turn(self, tables: Any, cells: int, size: int) -> None: ...

    def mark_dirty(self, rows: Any, why: str = "") -> None:
        self.dirty.append((rows, why))


class Table:
    """Table t1 of a source with files in a folder, and its copy under a lease, with a real ledger. What the copy
    got, in its order: `values` of cells, the `clusters` that came with each, and requests as they were `sent`."""

    def __init__(self, ledger: Ledger, folder: Path) -> None:
        run = ledger.open_run("east", "me", {"name": "east", "tables": ["t1"]}, "me", "receive")
        self.ledger, self.root = ledger.of(run.run_id), folder / "hbase"
        self.received = self.ledger.received
        self.guard, self.trouble = Guard(), {"copy": "nobody has it"}
        self.values: list[bytes] = []
        self.clusters: list[list[UUID]] = []
        self.sent: list[bytes] = []
        self.before: Callable[[bytes], object] = lambda value: None
        self.take()

    def take(self) -> None:
        """As the lease's next holder does."""
        address = ClusterAddress("nowhere:1")
        route = Route(address, "/", (5, 0), address, {"t1": "copy"}, self.guard, LIMITS)  # type: ignore[arg-type]
        seen = Seen(self.received.floors("t1"), map(Applied.decode, self.received.contents("t1")))
        pair = TablePair(source="t1", target="copy")
        self.mine: TargetTable | None = TargetTable(
            pair, lambda: None, in_one(), self.received, seen, threading.Lock(), route
        )

    def give_back(self) -> None:
        """Returns once nobody uses the lease."""
        assert self.mine is not None
        self.given_back, self.mine = self.mine, None
        self.given_back.end()

    @property
    def held(self) -> Sequence[str]:
        return ["copy"] if self.mine else []

    def holding(self, table: str) -> TargetTable:
        if self.mine is None:
            raise not_held(table)
        return self.mine

    def require_prepared(self, table: str) -> None: ...

    def holder(self, table: str) -> str | None:
        return None

    def writer(self, route: Route) -> Any:
        def send(runs: Sequence[Any], cells: Any) -> None:
            route.guard.wait_turn(["copy"], 1, len(cells))
            self.sent.append(bytes(cells))
            for value in cells_to_arrow(index_cells(np.frombuffer(cells, np.uint8)))["value"].to_pylist():
                self.before(value)
                self.values.append(value)
                self.clusters.append(cluster_ids(runs[0].clusters))

        return SimpleNamespace(send=send)

    def sums(self) -> tuple[int, int, int, int]:
        """Entries that were applied, their cells, entries that were repeated, and late ones."""
        (total,) = self.received.totals()
        return total.entries, total.cells, total.repeated, total.late

    def add(self, *cells: bytes, name: str = FILE, folder: str = "data", region: str = REGION) -> Path:
        """A store file with these cells."""
        # one by one, so that keys may be equal
        batches = [(np.frombuffer(cell, np.uint8), np.zeros(1, np.int64)) for cell in cells]
        path = self.root / folder / "default/t1" / region / "d" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"".join(hfile_chunks(batches, StoreFormat(block_bytes=1), 1, WrittenFile())))
        return path


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Table]:
    with Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}", actor="tester") as ledger:
        made = Table(ledger, tmp_path)
        monkeypatch.setattr(by_group, "writer_to", made.writer)
        monkeypatch.setattr(loads, "writer_to", made.writer)
        monkeypatch.setattr(hfile_writer, "compare_keys", lambda *_: -1)  # else equal keys are refused
        monkeypatch.setattr(hfile, "BATCH_BYTES", 1)  # each block is read alone
        monkeypatch.setattr(receiver, "AGAIN_SECONDS", 0.05)
        yield made


@contextmanager
def running_for(table: Table) -> Iterator[Process]:
    run: Any = SimpleNamespace(
        run_id="east-1", tables=[TablePair(source="t1", target="copy")],
        source=SimpleNamespace(cluster_uuid=lambda: SOURCE),
        ledger=table.ledger,
        target=SimpleNamespace(cluster_uuid=lambda: TARGET), source_files=Local(), source_root=str(table.root),
    )  # fmt: skip
    with running(TargetCluster(run), table) as made:
        yield made


@pytest.fixture
def process(table: Table) -> Iterator[Process]:
    with running_for(table) as made:
        yield made


def cell(value: bytes, row: bytes = b"r", time: int = 7, kind: int = 4, tags: Any = ()) -> bytes:
    return encode_cell(row, b"d", b"q", time, kind, value, tags)


def edit(number: int, **fields: Any) -> Sent:
    return Sent([cell(b"edit %d" % number)], number=number, clusters=[HERE], **fields)


def load(number: int, *names: str, sequence: int = 7, region: str = REGION, **fields: Any) -> Sent:
    """The marker of a load of these files."""
    marker = pb.BulkLoadDescriptor(
        table_name=pb.TableName(namespace=b"default", qualifier=b"t1"), encoded_region_name=region.encode(),
        stores=[pb.StoreDescriptor(family_name=b"d", store_home_dir="d", store_file=names or [FILE])],
        bulkload_seq_num=sequence, **fields,
    )  # fmt: skip
    value = marker.SerializeToString()
    packed = encode_cell(b"\0", b"METAFAMILY", b"HBASE::BULK_LOAD", 1, 4, value)
    return Sent([packed], number=number, region=region, clusters=[HERE])


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)
