"""What keeps a source from replicating to a run, and how it gets its peer. Nothing is changed."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from walferry.errors import UsageError, WalferryError
from walferry.hbase.client import HBaseClient
from walferry.hbase.descriptors import TableDescriptor
from walferry.hbase.errors import TableNotFoundError
from walferry.hbase.peers import PeerConfig, peer_configs
from walferry.hbase.server_pages import some_settings
from walferry.receive.given import AnyReceiveSpec
from walferry.receive.kafka_run import presented_id
from walferry.receive.kafka_spec import ResolvedKafkaReceiveSpec
from walferry.receive.loaded_files import readable
from walferry.replication.finding import BULK_LOADS, Finding, disabled, families_text
from walferry.replication.sink_tables import sink_tables
from walferry.replication.source_findings import loads_not_shipped
from walferry.replication.table_findings import nobody_findings, table_findings
from walferry.run.receive_spec import ResolvedReceiveSpec
from walferry.run.run import data_folder, file_system

_ASKS_MASTER = (3, 0)
"""senders since this version ask a master for the servers (HBASE-26406), and find none below the path"""


@dataclass(frozen=True)
class ReceivePlan:
    """What was found. A finding of level `stop` is a refusal."""

    source_version: str
    source_cluster_id: str
    target_version: str | None
    """None: the run receives into Kafka"""
    target_cluster_id: str
    """that the run presents to the source"""
    cluster_key: str
    peer: str | None
    """the source's peer that leads to this run already; None: there is none"""
    findings: list[Finding]
    topics: Mapping[str, Any] | None = None
    """of a run into Kafka: topics by table, positions, and the partitions of topics that exist"""


def examine(spec: AnyReceiveSpec, copied: Collection[str] = ()) -> ReceivePlan:
    """Examine the source, and the target or the topics. Raises the errors of a cluster that cannot be reached.

    `copied`: source tables whose earlier rows the run has begun to copy.
    """
    with HBaseClient(spec.source_address()) as source:
        if isinstance(spec, ResolvedReceiveSpec):
            with HBaseClient(spec.target.address()) as target:
                sink_id, sink_version = target.cluster_id(), target.version()
        else:
            sink_id, sink_version = str(presented_id(source.cluster_uuid(), spec.name)), None
        version, source_id, topics = source.version(), source.cluster_id(), None
        findings = [*_cluster_findings(source, (source_id, sink_id))]
        peers: list[PeerConfig] = []
        if not findings:  # else the source is not to be asked further
            peers = peers_here(source, spec)
            findings += _of_tables(spec, source, peers)
    if isinstance(spec, ResolvedKafkaReceiveSpec):
        topics, refusals = _topics(spec, source_id)
        findings += refusals
    elif not any(one.level == "stop" for one in findings):
        findings += _not_empty(spec, copied)
    findings += _of_proofs(spec)
    if spec.host.partition(".")[0] == "localhost":
        findings.append(
            Finding("warn", spec.host, "servers of other machines do not reach this process by that name: give --host")
        )
    return ReceivePlan(
        version, source_id, sink_version, sink_id, spec.cluster_key, peers[0].id if peers else None, findings, topics
    )


def _of_proofs(spec: AnyReceiveSpec) -> Iterator[Finding]:
    """What is wrong with that by which this process proves to the source, and to other processes, who it is."""
    login, tls = spec.receive.login, spec.receive.tls
    if login is not None:
        try:
            login.service(spec.host).check()
        except UsageError as error:
            yield Finding("stop", "receive.login", error.message)
    if tls is not None:
        try:
            tls.server().check(spec.host)
        except UsageError as error:
            yield Finding("stop", "receive.tls", error.message)


def _topics(spec: ResolvedKafkaReceiveSpec, cluster_id: str) -> tuple[Mapping[str, Any], list[Finding]]:
    """The topics of a run, and what is wrong with them."""
    from walferry.receive.into_kafka import examine_topics  # here: Kafka's client is an extra

    try:
        return examine_topics(spec, cluster_id), []
    except UsageError as error:
        facts = {"topics": {}, "partitions": {}, "positions": spec.positions_topic}
        return facts, [Finding("stop", "kafka", str(error))]


def peers_here(source: HBaseClient, spec: AnyReceiveSpec) -> list[PeerConfig]:
    """The source's peers that lead to the run."""
    return [peer for peer in peer_configs(source) if peer.cluster_key == spec.cluster_key]


def require(found: ReceivePlan) -> None:
    """Raise UsageError that lists every refusal, if there are any."""
    told = [f"{one.subject}: {one.message}" for one in found.findings if one.level == "stop"]
    if told:
        raise UsageError(f"the run cannot receive: {'; '.join(told)}", refusals=told)


def as_facts(found: ReceivePlan, spec: AnyReceiveSpec) -> dict[str, Any]:
    """The plan as plain values."""
    facts = asdict(found) | {"add_peer": add_peer_command(spec)}
    if found.topics is None:
        del facts["topics"]
    return facts


def add_peer_command(spec: AnyReceiveSpec) -> str:
    """How the source gets its peer, as a command of HBase's shell."""
    tables = ", ".join(f'"{table}" => []' for table in spec.source_tables)
    return f"add_peer '{spec.name}', CLUSTER_KEY => \"{spec.cluster_key}\", TABLE_CFS => {{ {tables} }}"


def _cluster_findings(source: HBaseClient, ids: tuple[str, str]) -> Iterator[Finding]:
    if ids[0] == ids[1]:
        yield Finding("stop", "target", f"source and target are the same cluster ({ids[0]}): name two")
    if source.release.since >= _ASKS_MASTER:
        yield Finding(
            "stop", "source", f"HBase {source.version()} asks a master of its sink for the servers, and a run has "
            "none: sources of HBase 1.7 to 2.6 can replicate to it",
        )  # fmt: skip


def _of_tables(spec: AnyReceiveSpec, source: HBaseClient, peers: Sequence[PeerConfig]) -> Iterator[Finding]:
    tables: dict[str, TableDescriptor] = {}
    for table in spec.source_tables:
        try:
            tables[table] = source.describe(table)
        except TableNotFoundError:
            yield Finding("stop", table, "the source has no such table")
    # What the source does not ship can be mended there while the run serves.
    for described in tables.values():
        yield from (_as_warning(finding) for finding in table_findings(described))
    if peers:
        yield from (_as_warning(finding) for finding in nobody_findings(tables, peers))
        yield from (_as_warning(disabled(peer.id)) for peer in peers if not peer.enabled)
    if isinstance(spec, ResolvedReceiveSpec):
        yield from _at_target(spec, tables)
        if settings := some_settings(source):
            yield from map(_as_warning, _of_loads(spec, settings, tables))


def _of_loads(
    spec: ResolvedReceiveSpec, settings: Sequence[Mapping[str, str]], tables: Mapping[str, TableDescriptor]
) -> Iterator[Finding]:
    """Whether bulk loads come, and can be applied: their files must be readable from here."""
    if (why := loads_not_shipped(settings)) is not None:
        yield why
        return
    root = spec.source.address().root_path
    try:
        files = file_system(spec.source, spec.source_address())
        try:
            for table in tables:
                files.list(data_folder(root, table))
        finally:
            files.close()
    except (WalferryError, OSError) as error:
        yield Finding(
            "warn", BULK_LOADS, f"the source ships them, and its files cannot be read from here: {error}. Calls with "
            f"a bulk load will be refused, and all that follows them waits. {readable(root)}",
        )  # fmt: skip


def _not_empty(spec: ResolvedReceiveSpec, copied: Collection[str]) -> Iterator[Finding]:
    """The target tables that must be empty and are not."""
    if spec.receive.history is None:
        return
    with HBaseClient(spec.target.address()) as target:
        for pair in spec.tables:
            if pair.source not in copied and next(target.scan_raw(pair.target), None) is not None:
                yield Finding(
                    "warn", pair.target, "the target table is not empty: nothing is copied or applied to it until "
                    "somebody truncates it, or `history` is left out",
                )  # fmt: skip


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
