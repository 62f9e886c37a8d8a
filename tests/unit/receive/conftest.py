from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from unit.migration.setup.memory_cluster import MemoryCluster
from unit.receive.kafka_world import World
from unit.receive.two_clusters import KEYS, MemoryWithQuotas
from walferry.hbase.address import ClusterAddress
from walferry.ledger import Ledger
from walferry.receive import receive_plan
from walferry.replication import sink_tables
from walferry.run.receive_spec import ResolvedReceiveSpec


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}", actor="kim") as opened:
        yield opened


@pytest.fixture
def make_spec() -> Callable[..., ResolvedReceiveSpec]:
    return lambda **keys: ResolvedReceiveSpec.model_validate(KEYS | keys).at("east-1.example", 16040)


@pytest.fixture
def spec(make_spec: Callable[..., ResolvedReceiveSpec]) -> ResolvedReceiveSpec:
    return make_spec()


@pytest.fixture
def source() -> MemoryCluster:
    """Has both tables, whose families are replicated. Its servers do not tell their settings."""
    made = MemoryCluster("west")
    made.site = None
    made.add("shop:orders", d="1", e="1")
    made.add("shop:items", d="1")
    return made


@pytest.fixture
def target() -> MemoryWithQuotas:
    """Has both tables."""
    made = MemoryWithQuotas("east")
    made.add("shop:orders", d="0", e="0")
    made.add("east:items", d="0")
    return made


@pytest.fixture
def both(source: MemoryCluster, target: MemoryWithQuotas, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clients lead to these clusters."""

    def client(address: ClusterAddress) -> MemoryCluster:
        return {"west:2181": source, "east:2181": target}[address.zookeeper]

    monkeypatch.setattr(receive_plan, "HBaseClient", client)
    monkeypatch.setattr(sink_tables, "open_sink", client)
    monkeypatch.setattr(sink_tables, "exceeded_quotas", lambda client: client.quotas)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    with Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}", actor="tester") as ledger:
        made = World(ledger, monkeypatch)
        with made.opened:
            yield made
