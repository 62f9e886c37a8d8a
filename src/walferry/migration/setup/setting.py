"""What a setup sets on the clusters: scopes of families, and peers that keep the log and then ship it."""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from typing import Any

from walferry.amounts import amount, first_of
from walferry.clock import steady_s
from walferry.errors import TransientError, WalferryError
from walferry.formats.proto import hbase_pb2 as pb
from walferry.hbase.client import HBaseClient
from walferry.hbase.peers import add_disabled_peer, enable_peer, peer_message
from walferry.ledger.rows import ClusterSide
from walferry.migration.setup.put_back import made
from walferry.migration.setup.scopes import alter, changed_tables, object_name, parsed, scopes_of, unscoped
from walferry.migration.setup.wanted_peer import (
    as_added,
    decided,
    queues_of,
    recorded,
    require_as_recorded,
    require_peer,
)
from walferry.replay.keeping.objects import plan_own
from walferry.replication.table_findings import SCOPE
from walferry.run.recorded_spec import setup_spec_of
from walferry.run.run import Run
from walferry.run.sides import client_at, log_at
from walferry.storage import FileSystem
from walferry.wal.files import Place, list_live

log = logging.getLogger(__name__)

QUEUE_SECONDS = 60.0
"""within which a peer's queues must have the logs that are being written"""
ROLL_AGAIN_SECONDS = 10.0
LOOK_SECONDS = 0.5


class ScopeChangedError(WalferryError):
    """Somebody has put a scope back that the run has set; facts `table`, `families`."""


def set_scopes(run: Run, table: str) -> dict[str, Any]:
    """Have all edits of a source table's families replicated from now on. Facts: table, families, regions."""
    known = changed_tables(run.ledger, "source").get(table)
    if known is None:
        scopes = scopes_of(run.source.describe(table))
        names = setup_spec_of(run.record).names_of(table)
        name = object_name(table, {one: was for one, was in scopes.items() if names is None or one in names})
    else:
        name = known.name
    _, before = parsed(name)
    run.ledger.objects.plan_again("source", "scope", name)  # so an abort beside it leaves it to this process
    alter(run.source, table, {family: "1" for family, was in before.items() if was == "0"})
    made(run, "source", "scope", name)
    regions = run.source.regions(table)
    log.info("%s: %s of %s is 1 in %s", table, SCOPE, first_of(sorted(before)), amount(len(regions), "region"))
    return {"table": table, "families": sorted(before), "regions": len(regions)}


def require_scopes(run: Run, side: ClusterSide) -> None:
    """Raise ScopeChangedError unless the recorded families that exist are replicated."""
    client = client_at(run, side)
    for table, item in sorted(changed_tables(run.ledger, side).items()):
        if families := unscoped(client.describe(table), parsed(item.name)[1]):
            raise ScopeChangedError(
                f"somebody has set {SCOPE} of {first_of(families)} of {table} at the {side} to 0 again: what was "
                f"written since is not replicated. End this run by `walferry abort {run.record.name} --reason …`, drop "
                "the target tables, and start over",
                table=table, families=families,
            )  # fmt: skip


def add_peer(run: Run, side: ClusterSide) -> dict[str, Any]:
    """Add the peer at a side, disabled, and wait until it keeps all that is written from now on. Facts: peer, groups.

    Raises PeerDiffersError if somebody has changed or removed it since an earlier attempt.
    """
    client, wanted = client_at(run, side), decided(run, side)
    if wanted.added:
        require_as_recorded(client, wanted, side)
    else:
        plan_own(run, side, "peer", wanted.id, there=peer_message(client, wanted.id) is not None)
        add_disabled_peer(client, wanted.id, pb.ReplicationPeer.FromString(bytes.fromhex(wanted.message)))
        as_added(client, wanted).keep(run.ledger, side)
    made(run, side, "peer", wanted.id)
    groups = _await_kept(run, side, wanted.id)
    now = recorded(run.ledger, side)
    assert now is not None, f"the peer {wanted.id} is recorded"
    replace(now, queues=queues_of(client, wanted.id)).keep(run.ledger, side)
    return {"peer": wanted.id, "groups": groups}


def _await_kept(run: Run, side: ClusterSide, peer: str) -> list[str]:
    """Wait until each region server has put its log into the peer's queue, have it roll, and wait until the next one is
    there, too: so it does for all later ones, before it writes to them. Returns the groups of logs."""
    client = client_at(run, side)
    files, root = log_at(run, side)
    first = _await_queued(client, files, root, peer, {})
    _roll(client)
    return sorted(_await_queued(client, files, root, peer, first))


def _await_queued(
    client: HBaseClient, files: FileSystem, root: str, peer: str, older: dict[str, str]
) -> dict[str, str]:
    """The newest log of each group that is being written, once the queues have it, and it is none of `older`."""
    deadline, rolled = steady_s() + QUEUE_SECONDS, steady_s()
    while True:
        queued = {name for names in client.peer_queues(peer).values() for name in names}
        live = {server.name for server in client.servers()}
        newest = {
            file.group: file.name
            for file in sorted(list_live(files, root), key=lambda file: file.number)
            if file.place is Place.LIVE and file.server in live
        }
        missing = sorted(name for name in newest.values() if name not in queued)
        stays = sorted(name for group, name in newest.items() if older.get(group) == name)
        if newest and not missing and not stays:
            return newest
        if steady_s() > deadline:
            name, what = (missing[0], "is in no queue of it") if missing else (first_of(stays), "is not rolled")
            raise TransientError(
                f"peer {peer} does not keep the log yet after {QUEUE_SECONDS:.0f} s: {name} {what}; is "
                "hbase.replication true at every region server?",
                peer=peer, missing=missing,
            )  # fmt: skip
        if stays and steady_s() - rolled > ROLL_AGAIN_SECONDS:
            _roll(client)
            rolled = steady_s()
        time.sleep(LOOK_SECONDS)


def _roll(client: HBaseClient) -> None:
    for server in client.servers():
        client.roll_wal(server)


def enable(run: Run, side: ClusterSide) -> dict[str, Any]:
    """Enable the peer at a side, unless somebody has changed it or a scope. Facts: peer."""
    require_scopes(run, side)
    wanted, client = require_peer(run, side), client_at(run, side)
    if wanted.enabled != "yes":
        wanted = replace(wanted, enabled="perhaps").keep(run.ledger, side)
        enable_peer(client, wanted.id)
        run.ledger.audit(run.actor, "enable a peer", {"side": side, "peer": wanted.id})
        wanted = replace(wanted, enabled="yes").keep(run.ledger, side)
        made(run, side, "peer", wanted.id)
    require_as_recorded(client, wanted, side)
    return {"peer": wanted.id}
