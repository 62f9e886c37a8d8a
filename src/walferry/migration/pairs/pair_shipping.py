"""Judge rows of a pair that HBase's own replication feeds, once its peer has shipped what was written before."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from walferry.clock import iso
from walferry.errors import UsageError, WalferryError
from walferry.hbase.peers import peer_configs
from walferry.ledger import PassDifference, PassRecord
from walferry.replication.finding import NotReplicatedError
from walferry.replication.shipped import Shipped, ship
from walferry.replication.sink import cluster_id_at, keyed_address
from walferry.replication.spec import ResolvedReplicateSpec
from walferry.replication.status import require_readable_queues
from walferry.replication.table_findings import SCOPE, is_replicated
from walferry.run.notes.last_pass import last_pass
from walferry.run.recorded_spec import peer_of
from walferry.run.run import Run

log = logging.getLogger(__name__)

LEAST_SECONDS = 60
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
        last = last_pass(run.ledger)
        known = run.ledger.passes.differences() if last is not None and last.shipped else []
        rows = [[item.table, item.row.hex(), item.detail] for item in known if _is_proof(item)]
        kept = {"pass": current.number, "rows": rows}
        run.ledger.notes.keep(_NOTE, kept)
    return {(table, bytes.fromhex(row)): detail for table, row, detail in kept["rows"]}


def _is_proof(item: PassDifference) -> bool:
    return item.state == "differs" and item.detail != NOT_LOOKED_AT


class Shipping:
    """The peer of a pair during one pass, and what it has been seen to ship."""

    def __init__(self, run: Run, proved: Proved) -> None:
        self._run = run
        self.peer = peer_of(run.record)
        self.proof: Shipped | None = None
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
        spec = self._run.spec
        asked = ResolvedReplicateSpec(source=spec.source, target=spec.target, peer=self.peer)
        seconds = max(LEAST_SECONDS, spec.max_lag)
        try:
            (self.proof,) = ship(asked, self._run.source, self._run.wal_files, self._run.wal_root, seconds)
        except NotReplicatedError as error:
            self.proof, self.why = None, str(error)
            log.warning("%s: rows that differ are not judged: %s", self._run.run_id, error)

    def proved(self, item: PassDifference) -> bool:
        """Whether an earlier pass has proved that the row differs in exactly these cells."""
        return self._proved.get((item.table, item.row)) == item.detail

    def leave_unjudged(self, why: str) -> None:
        """Have the pass end as not judged. The first reason is kept."""
        self.unjudged = self.unjudged or why

    def facts(self) -> dict[str, Any]:
        """`PassRecord.shipped`; {} if nothing had to be shipped."""
        if self.proof is not None:
            return asdict(self.proof) | {"why": self.unjudged}
        return {"peer": self.peer, "why": self.why} if self.why else {}


def shipping_text(shipped: Mapping[str, Any]) -> str:
    """For people, of `PassRecord.shipped`."""
    parts = []
    if "rolled_ms" in shipped:
        parts.append(f"peer {shipped['peer']} had shipped all that was written before {iso(shipped['rolled_ms'])}")
    if shipped["why"]:
        parts.append(f"NOT JUDGED: {shipped['why']}")
    return "; ".join(parts)


def peer_faults(run: Run) -> list[str]:
    """Why the named peer does not feed the target with the tables of a pair."""
    wanted = peer_of(run.record)
    if wanted is None:
        return []
    try:
        require_readable_queues(run.source)
    except UsageError as error:
        return [f"nobody can tell what peer {wanted} has shipped: {error}"]
    peer = next((one for one in peer_configs(run.source) if one.id == wanted), None)
    if peer is None or not peer.is_hbase:
        return [f"the source has no replication peer {wanted} that leads to a cluster"]
    faults = []
    for pair in run.tables:
        if pair.source != pair.target:
            faults.append(f"{pair.source} has the name {pair.target} at the target, where no peer replicates it to")
        for name, family in run.source.describe(pair.source).shown_families.items():
            if not is_replicated(family):
                faults.append(f"the family {name} of {pair.source} has {SCOPE} 0, so no peer replicates it")
            elif not peer.replicates(pair.source, name):
                faults.append(f"peer {wanted} does not replicate the family {name} of {pair.source}")
    try:
        there = cluster_id_at(keyed_address(peer.cluster_key, run.spec.source.address()))
    except WalferryError:
        there = None  # its key means nothing here, and may mean something at the source
    if there not in (None, run.target.cluster_id()):
        faults.append(f"peer {wanted} leads to another cluster than the target: {peer.cluster_key}")
    return faults
