"""A cluster of an unfinished run has other addresses: that is accepted if it is the cluster that its plan has found."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from walferry.errors import UsageError
from walferry.hbase.client import HBaseClient
from walferry.ledger import Ledger, RunRecord
from walferry.ledger.rows import ClusterSide, RunKind
from walferry.run.cluster_ids import id_in_root, planned_id, same_root
from walferry.run.heartbeat import require_idle
from walferry.run.log_folder import log_obstacle
from walferry.run.name_nodes import require_no_old_states
from walferry.run.recorded_spec import source_of, source_tables, target_of, target_tables
from walferry.run.sides import SIDES
from walferry.run.spec import Cluster
from walferry.storage import PermissionDeniedError
from walferry.wal.copies import files_of


def accept_moved(
    ledger: Ledger, name: str, owner: str, spec: Mapping[str, Any], actor: str, kind: RunKind = "migration"
) -> None:
    """Record the addresses that a spec gives for the clusters of the owner's unfinished run of that name and kind, if
    they differ from those that the run has, and are of the same clusters. The other parameters are those of `open_run`.

    Nothing is done for a run whose plan is not done: it can begin anew. Raises UsageError for another cluster, for
    what may not move (`_require_what_stays`), for name nodes with an old state, and for what `open_run` refuses,
    RunBusyError while a live process works on the run, and the errors of a cluster that cannot be reached.
    """
    for run in ledger.runs():
        if (run.name, run.state, run.kind, run.owner) == (name, "running", kind, owner):
            accept_moved_run(ledger, run, spec, actor)
            return


def accept_moved_run(ledger: Ledger, run: RunRecord, spec: Mapping[str, Any], actor: str) -> None:
    """The same of one run, which may also be a setup that is done."""
    part = ledger.of(run.run_id)
    moved: dict[str, Any] = {
        side: spec[side] for side in SIDES if side in run.spec and _given(spec, side) != _given(run.spec, side)
    }
    if part.phases.facts("plan") is None or not moved:
        return
    require_idle(part)
    now = {side: Cluster.model_validate(moved[side]) for side in SIDES if side in moved}
    _require_what_stays(run, now)
    for side in SIDES:
        if side in now:
            changed = _changed(run.spec[side], moved[side])
            _require_same(run, side, now[side], planned_id(part, side), changed)
    _require_two_roots(run, now)
    ledger.move_run(run.run_id, moved, run.owner, spec, actor)


def _given(spec: Mapping[str, Any], side: str) -> Any:
    """A cluster's keys that are set: an older walferry did not record them all."""
    return {key: value for key, value in (spec.get(side) or {}).items() if value is not None}


def _changed(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    return sorted(key for key in before.keys() | now.keys() if before.get(key) != now.get(key))


def _require_what_stays(run: RunRecord, moved: Mapping[ClusterSide, Cluster]) -> None:
    """Raise UsageError for another place of a log of which no peer's queue names each file, or that a stream follows:
    what was not read at the old place would be passed over; and for another Thrift server through which edits are sent,
    since it tells no cluster's id.
    """
    before = _recorded(run)
    stay: dict[ClusterSide, tuple[str, ...]] = {"source": (), "target": ()}
    if run.kind in ("keep", "stream") or run.spec.get("protect") == "stage":
        stay["source"] = ("waldir", "wal_webhdfs")
    if run.spec.get("apply") == "thrift":
        stay["target"] = ("thrift",)
    why = {"source": "logs that the run has not read at the old place would be lost",
           "target": "nothing shows which cluster another server writes to"}  # fmt: skip
    for side, cluster in moved.items():
        was = before[side]
        for key in stay[side] if was is not None else ():
            if (value := getattr(was, key)) != getattr(cluster, key):
                raise UsageError(
                    f"{side}: the {key} of run {run.run_id} is {value or 'not set'}, and may not change: {why[side]}. "
                    f"Give the old one, or end the run by `walferry abort {run.name} --reason …` and begin anew",
                    run=run.run_id, key=key,
                )  # fmt: skip


def _recorded(run: RunRecord) -> dict[ClusterSide, Cluster | None]:
    return {"source": source_of(run), "target": target_of(run)}


def _require_two_roots(run: RunRecord, moved: Mapping[ClusterSide, Cluster]) -> None:
    """Raise UsageError for a target with the source's root folder: its id need not be readable at the target."""
    source, target = {**_recorded(run), **moved}.values()
    if source is not None and target is not None and same_root(source, target):
        raise UsageError(
            f"the target of run {run.run_id} would have the source's root folder: correct its `rootdir` and `webhdfs`",
            run=run.run_id,
        )


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
        tables = source_tables(run) if side == "source" else target_tables(run).values()
        try:
            obstacle = log_obstacle(client, tables)
        except PermissionDeniedError:
            if side == "source":
                raise
            obstacle = None  # the target's log is read only if the user may
        if obstacle is not None:
            raise UsageError(f"{side}: {obstacle}", **facts)
