"""A cluster of HBase 1.7 in memory: its tables, and its peers as znodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import SimpleNamespace

from walferry.hbase.address import ClusterAddress
from walferry.hbase.descriptors import Region, TableDescriptor, new_table
from walferry.hbase.errors import ConnectionFailedError, TableNotFoundError
from walferry.hbase.peers import remove_peer
from walferry.hbase.procedures import DEADLINE_S
from walferry.hbase.versions import release_of
from walferry.hbase.zookeeper import Children, Server

SERVER = Server("rs", 1, 2)


class MemoryNodes:
    """HBase's znodes."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.created: dict[str, int] = {}
        self.transactions = 0

    def children(self, path: str) -> list[str]:
        below = {name.removeprefix(f"{path}/") for name in self.values if name.startswith(f"{path}/")}
        return sorted({name.partition("/")[0] for name in below})

    def children_at(self, path: str) -> Children | None:
        if path not in self.values:
            return None
        return Children(tuple(self.children(path)), self.created[path], (0, 0))

    def read(self, path: str) -> bytes | None:
        return self.values.get(path)

    def write(self, path: str, value: bytes) -> None:
        assert path in self.values
        self.values[path] = value

    def create(self, values: Mapping[str, bytes]) -> None:
        self.transactions += 1
        self.values |= values
        self.created |= dict.fromkeys(values, self.transactions)

    def delete(self, path: str) -> None:
        for name in [name for name in self.values if name == path or name.startswith(f"{path}/")]:
            del self.values[name]


class MemoryCluster:
    """What a setup asks of a cluster, and does to it."""

    def __init__(self, name: str, version: str = "1.7.2") -> None:
        self.address = ClusterAddress(f"{name}:2181")
        self.release = release_of(version)
        self.zookeeper = MemoryNodes()
        self.name = name
        self.descriptors: dict[str, TableDescriptor] = {}
        self.opened: dict[str, list[Region]] = {}
        self.altered: list[tuple[str, dict[str, str]]] = []
        self.away = False
        self.waited_s = 0.0
        self.before_alter: Callable[[], object] = lambda: None
        self.reopens = True
        self.site: dict[str, str] | None = {"hbase.replication.bulkload.enabled": "false"}
        self.may_change: bool | None = None

    def add(self, table: str, **scopes: str) -> None:
        self.descriptors[table] = new_table(
            table, {name: {"REPLICATION_SCOPE": scope} for name, scope in scopes.items()}
        )
        self.opened[table] = [Region(b"", f"r{n}", table, b"", b"", SERVER, 1, open_sequence=1) for n in range(2)]

    def _answer(self) -> None:
        if self.away:
            raise ConnectionFailedError(f"{self.name} does not answer")

    def cluster_id(self) -> str:
        self._answer()
        return self.name

    def version(self) -> str:
        return self.release.name

    def describe(self, table: str) -> TableDescriptor:
        self._answer()
        if table not in self.descriptors:
            raise TableNotFoundError(f"there is no table {table}")
        return self.descriptors[table]

    def table_exists(self, table: str) -> bool:
        return table in self.descriptors

    def table_enabled(self, table: str) -> bool:
        return True

    def modify_table(self, descriptor: TableDescriptor, deadline_s: float = DEADLINE_S) -> None:
        self.waited_s = deadline_s
        self.before_alter()
        scopes = {name: family.attributes["REPLICATION_SCOPE"] for name, family in descriptor.families.items()}
        self.altered.append((descriptor.name, scopes))
        self.descriptors[descriptor.name] = descriptor
        if self.reopens:
            self.opened[descriptor.name] = [
                replace(one, open_sequence=one.open_sequence + 1) for one in self.opened[descriptor.name]
            ]

    def regions(self, table: str) -> list[Region]:
        return self.opened[table]

    def snapshots(self) -> list[SimpleNamespace]:
        return []

    def remove_peer(self, peer: str) -> bool:
        self._answer()
        return remove_peer(self, peer)  # type: ignore[arg-type]

    def peers(self) -> dict[str, tuple[bool, str]]:
        return {}

    def tables(self, namespace: str | None = None) -> list[str]:
        return [name for name in self.descriptors if namespace in (None, name.rpartition(":")[0] or "default")]

    def servers(self) -> list[Server]:
        return [SERVER]

    def settings(self, server: Server) -> dict[str, str] | None:
        return self.site

    def unlogged_writes(self, server: Server) -> int | None:
        return 0

    def peers_may_change(self) -> bool | None:
        return self.may_change

    def __enter__(self) -> MemoryCluster:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is open."""

    def close(self) -> None:
        """Nothing is open."""
