"""What stops or changes HBase's own replication of tables, by the settings of both clusters. Nothing is changed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from walferry.amounts import amount, first_of
from walferry.hbase.client import HBaseClient
from walferry.hbase.descriptors import TableDescriptor
from walferry.hbase.peers import PeerConfig, peer_configs
from walferry.replication import canary
from walferry.replication.finding import Finding, NotReplicatedError, disabled, peer_subject
from walferry.replication.sink import PlaceOrWhy, Sink, address_or_why, sink_address, sinks_of, watched_peers
from walferry.replication.sink_findings import sink_findings
from walferry.replication.sink_tables import sink_tables
from walferry.replication.source_findings import source_findings
from walferry.replication.spec import ResolvedReplicateSpec
from walferry.replication.table_findings import nobody_findings, sink_table_findings, table_findings
from walferry.run.given_spec import matching_tables


@dataclass(frozen=True)
class PeerPlan:
    """Where a peer leads, and what it replicates."""

    id: str
    enabled: bool
    serial: bool
    leads_to: str
    """its cluster key"""
    version: str | None
    """of the sink; None: it was not reached"""
    cluster_id: str | None
    replicates: str
    """for people"""


@dataclass(frozen=True)
class ReplicationPlan:
    """The result of a plan. `tables`: the ids of the peers that replicate each family, by table and family."""

    source_version: str
    source_cluster_id: str
    peers: list[PeerPlan]
    tables: dict[str, dict[str, list[str]]]
    findings: list[Finding] = field(default_factory=list)
    better_replayed: list[str] = field(default_factory=list)
    """why `walferry start`, which reads the source's log itself, would suit these tables better"""


def require(plan: ReplicationPlan) -> None:
    """Raise NotReplicatedError if anything stops edits."""
    stops = [finding for finding in plan.findings if finding.level == "stop"]
    if stops:
        subjects = first_of(sorted({finding.subject for finding in stops}))
        raise NotReplicatedError(
            f"{amount(len(stops), 'finding stops', 'findings stop')} edits: see {subjects}", findings=stops
        )


def stopped_peers(plan: ReplicationPlan) -> set[str]:
    """The peers by which nothing can arrive, or not at the sink: what is found about the peer itself stops it, or its
    sink's master does not answer."""
    stops = {finding.subject for finding in plan.findings if finding.level == "stop"}
    return {peer.id for peer in plan.peers if peer.version is None or peer_subject(peer.id) in stops}


def make_plan(spec: ResolvedReplicateSpec) -> ReplicationPlan:
    """Examine both clusters. Raises UsageError for a peer or a table that is not there, and the errors of the source's
    client. What cannot be asked of a sink is a finding."""
    with HBaseClient(spec.source.address()) as source:
        there = [name for name in source.tables() if not canary.is_canary(name)]
        tables = {name: source.describe(name) for name in matching_tables(spec.tables, there)}
        return examine(spec, source, watched_peers(spec, peer_configs(source)), tables)


def examine(
    spec: ResolvedReplicateSpec,
    source: HBaseClient,
    peers: Sequence[PeerConfig],
    tables: Mapping[str, TableDescriptor],
) -> ReplicationPlan:
    """The plan for these peers and tables."""
    source_id = source.cluster_id()
    findings = list(source_findings(source, peers))
    places = {peer.id: address_or_why(partial(sink_address, spec, peer)) for peer in peers}
    sinks = sinks_of(peers, places, source_id)
    for peer in peers:
        place, sink = places[peer.id], sinks[peer.id]
        findings += [*_own_findings(peer), *sink_findings(spec, source_id, peer, place, sink)]
        findings += _of_sink_tables(peer, place, sink, tables)
    findings += [finding for table in tables.values() for finding in table_findings(table)]
    findings += nobody_findings(tables, peers)
    return ReplicationPlan(
        source.version(), source_id, [_peer_plan(peer, sinks[peer.id]) for peer in peers],
        {
            name: {one: [peer.id for peer in peers if peer.replicates(name, one)] for one in table.shown_families}
            for name, table in tables.items()
        },
        findings, list(_better_replayed(tables, peers)),
    )  # fmt: skip


def _peer_plan(peer: PeerConfig, sink: Sink) -> PeerPlan:
    return PeerPlan(
        peer.id, peer.enabled, peer.serial, peer.cluster_key, sink.version, sink.cluster_id, what_it_replicates(peer)
    )


def _own_findings(peer: PeerConfig) -> Iterator[Finding]:
    if not peer.enabled:
        yield disabled(peer.id)


def _of_sink_tables(
    peer: PeerConfig, place: PlaceOrWhy, sink: Sink, tables: Mapping[str, TableDescriptor]
) -> Iterator[Finding]:
    if sink.version is None or isinstance(place, str):
        return
    shipped = {
        name: [one for one in table.shown_families if peer.replicates(name, one)] for name, table in tables.items()
    }
    for name, there in sink_tables(place, {name: of for name, of in shipped.items() if of}).items():
        yield from sink_table_findings(tables[name], shipped[name], peer, there)


def what_it_replicates(peer: PeerConfig) -> str:
    """Which tables a peer replicates, for people."""
    if peer.all_tables:
        left_out = [f"namespace {name}" for name in sorted(peer.left_out_namespaces)]
        left_out += _with_families(peer.left_out_tables)
        return "all tables" + (f" without {first_of(left_out)}" if left_out else "")
    places = [f"namespace {name}" for name in sorted(peer.namespaces)] + _with_families(peer.tables)
    return first_of(places) if places else "nothing"


def _with_families(tables: Mapping[str, frozenset[str]]) -> list[str]:
    return [
        f"{table} ({', '.join(sorted(families))})" if families else table for table, families in sorted(tables.items())
    ]


def _better_replayed(tables: Mapping[str, TableDescriptor], peers: Sequence[PeerConfig]) -> Iterator[str]:
    if any(not peer.serial for peer in peers):
        ordered = [name for name, table in tables.items() if _needs_order(table)]
        if ordered:
            yield (
                f"{first_of(ordered)} cannot do without the order of a row's edits (KEEP_DELETED_CELLS, "
                "NEW_VERSION_BEHAVIOR), and HBase keeps it with SERIAL only"
            )


def _needs_order(table: TableDescriptor) -> bool:
    return any(
        family.new_version_behavior or family.attributes.get("KEEP_DELETED_CELLS", "FALSE").upper() != "FALSE"
        for family in table.shown_families.values()
    )
