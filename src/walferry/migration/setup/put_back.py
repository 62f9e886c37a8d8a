"""What a setup has set on the clusters is put back: its peers first, then scopes, then snapshots.

What a person has changed since is not touched, and a scope that somebody else needs stays. A cluster that does not
answer does not keep the other one from being put back. Repeating it is harmless: what is as it was counts as put back.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from walferry.amounts import first_of
from walferry.errors import TransientError, WalferryError
from walferry.hbase.client import HBaseClient
from walferry.hbase.errors import TableNotFoundError
from walferry.hbase.peers import peer_configs, peer_message
from walferry.ledger.rows import ClusterObject, ClusterSide, ObjectKind
from walferry.migration.setup.scopes import Scopes, await_schema, parsed, reopening_s, scopes_of
from walferry.migration.setup.setups import in_force, keeps_log
from walferry.migration.setup.wanted_peer import differences, recorded
from walferry.replay.keeping import objects
from walferry.replication.table_findings import SCOPE
from walferry.run.run import Run, RunEndedError
from walferry.run.sides import SIDES, client_at, elsewhere

log = logging.getLogger(__name__)

Needed = Callable[[str, str], str | None]
"""who needs the scope of a table's family; None: nobody"""


@dataclass(frozen=True)
class PutBack:
    """What was done, by name, and what was not."""

    removed: list[str] = field(default_factory=list)
    stays: list[str] = field(default_factory=list)
    """scopes that somebody else needs, with who does"""
    changed: list[str] = field(default_factory=list)
    """peers that a person has changed, with what differs"""
    left: list[str] = field(default_factory=list)
    """what could not be put back now, with why"""

    @property
    def is_whole(self) -> bool:
        """Whether nothing remains to be done."""
        return not self.left and not self.changed

    def not_removed(self) -> list[str]:
        """Everything that is still there."""
        return [*self.changed, *self.left, *self.stays]


def made(run: Run, side: ClusterSide, kind: ObjectKind, name: str) -> None:
    """Record that something was set. If the run was ended in the meantime, puts everything back and raises
    RunEndedError: who ended it may have looked just before this was set."""
    run.ledger.objects.made(side, kind, name)
    state = run.ledger.record.state
    if state != "running":
        put_back_and_warn(run)
        raise RunEndedError(f"run {run.run_id} was {state} while {kind} {name} was set", run=run.run_id)


def put_back_and_warn(run: Run) -> None:
    """Put back what the run has set, and log what could not be."""
    for line in put_back(run).not_removed():
        log.warning("not put back: %s", line)


def put_back(run: Run, *, dry_run: bool = False) -> PutBack:
    """Put back what the run has set at both clusters; with `dry_run`, only look. What a live process is about to set is
    left to that process, which then puts it back (`made`)."""
    done = PutBack()
    underway = objects.phases_at_work(run)
    for side in SIDES:
        _at_side(run, side, underway, done, dry_run)
    snapshots = run.ledger.objects.left("snapshot")
    if snapshots and (why := _unreachable(run, "source")):
        done.left.extend(f"{objects.named(item)}: {why}" for item in snapshots)
        return done
    if dry_run:
        done.removed.extend(objects.named(item) for item in snapshots)
        return done
    why = "it is about to be taken"
    try:
        done.removed.extend(objects.release(run, aborted=True)["removed"])
    except Exception as error:  # of the first one that could not be removed
        why = str(error)
    still = {(item.cluster, item.name) for item in run.ledger.objects.left("snapshot")}
    done.left.extend(f"{objects.named(item)}: {why}" for item in snapshots if (item.cluster, item.name) in still)
    return done


def _at_side(run: Run, side: ClusterSide, underway: list[str], done: PutBack, dry_run: bool) -> None:
    wanted: tuple[ObjectKind, ...] = ("peer", "scope")
    items = [item for item in run.ledger.objects.left(*wanted) if item.cluster == side]
    items.sort(key=lambda item: (wanted.index(item.kind), item.planned_ms, item.name))
    silent = _unreachable(run, side) if items else ""
    for item in items:
        name = objects.named(item)
        if silent:
            done.left.append(f"{name}: {silent}")
            continue
        if item.state == "planned" and underway:
            done.left.append(
                f"{name}: the process at work on {', '.join(underway)} puts it back; if it dies, repeat this"
            )
            continue
        try:
            put = _peer if item.kind == "peer" else _scopes
            if put(run, side, item, done, dry_run) and not dry_run:
                run.ledger.objects.removed(side, item.kind, item.name)
                log.info("put back %s", name)
        except Exception as error:  # go on with the others
            done.left.append(f"{name}: {error}")
            silent = str(error) if isinstance(error, objects.SILENT) else ""


def _unreachable(run: Run, side: ClusterSide) -> str:
    """Why nothing can be put back at a side: it does not answer, or is another cluster; "" if there is no reason."""
    try:
        return elsewhere(run, side)
    except Exception as error:
        return str(error)


def _peer(run: Run, side: ClusterSide, item: ClusterObject, done: PutBack, dry_run: bool) -> bool:
    """Remove a peer. Returns whether it is gone, or would be."""
    client, wanted = client_at(run, side), recorded(run.ledger, side)
    if peer_message(client, item.name) is None:
        return True
    if wanted is None or (found := differences(client, wanted)):
        why = first_of(found, most=5) if wanted else "it is not recorded what it was"
        done.changed.append(f"{objects.named(item)}: somebody has changed it, so it is not touched: {why}")
        return False
    if not dry_run:
        client.remove_peer(item.name)
    done.removed.append(objects.named(item))
    return True


def _scopes(run: Run, side: ClusterSide, item: ClusterObject, done: PutBack, dry_run: bool) -> bool:
    """Put the scopes of a table back by one change. Returns whether they are as they were, or would be."""
    client, (table, before) = client_at(run, side), parsed(item.name)
    try:
        descriptor = client.describe(table)
    except TableNotFoundError:
        return True
    now = scopes_of(descriptor)
    # A change whose process was killed may still wait at the master: one more is done after it.
    waits = item.state == "planned"
    due = {name: was for name, was in before.items() if was == "0" and name in now and (waits or now[name] != "0")}
    needed = _needed(run, client, side, done, dry_run) if due else lambda *_: None
    who = {name: why for name in due if (why := needed(table, name)) is not None}
    if back := {name: was for name, was in due.items() if name not in who}:
        if not dry_run:
            _modify(client, table, back)
        done.removed.append(f"{SCOPE} 1 of {first_of(sorted(back), most=5)} of {table} at the {side}")
    for name, why in who.items():
        done.stays.append(f"{SCOPE} 1 of {name} of {table} at the {side}: {why} needs it")
    return not who


def _modify(client: HBaseClient, table: str, back: Scopes) -> None:
    """Set scopes in the schema as it is by now: the change replaces the whole schema, and somebody may have changed it
    since it was looked at."""
    descriptor = client.describe(table)
    now = scopes_of(descriptor)
    there = {name: was for name, was in back.items() if name in now}
    client.modify_table(descriptor.with_scopes(there), reopening_s(client, table))
    # 1.x answers before its procedure has changed the schema.
    if not client.release.changes_are_procedures and not await_schema(client, table, there):
        raise TransientError(f"the schema of {table} does not show yet that {SCOPE} is put back", table=table)


def _needed(run: Run, client: HBaseClient, side: ClusterSide, done: PutBack, dry_run: bool) -> Needed:
    """Who needs the scopes of families at a side: another peer there, or another setup. In a dry run, the peer of this
    run is there still."""
    whole = run.ledger.whole
    mine = recorded(run.ledger, side)
    goes = mine is not None and dry_run and not any(f"peer {mine.id} at the {side}:" in line for line in done.changed)
    peers = [
        peer for peer in peer_configs(client)
        if not keeps_log(whole, peer) and not (goes and mine is not None and peer.id == mine.id)
    ]  # fmt: skip
    others = list(in_force(whole, client.cluster_id(), but=run.run_id))

    def needed(table: str, family: str) -> str | None:
        for peer in peers:
            if peer.replicates(table, family):
                return f"peer {peer.id}"
        return next((f"setup {one.run.run_id}" for one in others if one.needs(table, family)), None)

    return needed


def require_whole(run: Run, done: PutBack) -> None:
    """Raise WalferryError if something remains to be done."""
    if not done.is_whole:
        raise WalferryError(
            f"not all that {run.run_id} has set up is put back: {'; '.join(done.changed + done.left)}",
            run=run.run_id, changed=done.changed, left=done.left,
        )  # fmt: skip
