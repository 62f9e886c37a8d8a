"""The spec of a run that receives, and a target in memory."""

from __future__ import annotations

from collections.abc import Iterator
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


KAFKA_KEYS: dict[str, Any] = {
    "name": "topics",
    "source": _cluster("west"),
    "kafka": {"bootstrap": "broker:9092"},
    "tables": ["shop:orders", "shop:items"],
}
"""of a run without a target"""


class MemoryWithQuotas(MemoryCluster):
    """A cluster whose tables may be over their quotas."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.quotas: dict[str, str] = {}
        self.filled: set[str] = set()
        """tables that have rows"""

    def scan_raw(self, table: str) -> Iterator[bytes]:
        return iter([b"cells"] if table in self.filled else [])
