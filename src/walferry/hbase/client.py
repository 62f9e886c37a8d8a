"""The client of one HBase cluster."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from functools import cached_property
from types import TracebackType
from typing import TypeVar

from google.protobuf.message import Message
from kazoo.client import KazooClient

from walferry.clock import steady_s
from walferry.errors import TransientError, WalferryError
from walferry.formats.proto import hbase_pb2 as pb
from walferry.hbase import admin, bulk_load, mutate, scan, schemas, settings, splits, table_states
from walferry.hbase import peers as replication_peers
from walferry.hbase.address import ClusterAddress
from walferry.hbase.authentication import Authenticate
from walferry.hbase.descriptors import SYSTEM_NAMESPACE, Region, TableDescriptor, table_name
from walferry.hbase.errors import RegionNotServedError, TableNotFoundError, TableStateError
from walferry.hbase.locations import Located, Locations
from walferry.hbase.retry import ATTEMPTS, REGION_ATTEMPTS, retried
from walferry.hbase.rpc import ConnectionPool
from walferry.hbase.versions import Release, release_of
from walferry.hbase.zookeeper import Server, ZooKeeper

M = TypeVar("M", bound=Message)
_ASK_FOR_STATE = 3  # failures after which a table may well be disabled
_HBASE_VERSION, _LIVE_SERVERS = 0, 2  # ClusterStatus.Option


class HBaseClient:
    """Everything that walferry asks of one cluster: a context manager that connects at first use.

    Usable from several threads; not picklable (send `ClusterAddress` to other processes). `timeout_s` bounds each
    call. Transient failures are retried a bounded number of times, unless a method says otherwise; errors are those
    of `walferry.hbase.errors`.
    """

    # Each group is documented in its module.
    create_namespace = admin.create_namespace
    namespace_exists = admin.namespace_exists
    create_table = admin.create_table
    create_table_of = admin.create_table_of
    delete_table = admin.delete_table
    truncate_table = admin.truncate_table
    disable_table = admin.disable_table
    enable_table = admin.enable_table
    modify_table = admin.modify_table
    set_read_only = admin.set_read_only
    move_region = admin.move_region
    split_region = splits.split_region
    merge_regions = splits.merge_regions
    flush_table = admin.flush_table
    compact_table = admin.compact_table
    compact_region = admin.compact_region
    region_bytes = admin.region_bytes
    regions_bytes = admin.regions_bytes
    snapshot = admin.snapshot
    snapshots = admin.snapshots
    delete_snapshot = admin.delete_snapshot
    clone_snapshot = admin.clone_snapshot
    restore_snapshot = admin.restore_snapshot
    roll_wal = admin.roll_wal
    write_counts = admin.write_counts
    add_peer = replication_peers.add_peer
    peers = replication_peers.peers
    remove_peer = replication_peers.remove_peer
    peer_queues = replication_peers.peer_queues
    peers_may_change = replication_peers.peers_may_change
    table_enabled = table_states.table_enabled
    lacking_rights = admin.lacking_rights
    schema_fault = schemas.schema_fault

    put = mutate.put_cells
    mutate = mutate.mutate
    scan_raw = scan.scan_raw
    scan = scan.scan
    store_files = bulk_load.store_files
    bulk_load = bulk_load.bulk_load
    unlogged_writes = settings.unlogged_writes
    settings = settings.settings

    def __init__(
        self, address: ClusterAddress, *, timeout_s: float = 60, authenticate: Authenticate | None = None
    ) -> None:
        self.address = address
        self.timeout_s = timeout_s
        self.zookeeper = ZooKeeper(address.zookeeper, address.znode, address.meter())
        self.pool = ConnectionPool(address.user, authenticate, address.meter())
        self._locations = Locations(self.zookeeper, self.pool, timeout_s)

    def __enter__(self) -> HBaseClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections."""
        self.pool.close()
        self.zookeeper.close()

    @property
    def zk(self) -> KazooClient:
        """The started kazoo client, for znodes that are not HBase's."""
        return self.zookeeper.client

    def cluster_id(self) -> str:
        """The cluster's id as HBase stores it: the text of a UUID."""
        return self.zookeeper.cluster_id()

    def cluster_uuid(self) -> uuid.UUID:
        """The cluster's id as it appears in WAL keys."""
        return uuid.UUID(self.cluster_id())

    def master(self) -> Server:
        """The active master."""
        return self.zookeeper.master()

    def servers(self) -> list[Server]:
        """The live region servers."""
        return self.zookeeper.servers()

    def version(self) -> str:
        """The master's version, such as "2.6.3-hadoop3"."""
        request = pb.GetClusterStatusRequest(options=[_HBASE_VERSION])
        answer = self.master_call("GetClusterStatus", request, pb.GetClusterStatusResponse)
        return answer.cluster_status.hbase_version.version

    @cached_property
    def release(self) -> Release:
        """What the cluster's version can do."""
        return release_of(self.version())

    def memstore_bytes(self) -> dict[str, int]:
        """Bytes not yet flushed to store files, by table, as region servers last reported them to the master.

        They report whole MiB per region, so this is a lower bound.
        """
        return self._sizes(lambda region: region.mem_store_size_MB)

    def held_bytes(self) -> dict[str, int]:
        """Bytes in store files and memory, by table, likewise."""
        return self._sizes(lambda region: region.store_file_size_MB + region.mem_store_size_MB)

    def _sizes(self, mebibytes: Callable[[pb.RegionLoad], int]) -> dict[str, int]:
        request = pb.GetClusterStatusRequest(options=[_LIVE_SERVERS])
        answer = self.master_call("GetClusterStatus", request, pb.GetClusterStatusResponse)
        sizes: dict[str, int] = {}
        for server in answer.cluster_status.live_servers:
            for region in server.server_load.region_loads:
                table = region.region_specifier.value.partition(b",")[0].decode()
                sizes[table] = sizes.get(table, 0) + (mebibytes(region) << 20)
        return sizes

    def tables(self, namespace: str | None = None, *, system: bool = False) -> list[str]:
        """Names of all tables, or of one namespace's; HBase's own only with `system`."""
        request = pb.GetTableDescriptorsRequest(include_sys_tables=system)
        if namespace is not None:
            request.namespace = namespace
        answer = self.master_call("GetTableDescriptors", request, pb.GetTableDescriptorsResponse)
        names = sorted(TableDescriptor(schema).name for schema in answer.table_schema)
        return [name for name in names if system or not name.startswith(f"{SYSTEM_NAMESPACE}:")]

    def describe(self, table: str) -> TableDescriptor:
        """The table's schema. Raises TableNotFoundError."""
        request = pb.GetTableDescriptorsRequest(table_names=[table_name(table)], include_sys_tables=True)
        answer = self.master_call("GetTableDescriptors", request, pb.GetTableDescriptorsResponse)
        if not answer.table_schema:
            message = f"there is no table {table} on the cluster at {self.address.zookeeper}"
            raise TableNotFoundError(message, table=table)
        return TableDescriptor(answer.table_schema[0])

    def table_exists(self, table: str) -> bool:
        """Whether there is such a table."""
        try:
            self.describe(table)
        except TableNotFoundError:
            return False
        return True

    def regions(self, table: str) -> list[Region]:
        """The table's regions now, by start row. Raises TableNotFoundError."""
        return retried(lambda: self._locations.regions(table))

    def locate(self, table: str, row: bytes) -> Region:
        """The region that holds a row, as cached; one attempt. Raises RegionNotServedError (transient)."""
        return self._locations.locate(table, row)

    def located(self, table: str) -> Located:
        """All regions of the table, as cached; one attempt. Raises RegionNotServedError (transient)."""
        return self._locations.located(table)

    def forget(self, table: str) -> None:
        """Look up the table's regions again next time."""
        self._locations.forget(table)

    def location_failed(self, table: str, error: TransientError, attempt: int) -> None:
        """Between two attempts of a call to a region: forget where it was.

        Raises TableStateError when the table turns out to be disabled, so that nobody waits for it.
        """
        self.forget(table)
        lost = attempt == _ASK_FOR_STATE and isinstance(error, RegionNotServedError)
        if lost and not self.table_enabled(table):
            raise TableStateError(f"table {table} is disabled; enable it first", table=table) from error

    def master_call(self, method: str, request: Message, response_type: type[M], *, attempts: int = ATTEMPTS) -> M:
        """Call MasterService on the active master."""

        def call() -> M:
            server = self.zookeeper.master().address
            answer, _ = self.pool.call(
                server, "MasterService", method, request, response_type, timeout_s=self.timeout_s
            )
            return answer

        return retried(call, attempts=attempts)

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
    ) -> M:
        """Call the server of the region that holds a row, wherever it moves meanwhile.

        `timeout_s` and `may_send` are those of `RpcConnection.call`, for each attempt; `sent` is called after each that
        the server may have carried out. What these two raise is final.
        """
        final: list[BaseException] = []

        def asked(of: Callable[[], None]) -> None:
            try:
                of()
            except BaseException as error:
                final.append(error)
                raise

        def failed(error: TransientError, attempt: int) -> None:
            if any(error is own for own in final):
                raise error
            self.location_failed(table, error, attempt)

        def call() -> M:
            region = self.locate(table, row)
            assert region.server is not None
            begun = steady_s()  # before `may_send`: a process that is suspended in between sends nothing long after it
            try:
                answer, _ = self.pool.call(
                    region.server.address, service, method, request(region), response_type,
                    timeout_s=timeout_s or self.timeout_s, since=begun, may_send=lambda: asked(may_send),
                )  # fmt: skip
            except WalferryError as error:
                if error.facts.get("sent", True):
                    asked(sent)
                raise
            asked(sent)
            return answer

        return retried(
            call,
            attempts=REGION_ATTEMPTS,
            on_failure=failed,
        )
