"""What keeps a source from replicating to a run, and how it gets its peer. Nothing is changed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from walferry.errors import UsageError
from walferry.hbase.client import HBaseClient
from walferry.hbase.descriptors import TableDescriptor
from walferry.hbase.errors import TableNotFoundError
from walferry.hbase.peers import PeerConfig, peer_configs
from walferry.replication.finding import Finding, disabled, families_text
from walferry.replication.sink_tables import sink_tables
from walferry.replication.table_findings import nobody_findings, table_findings
from walferry.run.receive_spec import ResolvedReceiveSpec

_ASKS_MASTER = (3, 0)
"""senders since this version ask a master for the servers (HBASE-26406), and find none below the path"""


@dataclass(frozen=True)
class ReceivePlan:
    """What was found. A finding of level `stop` is a refusal."""

    source_version: str
    source_cluster_id: str
    target_version: str
    target_cluster_id: str
    cluster_key: str
    peer: str | None
    """the source's peer that leads to this run already; None: there is none"""
    findings: list[Finding]


def examine(spec: ResolvedReceiveSpec) -> ReceivePlan:
    """Examine both clusters. Raises the errors of a cluster that cannot be reached."""
    with HBaseClient(spec.source_address()) as source, HBaseClient(spec.target.address()) as target:
        versions, ids = (source.version(), target.version()), (source.cluster_id(), target.cluster_id())
        findings = [*_cluster_findings(source, ids)]
        peers: list[PeerConfig] = []
        if not findings:  # else the source is not to be asked further
            peers = peers_here(source, spec)
            findings += _of_tables(spec, source, peers)
    if spec.host is not None and spec.host.partition(".")[0] == "localhost":
        findings.append(
            Finding("warn", spec.host, "servers of other machines do not reach this process by that name: give --host")
        )
    return ReceivePlan(
        versions[0], ids[0], versions[1], ids[1], spec.cluster_key, peers[0].id if peers else None, findings
    )


def peers_here(source: HBaseClient, spec: ResolvedReceiveSpec) -> list[PeerConfig]:
    """The source's peers that lead to the run."""
    return [peer for peer in peer_configs(source) if peer.cluster_key == spec.cluster_key]


def require(found: ReceivePlan) -> None:
    """Raise UsageError that lists every refusal, if there are any."""
    told = [f"{one.subject}: {one.message}" for one in found.findings if one.level == "stop"]
    if told:
        raise UsageError(f"the run cannot receive: {'; '.join(told)}", refusals=told)


def as_facts(found: ReceivePlan, spec: ResolvedReceiveSpec) -> dict[str, Any]:
    """The plan as plain values."""
    return asdict(found) | {"add_peer": add_peer_command(spec)}


def add_peer_command(spec: ResolvedReceiveSpec) -> str:
    """How the source gets its peer, as a command of HBase's shell."""
    tables = ", ".join(f'"{pair.source}" => []' for pair in spec.tables)
    return f"add_peer '{spec.name}', CLUSTER_KEY => \"{spec.cluster_key}\", TABLE_CFS => {{ {tables} }}"


def _cluster_findings(source: HBaseClient, ids: tuple[str, str]) -> Iterator[Finding]:
    if ids[0] == ids[1]:
        yield Finding("stop", "target", f"source and target are the same cluster ({ids[0]}): name two")
    if source.release.since >= _ASKS_MASTER:
        yield Finding(
            "stop", "source", f"HBase {source.version()} asks a master of its sink for the servers, and a run has "
            "none: sources of HBase 1.7 to 2.6 can replicate to it",
        )  # fmt: skip


def _of_tables(spec: ResolvedReceiveSpec, source: HBaseClient, peers: Sequence[PeerConfig]) -> Iterator[Finding]:
    tables: dict[str, TableDescriptor] = {}
    for pair in spec.tables:
        try:
            tables[pair.source] = source.describe(pair.source)
        except TableNotFoundError:
            yield Finding("stop", pair.source, "the source has no such table")
    # What the source does not ship can be mended there while the run serves.
    for table in tables.values():
        yield from (_as_warning(finding) for finding in table_findings(table))
    if peers:
        yield from (_as_warning(finding) for finding in nobody_findings(tables, peers))
        yield from (_as_warning(disabled(peer.id)) for peer in peers if not peer.enabled)
    yield from _at_target(spec, tables)


def _as_warning(finding: Finding) -> Finding:
    return replace(finding, level="warn") if finding.level == "stop" else finding


def _at_target(spec: ResolvedReceiveSpec, tables: Mapping[str, TableDescriptor]) -> Iterator[Finding]:
    """What the target lacks of the source's tables."""
    wanted = {pair.target: tables[pair.source].shown_families for pair in spec.tables if pair.source in tables}
    there = sink_tables(spec.target.address(), wanted)
    for table, families in wanted.items():
        found = there[table]
        if found.unknown is not None:
            named = families_text(families.keys())
            yield Finding("warn", table, f"whether the target has it with the {named} is not known: {found.unknown}")
        for one in found.refusals:
            yield Finding("stop" if one.proved else "warn", table, f"it {one.what} at the target: {one.then}")
