"""An HBase client in Python: RPC, ZooKeeper registry, administration, mutations, scans, replication.

    from walferry.hbase import Cell, ClusterAddress, HBaseClient

    with HBaseClient(ClusterAddress("zk.example:2181")) as client:
        client.create_table("orders", {"d": {"VERSIONS": "3"}})
        client.put("orders", [Cell(b"row", b"d", b"amount", b"12")])

Every exported name is documented; docs/api.md says what is stable.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from walferry.hbase.errors import (
    AccessDeniedError,
    CallQueueFullError,
    ConnectionFailedError,
    NamespaceExistsError,
    NamespaceNotFoundError,
    NoSuchFamilyError,
    ReadOnlyTableError,
    RegionNotServedError,
    RemoteError,
    RemoteTransientError,
    RequestTimeoutError,
    RequestTooBigError,
    ScannerLostError,
    ServerBusyError,
    ServerGoneError,
    SnapshotExistsError,
    SnapshotFailedError,
    SnapshotInProgressError,
    SnapshotNotFoundError,
    TableExistsError,
    TableNotFoundError,
    TableStateError,
    ZooKeeperError,
)

if TYPE_CHECKING:
    from walferry.hbase.address import ClusterAddress
    from walferry.hbase.client import HBaseClient
    from walferry.hbase.descriptors import Family, Region, TableDescriptor, new_table
    from walferry.hbase.mutate import (
        Cell,
        append,
        delete_column,
        delete_family,
        delete_family_version,
        delete_row,
        delete_version,
        increment,
        put,
    )
    from walferry.hbase.zookeeper import Server

__all__ = [
    "AccessDeniedError",
    "CallQueueFullError",
    "Cell",
    "ClusterAddress",
    "ConnectionFailedError",
    "Family",
    "HBaseClient",
    "NamespaceExistsError",
    "NamespaceNotFoundError",
    "NoSuchFamilyError",
    "ReadOnlyTableError",
    "Region",
    "RegionNotServedError",
    "RemoteError",
    "RemoteTransientError",
    "RequestTimeoutError",
    "RequestTooBigError",
    "ScannerLostError",
    "Server",
    "ServerBusyError",
    "ServerGoneError",
    "SnapshotExistsError",
    "SnapshotFailedError",
    "SnapshotInProgressError",
    "SnapshotNotFoundError",
    "TableDescriptor",
    "TableExistsError",
    "TableNotFoundError",
    "TableStateError",
    "ZooKeeperError",
    "append",
    "delete_column",
    "delete_family",
    "delete_family_version",
    "delete_row",
    "delete_version",
    "increment",
    "new_table",
    "put",
]

_HOMES = {
    "address": ("ClusterAddress",),
    "client": ("HBaseClient",),
    "descriptors": ("Family", "Region", "TableDescriptor", "new_table"),
    "mutate": (
        "Cell", "append", "delete_column", "delete_family", "delete_family_version", "delete_row", "delete_version",
        "increment", "put",
    ),
    "zookeeper": ("Server",),
}  # fmt: skip
"""modules imported on first use of one of these names: importing the client takes half a second, which a process that
needs only the errors or an address saves"""


def __getattr__(name: str) -> Any:
    for module, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"walferry.hbase.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
