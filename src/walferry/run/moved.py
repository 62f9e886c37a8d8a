"""A cluster of an unfinished run has other addresses: that is accepted if it is the cluster that its plan has found."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from walferry.errors import UsageError
from walferry.hbase.client import HBaseClient
from walferry.hbase.zookeeper import cluster_id_in
from walferry.ledger import Ledger, RunRecord
from walferry.ledger.rows import RunKind
from walferry.run.heartbeat import require_idle
from walferry.run.sides import SIDES
from walferry.run.spec import Cluster
from walferry.storage import FileSystem, PermissionDeniedError
from walferry.wal.copies import files_of


def id_in_root(files: FileSystem, root: str) -> str:
    """The cluster's id as its root folder has it (FSUtils.getClusterId). Raises FileNotFoundError."""
    return cluster_id_in(b"".join(files.read(f"{root}/hbase.id")))


def accept_moved(ledger: Ledger, name: str, spec: Mapping[str, Any], kind: RunKind, actor: str) -> None:
    """Record the addresses that a spec gives for the clusters of the unfinished run of that name and kind, if they
    differ from those that the run has, and are of the same clusters.

    Nothing is done for a run whose plan is not done: it can begin anew. Raises UsageError for another cluster,
    RunBusyError while a live process works on the run, and the errors of a cluster that cannot be reached.
    """
    for run in ledger.runs():
        if (run.name, run.state, run.kind) != (name, "running", kind):
            continue
        plan = ledger.of(run.run_id).phases.facts("plan")
        moved: dict[str, Any] = {
            side: spec[side] for side in SIDES if side in run.spec and _given(spec, side) != _given(run.spec, side)
        }
        if plan is None or not moved:
            return
        require_idle(ledger.of(run.run_id))
        for side, keys in moved.items():
            planned = plan.get(f"{side}_cluster_id") or (plan.get("cluster_id") if side == "source" else None)
            _require_same(run, side, Cluster.model_validate(keys), planned, _changed(run.spec[side], keys))
        ledger.move_run(run.run_id, moved, actor)


def _given(spec: Mapping[str, Any], side: str) -> Any:
    """A cluster's keys that are set: an older walferry did not record them all."""
    return {key: value for key, value in (spec.get(side) or {}).items() if value is not None}


def _changed(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    return sorted(key for key in before.keys() | now.keys() if before.get(key) != now.get(key))


def _require_same(run: RunRecord, side: str, cluster: Cluster, planned: str | None, changed: list[str]) -> None:
    """Raise UsageError unless ZooKeeper and the root folder have the id that the run's plan has found."""
    address = cluster.address()
    with HBaseClient(address) as client:
        found = {f"ZooKeeper at {address.cluster}": client.cluster_id()}
    try:
        found[f"the root folder {cluster.rootdir}"] = id_in_root(files_of(address), address.root_path)
    except FileNotFoundError:
        found[f"the root folder {cluster.rootdir}"] = "none"
    except PermissionDeniedError:
        pass  # with Kerberos only HBase reads that file: ZooKeeper's id has to do
    for place, now in found.items():
        if now != planned:
            raise UsageError(
                f"{side} ({', '.join(changed)} changed) is not the cluster of run {run.run_id}: the id in {place} is "
                f"{now}, that of the run's {side} is {planned}. Name that cluster, or end the run by `walferry abort "
                f"{run.name} --reason …`",
                run=run.run_id, side=side, changed=changed, cluster_id=now,
            )  # fmt: skip
