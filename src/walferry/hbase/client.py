"""The client of one HBase cluster."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cached_property
from types import TracebackType
from typing import TypeVar

from google.protobuf.message import Message
from kazoo.client import KazooClient

from walferry.errors import TransientError
from walferry.formats.proto import hbase_pb2 as pb
from walferry.hbase import admin, bulk_load, mutate, region_calls, scan, schemas, server_pages, splits, table_states
from walferry.hbase import identity as own_identity
from walferry.hbase import peers as replication_peers
from walferry.hbase import read_points as mvcc
from walferry.hbase import rights as granted
from walferry.hbase.address import ClusterAddress
from walferry.hbase.authentication import login
from walferry.hbase.descriptors import Range, Region, TableDescriptor
from walferry.hbase.errors import RegionNotServedError, TableNotFoundError, TableStateError
from walferry.hbase.locations import Located, Locations
from walferry.hbase.mutate import Cell
from walferry.hbase.peers import PINNING_ENDPOINT
from walferry.hbase.procedures import DEADLINE_S, Nonce
from walferry.hbase.retry import ATTEMPTS, retry_call
from walferry.hbase.rights import Right
from walferry.hbase.rpc import ConnectionPool
from walferry.hbase.scan import MAX_RESULT_BYTES
from walferry.hbase.versions import Release, release_of
from walferry.hbase.zookeeper import Server, ZooKeeper

M = TypeVar("M", bound=Message)
_ASK_FOR_STATE = 3  # after so many failures, check whether the table is disabled
_HBASE_VERSION = 0  # ClusterStatus.Option


class HBaseClient:
    """A client of one HBase cluster: a context manager that connects at first use.

    Thread-safe, but not picklable: send `ClusterAddress` to other processes. `timeout_s` bounds each call. Transient
    failures are retried, unless a method says otherwise; `master_attempts`: of calls to the master. See `errors`.
    """

    def __init__(self, address: ClusterAddress, *, timeout_s: float = 60, master_attempts: int = ATTEMPTS) -> None:
        self.address = address
        self.master_attempts = master_attempts
        self.timeout_s = timeout_s
        self.zookeeper = ZooKeeper.of(address)
        self.pool = ConnectionPool(login(address), address.meter(), address.security.rpc_tls)
        self._locations = Locations(self.zookeeper, self.pool, timeout_s)
        own_identity.let_workers_log_in(address, HBaseClient)

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
        return admin.table_bytes(self, lambda region: region.mem_store_size_MB)

    def held_bytes(self) -> dict[str, int]:
        """Bytes in store files and in memory, by table: the same reports, so a lower bound too."""
        return admin.table_bytes(self, lambda region: region.store_file_size_MB + region.mem_store_size_MB)

    def tables(self, namespace: str | None = None, *, system: bool = False) -> list[str]:
        """Names of all tables, or of those in one namespace; HBase's own tables only with `system`."""
        return admin.tables(self, namespace, system=system)

    def describe(self, table: str) -> TableDescriptor:
        """The table's schema. Raises TableNotFoundError."""
        return admin.get_descriptor(self, table)

    def table_exists(self, table: str) -> bool:
        """Whether the table exists."""
        try:
            self.describe(table)
        except TableNotFoundError:
            return False
        return True

    def regions(self, table: str) -> list[Region]:
        """The table's regions now, by start row. Raises TableNotFoundError."""
        return retry_call(lambda: self._locations.regions(table))

    def locate(self, table: str, row: bytes) -> Region:
        """The region that holds a row, from the cache; one attempt. Raises RegionNotServedError (transient)."""
        return self._locations.locate(table, row)

    def located(self, table: str) -> Located:
        """All regions of the table, from the cache; one attempt. Raises RegionNotServedError (transient)."""
        return self._locations.located(table)

    def forget(self, table: str) -> None:
        """Look up the table's regions again next time."""
        self._locations.forget(table)

    def location_failed(self, table: str, error: TransientError, attempt: int) -> None:
        """Forget where the region was, between two attempts of a call to it.

        Raises TableStateError if the table turns out to be disabled, so that nobody waits for it.
        """
        self.forget(table)
        lost = attempt == _ASK_FOR_STATE and isinstance(error, RegionNotServedError)
        if lost and not self.table_enabled(table):
            raise TableStateError(f"table {table} is disabled; enable it first", table=table) from error

    def master_call(self, method: str, request: Message, response_type: type[M], *, attempts: int | None = None) -> M:
        """Call MasterService on the active master; `attempts` other than the client's `master_attempts`."""

        def call() -> M:
            server = self.zookeeper.master().address
            answer, _ = self.pool.call(
                server, "MasterService", method, request, response_type, timeout_s=self.timeout_s
            )
            return answer

        return retry_call(call, attempts=self.master_attempts if attempts is None else attempts)

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
        """Call the server of the region that holds a row, and follow the region when it moves.

        `timeout_s` and `may_send` are those of `RpcConnection.call` and apply to each attempt. `sent` is called after
        each attempt that the server may have carried out. Errors that these two callables raise are final.
        """
        return region_calls.region_call(
            self, table, row, service, method, request, response_type,
            timeout_s=timeout_s, may_send=may_send, sent=sent,
        )  # fmt: skip

    def create_namespace(self, namespace: str) -> None:
        """Create a namespace. Raises NamespaceExistsError."""
        admin.create_namespace(self, namespace)

    def namespace_exists(self, namespace: str) -> bool:
        """Whether the namespace exists."""
        return admin.namespace_exists(self, namespace)

    def create_table(
        self,
        name: str,
        families: Mapping[str, Mapping[str, str]],
        split_keys: Sequence[bytes] = (),
    ) -> None:
        """Create a table. `families` maps family names to attributes ({"VERSIONS": "3"}). Raises TableExistsError."""
        admin.create_table(self, name, families, split_keys)

    def create_table_of(self, descriptor: TableDescriptor, split_keys: Sequence[bytes] = ()) -> None:
        """Create a table with this name and schema. Raises TableExistsError."""
        admin.create_table_of(self, descriptor, split_keys)

    def delete_table(self, name: str) -> None:
        """Delete a disabled table. Raises TableNotFoundError, TableStateError."""
        admin.delete_table(self, name)

    def truncate_table(self, name: str, preserve_splits: bool = True, *, nonce: Nonce | None = None) -> None:
        """Empty a disabled table and enable it. Repeating the call with the same `nonce` changes nothing.

        Raises TableNotFoundError, TableStateError.
        """
        admin.truncate_table(self, name, preserve_splits, nonce=nonce)

    def disable_table(self, name: str) -> None:
        """Close all regions of a table. Raises TableStateError if the table is already disabled."""
        admin.disable_table(self, name)

    def enable_table(self, name: str) -> None:
        """Open the regions of a disabled table again. Raises TableStateError if the table is already enabled."""
        admin.enable_table(self, name)

    def modify_table(self, descriptor: TableDescriptor, deadline_s: float = DEADLINE_S) -> None:
        """Change a table's schema; HBase reopens its regions one after the other. TransientError after `deadline_s`."""
        admin.modify_table(self, descriptor, deadline_s)

    def set_read_only(self, name: str, read_only: bool) -> None:
        """Set a table's READONLY: once this returns, every region refuses writes, or accepts them again.

        The schema may already have the value while an earlier, timed-out request is still reopening regions. So the
        value is always set again: the master runs one modification after the other.
        """
        admin.set_read_only(self, name, read_only)

    def move_region(self, region: Region, server: Server | None = None) -> None:
        """Move a region to a server (ServerGoneError if that is gone) or to HBase's choice; returns when it is open."""
        admin.move_region(self, region, server)

    def split_region(self, region: Region, split_row: bytes) -> None:
        """Split a region in two at a row; returns when both are open."""
        splits.split_region(self, region, split_row)

    def merge_regions(self, regions: Sequence[Region]) -> None:
        """Merge adjacent regions of a table into one; returns when it is open."""
        splits.merge_regions(self, regions)

    def flush_table(self, name: str) -> None:
        """Write every region's memstore to files."""
        admin.flush_table(self, name)

    def compact_table(self, name: str, major: bool = False) -> None:
        """Request a compaction of every region; returns before the servers have compacted."""
        admin.compact_table(self, name, major)

    def compact_region(
        self,
        table: str,
        row: bytes,
        families: Collection[bytes],
        *,
        deadline_s: float = DEADLINE_S,
        timeout_s: float | None = None,
        may_send: Callable[[], None] = lambda: None,
        sent: Callable[[], None] = lambda: None,
    ) -> Region:
        """Flush the region that holds a row, major-compact some of its families, and wait. Returns the region.

        Everything written before the call is then in one file for each family, without delete markers and the cells
        that they hide. An open scan or KEEP_DELETED_CELLS may keep those: check the rows. Raises TransientError at the
        deadline.

        `may_send` is called before the flush and before each request for a compaction, `sent` after each of them; both
        may raise (`RpcConnection.call`). `timeout_s` bounds each such request, in which the server only selects the
        files.
        """
        return admin.compact_region(
            self, table, row, families, deadline_s=deadline_s, timeout_s=timeout_s, may_send=may_send, sent=sent
        )

    def region_bytes(self, region: Region) -> int | None:
        """Bytes in the store files and the memory of a region, as its server reports them now, in whole MiB; None if
        the server cannot report them (RSRpcServices.getRegionLoad)."""
        return admin.region_bytes(self, region)

    def regions_bytes(self, regions: Collection[Region]) -> dict[str, int]:
        """`region_bytes` of several regions, by encoded name, with one request to each server. Regions whose server
        cannot report them are left out."""
        return admin.regions_bytes(self, regions)

    def snapshot(self, name: str, table: str, *, deadline_s: float = DEADLINE_S) -> pb.SnapshotDescription:
        """Take a snapshot and wait for it: all edits acknowledged before the call are in it.

        HBase flushes the regions first (FLUSH). The regions of a READONLY table refuse to flush; they were flushed when
        they closed to reopen as READONLY, so their snapshot skips the flush (SKIPFLUSH).

        Idempotent: a finished snapshot of that name and table is returned (check its `creation_time`, in ms). A
        snapshot that fails is taken again, up to SNAPSHOT_ATTEMPTS times, since a region may have moved. Raises
        SnapshotExistsError if the name belongs to another table's snapshot, TransientError at the deadline, RemoteError
        if the snapshot failed.
        """
        return admin.snapshot(self, name, table, deadline_s=deadline_s)

    def snapshots(self) -> list[pb.SnapshotDescription]:
        """All finished snapshots."""
        return admin.snapshots(self)

    def delete_snapshot(self, name: str) -> bool:
        """Delete a snapshot; False if there was none.

        The master must read the snapshot first. For some seconds after a restart of HDFS it may be unable to, and
        leaves the snapshot out of its list. Raises TransientError for a snapshot that the master cannot read.
        """
        return admin.delete_snapshot(self, name)

    def clone_snapshot(self, name: str, table: str) -> None:
        """Create a table from a snapshot. Raises SnapshotNotFoundError, and TableExistsError, which leaves the existing
        table unchanged."""
        admin.clone_snapshot(self, name, table)

    def restore_snapshot(self, name: str) -> None:
        """Revert a disabled table to its snapshot; later edits are lost. Raises SnapshotNotFoundError."""
        admin.restore_snapshot(self, name)

    def roll_wal(self, server: Server, *, attempts: int = ATTEMPTS) -> None:
        """Ask a region server to roll its WALs. The server rolls them later: watch its WALs for the effect."""
        admin.roll_wal(self, server, attempts=attempts)

    def write_counts(
        self, server: Server, tables: Collection[str], *, attempts: int = ATTEMPTS
    ) -> dict[str, int] | None:
        """Write requests that each region of these tables has started since it opened on a server, by encoded name.

        None if a server cannot report them (RSRpcServices.getRegionLoad).
        """
        return admin.write_counts(self, server, tables, attempts=attempts)

    def read_points(self, asked: Sequence[tuple[str, Region]], *, attempts: int = ATTEMPTS) -> list[int | None]:
        """The present MVCC read point of regions, each as one server ("host,port,startcode") tells it, in their order.

        All writes that were acknowledged before the call have numbers up to the read point. All up to it are complete:
        synced to the log unless their durability is ASYNC_WAL, or failed. None if that server process does not serve
        the region now. That says nothing about its earlier writes, nor that it will not serve the region again.

        One error fails the whole call, so ask about one server at a time if one that hangs must not hold up others.
        """
        return mvcc.read_points(self, asked, attempts=attempts)

    def add_peer(self, peer_id: str, endpoint_class: str = PINNING_ENDPOINT, *, enabled: bool = False) -> None:
        """Add a replication peer. Idempotent; raises UsageError if a different peer has this id.

        Its queues appear a little later: see `peer_queues`.
        """
        replication_peers.add_peer(self, peer_id, endpoint_class, enabled=enabled)

    def peers(self) -> dict[str, tuple[bool, str]]:
        """The replication peers: id -> (enabled, class of its endpoint, "" for HBase's own)."""
        return replication_peers.peers(self)

    def remove_peer(self, peer_id: str) -> bool:
        """Remove a replication peer and its queues; False if there was none."""
        return replication_peers.remove_peer(self, peer_id)

    def peer_queues(self, peer_id: str) -> dict[str, set[str]]:
        """The names of the WALs that a peer holds, by server."""
        return replication_peers.peer_queues(self, peer_id)

    def peers_may_change(self) -> bool | None:
        """Whether replication peers can be added now; None if the cluster does not have this switch.

        (HMaster.isReplicationPeerModificationEnabled; `peer_modification_switch` in HBase's shell.)
        """
        return replication_peers.peers_may_change(self)

    def table_enabled(self, table: str) -> bool:
        """Whether the table is enabled. Raises TableNotFoundError."""
        return table_states.table_enabled(self, table)

    def who_am_i(self) -> str | None:
        """The user that HBase takes the client for, by its own rules for names; None if it does not tell, since it is
        not secured (TokenProvider, AuthenticationService)."""
        return own_identity.who_am_i(self)

    def lacking_rights(self, wanted: Sequence[Right]) -> list[Right] | None:
        """Which of these rights the client's user lacks (MasterRpcServices.hasUserPermissions).

        None if HBase checks no rights, since it has no AccessController, or cannot report them (before 2.2).
        """
        return granted.lacking_rights(self, wanted)

    def schema_fault(self, descriptor: TableDescriptor) -> str | None:
        """Why the master would refuse to create such a table, in the master's words; None if it would create it."""
        return schemas.schema_fault(self, descriptor)

    def put(self, table: str, cells: Sequence[Cell]) -> None:
        """Put cells of any rows; see `mutate`."""
        mutate.put_cells(self, table, cells)

    def mutate(self, table: str, mutations: Sequence[pb.MutationProto]) -> list[pb.Result]:
        """Send mutations, grouped by region. Returns their results in the same order (cells for increment and append).

        Mutations that fail transiently are sent again without the others, at most REGION_ATTEMPTS times: mutations of
        one row may then be reordered, as with HBase's own client. Increments and appends carry a nonce, so that a
        repeated one counts once. The first final error is raised after all other mutations were sent; its fact `failed`
        is the number of mutations refused.
        """
        return mutate.mutate(self, table, mutations)

    def scan_raw(
        self,
        table: str,
        start: bytes = b"",
        stop: bytes = b"",
        *,
        families: Sequence[str] | None = None,
        max_result_bytes: int = MAX_RESULT_BYTES,
        rows: Sequence[bytes | Range] = (),
        since_ms: int | None = None,
    ) -> Iterator[bytes]:
        """Every stored cell from row `start` (included) to row `stop` (excluded), in HBase's order; b"" = no bound.

        Raw: all versions, delete markers, masked cells, cells beyond their family's TTL, tags. The server leaves out
        cells beyond a TTL of their own (tag 8), and compactions drop what no reader sees. Yields cell blocks (a
        sequence of int32 length + KeyValue with tags) of whole rows only: about `max_result_bytes` each, more if a
        single row is larger. The server does not cache the blocks it reads. `rows` limits the scan to these rows and
        ranges of rows, in order: the server seeks from one to the next. `since_ms` limits it to cells and delete
        markers of that timestamp or newer: the server skips store files without any.

        A scan survives region moves, splits, lost scanners and restarts: it continues after the last row yielded, so
        that no row is missing or repeated. Raises TableNotFoundError, and TransientError after REGION_ATTEMPTS failures
        without a row in between.
        """
        return scan.scan_raw(
            self, table, start, stop, families=families, max_result_bytes=max_result_bytes, rows=rows, since_ms=since_ms
        )

    def scan(
        self,
        table: str,
        start: bytes = b"",
        stop: bytes = b"",
        *,
        families: Sequence[str] | None = None,
        max_versions: int = 1,
        max_result_bytes: int = MAX_RESULT_BYTES,
    ) -> Iterator[bytes]:
        """The cells that an ordinary reader sees, at most `max_versions` per column; otherwise like `scan_raw`."""
        return scan.scan(
            self, table, start, stop, families=families, max_versions=max_versions, max_result_bytes=max_result_bytes
        )

    def store_files(self, region: Region, *families: bytes) -> list[str]:
        """The files, by name or path, that the open stores of a region have. One attempt."""
        return bulk_load.store_files(self, region, *families)

    def bulk_load(
        self,
        region: Region,
        files: Sequence[tuple[bytes, str]],
        cluster_ids: Sequence[str],
        *,
        timeout_s: float = 60,
        since: float | None = None,
        may_send: Callable[[], None] = lambda: None,
    ) -> bool:
        """Move HFiles, as (family, path on HBase's file system), into a region in one atomic change.

        Each cell gets the sequence number of the load, so it replaces equal cells written earlier. HBase moves the
        files away from their paths without reading their cells. Their order matters only if they share keys.
        `cluster_ids` are the clusters (UUIDs) that the cells have been on; a server whose own cluster is among them
        answers True and loads nothing. `timeout_s`, `since` and `may_send` are those of `RpcConnection.call`.

        One attempt, no retries. Returns False if the region could not take the files; nothing was loaded then. After a
        transient error whose fact `sent` is not False, the files may have been loaded, or may still be loaded later.
        """
        return bulk_load.bulk_load(
            self, region, files, cluster_ids, timeout_s=timeout_s, since=since, may_send=may_send
        )

    def unlogged_writes(self, server: Server) -> int | None:
        """How many mutations without a WAL entry (SKIP_WAL) the current regions of a server took since they opened.

        The server updates the count every five seconds and may report one that is ten seconds old: see COUNTED_LATE_MS.
        None if the count cannot be read, for the same reasons as `settings`.
        """
        return server_pages.unlogged_writes(self, server)

    def settings(self, server: Server) -> dict[str, str] | None:
        """All settings of a region server by name, HBase's defaults included.

        None if they cannot be read: the server has no web pages (`hbase.regionserver.info.port`), or its pages cannot
        be reached, serve TLS only, or require a login.
        """
        return server_pages.settings(self, server)
