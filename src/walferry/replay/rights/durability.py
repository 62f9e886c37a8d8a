"""While a run writes to a target table, acknowledged edits survive a crash of the table's servers.

A clone inherits DURABILITY from the source table. With SKIP_WAL or ASYNC_WAL a region server acknowledges edits that
are only in its memory, and the requests do not override the table's DURABILITY.

Several runs may write to one table, one at a time. So a run changes DURABILITY only under the table's lease, and
records the previous value. Later runs find the table durable. A run that ends while another unfinished run writes to
the table leaves DURABILITY as it is; the last run restores every recorded value.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import dataclass
from functools import partial

from walferry.ledger import RunLedger
from walferry.ledger.rows import ClusterObject
from walferry.replay.rights import lease
from walferry.run.cluster_ids import on_target
from walferry.run.notes.waits import begin_wait, end_wait
from walferry.run.run import Run, RunEndedError

log = logging.getLogger(__name__)

NOT_DURABLE = ("SKIP_WAL", "ASYNC_WAL")
"""values of org.apache.hadoop.hbase.client.Durability with which HBase acknowledges before it syncs the log"""
MEANWHILE = "USE_DEFAULT"
"""SYNC_WAL, unless the cluster says otherwise"""


@dataclass(frozen=True)
class Change:
    """A table's DURABILITY as a run found it: recorded before the run changed it, and not restored yet."""

    table: str
    before: str
    item: ClusterObject
    ledger: RunLedger
    """the ledger of the run that recorded the change"""


def make_durable(run: Run) -> None:
    """Set DURABILITY of target tables that acknowledge too early to the cluster's default. Call it under their leases.

    A pair's next pass finds what a crash costs, so its tables stay as they are. Raises RunEndedError when the run was
    ended in the meantime: the caller then calls `give_back`.
    """
    if run.record.kind == "pair":
        return
    # An interrupted change shows in the schema at once, but a region only applies it when it reopens.
    cut_off = {change.table for change in changes(run) if change.item.state == "planned"}
    own = {c.table: c.item.name for c in changes(run) if c.item.state == "planned" and c.ledger.run_id == run.run_id}
    for pair in run.tables:
        descriptor = run.target.describe(pair.target)
        early = descriptor.durability in NOT_DURABLE
        if not early and pair.target not in cut_off:
            continue
        name = f"{pair.target}={descriptor.durability}" if early else own.get(pair.target)
        if name is not None:
            run.ledger.objects.plan("target", "durability", name)
        run.target.modify_table(descriptor.with_attribute("DURABILITY", MEANWHILE))
        if name is not None:
            run.ledger.objects.made("target", "durability", name)
            log.info("%s has DURABILITY %s at the target; it is %s while edits are applied",
                     pair.target, name.partition("=")[2], MEANWHILE)  # fmt: skip
    record = run.ledger.record
    if record.state != "running":
        raise RunEndedError(f"run {run.run_id} was {record.state} while it was about to apply edits", run=run.run_id)


def give_back(run: Run, tables: Collection[str]) -> list[str]:
    """Restore target tables' DURABILITY, unless somebody else has changed it. Returns what was done, as text.

    Call it under the tables' leases. It restores the values that this run and ended runs recorded. HBase flushes
    regions before it reopens them, so applied edits are kept. If another unfinished run has ever held a table's lease,
    that run restores the table.
    """
    done = []
    for change in _due(run):
        if change.table not in tables or _successor(run, change.table):
            continue
        if run.target.table_exists(change.table):
            now = run.target.describe(change.table)
            if now.durability == MEANWHILE:
                run.target.modify_table(now.with_attribute("DURABILITY", change.before))
        change.ledger.objects.removed("target", "durability", change.item.name)
        done.append(_text(change))
        log.info("restored %s", _text(change))
    return done


def restore(run: Run, *, at_work: bool, wait_seconds: float) -> tuple[list[str], list[str]]:
    """As `give_back`, for a run that ends and holds no lease. Returns what was done and what is left to others.

    If a process is `at_work` on this run and holds a table's lease, the table is left to that process, which restores
    it on noticing that the run has ended. Raises LeaseHeldError when somebody else holds a lease for `wait_seconds`.
    """
    done, left = [], []
    due = _due(run)
    for table in sorted({change.table for change in due}):
        if other := _successor(run, table):
            log.warning("unfinished run %s also writes to %s: the table's DURABILITY is restored when that run ends",
                        other, table)  # fmt: skip
        elif at_work and lease.is_of(run.run_id, lease.holder_of(run.target.zk, table)):
            other = run.run_id
            log.warning("the process that works on run %s restores the DURABILITY of %s; if it is killed first, abort "
                        "again", other, table)  # fmt: skip
        if other:
            left += [_text(change) for change in due if change.table == table]
            continue
        newest = partial(_newest, run, lease.resource(run.target.cluster_id(), table))
        with lease.held_leases(
            run.target.zk, [table], holder=lease.holder(run.run_id, run.actor), request_seconds=0,
            wait_seconds=wait_seconds, newest=newest, tell=partial(begin_wait, run.ledger),
            closed=run.target_address().zookeeper_login,
        ):  # fmt: skip
            end_wait(run.ledger)
            done += give_back(run, [table])
    return done, left


def _newest(run: Run, resource: str, table: str) -> int:
    return run.ledger.leases.newest(resource)


def changes(run: Run) -> list[Change]:
    """All recorded changes of this run's target tables, by any run, that are not restored yet; newest first."""
    found = []
    tables = {pair.target for pair in run.tables}
    for run_id, item in run.ledger.objects.of_all_runs("durability"):
        table, _, before = item.name.partition("=")
        if table in tables and _same_target(run, run_id, table):
            found.append(Change(table, before, item, run.ledger.whole.of(run_id)))
    return found[::-1]


def _due(run: Run) -> list[Change]:
    """The changes that this run or an ended run recorded."""
    return [c for c in changes(run) if c.ledger.run_id == run.run_id or c.ledger.record.state != "running"]


def _text(change: Change) -> str:
    return f"target durability {change.item.name}"


def _same_target(run: Run, run_id: str, table: str) -> bool:
    """By the id of the cluster, if it was at another address then: who changes a table has its lease."""
    whole = run.ledger.whole
    if run_id == run.run_id or on_target(run, whole.run(run_id)):
        return True
    return run_id in {taken.run_id for taken in whole.leases(lease.resource(run.target.cluster_id(), table))}


def _successor(run: Run, table: str) -> str | None:
    """Another unfinished run that has held the table's lease: when it ends, it restores the table's DURABILITY. A pair,
    which has no end, never does."""
    whole = run.ledger.whole
    others = {taken.run_id for taken in whole.leases(lease.resource(run.target.cluster_id(), table))} - {run.run_id}
    others_now = (whole.run(run_id) for run_id in sorted(others))
    return next((other.run_id for other in others_now if other.state == "running" and other.kind != "pair"), None)
