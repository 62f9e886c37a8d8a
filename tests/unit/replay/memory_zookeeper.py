"""As much of a ZooKeeper client as the leases use, in this process: several sessions see the same nodes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

from kazoo.client import KazooClient
from kazoo.exceptions import BadVersionError, NodeExistsError, NoNodeError, NotEmptyError


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
    watches: dict[str, set[Callable[[object], None]]] = field(default_factory=dict)

    def session(self) -> KazooClient:
        """A client with a session of its own."""
        return cast(KazooClient, Session(self.nodes, self.watches))

    def expire(self, session: KazooClient) -> None:
        """Let a session end as that of a killed process does."""
        for path in [path for path, node in self.nodes.items() if node.owner is session]:
            del self.nodes[path]
            _changed(self.watches, path)


def _changed(watches: dict[str, set[Callable[[object], None]]], path: str) -> None:
    for watch in watches.pop(path, ()):
        watch("an event")


@dataclass
class Answer:
    """The result of an asynchronous call, which is there at once."""

    result: Any

    def get(self, timeout: float) -> Any:
        if isinstance(self.result, Exception):
            raise self.result
        return self.result


class Session:
    """A client: what kazoo's does, as far as the leases need it."""

    def __init__(self, nodes: dict[str, Node], watches: dict[str, set[Callable[[object], None]]]) -> None:
        self._nodes = nodes
        self._watches = watches
        self.listeners: set[Callable[[str], None]] = set()
        self.asked: list[str] = []

    def add_listener(self, listener: Callable[[str], None]) -> None:
        self.listeners.add(listener)

    def sync_async(self, path: str) -> Answer:
        self.asked.append("sync")
        return Answer(path)

    def get_async(self, path: str, watch: Callable[[object], None] | None) -> Answer:
        self.asked.append("get")
        if path not in self._nodes:
            return Answer(NoNodeError())
        if watch is not None:
            self._watches.setdefault(path, set()).add(watch)
        return Answer(self.get(path))

    def get_children_async(self, path: str, watch: Callable[[object], None] | None) -> Answer:
        self.asked.append("children")
        if path not in self._nodes:
            return Answer(NoNodeError())
        if watch is not None:
            self._watches.setdefault(path, set()).add(watch)
        return Answer(self.get_children(path))

    def retry(self, call: Callable[..., Any], *args: Any, **more: Any) -> Any:
        return call(*args, **more)

    def get_children(self, path: str) -> list[str]:
        if path not in self._nodes:
            raise NoNodeError
        return [name.removeprefix(f"{path}/") for name in self._nodes if name.startswith(f"{path}/")]

    def ensure_path(self, path: str, acl: None = None) -> None:
        self._nodes.setdefault(path, Node())

    def get(self, path: str) -> tuple[bytes, Node]:
        if path not in self._nodes:
            raise NoNodeError
        node = self._nodes[path]
        return node.data, Node(node.data, node.version)

    def create(self, path: str, data: bytes = b"", acl: None = None, ephemeral: bool = False) -> None:
        if path in self._nodes:
            raise NodeExistsError
        if path.rpartition("/")[0] not in {"", *self._nodes}:
            raise NoNodeError
        self._nodes[path] = Node(data, 0, self if ephemeral else None)
        _changed(self._watches, path.rpartition("/")[0])

    def set(self, path: str, data: bytes, version: int = -1) -> None:
        if version not in (-1, self._nodes[path].version):
            raise BadVersionError
        self._nodes[path].data = data
        self._nodes[path].version += 1
        _changed(self._watches, path)

    def delete(self, path: str, recursive: bool = False) -> None:
        if recursive:
            for below in [name for name in self._nodes if name.startswith(f"{path}/")]:
                del self._nodes[below]
        elif any(name.startswith(f"{path}/") for name in self._nodes):
            raise NotEmptyError
        elif self._nodes.pop(path, None) is None:
            raise NoNodeError
        _changed(self._watches, path)

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
