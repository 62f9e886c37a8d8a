"""What a stream needs before it begins: a source that can be read, and a destination that fits."""

from __future__ import annotations

from typing import Any

from walferry.errors import TransientError, UsageError, WalferryError
from walferry.hbase.client import HBaseClient
from walferry.hbase.rights import Right, as_refused
from walferry.replay.keeping.obstacles import peer_obstacles
from walferry.run.log_folder import log_obstacle
from walferry.run.name_nodes import require_no_old_states
from walferry.run.run import file_system
from walferry.streams.destination import examine_destination, plan_destination
from walferry.streams.snapshot.taking import require_readable
from walferry.streams.stream_run import StreamRun
from walferry.streams.stream_spec import ResolvedStreamSpec, SecretConnections, environment_secrets


def examine(spec: ResolvedStreamSpec, secrets: SecretConnections = environment_secrets) -> dict[str, Any]:
    """Examine source and destination, and change nothing. Raises UsageError that lists what stands in the way.

    Facts: version and cluster_id of the source; of Kafka topics by table, positions, and the partitions of topics that
    exist, else folder and commits; rows_first: bytes of the store files of tables whose rows are sent first.
    """
    with HBaseClient(spec.log_address()) as source:
        _require_source(spec, source)
        spec.decoder()
        found = examine_destination(spec, source.cluster_id(), secrets)
        held = source.held_bytes() if spec.snapshot else {}
        return {
            "version": source.version(),
            "cluster_id": source.cluster_id(),
            **found,
            "rows_first": {table: held.get(table, 0) for table in spec.tables} if spec.snapshot else {},
        }


def plan_stream(run: StreamRun) -> dict[str, Any]:
    """The phase `plan`: examine the source, and examine or create the topics, or the folder. Raises UsageError for what
    stands in the way; the run has then failed, so that a corrected spec can take its name."""

    def work() -> dict[str, Any]:
        _require_source(run.spec, run.source)
        run.spec.decoder()
        return {
            "version": run.source.version(),
            "cluster_id": run.source.cluster_id(),
            **plan_destination(run),
        }

    try:
        return run.once("plan", work)
    except TransientError:
        raise
    except WalferryError as error:
        run.ledger.end("failed", run.actor, str(error))
        raise


def _require_source(spec: ResolvedStreamSpec, source: HBaseClient) -> None:
    """Raise UsageError unless the source's files can be read, and HBase grants what a stream needs."""
    address, files = spec.source.address(), file_system(spec.source)
    if files.status(address.root_path) is None:
        raise UsageError(f"source: {address.root_path} does not exist on its file system; check rootdir and webhdfs")
    if missing := [table for table in spec.tables if not source.table_exists(table)]:
        raise UsageError(f"there is no table {', '.join(missing)} at the source", tables=missing)
    for table in spec.tables if spec.snapshot else ():
        require_readable(source.describe(table))
    if lacking := source.lacking_rights([Right("ADMIN"), *(Right("READ", table) for table in spec.tables)]):
        raise UsageError(as_refused(source.address.user, lacking))
    if (misplaced := log_obstacle(source, spec.tables)) is not None:
        raise UsageError(f"source: {misplaced}")
    require_no_old_states(address, "source")
    if obstacles := list(peer_obstacles(source)):
        raise UsageError(f"a stream needs a replication peer, which keeps the log: {'; '.join(obstacles)}")
