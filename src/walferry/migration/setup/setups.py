"""The setups in a ledger: which ones are in force, and on which clusters."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from walferry.errors import UsageError
from walferry.hbase.peers import PINNING_ENDPOINT, PeerConfig
from walferry.ledger import Ledger, RunLedger, RunRecord
from walferry.ledger.rows import ClusterObject, ClusterSide
from walferry.run.cluster_ids import planned_id
from walferry.run.notes.teardown import teardown_begun, torn_down
from walferry.run.recorded_spec import setup_spec_of
from walferry.run.setup_spec import ResolvedSetupSpec


@dataclass(frozen=True)
class InForce:
    """A setup that has a peer, or is about to add one, at a side of its own."""

    run: RunRecord
    side: ClusterSide
    spec: ResolvedSetupSpec

    @property
    def peer(self) -> str | None:
        """The peer at that side."""
        return self.spec.peer if self.side == "source" else self.spec.peer_back

    def needs(self, table: str, family: str) -> bool:
        """Whether it replicates a family from there."""
        families = self.spec.names_of(table)
        named = any(pair.source == table for pair in self.spec.tables)
        return named and self.peer is not None and (families is None or family in families)


def find_setup(ledger: Ledger, name_or_run_id: str) -> RunRecord | None:
    """The setup with that id, or the newest one with that name."""
    runs = [run for run in ledger.runs() if run.kind == "setup"]
    found = [run for run in runs if run.run_id == name_or_run_id] or [run for run in runs if run.name == name_or_run_id]
    return found[-1] if found else None


def require_setup(ledger: Ledger, name_or_run_id: str) -> RunRecord:
    """As `find_setup`. Raises UsageError if there is none."""
    found = find_setup(ledger, name_or_run_id)
    if found is None:
        ledger.find(name_or_run_id)  # whose error names others
        raise UsageError(f"{name_or_run_id} has set up no replication: there is nothing to tear down")
    return found


def require_no_teardown(ledger: RunLedger) -> None:
    """Raise UsageError if somebody has begun to tear a setup down."""
    if teardown_begun(ledger):
        raise UsageError(
            f"somebody has begun to tear {ledger.run_id} down: end that by `walferry replicate teardown "
            f"{ledger.record.name}`",
            run=ledger.run_id,
        )


def in_force(ledger: Ledger, cluster_id: str, but: str | None = None) -> Iterator[InForce]:
    """The setups that are unfinished or set up, and not torn down, by each side that is the cluster of this id. `but`:
    the id of a run to leave out."""
    for run in ledger.runs():
        if run.kind != "setup" or run.run_id == but or run.state not in ("running", "done"):
            continue
        part = ledger.of(run.run_id)
        if torn_down(part) is not None:
            continue
        spec = setup_spec_of(run)
        sides: tuple[ClusterSide, ...] = ("source",) if spec.peer_back is None else ("source", "target")
        yield from (InForce(run, side, spec) for side in sides if planned_id(part, side) == cluster_id)


def left_by_aborted(ledger: Ledger, cluster_id: str) -> Iterator[tuple[RunRecord, str, str]]:
    """What aborted setups have left at the cluster of this id, since it could not be put back: the run, the kind
    (`peer`, `scope`) and the peer or table."""
    for run in ledger.runs():
        if run.kind != "setup" or run.state not in ("aborted", "failed"):
            continue
        part = ledger.of(run.run_id)
        if torn_down(part) is not None:
            continue  # what is there, somebody else needs
        for item in left_of(part):
            if planned_id(part, item.cluster) == cluster_id:
                yield run, item.kind, item.name.partition("=")[0]


def left_of(ledger: RunLedger) -> list[ClusterObject]:
    """The peers and scopes of a setup that are recorded as set and not as put back."""
    return ledger.objects.left("peer", "scope")


def keeps_log(ledger: Ledger | None, peer: PeerConfig) -> bool:
    """Whether a peer is one of walferry's own, by its records, that only keeps the log for a run."""
    if ledger is None or peer.endpoint != PINNING_ENDPOINT:
        return False
    return any(item.name == peer.id for _, item in ledger.of("").objects.of_all_runs("peer"))
