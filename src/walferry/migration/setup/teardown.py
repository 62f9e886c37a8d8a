"""Put replication back that a setup has set up: have all shipped, remove the peers, and put scopes back.

The tables at the target stay, with what was replicated so far. An abort of an unfinished setup does the same without
shipping.
"""

from __future__ import annotations

import logging
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from walferry.amounts import first_of
from walferry.errors import UsageError, WalferryError
from walferry.hbase.peers import peer_message
from walferry.ledger.rows import ClusterSide
from walferry.migration.setup.put_back import PutBack, put_back
from walferry.migration.setup.setup import ship_all, sides_of
from walferry.migration.setup.wanted_peer import differences, recorded
from walferry.replication.shipped import Shipped, line
from walferry.run.heartbeat import beating
from walferry.run.notes import own_pair
from walferry.run.notes.teardown import begin_teardown, end_teardown, teardown_begun, torn_down
from walferry.run.recorded_spec import setup_spec_of
from walferry.run.run import Run
from walferry.run.sides import SIDES, client_at, elsewhere

log = logging.getLogger(__name__)

LABEL = "teardown"


@dataclass(frozen=True)
class TornDown:
    """What a teardown has done."""

    shipped: list[Shipped] = field(default_factory=list)
    put_back: PutBack = field(default_factory=PutBack)
    unshipped: list[str] = field(default_factory=list)
    """peers that were removed, or would be, without a proof that they have shipped all, with why"""
    to_ship: list[str] = field(default_factory=list)
    """in a dry run: the peers that would have to"""
    before: str = ""
    """that it was torn down before, and by whom"""

    pair: str = ""
    """the run of the pair that was ended with it"""

    def as_facts(self) -> dict[str, Any]:
        """As plain values."""
        return {
            "shipped": [asdict(one) for one in self.shipped], "unshipped": self.unshipped,
            "to_ship": self.to_ship,
            "removed": self.put_back.removed, "changed": self.put_back.changed, "left": self.put_back.left,
            "stays": self.put_back.stays, "torn_down_before": bool(self.before),
            "ended_pair": self.pair,
        }  # fmt: skip

    def lines(self) -> list[str]:
        """For people."""
        found = [line(one) for one in self.shipped]
        found += [f"NOT SHIPPED: {one} is gone, and the target may lack edits" for one in self.unshipped]
        found += [f"put back: {one}" for one in self.put_back.removed]
        found += [f"ended: pair {self.pair}"] if self.pair else []
        found += [f"stays: {one}" for one in self.put_back.stays]
        found += [f"not put back: {one}" for one in (*self.put_back.changed, *self.put_back.left)]
        return found

    def foreseen(self) -> list[str]:
        """The same of a dry run."""
        found = [f"would wait until {one} has shipped all" for one in self.to_ship]
        found += [f"would NOT wait until {one} has shipped all" for one in self.unshipped]
        found += [f"would put back: {one}" for one in self.put_back.removed]
        found += [f"would stay: {one}" for one in self.put_back.stays]
        found += [f"would not put back: {one}" for one in (*self.put_back.changed, *self.put_back.left)]
        return found


def tear_down(run: Run, reason: str, *, unshipped: bool = False, dry_run: bool = False) -> TornDown:
    """Put back what a setup has set. Repeat it after an error, or once what kept a part of it is mended.

    Raises RunBusyError while a live process works on the run, StillShippingError and NotReplicatedError if a peer has
    not shipped all, unless `unshipped`, and the errors of the clusters before anything is put back.
    """
    known = torn_down(run.ledger)
    before = "" if known is None else f"{run.run_id} was torn down by {known['by']}"
    if not unshipped and not dry_run:
        _require_clusters(run)
    gone = _gone(run)
    if gone and not unshipped:
        raise WalferryError(
            f"{first_of(gone)} was removed by somebody: nobody knows what it had not shipped. Nothing was put back; to "
            "do that all the same, add --unshipped, and compare the tables",
            run=run.run_id, peers=gone,
        )  # fmt: skip
    peers = [f"peer {one} at the {side}" for side, one in _to_ship(run)] if unshipped or dry_run else []
    skipped = [*gone, *peers] if unshipped else []
    if dry_run:
        return TornDown([], put_back(run, dry_run=True), skipped, [] if unshipped else peers, before)
    with beating(run.ledger, LABEL, run.actor, alone=True):
        shipped = [] if unshipped else _ship(run)
        begin_teardown(run.ledger, run.actor, reason)
        if run.ledger.record.state == "running":
            run.ledger.end("aborted", run.actor, reason or "replication was torn down")
        done = TornDown(shipped, put_back(run), skipped, [], before)
        if done.put_back.is_whole:
            done = replace(done, pair=_end_pair(run, reason))
            end_teardown(run.ledger, run.actor)
        return done


def _require_clusters(run: Run) -> None:
    """Raise UsageError for a side whose address leads to another cluster: what is there is not what was set up."""
    for side in SIDES:
        try:
            why = elsewhere(run, side)
        except WalferryError as error:  # what needs it raises it; the other one can be put back
            log.warning("which cluster the %s is is not known: %s", side, error)
            continue
        if why:
            raise UsageError(
                f"{side}: {why}. Nothing was put back. If the cluster of {run.run_id} has moved, give its address "
                "in the spec, and call `walferry replicate setup SPEC`, which records it",
                run=run.run_id, side=side,
            )  # fmt: skip


def _gone(run: Run) -> list[str]:
    """The peers that may have been enabled and that somebody else has removed, by what the clusters answer. Once a
    teardown has begun to put back, one that is gone was removed by it."""
    if teardown_begun(run.ledger):
        return []
    set_peers = {item.cluster for item in run.ledger.objects.all() if (item.kind, item.state) == ("peer", "made")}
    found = []
    for side in (one for one in sides_of(run) if one in set_peers):
        wanted = recorded(run.ledger, side)
        if wanted is None or wanted.enabled == "no":
            continue
        try:
            if not elsewhere(run, side) and peer_message(client_at(run, side), wanted.id) is None:
                found.append(f"peer {wanted.id} at the {side}")
        except WalferryError as error:
            log.warning("whether peer %s at the %s is there is not known: %s", wanted.id, side, error)
    return found


def _to_ship(run: Run) -> list[tuple[ClusterSide, str]]:
    """The peers that are enabled and as they were set up, with their sides: those that a teardown removes."""
    found: list[tuple[ClusterSide, str]] = []
    for side in sides_of(run):
        wanted = recorded(run.ledger, side)
        if wanted is None or not wanted.added or wanted.enabled == "no":
            continue
        try:
            client = client_at(run, side)
            there = peer_message(client, wanted.id)
            if there is not None and there[0] and not differences(client, wanted):
                found.append((side, wanted.id))
        except WalferryError as error:
            log.warning("whether peer %s at the %s is enabled is not known: %s", wanted.id, side, error)
            found.append((side, wanted.id))
    return found


def _ship(run: Run) -> list[Shipped]:
    sides = [side for side, _ in _to_ship(run)]
    if not sides:
        return []
    seconds = setup_spec_of(run.record).ship_minutes * 60
    try:
        return ship_all(run, seconds, only=sides)
    except WalferryError as error:
        raise type(error)(
            f"{error}. Nothing was put back; to do that all the same, add --unshipped, and the target lacks what "
            "was not shipped",
            **error.facts,
        ) from error


def _end_pair(run: Run, reason: str) -> str:
    """End the run of the pair by which the tables were compared: nothing keeps them equal any longer. Returns its id;
    "" if there is none."""
    record = own_pair.own(run.ledger, setup_spec_of(run.record).pair_name)
    if record is None:
        return ""
    why = reason or f"replication of {run.record.name} was torn down"
    run.ledger.whole.of(record.run_id).end("aborted", run.actor, why)
    return record.run_id


def abort(run: Run, reason: str, actor: str) -> dict[str, Any]:
    """End an unfinished setup, and put back what it has set, without shipping. Facts: removed, stays, left. Repeat it
    to put back what was left. Raises UsageError for a setup that is done."""
    require_unfinished(run)
    run.ledger.end("aborted", actor, reason)
    done = put_back(run)
    if done.is_whole:
        if pair := _end_pair(run, reason):
            done.removed.append(f"pair {pair}")
        end_teardown(run.ledger, actor)
    return _facts(done)


def foresee_abort(run: Run) -> dict[str, Any]:
    """What `abort` would do, in the same form."""
    require_unfinished(run)
    return _facts(put_back(run, dry_run=True))


def _facts(done: PutBack) -> dict[str, Any]:
    return {"removed": done.removed, "stays": done.stays, "left": [*done.changed, *done.left]}


def require_unfinished(run: Run) -> None:
    """Raise UsageError for a setup that is done."""
    if run.ledger.record.state == "done":
        raise UsageError(
            f"{run.run_id} is done: `walferry replicate teardown {run.record.name}` puts it back, once all is shipped",
            run=run.run_id,
        )
