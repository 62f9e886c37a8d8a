"""Judge rows of a pair that HBase's own replication feeds, once its peer has shipped what was written before."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from walferry.clock import iso
from walferry.errors import WalferryError
from walferry.hbase.descriptors import name_text
from walferry.hbase.peers import peer_configs
from walferry.ledger import PassDifference
from walferry.replication.finding import NotReplicatedError
from walferry.replication.shipped import Shipped, ship
from walferry.replication.sink import cluster_id_at, keyed_address
from walferry.replication.spec import ResolvedReplicateSpec
from walferry.run.recorded_spec import peer_of
from walferry.run.run import Run

log = logging.getLogger(__name__)

LEAST_SECONDS = 60
"""that a peer has to ship what was written"""


class Shipping:
    """The peer of a pair during one pass, and what it has been seen to ship. Without a peer, it judges at once."""

    def __init__(self, run: Run, before: Sequence[PassDifference]) -> None:
        self._run = run
        self.peer = peer_of(run.record)
        self.proof: Shipped | None = None
        self.why = ""
        """why it has not shipped what was written"""
        self._proved = {(item.table, item.row): item.detail for item in before if item.state == "differs"}
        """the rows that differed before the pass, and how"""

    def ship(self) -> None:
        """Have all that was written before now shipped, or say in `why` what keeps it. Waits at most once for a peer
        that does not ship."""
        if self.peer is None or self.why:
            return
        spec = self._run.spec
        asked = ResolvedReplicateSpec(source=spec.source, target=spec.target, peer=self.peer)
        seconds = max(LEAST_SECONDS, spec.max_lag)
        try:
            (self.proof,) = ship(asked, self._run.source, self._run.wal_files, self._run.wal_root, seconds)
        except NotReplicatedError as error:
            self.proof, self.why = None, str(error)
            log.warning("%s: rows that differ are not judged: %s", self._run.run_id, error)

    def judged(self, item: PassDifference) -> PassDifference:
        """A row that `differs` if all that was written is shipped. If it is not, it only does if an earlier pass has
        found exactly this."""
        if not self.why or self._proved.get((item.table, item.row)) == item.detail:
            return item
        return replace(item, state="under way")

    def facts(self) -> dict[str, Any]:
        """`PassRecord.shipped`; {} if nothing had to be shipped."""
        if self.proof is not None:
            return asdict(self.proof) | {"why": ""}
        return {"peer": self.peer, "why": self.why} if self.why else {}


def shipping_text(shipped: Mapping[str, Any]) -> str:
    """For people, of `PassRecord.shipped`."""
    if shipped["why"]:
        return f"rows that differ are NOT JUDGED: {shipped['why']}"
    return f"peer {shipped['peer']} had shipped all that was written before {iso(shipped['rolled_ms'])}"


def peer_faults(run: Run) -> list[str]:
    """Why the named peer does not feed the target with the tables of a pair."""
    wanted = peer_of(run.record)
    if wanted is None:
        return []
    peer = next((one for one in peer_configs(run.source) if one.id == wanted), None)
    if peer is None or not peer.is_hbase:
        return [f"the source has no replication peer {wanted} that leads to a cluster"]
    faults = []
    for pair in run.tables:
        if pair.source != pair.target:
            faults.append(f"{pair.source} has the name {pair.target} at the target, where no peer replicates it to")
        left_out = [
            name_text(family.name)
            for family in run.source.describe(pair.source).schema.column_families
            if not peer.replicates(pair.source, name_text(family.name))
        ]
        faults += [f"peer {wanted} does not replicate the family {family} of {pair.source}" for family in left_out]
    try:
        there = cluster_id_at(keyed_address(peer.cluster_key, run.spec.source.address()))
    except WalferryError:
        there = None  # its key means nothing here, and may mean something at the source
    if there not in (None, run.target.cluster_id()):
        faults.append(f"peer {wanted} leads to another cluster than the target: {peer.cluster_key}")
    return faults
