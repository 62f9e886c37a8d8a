"""What each peer of a setup is to be: recorded before it is added, and from then on compared with what is there.

A peer that differs from its record, or was removed and added again, was changed by a person: nobody touches it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from walferry.amounts import first_of
from walferry.errors import WalferryError
from walferry.formats.proto import hbase_pb2 as pb
from walferry.hbase.client import HBaseClient
from walferry.hbase.descriptors import DEFAULT_NAMESPACE, table_name
from walferry.hbase.peers import HBASE_ENDPOINT, PeerConfig, peer_created, peer_message
from walferry.hbase.replication_queues import queue_nodes
from walferry.ledger import RunLedger
from walferry.ledger.rows import ClusterSide
from walferry.run.recorded_spec import setup_spec_of
from walferry.run.run import Run
from walferry.run.setup_spec import ResolvedSetupSpec
from walferry.run.sides import client_at

Enabled = Literal["no", "perhaps", "yes"]
_NOTE = "peer as set up"


class PeerDiffersError(WalferryError):
    """A peer is not the one that the run has added; facts `peer`, `differing`."""


@dataclass(frozen=True)
class WantedPeer:
    """A peer as the run has decided it, and as it was once it was added."""

    id: str
    message: str
    """HBase's message, to be added, in hex"""
    config: Mapping[str, Any]
    """`described`; once it was added, as HBase has kept it"""
    created: int | None = None
    """the transaction that created it; None before it was added, and where HBase keeps its peers elsewhere"""
    queues: Mapping[str, int] = field(default_factory=dict)
    """of its queues, by region server: the transactions that created them"""
    added: bool = False
    enabled: Enabled = "no"
    """perhaps: a process was about to enable it"""

    def keep(self, ledger: RunLedger, side: ClusterSide) -> WantedPeer:
        """Record it."""
        ledger.notes.keep(_NOTE, asdict(self), side)
        return self


def recorded(ledger: RunLedger, side: ClusterSide) -> WantedPeer | None:
    """The peer at a side as it is recorded; None before it was decided."""
    kept = ledger.notes.get(_NOTE, side)
    return None if kept is None else WantedPeer(**kept)


def decided(run: Run, side: ClusterSide) -> WantedPeer:
    """The peer at a side, recorded when it is first asked for: a later spec does not change it."""
    if (known := recorded(run.ledger, side)) is not None:
        return known
    spec = setup_spec_of(run.record)
    message = peer_to_add(spec, side)
    wanted = WantedPeer(_id_of(spec, side), message.SerializeToString().hex(), described(message))
    run.ledger.audit(run.actor, "decide on a peer", {"side": side, "peer": wanted.id} | dict(wanted.config))
    return wanted.keep(run.ledger, side)


def _id_of(spec: ResolvedSetupSpec, side: ClusterSide) -> str:
    peer = spec.peer if side == "source" else spec.peer_back
    assert peer is not None, f"{spec.name} has no peer at its {side}"
    return peer


def peer_to_add(spec: ResolvedSetupSpec, side: ClusterSide) -> pb.ReplicationPeer:
    """HBase's message for the peer at a side."""
    leads_to = (spec.target if side == "source" else spec.source).address()
    config = pb.ReplicationPeer(clusterkey=leads_to.cluster_key, replicate_all=False)
    if spec.serial:
        config.serial = True
    if spec.bandwidth:
        config.bandwidth = spec.bandwidth
    names = [pair.source for pair in spec.tables]
    if spec.namespaces:
        config.namespaces.extend(sorted({namespace_of(name).encode() for name in names}))
        return config
    for name in names:
        families = [family.encode() for family in spec.names_of(name) or ()]
        config.table_cfs.add(table_name=table_name(name), families=families)
    return config


def namespace_of(table: str) -> str:
    """The namespace of a table by its name."""
    return table.rpartition(":")[0] or DEFAULT_NAMESPACE


def described(config: pb.ReplicationPeer) -> dict[str, Any]:
    """Everything that a peer's configuration says, as plain values with the names of HBase's shell."""
    peer = PeerConfig.of("", False, config)
    return {
        "CLUSTER_KEY": peer.cluster_key,
        "ENDPOINT_CLASSNAME": "" if peer.endpoint == HBASE_ENDPOINT else peer.endpoint,
        "REPLICATE_ALL": peer.all_tables,
        "TABLE_CFS": _families(peer.tables),
        "NAMESPACES": sorted(peer.namespaces),
        "EXCLUDE_TABLE_CFS": _families(peer.left_out_tables),
        "EXCLUDE_NAMESPACES": sorted(peer.left_out_namespaces),
        "SERIAL": peer.serial,
        "BANDWIDTH": peer.bandwidth,
        "DATA": {pair.first.hex(): pair.second.hex() for pair in config.data},
        "CONFIG": {pair.name: pair.value for pair in config.configuration},
    }


def _families(tables: Mapping[str, Iterable[str]]) -> dict[str, list[str]]:
    return {table: sorted(families) for table, families in sorted(tables.items())}


# ------------------------------------------------------------------ compared with what is there


def as_added(client: HBaseClient, wanted: WantedPeer) -> WantedPeer:
    """A peer that was just added, as it is there. Raises PeerDiffersError if it is not what was to be added.

    HBase may add to its CONFIG what its servers are set to (`hbase.replication.peer.base.config`).
    """
    there = peer_message(client, wanted.id)
    if there is not None:
        config = described(there[1])
        more = {"CONFIG": config["CONFIG"]} if config["CONFIG"].items() >= wanted.config["CONFIG"].items() else {}
        wanted = replace(wanted, config=dict(wanted.config) | more)
    require_as_recorded(client, wanted)
    return replace(wanted, created=peer_created(client, wanted.id), added=True)


def differences(client: HBaseClient, wanted: WantedPeer) -> list[str]:
    """What differs between a peer and its record, as text; [] if nothing does."""
    there = peer_message(client, wanted.id)
    if there is None:
        return ["it was removed"]
    enabled, message = there
    now = described(message)
    config = wanted.config
    if not wanted.added and now["CONFIG"].items() >= config["CONFIG"].items():
        config = dict(config) | {"CONFIG": now["CONFIG"]}  # HBase may have added to it, and nobody has read it since
    found = [f"{key} is {now[key]!r}, not {was!r}" for key, was in config.items() if now[key] != was]
    if wanted.created is not None and (created := peer_created(client, wanted.id)) != wanted.created:
        found.insert(0, "it was removed and added again" if created is not None else "its node in ZooKeeper is gone")
    if wanted.created is None and _queue_replaced(client, wanted):
        found.insert(0, "it was removed and added again")
    if wanted.enabled != "perhaps" and enabled != (wanted.enabled == "yes"):
        found.append("it was enabled" if enabled else "it was disabled")
    return found


def queues_of(client: HBaseClient, peer: str) -> dict[str, int]:
    """The transactions that created the queues of live region servers, by server."""
    return {node.holder: node.created for node in queue_nodes(client, [peer]) if node.writer == node.holder}


def _queue_replaced(client: HBaseClient, wanted: WantedPeer) -> bool:
    """Whether a region server that had a queue of the peer, and is alive, has another one now, or none."""
    if not wanted.queues:
        return False
    now, live = queues_of(client, wanted.id), {server.name for server in client.servers()}
    return any(now.get(holder) != created for holder, created in wanted.queues.items() if holder in live)


def require_as_recorded(client: HBaseClient, wanted: WantedPeer, side: ClusterSide | None = None) -> None:
    """Raise PeerDiffersError unless a peer is as it is recorded."""
    if found := differences(client, wanted):
        where = f" at the {side}" if side else ""
        raise PeerDiffersError(
            f"the replication peer {wanted.id}{where} is not as it was set up: {first_of(found, most=5)}. Somebody has "
            "changed it, so nothing more is done. Change it back, or end this run by `walferry abort`, which leaves "
            "that peer as it is",
            peer=wanted.id, differing=found,
        )  # fmt: skip


def require_peer(run: Run, side: ClusterSide) -> WantedPeer:
    """The peer at a side that was added. Raises PeerDiffersError unless it is as it is recorded."""
    wanted = recorded(run.ledger, side)
    if wanted is None or not wanted.added:
        raise PeerDiffersError(f"{run.run_id} has added no peer at the {side}", peer="", differing=[])
    require_as_recorded(client_at(run, side), wanted, side)
    return wanted
