from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from unit.migration.filled_ledger import CLUSTER
from unit.migration.setup.memory_cluster import MemoryCluster
from walferry.ledger import Ledger
from walferry.migration.setup.setup import open_setup
from walferry.run.run import Run
from walferry.run.setup_spec import ResolvedSetupSpec

TABLE = "shop:orders"
TARGET = CLUSTER | {"zookeeper": "there:2181", "rootdir": "hdfs://there:1/hbase", "webhdfs": "http://there:1"}
KEYS: dict[str, Any] = {
    "name": "both", "source": CLUSTER, "target": TARGET, "tables": [TABLE], "peer": "east", "bandwidth": 1000,
}  # fmt: skip


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}", actor="test") as opened:
        yield opened


def here(run: Run) -> MemoryCluster:
    """The source."""
    return cast("MemoryCluster", run.source)


def there(run: Run) -> MemoryCluster:
    """The target."""
    return cast("MemoryCluster", run.target)


def with_clusters(run: Run, ids: tuple[str, str] = ("here", "there")) -> Run:
    """The run, whose plan is done, on two clusters in memory with one table at the source."""
    source, target = MemoryCluster(ids[0]), MemoryCluster(ids[1])
    source.add(TABLE, d="0", e="0")
    run.__dict__.update(source=source, target=target)
    run.ledger.phases.start("plan")
    run.ledger.phases.finish("plan", {"source_cluster_id": ids[0], "target_cluster_id": ids[1]})
    return run


def setup_run(ledger: Ledger, **keys: Any) -> Run:
    spec = ResolvedSetupSpec.model_validate(KEYS | keys)
    return with_clusters(Run(ledger, open_setup(ledger, spec, "test").run_id))


@pytest.fixture
def run(ledger: Ledger) -> Run:
    return setup_run(ledger)
