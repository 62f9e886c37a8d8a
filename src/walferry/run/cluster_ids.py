"""Which cluster a run is on, by its id: as the run's plan has found it, and as a root folder has it."""

from __future__ import annotations

from collections.abc import Iterable

from walferry.hbase.zookeeper import cluster_id_in
from walferry.ledger import RunLedger, RunRecord
from walferry.ledger.rows import ClusterSide
from walferry.run.phases import phases_of
from walferry.run.recorded_spec import source_of, target_of
from walferry.run.run import LogRun, Run
from walferry.run.spec import Cluster
from walferry.storage import FileSystem


def planned_id(ledger: RunLedger, side: ClusterSide) -> str | None:
    """The id of a cluster as the run's plan has found it; None before the plan is done, and for a kind of run that has
    no plan."""
    plan = ledger.phases.facts("plan") or {}
    found = plan.get(f"{side}_cluster_id") or (plan.get("cluster_id") if side == "source" else None)
    return None if found is None else str(found)


def id_in_root(files: FileSystem, root: str) -> str:
    """The cluster's id as its root folder has it (FSUtils.getClusterId). Raises FileNotFoundError."""
    return cluster_id_in(b"".join(files.read(f"{root}/hbase.id")))


def same_root(one: Cluster, other: Cluster) -> bool:
    """Whether two clusters have the same root folder, as far as the addresses of WebHDFS tell. (Two HDFS may have the
    same name in `rootdir`.)"""
    same_path = one.address().root_path == other.address().root_path
    return same_path and not set(one.webhdfs.split(";")).isdisjoint(other.webhdfs.split(";"))


def on_source(run: LogRun, others: Iterable[RunRecord]) -> list[RunRecord]:
    """Those of the runs that read the log of this run's source: by its id, wherever it was then. A run whose plan has
    found no id is on the cluster at its own address."""
    now: str | None = None
    found = []
    for other in others:
        if (planned := _planned(run, other, "source")) is None:
            same = _at_one_address(source_of(other), run.log_spec.source)
        else:
            now = now or run.source.cluster_id()
            same = planned == now
        found += [other] if same else []
    return found


def on_target(run: Run, other: RunRecord) -> bool:
    """Whether another run writes to this run's target, as `on_source`."""
    if (planned := _planned(run, other, "target")) is not None:
        return planned == run.target.cluster_id()
    return _at_one_address(target_of(other), run.spec.target)


def _at_one_address(there: Cluster | None, here: Cluster) -> bool:
    return there is not None and (there.zookeeper, there.znode) == (here.zookeeper, here.znode)


def _planned(run: LogRun, other: RunRecord, side: ClusterSide) -> str | None:
    """The id, without a look into the ledger for each of many windows, which have no plan."""
    has_plan = any(phase.name == "plan" for phase in phases_of(other.kind))
    return planned_id(run.ledger.whole.of(other.run_id), side) if has_plan else None
