"""The objects that a run creates on the clusters: recorded before they are created, and removed at the end (R6)."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from typing import Any

from walferry.apply.bulk_loader import staging_folder
from walferry.clock import now_ms
from walferry.errors import UsageError, WalferryError
from walferry.hbase.client import HBaseClient
from walferry.hbase.errors import ConnectionFailedError, RequestTimeoutError, ServerGoneError, ZooKeeperError
from walferry.ledger import RunLedger
from walferry.ledger.rows import ClusterObject, ClusterSide, ObjectKind
from walferry.replay.rights import lease
from walferry.replay.rights.durability import restore
from walferry.run.facts import opened_ms
from walferry.run.heartbeat import alive
from walferry.run.progress.states import label
from walferry.run.run import LogRun, Run, RunEndedError
from walferry.wal.copies import open_folder

log = logging.getLogger(__name__)

SILENT = (ConnectionFailedError, RequestTimeoutError, ServerGoneError, ZooKeeperError)
"""errors of a cluster that does not answer; others of a master are its answers, or those of a file system"""
_NOT_HERE: Mapping[bool, tuple[ObjectKind, ...]] = {False: ("table", "durability"), True: ("table", "scope", "peer")}
"""kinds of objects that `release` leaves as they are; those of a setup (True) `migration.setup.put_back` puts back"""
LEASE_SECONDS = 90.0
"""how long the end of a run waits for a table's lease: longer than ZooKeeper keeps a killed process's lease"""


def plan_own(run: LogRun, cluster: ClusterSide, kind: ObjectKind, name: str, *, there: bool) -> None:
    """Record that the run is about to create an object. `there`: the object exists, from an earlier attempt of the run.

    Raises ForeignObjectError if the object exists but this run did not plan it: a run with the same id in another
    ledger may have left the object behind, or may use it.
    """
    planned = {(o.cluster, o.kind, o.name) for o in run.ledger.objects.all()}
    if there and (cluster, kind, name) not in planned:
        raise ForeignObjectError(
            f"{kind} {name} already exists at the {cluster}, but this run did not create it: it may belong to a run "
            "in another ledger. Remove it if it is unused, or give this migration another name",
            cluster=cluster, kind=kind, name=name,
        )  # fmt: skip
    run.ledger.objects.plan(cluster, kind, name)


def made(run: LogRun, cluster: ClusterSide, kind: ObjectKind, name: str) -> None:
    """Record that an object was created.

    If the run was ended in the meantime, removes the run's objects from the clusters and raises RunEndedError: the
    abort may have looked just before this object existed.
    """
    run.ledger.objects.made(cluster, kind, name)
    record = run.ledger.record
    if record.state != "running":
        release(run, aborted=record.state == "aborted")
        raise RunEndedError(f"run {run.run_id} was {record.state} while {kind} {name} was created", run=run.run_id)


def snapshot_name(run_id: str, table: str) -> str:
    """A new name for a snapshot of a table."""
    return f"{run_id}-{re.sub('[^A-Za-z0-9_.-]', '_', table)}-{now_ms()}"


def take_snapshot(run: LogRun, name: str, table: str) -> None:
    """Take a snapshot of a source table as an object of the run, unless an earlier attempt has taken it. Raises the
    errors of `plan_own` and `made`."""
    there = name in {snapshot.name for snapshot in run.source.snapshots()}
    plan_own(run, "source", "snapshot", name, there=there)
    if not there:
        run.source.snapshot(name, table)
    made(run, "source", "snapshot", name)


def drop_snapshot(run: LogRun, client: HBaseClient, cluster: ClusterSide, name: str) -> None:
    """Delete a snapshot of the run at a cluster, whose client is given. One that cannot be deleted now stays recorded
    until `release`."""
    try:
        client.delete_snapshot(name)
    except WalferryError as error:
        log.warning("snapshot %s at the %s cannot be deleted now: %s", name, cluster, error)
        return
    run.ledger.objects.removed(cluster, "snapshot", name)


class ForeignObjectError(UsageError):
    """An object that this run is about to create already exists; facts `cluster`, `kind`, `name`."""


def release(run: LogRun, *, aborted: bool = False) -> dict[str, Any]:
    """Remove every object that the run created on the clusters. Only at the end of a run or at an explicit abort.

    Once the target is open, source tables that the run set READONLY stay so, to keep late writers out; an abort before
    that lifts READONLY. The DURABILITY of target tables is restored (`replay.rights.durability`). A planned object that
    does not exist stays planned while a process works on a phase of the run: that process may still create the object,
    and then removes it (`made`). If the process is killed in between, repeat the abort. A folder that cannot be deleted
    is left behind: nothing depends on it. READONLY is lifted first. An error does not stop the removal of the others,
    but a cluster that does not answer is not asked again, which may take minutes; the first error is raised at the end.
    """
    removed: list[str] = []
    left: list[str] = []
    errors: list[Exception] = []
    silent: set[ClusterSide] = set()
    underway = phases_at_work(run)
    bases = {base.snapshot for base in run.ledger.bases.there()}
    read_only_stays, of_setup = stays_read_only(run.ledger, aborted=aborted), run.record.kind == "setup"
    for item in sorted(run.ledger.objects.all(), key=lambda item: item.kind != "read-only table"):
        stays = item.kind in _NOT_HERE[of_setup] or (item.kind == "read-only table" and read_only_stays)
        if item.state == "removed" or stays:
            continue
        name = named(item)
        if item.cluster in silent and item.kind != "folder":
            left.append(name)
            continue
        try:
            there = _remove(run, item)
        except Exception as error:  # go on with the other objects
            left.append(name)
            if item.kind == "folder":
                log.warning("%s is no longer needed but cannot be deleted; delete it yourself: %s", name, error)
            else:
                errors.append(error)
                if isinstance(error, SILENT):
                    silent.add(item.cluster)
            continue
        if not there and item.state == "planned" and underway:
            left.append(name)
            log.warning(
                "%s is about to be created. The process that works on %s will remove it; if that process is killed "
                "first, abort again", name, ", ".join(underway),
            )  # fmt: skip
            continue
        run.ledger.objects.removed(item.cluster, item.kind, item.name)
        if item.kind == "snapshot" and item.name in bases:
            run.ledger.bases.dropped(item.name)
        removed.append(name)
        log.info("removed %s", name)
    restored, others = list[str](), [f"DURABILITY of the tables of run {run.run_id}"]
    try:  # last, since this may wait for a lease
        if not isinstance(run, Run):
            others = []
        elif "target" not in silent:
            restored, others = restore(run, at_work=bool(underway), wait_seconds=LEASE_SECONDS)
    except Exception as error:
        errors.append(error)
    if errors:
        log.error("run %s could not remove %s: repeat this to try again", run.run_id, ", ".join(left + others))
        raise errors[0]
    return {"removed": removed + restored, "left": left + others}


def stays_read_only(ledger: RunLedger, *, aborted: bool) -> bool:
    """Whether source tables that the run set READONLY stay so when the run ends."""
    return not aborted or opened_ms(ledger) is not None


def named(item: ClusterObject) -> str:
    """An object's name in messages, with its cluster; a folder's URL says where the folder is."""
    if item.kind == "scope":
        return f"REPLICATION_SCOPE of {item.name.partition('=')[0]} at the {item.cluster}"
    return f"{item.kind} {item.name}" + ("" if item.kind == "folder" else f" at the {item.cluster}")


def _remove(run: LogRun, item: ClusterObject) -> bool:
    """Remove an object, or lift READONLY. Returns whether the object existed."""
    if item.cluster == "source":
        return _remove_at(run.source, item)
    assert isinstance(run, Run), f"{run.run_id} has no target"
    if item.kind == "staging folder":
        table = next(pair.target for pair in run.tables if staging_folder(run.target_root, pair.target) == item.name)
        holder = lease.holder_of(run.target.zk, table)
        if holder is not None and not lease.is_of(run.run_id, holder):
            return False  # the lease's new holder has removed this run's files, and stages its own there
        return run.target_files.delete(item.name, recursive=True)
    return _remove_at(run.target, item)


def _remove_at(client: HBaseClient, item: ClusterObject) -> bool:
    if item.kind == "peer":
        return item.name in client.peers() and client.remove_peer(item.name)
    if item.kind == "snapshot":
        return client.delete_snapshot(item.name)
    if item.kind == "folder":
        files, path = open_folder(item.name, client.address)
        return files.delete(path, recursive=True)
    if client.table_exists(item.name):
        client.set_read_only(item.name, False)
    return True


def phases_at_work(run: LogRun) -> list[str]:
    """The phases on which a live process works: a process whose phase is recorded as running may have been killed."""
    signs = alive(run.ledger)
    begun = [label(phase) for phase in run.ledger.phases.all() if phase.state == "running" and phase.phase != "release"]
    return [name for name in begun if name in signs]
