"""Judge rows of a pair that HBase's own replication feeds, once its peer has shipped what was written before.

If clients write to both clusters, each has a peer that leads to the other one, and both must have shipped.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from walferry.clock import iso
from walferry.errors import UsageError, WalferryError
from walferry.hbase.address import ClusterAddress
from walferry.hbase.peers import PeerConfig, peer_configs
from walferry.ledger import PassDifference, PassRecord
from walferry.ledger.rows import ClusterSide
from walferry.replication.finding import NotReplicatedError
from walferry.replication.shipped import IDLE_SECONDS, Shipped, ship
from walferry.replication.sink import cluster_id_at, keyed_address
from walferry.replication.spec import ResolvedReplicateSpec
from walferry.replication.status import require_readable_queues
from walferry.replication.table_findings import SCOPE, is_replicated
from walferry.run.notes.last_pass import last_pass
from walferry.run.recorded_spec import peer_back_of, peer_of
from walferry.run.run import Run
from walferry.run.sides import SIDES, client_at, log_at, name_at

log = logging.getLogger(__name__)

LEAST_SECONDS = IDLE_SECONDS + 60
"""that a peer has to ship what was written"""
NOT_LOOKED_AT = "it was not compared cell by cell: too many rows differ"
"""the detail of a row that differs in cells nobody knows"""
_NOTE = "rows proved to differ"

Proved = Mapping[tuple[str, bytes], str]
"""by table and row: in which cells a row differed after all that was written was shipped, as its detail has them"""


def proved_before(run: Run, current: PassRecord) -> Proved:
    """The rows that the passes before this one have proved to differ. The first attempt of a pass records them, since
    the pass replaces them in the ledger; a later attempt reads that record. {} without a peer."""
    if peer_of(run.record) is None:
        return {}
    kept = run.ledger.notes.get(_NOTE)
    if kept is None or kept["pass"] != current.number:
        rows = [[table, row.hex(), detail] for (table, row), detail in proved_now(run).items()]
        kept = {"pass": current.number, "rows": rows}
        run.ledger.notes.keep(_NOTE, kept)
    return {(table, bytes.fromhex(row)): detail for table, row, detail in kept["rows"]}


def proved_now(run: Run) -> Proved:
    """The rows that the passes so far have proved to differ by the peers of now, while no pass is under way."""
    last, now = last_pass(run.ledger), _peers(run)
    proof = last is not None and {key: last.shipped.get(key) for key in now} == now
    known = run.ledger.passes.differences() if proof else []
    return {
        (item.table, item.row): item.detail
        for item in known
        if item.state == "differs" and item.detail != NOT_LOOKED_AT
    }


def _peers(run: Run) -> dict[str, str | None]:
    return {"peer": peer_of(run.record), "peer_back": peer_back_of(run.record)}


@dataclass(frozen=True)
class _Feeder:
    """A cluster that feeds the other one of a pair by its replication peer."""

    side: ClusterSide
    fed: ClusterSide
    """the other one"""
    peer: str
    asked: ResolvedReplicateSpec


def _feeders(run: Run) -> list[_Feeder]:
    peers = {"source": peer_of(run.record), "target": peer_back_of(run.record)}
    clusters = {"source": run.spec.source, "target": run.spec.target}
    return [
        _Feeder(side, fed, peer, ResolvedReplicateSpec(source=clusters[side], target=clusters[fed], peer=peer))
        for side, fed in (SIDES, SIDES[::-1])
        if (peer := peers[side]) is not None
    ]


class Shipping:
    """The peers of a pair during one pass, and what they have been seen to ship."""

    def __init__(self, run: Run, proved: Proved) -> None:
        self._run = run
        self.peer = peer_of(run.record)
        self.times = 1 if peer_back_of(run.record) is None else 2
        """how often they must ship before a row is judged. If both clusters have clients, what has come to one of them
        may be deleted there, and that delete has to come back"""
        self.proofs: list[Shipped] = []
        """of the source's peer, and then of the target's"""
        self.why = ""
        """why it has not shipped what was written"""
        self.unjudged = ""
        """why rows could not be judged although it has shipped that"""
        self._proved = proved

    def ship(self) -> None:
        """Have all that was written before now shipped, or say in `why` what keeps it. Waits at most once for a peer
        that does not ship."""
        if self.peer is None or self.why:
            return
        self.proofs, seconds = [], max(LEAST_SECONDS, self._run.spec.max_lag)
        for feeder in _feeders(self._run):
            client, (files, root) = client_at(self._run, feeder.side), log_at(self._run, feeder.side)
            try:
                self.proofs += ship(feeder.asked, client, files, root, seconds)
            except NotReplicatedError as error:
                self.proofs = []
                self.why = str(error) if feeder.side == "source" else f"back to the source: {error}"
                log.warning("%s: rows that differ are not judged: %s", self._run.run_id, self.why)
                return

    def proved(self, item: PassDifference) -> bool:
        """Whether an earlier pass has proved that the row differs in exactly these cells."""
        return self._proved.get((item.table, item.row)) == item.detail

    def leave_unjudged(self, why: str) -> None:
        """Have the pass end as not judged. The first reason is kept."""
        self.unjudged = self.unjudged or why

    def facts(self) -> dict[str, Any]:
        """`PassRecord.shipped`; {} if nothing had to be shipped."""
        if self.proofs:
            first, *back = map(asdict, self.proofs)
            return first | _peers(self._run) | {"back": back[0] if back else None, "why": self.unjudged}
        return _peers(self._run) | {"why": self.why} if self.why else {}


def shipping_text(shipped: Mapping[str, Any]) -> str:
    """For people, of `PassRecord.shipped`."""
    parts = []
    if "rolled_ms" in shipped:
        text = f"peer {shipped['peer']} had shipped all that was written before {iso(shipped['rolled_ms'])}"
        back = shipped.get("back")
        parts.append(f"{text}, and peer {back['peer']} back before {iso(back['rolled_ms'])}" if back else text)
    if shipped["why"]:
        parts.append(f"NOT JUDGED: {shipped['why']}")
    return "; ".join(parts)


def peer_faults(run: Run) -> list[str]:
    """Why the named peers do not feed the clusters with the tables of a pair."""
    return [fault for feeder in _feeders(run) for fault in _faults_of(run, feeder)]


def unnamed_back(run: Run) -> str | None:
    """The target's peer that may feed the source with tables of a pair, if the pair names no `peer_back`."""
    if peer_back_of(run.record) is not None:
        return None
    for peer in peer_configs(run.target):
        if not peer.is_hbase or not any(_replicates(run, peer, pair.target) for pair in run.tables):
            continue
        if _leads_to(peer, run.spec.target.address()) in (None, run.source.cluster_id()):
            return peer.id
    return None


def _replicates(run: Run, peer: PeerConfig, table: str) -> bool:
    families = run.target.describe(table).shown_families
    return any(is_replicated(family) and peer.replicates(table, name) for name, family in families.items())


def _leads_to(peer: PeerConfig, here: ClusterAddress) -> str | None:
    """The id of the cluster that a peer leads to; None if it cannot be told: its key may mean something only there."""
    try:
        return cluster_id_at(keyed_address(peer.cluster_key, here))
    except WalferryError:
        return None


def _faults_of(run: Run, feeder: _Feeder) -> list[str]:
    wanted, here, there = feeder.peer, feeder.side, feeder.fed
    client = client_at(run, here)
    try:
        require_readable_queues(client, here)
    except UsageError as error:
        return [f"nobody can tell what peer {wanted} has shipped: {error}"]
    peer = next((one for one in peer_configs(client) if one.id == wanted), None)
    if peer is None or not peer.is_hbase:
        return [f"the {here} has no replication peer {wanted} that leads to a cluster"]
    faults = []
    for pair in run.tables:
        table, other = name_at(run, here, pair.source), name_at(run, there, pair.source)
        if table != other:
            faults.append(f"{table} has the name {other} at the {there}, where no peer replicates it to")
        for name, family in client.describe(table).shown_families.items():
            if not is_replicated(family):
                faults.append(f"the family {name} of {table} has {SCOPE} 0 at the {here}, so no peer replicates it")
            elif not peer.replicates(table, name):
                faults.append(f"peer {wanted} does not replicate the family {name} of {table}")
    if _leads_to(peer, feeder.asked.source.address()) not in (None, client_at(run, there).cluster_id()):
        faults.append(f"peer {wanted} leads to another cluster than the {there}: {peer.cluster_key}")
    return faults
