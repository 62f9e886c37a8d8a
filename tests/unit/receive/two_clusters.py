"""The spec of a run that receives, and a target in memory."""

from __future__ import annotations

from typing import Any

from unit.migration.setup.memory_cluster import MemoryCluster


def _cluster(name: str) -> dict[str, Any]:
    return {"zookeeper": f"{name}:2181", "webhdfs": f"http://{name}:1", "rootdir": f"hdfs://{name}:1/hbase"}


KEYS: dict[str, Any] = {
    "name": "east",
    "source": _cluster("west"),
    "target": _cluster("east"),
    "tables": ["shop:orders", {"source": "shop:items", "target": "east:items"}],
}


class MemoryWithQuotas(MemoryCluster):
    """A cluster whose tables may be over their quotas."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.quotas: dict[str, str] = {}
