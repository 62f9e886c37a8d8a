"""As much of a ZooKeeper client as the leases use, in this process: several sessions see the same nodes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import cast

from kazoo.client import KazooClient
from kazoo.exceptions import BadVersionError, NodeExistsError, NoNodeError


@dataclass
class Node:
    """A node's data, its version, and the session with which it goes away."""

    data: bytes = b""
    version: int = 0
    owner: object = None


@dataclass
class MemoryZooKeeper:
    """The nodes of an ensemble; `session` gives a client."""

    nodes: dict[str, Node] = field(default_factory=dict)

    def session(self) -> KazooClient:
        """A client with a session of its own."""
        return cast(KazooClient, Session(self.nodes))

    def expire(self, session: KazooClient) -> None:
        """Let a session end as that of a killed process does."""
        for path in [path for path, node in self.nodes.items() if node.owner is session]:
            del self.nodes[path]


class Session:
    """A client: what kazoo's does, as far as the leases need it."""

    def __init__(self, nodes: dict[str, Node]) -> None:
        self._nodes = nodes

    def ensure_path(self, path: str) -> None:
        self._nodes.setdefault(path, Node())

    def get(self, path: str) -> tuple[bytes, Node]:
        if path not in self._nodes:
            raise NoNodeError
        node = self._nodes[path]
        return node.data, Node(node.data, node.version)

    def create(self, path: str, data: bytes, ephemeral: bool) -> None:
        if path in self._nodes:
            raise NodeExistsError
        self._nodes[path] = Node(data, 0, self if ephemeral else None)

    def set(self, path: str, data: bytes, version: int) -> None:
        if self._nodes[path].version != version:
            raise BadVersionError
        self._nodes[path].data = data
        self._nodes[path].version += 1

    def delete(self, path: str) -> None:
        if self._nodes.pop(path, None) is None:
            raise NoNodeError

    def transaction(self) -> Transaction:
        return Transaction(self)


class Transaction:
    """All of it or nothing: as kazoo's, it returns errors and raises none."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._checks: list[tuple[str, int]] = []
        self._deletes: list[str] = []

    def check(self, path: str, version: int) -> None:
        self._checks.append((path, version))

    def delete(self, path: str) -> None:
        self._deletes.append(path)

    def commit(self) -> list[object]:
        if any(self._session.get(path)[1].version != version for path, version in self._checks):
            return [BadVersionError()]
        for path in self._deletes:
            self._session.delete(path)
        return [True]
