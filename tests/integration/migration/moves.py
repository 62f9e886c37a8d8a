"""Moves between the two test clusters, step by step, for tests that look at one step."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
from pyspark.sql import SparkSession

from walferry.embedded.cluster import MiniCluster
from walferry.formats.cells import cells_to_arrow, index_cells
from walferry.hbase.client import HBaseClient
from walferry.hbase.mutate import Cell
from walferry.hbase.thrift import connect
from walferry.ledger import Ledger
from walferry.ledger.rows import RunKind
from walferry.migration.copying import copy
from walferry.migration.plan import plan_run
from walferry.replay.keeping import objects, protect
from walferry.replay.log import cut
from walferry.run.phases import steps
from walferry.run.run import Run
from walferry.run.spec import ResolvedSpec
from walferry.security.spec import NO_LOGIN
from walferry.spark.session import open_session
from walferry.storage import FileSystem


@contextmanager
def at_work(*works: Callable[[Callable[[], bool]], object]) -> Iterator[None]:
    """Each in a thread of its own until the block ends; each is given what says whether that is so."""
    over = threading.Event()
    threads = [threading.Thread(target=work, args=(over.is_set,), daemon=True) for work in works]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join(60)


def unique(prefix: str = "t") -> str:
    """A name that no other test has."""
    return f"{prefix}{uuid4().hex[:8]}"


def cluster_keys(cluster: MiniCluster) -> dict[str, Any]:
    """The keys of a spec's `source` or `target` for a booted cluster."""
    address = cluster.address
    names = ("zookeeper", "znode", "webhdfs", "rootdir", "waldir", "wal_webhdfs", "thrift")
    keys = {name: getattr(address, name) for name in names}
    kerberos, tls = address.security.kerberos, address.security.tls
    if kerberos is not None:
        login = asdict(kerberos) | {"realms": dict(kerberos.realms)}
        login |= {name: login[name] or NO_LOGIN for name in ("service", "zookeeper_service")}
        keys["security"] = {name: value for name, value in login.items() if value is not None}
    if tls is not None:
        keys["tls"] = asdict(tls)
    return keys


def spec_keys(source: MiniCluster, target: MiniCluster, tables: Sequence[Any], **more: Any) -> dict[str, Any]:
    """A whole spec, with a name of its own."""
    sides = {"source": cluster_keys(source), "target": cluster_keys(target)}
    return {"name": unique("move_"), **sides, "tables": list(tables), **more}


def make_spec(source: MiniCluster, target: MiniCluster, tables: Sequence[Any], **more: Any) -> ResolvedSpec:
    """The same, resolved."""
    return ResolvedSpec.model_validate(spec_keys(source, target, tables, **more))


@contextmanager
def run_of(spec: ResolvedSpec, folder: Path, kind: RunKind = "migration") -> Iterator[Run]:
    """A new run of the spec and kind, its ledger in `folder`; what it made on the clusters is removed at the end."""
    with Ledger.open(f"sqlite:///{folder / 'ledger.db'}", actor="tester") as ledger:
        record = ledger.open_run(spec.name, "tester", spec.model_dump(), "tester", kind)
        with Run(ledger, record.run_id) as run:
            try:
                yield run
            finally:
                objects.release(run)


def spark() -> SparkSession:
    """The Spark session that all tests share."""
    return open_session("tests")


def skip(run: Run, *phases: str) -> None:
    """Let the ledger have phases as done that a test is not about, for each table where they go by table."""
    for phase, subject in steps(run.record.kind, [pair.source for pair in run.tables]):
        if phase.name in phases:
            run.ledger.phases.start(phase.name, subject)
            run.ledger.phases.finish(phase.name, {}, subject)


def begin(run: Run) -> None:
    """Plan, protect, fence."""
    plan_run(run)
    protect.protect(run)
    cut.start_fence(run)


def copy_tables(run: Run) -> None:
    """Snapshot, copy and clone of every table."""
    for pair in run.tables:
        copy.snapshot(run, pair.source)
        copy.copy(run, spark, pair.source)
        copy.clone(run, pair.source)


def as_if_copied(run: Run, table: str, *, whole: bool = False) -> None:
    """A table without a cell stands at the target as its snapshot, copy and clone would leave it, or in one region."""
    here, pair = run.source.describe(table), run.pair(table)
    families = {name: family.attributes for name, family in here.families.items()}
    borders = [] if whole else [region.start for region in run.source.regions(table) if region.start]
    run.target.create_table(pair.target, families, borders)
    for phase in ("snapshot", "copy", "clone"):
        run.ledger.phases.start(phase, table)
        run.ledger.phases.finish(phase, {}, table)


def fill(client: HBaseClient, table: str, rows: int = 20, family: bytes = b"f") -> None:
    """Rows r00, r01, … of one cell each, at timestamp 1."""
    client.put(table, [Cell(b"r%02d" % number, family, b"q", b"v%d" % number, 1) for number in range(rows)])


def visible(cluster: MiniCluster, table: str) -> list[Any]:
    """All that a client sees of a table, all versions, by a reader that is not ours (happybase)."""
    connection = connect(cluster.address)
    try:
        found = []
        for row, columns in connection.table(table).scan():
            for column in sorted(columns):
                cells = connection.table(table).cells(row, column, versions=100, include_timestamp=True)
                found.append((row, column, cells))
        return found
    finally:
        connection.close()


def content(cluster: MiniCluster, table: str) -> dict[str, object]:
    """The same by row and column, for comparing."""
    return {f"{row!r} {column!r}": cells for row, column, cells in visible(cluster, table)}


@contextmanager
def taken_away(files: FileSystem, path: str) -> Iterator[None]:
    """The file is not there meanwhile. It comes back: a region server that cannot archive a log of its own aborts."""
    elsewhere = f"/taken-away/{unique()}"
    files.mkdirs("/taken-away")
    files.rename(path, elsewhere)
    try:
        yield
    finally:
        files.delete(path)
        files.rename(elsewhere, path)


def raw(client: HBaseClient, table: str, row: bytes) -> list[tuple[bytes, int, int, bytes]]:
    """Qualifier, timestamp, type and value of every cell that a raw scan of a row gives."""
    cells = []
    for block in client.scan_raw(table, row, row + b"\0"):
        batch = cells_to_arrow(index_cells(np.frombuffer(block, np.uint8)))
        cells += [(c["qualifier"], c["timestamp"], c["type"], c["value"]) for c in batch.to_pylist()]
    return cells
