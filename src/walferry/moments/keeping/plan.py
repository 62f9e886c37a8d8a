"""What a run of kind `keep` needs before it begins: a source whose log and snapshots can be read, and a folder."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from walferry.errors import TransientError, UsageError, WalferryError
from walferry.hbase.client import HBaseClient
from walferry.hbase.rights import Right, as_refused
from walferry.moments.keeping.keep_run import KeepRun
from walferry.moments.keeping.keep_spec import ResolvedKeepSpec
from walferry.replay.keeping.folder import folder_faults
from walferry.replay.keeping.retention import retention_of
from walferry.run.log_folder import log_obstacle
from walferry.run.name_nodes import old_states
from walferry.run.run import file_system
from walferry.snapshots.readable import why_unreadable
from walferry.wal.copies import as_url


def examine(spec: ResolvedKeepSpec) -> dict[str, Any]:
    """Examine the source and the folder for a spec, and change nothing. Raises UsageError that lists what stands in the
    way.

    Facts: version and cluster_id of the source, folder (its URL), tables: bytes of the store files of each, ttl_seconds
    and ttl_assumed: how long the source keeps a closed log, within which it must be copied.
    """
    with HBaseClient(spec.log_address()) as source:
        return _examine(spec, source)


def plan_keep(run: KeepRun) -> dict[str, Any]:
    """The phase `plan`: examine the source and the folder. Raises UsageError for what stands in the way; the run has
    then failed, so that a corrected spec can take its name."""
    try:
        return run.once("plan", lambda: _examine(run.spec, run.source))
    except TransientError:
        raise
    except WalferryError as error:
        run.ledger.end("failed", run.actor, str(error))
        raise


def _examine(spec: ResolvedKeepSpec, source: HBaseClient) -> dict[str, Any]:
    obstacles = list(_obstacles(spec, source))
    if obstacles:
        raise UsageError(f"the plan refuses: {'; '.join(obstacles)}", refusals=obstacles)
    held, kept = source.held_bytes(), retention_of(source)
    return {
        "version": source.version(),
        "cluster_id": source.cluster_id(),
        "folder": as_url(spec.folder),
        "tables": {table: held.get(table, 0) for table in spec.tables},
        "ttl_seconds": kept.ttl_seconds,
        "ttl_assumed": kept.assumed,
    }


def _obstacles(spec: ResolvedKeepSpec, source: HBaseClient) -> Iterator[str]:
    address, files = spec.source.address(), file_system(spec.source)
    if files.status(address.root_path) is None:
        yield f"source: {address.root_path} does not exist on its file system; check rootdir and webhdfs"
        return
    missing = [table for table in spec.tables if not source.table_exists(table)]
    if missing:
        yield f"there is no table {', '.join(missing)} at the source"
    for table in spec.tables:
        if table not in missing and (why := why_unreadable(source.describe(table))):
            yield f"table {table}: a base of it could not be read later, since {why}"
    wanted = [Right("ADMIN"), *(Right("READ", table) for table in spec.tables if table not in missing)]
    if lacking := source.lacking_rights(wanted):
        yield as_refused(source.address.user, lacking)
    if (misplaced := log_obstacle(source, spec.tables)) is not None:
        yield f"source: {misplaced}"
    yield from (f"source.{key}: {message}" for key, message in old_states(address))
    yield from (f"folder: {fault}" for fault in folder_faults(spec.folder, address))
