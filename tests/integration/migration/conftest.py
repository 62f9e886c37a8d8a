from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from pyspark.sql import SparkSession

from integration.migration.moves import as_if_copied, cluster_keys, content
from walferry.embedded.cluster import MiniCluster
from walferry.hbase.client import HBaseClient
from walferry.ledger import Ledger
from walferry.migration.copying import copy
from walferry.migration.plan import plan_run
from walferry.replay.keeping import objects, protect
from walferry.replay.log import cut
from walferry.run.run import Run

StartRun = Callable[..., Run]
Sides = Callable[[Run], tuple[dict[str, object], dict[str, object]]]


@pytest.fixture(scope="session")
def at_target(target: MiniCluster) -> Iterator[HBaseClient]:
    """A client of the target."""
    with HBaseClient(target.address) as client:
        yield client


@pytest.fixture
def make_table(at_source: HBaseClient) -> Callable[..., str]:
    """Creates a source table (families f and g, many versions) with a name of its own."""

    def make(split_keys: tuple[bytes, ...] = (b"m",)) -> str:
        name = f"m{uuid4().hex[:8]}"
        at_source.create_table(name, {"f": {"VERSIONS": "50"}, "g": {"VERSIONS": "50"}}, split_keys)
        return name

    return make


def spec_of(
    name: str, source: MiniCluster, target: MiniCluster, tables: list[str], **keys: object
) -> dict[str, object]:
    """A spec with the clusters written out."""
    clusters = {"source": cluster_keys(source), "target": cluster_keys(target)}
    pairs = [{"source": table, "target": table} for table in tables]
    return {"name": name, "tables": pairs, **clusters, **keys}


@pytest.fixture
def start_run(source: MiniCluster, target: MiniCluster, spark: SparkSession, tmp_path: Path) -> Iterator[StartRun]:
    """Runs every phase in front of the replay, with a ledger of its own; the runs are released at the end.

    Only tables that hold something are copied: the copy has tests of its own.
    """
    ledger = Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}", actor="test")
    started: list[Run] = []

    def start(*tables: str, **keys: object) -> Run:
        spec = spec_of(f"t{uuid4().hex[:8]}", source, target, list(tables), **keys)
        record = ledger.open_run(str(spec["name"]), "test", spec, "test")
        run = Run(ledger, record.run_id)
        started.append(run)
        plan_run(run)
        protect.protect(run)
        cut.start_fence(run)
        for table in tables:
            if next(iter(run.source.scan_raw(table)), None) is None:
                as_if_copied(run, table)
                continue
            copy.snapshot(run, table)
            copy.copy(run, lambda: spark, table)
            copy.clone(run, table)
        return run

    yield start
    for run in started:
        objects.release(run)
        run.close()
    ledger.close()


@pytest.fixture
def sides(source: MiniCluster, target: MiniCluster) -> Sides:
    """What HBase's own Thrift servers show of the run's tables: of every row all versions of all columns."""

    def read(cluster: MiniCluster, tables: list[str]) -> dict[str, object]:
        return {f"{name} {key}": cells for name in tables for key, cells in content(cluster, name).items()}

    def both(run: Run) -> tuple[dict[str, object], dict[str, object]]:
        return (
            read(source, [pair.source for pair in run.tables]),
            read(target, [pair.target for pair in run.tables]),
        )

    return both
