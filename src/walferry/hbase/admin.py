"""Administration: tables, snapshots, regions and WALs.

Calls that change something carry a nonce where HBase accepts one: a call repeated after a time-out then finds the
procedure of the first call instead of starting another. Elsewhere the outcome is looked up before the call is repeated.
`HBaseClient` documents each function at its method of the same name.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import TypeVar

from google.protobuf.message import Message

from walferry.errors import TransientError
from walferry.formats.proto import hbase_pb2 as pb
from walferry.hbase import procedures
from walferry.hbase.calls import Calls
from walferry.hbase.descriptors import SYSTEM_NAMESPACE, Region, TableDescriptor, new_table, table_name
from walferry.hbase.errors import (
    NamespaceNotFoundError,
    RemoteError,
    ServerGoneError,
    SnapshotExistsError,
    SnapshotFailedError,
    SnapshotInProgressError,
    SnapshotNotFoundError,
    TableExistsError,
    TableNotFoundError,
    unknown_there,
)
from walferry.hbase.procedures import (
    DEADLINE_S,
    Nonce,
    await_procedure,
    await_reopened,
    await_restored,
    procedure,
    wait,
    with_nonce,
)
from walferry.hbase.retry import ATTEMPTS, retry_call
from walferry.hbase.zookeeper import Server

log = logging.getLogger(__name__)

R = TypeVar("R", bound=Message)

MOVE_AGAIN_S = 15.0
"""after this a move is requested again: a 1.x master drops the request while the region is in transition"""

SNAPSHOT_ATTEMPTS = 10
_LIVE_SERVERS = 2  # ClusterStatus.Option


def table_bytes(client: Calls, mebibytes: Callable[[pb.RegionLoad], int]) -> dict[str, int]:
    """By table, in bytes: the sum over its regions of the MiB that live servers last reported to the master."""
    request = pb.GetClusterStatusRequest(options=[_LIVE_SERVERS])
    answer = client.master_call("GetClusterStatus", request, pb.GetClusterStatusResponse)
    sizes: dict[str, int] = {}
    for server in answer.cluster_status.live_servers:
        for region in server.server_load.region_loads:
            table = region.region_specifier.value.partition(b",")[0].decode()
            sizes[table] = sizes.get(table, 0) + (mebibytes(region) << 20)
    return sizes


def tables(client: Calls, namespace: str | None = None, *, system: bool = False) -> list[str]:
    request = pb.GetTableDescriptorsRequest(include_sys_tables=system)
    if namespace is not None:
        request.namespace = namespace
    answer = client.master_call("GetTableDescriptors", request, pb.GetTableDescriptorsResponse)
    names = sorted(TableDescriptor(schema).name for schema in answer.table_schema)
    return [name for name in names if system or not name.startswith(f"{SYSTEM_NAMESPACE}:")]


def get_descriptor(client: Calls, table: str) -> TableDescriptor:
    request = pb.GetTableDescriptorsRequest(table_names=[table_name(table)], include_sys_tables=True)
    answer = client.master_call("GetTableDescriptors", request, pb.GetTableDescriptorsResponse)
    if not answer.table_schema:
        message = f"there is no table {table} on the cluster at {client.address.zookeeper}"
        raise TableNotFoundError(message, table=table)
    return TableDescriptor(answer.table_schema[0])


def create_namespace(client: Calls, namespace: str) -> None:
    descriptor = pb.NamespaceDescriptor(name=namespace.encode())
    request = pb.CreateNamespaceRequest(namespaceDescriptor=descriptor)
    procedure(client, "CreateNamespace", request, pb.CreateNamespaceResponse, namespace)


def namespace_exists(client: Calls, namespace: str) -> bool:
    request = pb.GetNamespaceDescriptorRequest(namespaceName=namespace)
    try:
        client.master_call("GetNamespaceDescriptor", request, pb.GetNamespaceDescriptorResponse)
    except NamespaceNotFoundError:
        return False
    return True


def create_table(
    client: Calls,
    name: str,
    families: Mapping[str, Mapping[str, str]],
    split_keys: Sequence[bytes] = (),
) -> None:
    create_table_of(client, new_table(name, families), split_keys)


def create_table_of(client: Calls, descriptor: TableDescriptor, split_keys: Sequence[bytes] = ()) -> None:
    request = pb.CreateTableRequest(table_schema=descriptor.schema, split_keys=split_keys)
    procedure(client, "CreateTable", request, pb.CreateTableResponse, descriptor.name)
    client.forget(descriptor.name)


def delete_table(client: Calls, name: str) -> None:
    request = pb.DeleteTableRequest(table_name=table_name(name))
    procedure(client, "DeleteTable", request, pb.DeleteTableResponse, name)
    client.forget(name)


def truncate_table(client: Calls, name: str, preserve_splits: bool = True, *, nonce: Nonce | None = None) -> None:
    request = pb.TruncateTableRequest(tableName=table_name(name), preserveSplits=preserve_splits)
    procedure(client, "truncateTable", request, pb.TruncateTableResponse, name, nonce)
    client.forget(name)


def disable_table(client: Calls, name: str) -> None:
    request = pb.DisableTableRequest(table_name=table_name(name))
    procedure(client, "DisableTable", request, pb.DisableTableResponse, name)
    client.forget(name)


def enable_table(client: Calls, name: str) -> None:
    request = pb.EnableTableRequest(table_name=table_name(name))
    procedure(client, "EnableTable", request, pb.EnableTableResponse, name)
    client.forget(name)


def modify_table(client: Calls, descriptor: TableDescriptor, deadline_s: float = DEADLINE_S) -> None:
    request = pb.ModifyTableRequest(table_name=descriptor.schema.table_name, table_schema=descriptor.schema)
    procedure(client, "ModifyTable", request, pb.ModifyTableResponse, descriptor.name, deadline_s=deadline_s)
    if not client.release.changes_are_procedures:
        await_reopened(client, descriptor.name, deadline_s)


def set_read_only(client: Calls, name: str, read_only: bool) -> None:
    descriptor = client.describe(name)
    modify_table(client, descriptor.with_attribute("READONLY", str(read_only).lower()))


def move_region(client: Calls, region: Region, server: Server | None = None) -> None:
    request = pb.MoveRegionRequest(region=region.encoded_specifier)
    if server is not None:
        request.dest_server_name.CopyFrom(
            pb.ServerName(host_name=server.host, port=server.port, start_code=server.start_code)
        )
    client.master_call("MoveRegion", request, pb.MoveRegionResponse)
    asked = time.monotonic()

    def moved() -> bool:
        nonlocal asked
        now = {r.encoded: r for r in client.regions(region.table)}.get(region.encoded)
        if now is None or now.server is None:
            return False
        if server in (None, now.server):
            return True
        if time.monotonic() - asked > MOVE_AGAIN_S:
            if server not in client.zookeeper.servers():  # its master opens the region elsewhere, each time
                raise ServerGoneError(
                    f"region {region.encoded} of {region.table} cannot move to {server.name}, which is gone",
                    region=region.encoded, server=server.name,
                )  # fmt: skip
            client.master_call("MoveRegion", request, pb.MoveRegionResponse)
            asked = time.monotonic()
        return False

    wait(moved, f"the move of region {region.encoded} of {region.table}", DEADLINE_S)


def flush_table(client: Calls, name: str) -> None:
    for region in client.regions(name):
        client.region_call(
            name,
            region.start,
            "AdminService",
            "FlushRegion",
            lambda current: pb.FlushRegionRequest(region=current.specifier),
            pb.FlushRegionResponse,
        )


def compact_table(client: Calls, name: str, major: bool = False) -> None:
    for region in client.regions(name):
        client.region_call(
            name,
            region.start,
            "AdminService",
            "CompactRegion",
            lambda current: pb.CompactRegionRequest(region=current.specifier, major=major),
            pb.CompactRegionResponse,
        )


def region_bytes(client: Calls, region: Region) -> int | None:
    return regions_bytes(client, [region]).get(region.encoded)


def regions_bytes(client: Calls, regions: Collection[Region]) -> dict[str, int]:
    wanted = {region.encoded for region in regions}
    sizes = {}
    for server in {region.server for region in regions if region.server}:
        for load in _region_loads(client, server) or ():
            if (name := _encoded(load)) in wanted:
                sizes[name] = (load.store_file_size_MB + load.mem_store_size_MB) << 20
    return sizes


def compact_region(
    client: Calls,
    table: str,
    row: bytes,
    families: Collection[bytes],
    *,
    deadline_s: float = DEADLINE_S,
    timeout_s: float | None = None,
    may_send: Callable[[], None] = lambda: None,
    sent: Callable[[], None] = lambda: None,
) -> Region:
    call = partial(client.region_call, table, row, "AdminService")
    call(
        "FlushRegion", lambda region: pb.FlushRegionRequest(region=region.specifier), pb.FlushRegionResponse,
        may_send=may_send,
    )  # fmt: skip
    for family in sorted(families):
        call(
            "CompactRegion", partial(_major_compaction, family), pb.CompactRegionResponse,
            timeout_s=timeout_s, may_send=may_send, sent=sent,
        )  # fmt: skip

    def ended() -> bool:
        answer = call(
            "GetRegionInfo",
            lambda region: pb.GetRegionInfoRequest(region=region.specifier, compaction_state=True),
            pb.GetRegionInfoResponse,
        )
        return answer.compaction_state == pb.GetRegionInfoResponse.NONE

    wait(ended, f"the compaction of the region of {table} that holds row {row!r}", deadline_s)
    return client.locate(table, row)


def _major_compaction(family: bytes, region: Region) -> pb.CompactRegionRequest:
    return pb.CompactRegionRequest(region=region.specifier, major=True, family=family)


def write_counts(
    client: Calls, server: Server, tables: Collection[str], *, attempts: int = ATTEMPTS
) -> dict[str, int] | None:
    loads = _region_loads(client, server, attempts)
    if loads is None:
        return None
    return {
        _encoded(load): load.write_requests_count
        for load in loads
        if load.region_specifier.value.partition(b",")[0].decode() in tables
    }


def _encoded(load: pb.RegionLoad) -> str:
    """The encoded name of the region that a load describes."""
    return load.region_specifier.value.rstrip(b".").rpartition(b".")[2].decode()


def _region_loads(client: Calls, server: Server, attempts: int = ATTEMPTS) -> list[pb.RegionLoad] | None:
    if not client.release.counts_writes:
        return None
    try:
        answer, _ = retry_call(
            lambda: client.pool.call(
                server.address,
                "AdminService",
                "GetRegionLoad",
                pb.GetRegionLoadRequest(),
                pb.GetRegionLoadResponse,
                timeout_s=client.timeout_s,
            ),
            attempts=attempts,
        )
    except RemoteError as error:
        if unknown_there(error):  # during a rolling upgrade a server can be older than the master
            return None
        raise
    return list(answer.region_loads)


def roll_wal(client: Calls, server: Server, *, attempts: int = ATTEMPTS) -> None:
    retry_call(
        lambda: client.pool.call(
            server.address,
            "AdminService",
            "RollWALWriter",
            pb.RollWALWriterRequest(),
            pb.RollWALWriterResponse,
            timeout_s=client.timeout_s,
        ),
        attempts=attempts,
    )


def snapshot(client: Calls, name: str, table: str, *, deadline_s: float = DEADLINE_S) -> pb.SnapshotDescription:
    what = f"snapshot {name} of {table}"
    wanted = pb.SnapshotDescription(name=name, table=table)
    deadline = time.monotonic() + deadline_s

    def finished() -> pb.SnapshotDescription | None:
        found = next((one for one in snapshots(client) if one.name == name), None)
        if found is not None and found.table != table:
            raise SnapshotExistsError(
                f"snapshot {name} already exists, but of table {found.table} instead of {table}",
                snapshot=name,
                table=found.table,
            )
        return found

    def done() -> bool:
        answer = client.master_call(
            "IsSnapshotDone", pb.IsSnapshotDoneRequest(snapshot=wanted), pb.IsSnapshotDoneResponse
        )
        return answer.done

    failures = 0
    while (found := finished()) is None:
        left = deadline - time.monotonic()
        read_only = client.describe(table).read_only
        wanted.type = pb.SnapshotDescription.SKIPFLUSH if read_only else pb.SnapshotDescription.FLUSH
        try:
            request = with_nonce(pb.SnapshotRequest(snapshot=wanted))
            answer = client.master_call("Snapshot", request, pb.SnapshotResponse)
            if answer.HasField("proc_id"):
                await_procedure(client, answer, what, left)
            else:
                wait(done, what, left)  # before 2.6 a snapshot is not a procedure
        except (SnapshotInProgressError, SnapshotExistsError) as error:
            # An earlier call of ours whose answer was lost, or somebody else, takes it: wait and look again.
            if left <= 0:
                raise TransientError(f"{what} cannot start: {error}", snapshot=name, table=table) from error
            time.sleep(procedures.MAX_POLL_S)
        except (SnapshotFailedError, SnapshotNotFoundError) as error:
            # Not found: before 2.6 it ends with the master that took it, and the next one does not know it.
            failures += 1
            if left <= 0 or failures == SNAPSHOT_ATTEMPTS:
                raise
            log.warning("%s failed; taking it again: %s", what, error)
            time.sleep(procedures.MAX_POLL_S)
    return found


def snapshots(client: Calls) -> list[pb.SnapshotDescription]:
    answer = client.master_call(
        "GetCompletedSnapshots", pb.GetCompletedSnapshotsRequest(), pb.GetCompletedSnapshotsResponse
    )
    return list(answer.snapshots)


def delete_snapshot(client: Calls, name: str) -> bool:
    request = pb.DeleteSnapshotRequest(snapshot=pb.SnapshotDescription(name=name))
    attempts = 0

    def delete() -> bool:
        nonlocal attempts
        attempts += 1
        try:
            client.master_call("DeleteSnapshot", request, pb.DeleteSnapshotResponse, attempts=1)
        except SnapshotNotFoundError:
            return attempts > 1  # an earlier call deleted the snapshot, but its answer was lost
        except SnapshotFailedError as error:
            raise TransientError(f"snapshot {name} cannot be deleted now: {error}", snapshot=name) from error
        return True

    return retry_call(delete, attempts=client.master_attempts)


def clone_snapshot(client: Calls, name: str, table: str) -> None:
    found = next((one for one in snapshots(client) if one.name == name), None)
    if found is None:
        raise SnapshotNotFoundError(f"there is no snapshot {name}", snapshot=name)
    if _table_exists(client, table):
        # RestoreSnapshot would revert an existing table to the snapshot.
        raise TableExistsError(f"table {table} already exists; snapshot {name} was not cloned", table=table)
    target = pb.SnapshotDescription()
    target.CopyFrom(found)
    target.table = table  # another table than the snapshot's own: this makes it a clone
    _restore(client, target, table)


def restore_snapshot(client: Calls, name: str) -> None:
    found = next((one for one in snapshots(client) if one.name == name), None)
    if found is None:
        raise SnapshotNotFoundError(f"there is no snapshot {name}", snapshot=name)
    _restore(client, found, found.table)


def _restore(client: Calls, snapshot: pb.SnapshotDescription, table: str) -> None:
    request = pb.RestoreSnapshotRequest(snapshot=snapshot)
    procedure(client, "RestoreSnapshot", request, pb.RestoreSnapshotResponse, table)
    if not client.release.changes_are_procedures:
        await_restored(client, snapshot)
    client.forget(table)


def _table_exists(client: Calls, table: str) -> bool:
    try:
        client.describe(table)
    except TableNotFoundError:
        return False
    return True
