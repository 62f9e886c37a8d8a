"""Administration: tables, snapshots, regions and WALs.

Calls that change something carry a nonce where HBase accepts one: a call repeated after a time-out then finds the
procedure of the first instead of starting another. Elsewhere the outcome is looked up before the call is repeated.
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
from walferry.hbase.descriptors import Region, TableDescriptor, new_table, table_name
from walferry.hbase.errors import (
    NamespaceNotFoundError,
    RemoteError,
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
from walferry.hbase.retry import ATTEMPTS, retried
from walferry.hbase.zookeeper import Server

log = logging.getLogger(__name__)

R = TypeVar("R", bound=Message)

MOVE_AGAIN_S = 15.0
"""after which a move is asked for again: a master of 1.x drops one of a region that is just in transition"""

SNAPSHOT_ATTEMPTS = 10


def create_namespace(client: Calls, namespace: str) -> None:
    """Create a namespace. Raises NamespaceExistsError."""
    descriptor = pb.NamespaceDescriptor(name=namespace.encode())
    request = pb.CreateNamespaceRequest(namespaceDescriptor=descriptor)
    procedure(client, "CreateNamespace", request, pb.CreateNamespaceResponse, namespace)


def namespace_exists(client: Calls, namespace: str) -> bool:
    """Whether there is such a namespace."""
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
    """Create a table. `families` maps family names to attributes ({"VERSIONS": "3"}). Raises TableExistsError."""
    create_table_of(client, new_table(name, families), split_keys)


def create_table_of(client: Calls, descriptor: TableDescriptor, split_keys: Sequence[bytes] = ()) -> None:
    """Create a table of this name and schema. Raises TableExistsError."""
    request = pb.CreateTableRequest(table_schema=descriptor.schema, split_keys=split_keys)
    procedure(client, "CreateTable", request, pb.CreateTableResponse, descriptor.name)
    client.forget(descriptor.name)


def delete_table(client: Calls, name: str) -> None:
    """Delete a disabled table. Raises TableNotFoundError, TableStateError."""
    request = pb.DeleteTableRequest(table_name=table_name(name))
    procedure(client, "DeleteTable", request, pb.DeleteTableResponse, name)
    client.forget(name)


def truncate_table(client: Calls, name: str, preserve_splits: bool = True, *, nonce: Nonce | None = None) -> None:
    """Empty a disabled table; HBase enables it, unless it has done so before for the same `nonce`.

    Raises TableNotFoundError, TableStateError.
    """
    request = pb.TruncateTableRequest(tableName=table_name(name), preserveSplits=preserve_splits)
    procedure(client, "truncateTable", request, pb.TruncateTableResponse, name, nonce)
    client.forget(name)


def disable_table(client: Calls, name: str) -> None:
    """Take a table off its servers. Raises TableStateError when it is disabled already."""
    request = pb.DisableTableRequest(table_name=table_name(name))
    procedure(client, "DisableTable", request, pb.DisableTableResponse, name)
    client.forget(name)


def enable_table(client: Calls, name: str) -> None:
    """Bring a disabled table back. Raises TableStateError when it is enabled already."""
    request = pb.EnableTableRequest(table_name=table_name(name))
    procedure(client, "EnableTable", request, pb.EnableTableResponse, name)
    client.forget(name)


def modify_table(client: Calls, descriptor: TableDescriptor) -> None:
    """Change a table's schema; HBase reopens its regions one after the other."""
    request = pb.ModifyTableRequest(table_name=descriptor.schema.table_name, table_schema=descriptor.schema)
    procedure(client, "ModifyTable", request, pb.ModifyTableResponse, descriptor.name)
    if not client.release.changes_are_procedures:
        await_reopened(client, descriptor.name)


def set_read_only(client: Calls, name: str, read_only: bool) -> None:
    """Set a table's READONLY: once this returns, every region refuses writes, or accepts them again.

    The schema may already say so while an earlier, timed-out request is still reopening regions. So it is always set
    again: the master runs one modification after the other.
    """
    descriptor = client.describe(name)
    modify_table(client, descriptor.with_attribute("READONLY", str(read_only).lower()))


def move_region(client: Calls, region: Region, server: Server | None = None) -> None:
    """Move a region to a server, or to one of HBase's choice; returns when it is open there."""
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
            client.master_call("MoveRegion", request, pb.MoveRegionResponse)
            asked = time.monotonic()
        return False

    wait(moved, f"the move of region {region.encoded} of {region.table}", DEADLINE_S)


def flush_table(client: Calls, name: str) -> None:
    """Write every region's memstore to files."""
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
    """Ask every region to compact; returns at once, before the servers have compacted."""
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
    """Bytes in the store files and the memory of a region, as its server knows them now, in whole MiB; None where it
    cannot be asked (RSRpcServices.getRegionLoad)."""
    return regions_bytes(client, [region]).get(region.encoded)


def regions_bytes(client: Calls, regions: Collection[Region]) -> dict[str, int]:
    """The same of several regions, by encoded name, with one request to each server; without those that cannot be
    asked for."""
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
    """Flush the region that holds a row, compact some families of it (major), and wait for the end. Returns it.

    What was written before this is then in one file for each family, without delete markers and what they hide, unless
    an open scan, or KEEP_DELETED_CELLS, keeps them: look at the rows. Raises TransientError at the deadline.

    `may_send` is called before the flush and each request for a compaction, and `sent` after each of these; both may
    raise (`RpcConnection.call`). `timeout_s` bounds such a request: a server only has to select the files then.
    """
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
    """The write requests that each region of these tables has begun since it opened on a server, by encoded name.

    None where a server cannot be asked (RSRpcServices.getRegionLoad).
    """
    loads = _region_loads(client, server, attempts)
    if loads is None:
        return None
    return {
        _encoded(load): load.write_requests_count
        for load in loads
        if load.region_specifier.value.partition(b",")[0].decode() in tables
    }


def _encoded(load: pb.RegionLoad) -> str:
    """The encoded name of the region that a load is about."""
    return load.region_specifier.value.rstrip(b".").rpartition(b".")[2].decode()


def _region_loads(client: Calls, server: Server, attempts: int = ATTEMPTS) -> list[pb.RegionLoad] | None:
    if not client.release.counts_writes:
        return None
    try:
        answer, _ = retried(
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
        if unknown_there(error):  # in a rolling upgrade servers are older than the master
            return None
        raise
    return list(answer.region_loads)


def roll_wal(client: Calls, server: Server, *, attempts: int = ATTEMPTS) -> None:
    """Ask a region server to begin new WAL files. The server does so later: watch its WALs for the effect."""
    retried(
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
    """Take a snapshot and wait for it: all edits acknowledged before the call are in it.

    Regions are flushed for it (FLUSH); not those of a table that is read-only, which refuse to be: they were when they
    were closed, to be opened as such (SKIPFLUSH).

    Idempotent: if a finished snapshot of that name and table exists, it is returned (check its `creation_time`, in
    ms). One that fails is taken again, up to SNAPSHOT_ATTEMPTS times: a region may have moved. Raises
    SnapshotExistsError when it is another table's, TransientError at the deadline, RemoteError when it failed.
    """
    what = f"snapshot {name} of {table}"
    wanted = pb.SnapshotDescription(name=name, table=table)
    deadline = time.monotonic() + deadline_s

    def finished() -> pb.SnapshotDescription | None:
        found = next((one for one in snapshots(client) if one.name == name), None)
        if found is not None and found.table != table:
            raise SnapshotExistsError(
                f"snapshot {name} already exists, of table {found.table} instead of {table}",
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
            # By an earlier call of ours whose answer was lost, or by somebody else: wait and look again.
            if left <= 0:
                raise TransientError(f"{what} cannot begin: {error}", snapshot=name, table=table) from error
            time.sleep(procedures.MAX_POLL_S)
        except SnapshotFailedError as error:
            failures += 1
            if left <= 0 or failures == SNAPSHOT_ATTEMPTS:
                raise
            log.warning("%s failed and is taken again: %s", what, error)
            time.sleep(procedures.MAX_POLL_S)
    return found


def snapshots(client: Calls) -> list[pb.SnapshotDescription]:
    """All finished snapshots."""
    answer = client.master_call(
        "GetCompletedSnapshots", pb.GetCompletedSnapshotsRequest(), pb.GetCompletedSnapshotsResponse
    )
    return list(answer.snapshots)


def delete_snapshot(client: Calls, name: str) -> bool:
    """Delete a snapshot; False when there was none.

    The master must read it first: after a restart of HDFS it may not be able to for some seconds, and does not list it
    among its snapshots. Raises TransientError for one that cannot be read.
    """
    request = pb.DeleteSnapshotRequest(snapshot=pb.SnapshotDescription(name=name))
    attempts = 0

    def delete() -> bool:
        nonlocal attempts
        attempts += 1
        try:
            client.master_call("DeleteSnapshot", request, pb.DeleteSnapshotResponse, attempts=1)
        except SnapshotNotFoundError:
            return attempts > 1  # an earlier call deleted it, but its answer was lost
        except SnapshotFailedError as error:
            raise TransientError(f"snapshot {name} cannot be deleted now: {error}", snapshot=name) from error
        return True

    return retried(delete)


def clone_snapshot(client: Calls, name: str, table: str) -> None:
    """Create a table from a snapshot. Raises TableExistsError (that table is left alone), SnapshotNotFoundError."""
    found = next((one for one in snapshots(client) if one.name == name), None)
    if found is None:
        raise SnapshotNotFoundError(f"there is no snapshot {name}", snapshot=name)
    if _table_exists(client, table):
        # RestoreSnapshot into an existing table would revert its contents to the snapshot's.
        raise TableExistsError(f"table {table} already exists; {name} was not cloned", table=table)
    target = pb.SnapshotDescription()
    target.CopyFrom(found)
    target.table = table  # not the snapshot's own table: that is what makes it a clone
    _restore(client, target, table)


def restore_snapshot(client: Calls, name: str) -> None:
    """Revert a disabled table to its snapshot; later edits are lost. Raises SnapshotNotFoundError."""
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


def lacking_rights(client: Calls, everywhere: Sequence[str], readable: Sequence[str]) -> list[str] | None:
    """The permissions that the client's own user lacks: of those wanted `everywhere` (READ, WRITE, CREATE, ADMIN), such
    as "global ADMIN", and to read the `readable` tables ("READ on shop:orders").

    None where HBase checks none, having no AccessController, or cannot be asked (before 2.2).
    (MasterRpcServices.hasUserPermissions)
    """
    wanted = {
        f"global {action}": pb.Permission(
            type=pb.Permission.Type.Global,
            global_permission=pb.GlobalPermission(action=[pb.Permission.Action.Value(action)]),
        )
        for action in everywhere
    } | {
        f"READ on {table}": pb.Permission(
            type=pb.Permission.Type.Table,
            table_permission=pb.TablePermission(table_name=table_name(table), action=[pb.Permission.Action.READ]),
        )
        for table in readable
    }
    if not client.release.tells_rights:
        return None
    request = pb.HasUserPermissionsRequest(permission=wanted.values())
    try:
        answer = client.master_call("HasUserPermissions", request, pb.HasUserPermissionsResponse)
    except RemoteError as error:
        if unknown_there(error):
            return None
        raise
    return [name for name, granted in zip(wanted, answer.has_user_permission, strict=True) if not granted]


def _table_exists(client: Calls, table: str) -> bool:
    try:
        client.describe(table)
    except TableNotFoundError:
        return False
    return True
