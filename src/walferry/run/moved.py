"""A cluster of an unfinished run has other addresses: that is accepted if it is the cluster that its plan has found."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from walferry.errors import UsageError
from walferry.hbase.client import HBaseClient
from walferry.hbase.zookeeper import cluster_id_in
from walferry.ledger import Ledger, RunRecord
from walferry.ledger.rows import ClusterSide, RunKind
from walferry.run.heartbeat import require_idle
from walferry.run.log_folder import require_log_folder
from walferry.run.name_nodes import require_no_old_states
from walferry.run.sides import SIDES
from walferry.run.spec import Cluster
from walferry.storage import FileSystem, PermissionDeniedError
from walferry.wal.copies import files_of


def id_in_root(files: FileSystem, root: str) -> str:
    """The cluster's id as its root folder has it (FSUtils.getClusterId). Raises FileNotFoundError."""
    return cluster_id_in(b"".join(files.read(f"{root}/hbase.id")))


def accept_moved(
    ledger: Ledger, name: str, owner: str, spec: Mapping[str, Any], actor: str, kind: RunKind = "migration"
) -> None:
    """Record the addresses that a spec gives for the clusters of the owner's unfinished run of that name and kind, if
    they differ from those that the run has, and are of the same clusters. The other parameters are those of `open_run`.

    Nothing is done for a run whose plan is not done: it can begin anew. Raises UsageError for another cluster, for
    another place of a log that is copied, for name nodes with an old state, and for what `open_run` refuses,
    RunBusyError while a live process works on the run, and the errors of a cluster that cannot be reached.
    """
    for run in ledger.runs():
        if (run.name, run.state, run.kind, run.owner) != (name, "running", kind, owner):
            continue
        plan = ledger.of(run.run_id).phases.facts("plan")
        moved: dict[str, Any] = {
            side: spec[side] for side in SIDES if side in run.spec and _given(spec, side) != _given(run.spec, side)
        }
        if plan is None or not moved:
            return
        require_idle(ledger.of(run.run_id))
        for side in SIDES:
            if (keys := moved.get(side)) is None:
                continue
            planned = plan.get(f"{side}_cluster_id") or (plan.get("cluster_id") if side == "source" else None)
            cluster = Cluster.model_validate(keys)
            if side == "source" and (kind == "keep" or run.spec.get("protect") == "stage"):
                _require_same_log(run, Cluster.model_validate(run.spec[side]), cluster)
            _require_same(run, side, cluster, planned, _changed(run.spec[side], keys))
        ledger.move_run(run.run_id, moved, owner, spec, actor)


def _given(spec: Mapping[str, Any], side: str) -> Any:
    """A cluster's keys that are set: an older walferry did not record them all."""
    return {key: value for key, value in (spec.get(side) or {}).items() if value is not None}


def _changed(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    return sorted(key for key in before.keys() | now.keys() if before.get(key) != now.get(key))


def _require_same_log(run: RunRecord, before: Cluster, now: Cluster) -> None:
    """Raise UsageError if the log is in another place than the one that the run copies it from: what was not copied yet
    there would be passed over, since no peer's queue names it."""
    if (before.waldir, before.wal_webhdfs is None) != (now.waldir, now.wal_webhdfs is None):
        raise UsageError(
            f"source: the waldir of run {run.run_id} is {before.waldir or 'not set'}, and may not become "
            f"{now.waldir or 'unset'}: logs that the run has not copied from the old place would be lost. Give the old "
            f"one, or end the run by `walferry abort {run.name} --reason …` and begin anew",
            run=run.run_id, waldir=now.waldir,
        )  # fmt: skip


def _require_same(run: RunRecord, side: ClusterSide, cluster: Cluster, planned: str | None, changed: list[str]) -> None:
    """Raise UsageError unless ZooKeeper and the root folder have the id that the run's plan has found, and servers log
    where the address says."""
    address, of_run = cluster.address(), f"{side} ({', '.join(changed)} changed) is not the cluster of run {run.run_id}"
    facts: dict[str, Any] = {"run": run.run_id, "side": side, "changed": changed}
    root = f"the root folder {cluster.rootdir}"
    with HBaseClient(address) as client:
        found = {f"ZooKeeper at {address.cluster}": client.cluster_id()}
        try:
            found[root] = id_in_root(files_of(address), address.root_path)
        except FileNotFoundError:
            found[root] = "none"
        except PermissionDeniedError:
            pass  # with Kerberos only HBase reads that file: ZooKeeper's id and the log's place have to do
        end = f"Name that cluster, or end the run by `walferry abort {run.name} --reason …`"
        if planned is None:
            raise UsageError(
                f"{side} ({', '.join(changed)} changed): another address can only be accepted by the cluster's id, and "
                f"the plan of run {run.run_id} recorded no id. {end}",
                **facts,
            )
        for place, now in found.items():
            if now != planned:
                raise UsageError(
                    f"{of_run}: the id in {place} is {now}, that of the run's {side} is {planned}. {end}",
                    cluster_id=now, **facts,
                )  # fmt: skip
        require_no_old_states(address, side)
        try:
            require_log_folder(client, side)
        except PermissionDeniedError:
            if side == "source":
                raise
            # The target's log is read only if the user may.
