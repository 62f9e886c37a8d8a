"""What the functions behind `HBaseClient` need from the client: connections, calls, and where regions are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from google.protobuf.message import Message

from walferry.errors import TransientError
from walferry.hbase.address import ClusterAddress
from walferry.hbase.descriptors import Region, TableDescriptor
from walferry.hbase.locations import Located
from walferry.hbase.rpc import ConnectionPool
from walferry.hbase.versions import Release
from walferry.hbase.zookeeper import ZooKeeper

M = TypeVar("M", bound=Message)


class Calls(Protocol):
    """Connections to one cluster and calls to its master and regions. `HBaseClient` documents each member."""

    address: ClusterAddress
    timeout_s: float
    master_attempts: int
    zookeeper: ZooKeeper
    pool: ConnectionPool

    @property
    def release(self) -> Release: ...

    def describe(self, table: str) -> TableDescriptor: ...

    def regions(self, table: str) -> list[Region]: ...

    def locate(self, table: str, row: bytes) -> Region: ...

    def located(self, table: str) -> Located: ...

    def forget(self, table: str) -> None: ...

    def location_failed(self, table: str, error: TransientError, attempt: int) -> None: ...

    def master_call(
        self, method: str, request: Message, response_type: type[M], *, attempts: int | None = None
    ) -> M: ...

    def region_call(
        self,
        table: str,
        row: bytes,
        service: str,
        method: str,
        request: Callable[[Region], Message],
        response_type: type[M],
        *,
        timeout_s: float | None = None,
        may_send: Callable[[], None] = lambda: None,
        sent: Callable[[], None] = lambda: None,
    ) -> M: ...
