"""What a setup of HBase's own replication would do, and what is refused. Nothing is changed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from walferry.amounts import amount, first_of
from walferry.hbase.client import HBaseClient
from walferry.hbase.descriptors import TableDescriptor
from walferry.hbase.peers import PeerConfig, peer_configs
from walferry.hbase.server_pages import some_settings
from walferry.hbase.versions import By
from walferry.ledger import Ledger
from walferry.ledger.rows import ClusterSide
from walferry.migration import plan as migration_plan
from walferry.migration.plan import Plan, make_plan
from walferry.migration.planning.finding import Finding
from walferry.migration.setup.scopes import scopes_of
from walferry.migration.setup.setups import in_force, keeps_log, left_by_aborted
from walferry.migration.setup.wanted_peer import namespace_of, peer_to_add
from walferry.replication.finding import BULK_LOADS
from walferry.replication.plan import what_it_replicates
from walferry.replication.source_findings import source_findings
from walferry.replication.table_findings import SCOPE, is_replicated
from walferry.run.notes.own_pair import unfinished_pair
from walferry.run.setup_spec import ResolvedSetupSpec

_OF_LOG_KEEPER = "protect"
"""the subject of what a migration's plan finds about the peer that keeps its log"""
_SERIAL_COST = (
    "SERIAL: one region that waits for what another server has not shipped yet holds up its whole log, and there are "
    "cases in which it waits for good (HBASE-29463 for pairs in both directions, HBASE-29499)"
)
_NOT_SERIAL = (
    "not SERIAL: when a region moves or its server dies, edits of a row may arrive in another order. Timestamps put "
    "most of that right, but a put that arrives once its delete was compacted away stays"
)


@dataclass(frozen=True)
class SetupPlan:
    """The result: `found` is what a migration's plan finds, and what is found of replication."""

    found: Plan
    notes: list[str]
    """what it costs, or what is not replicated"""
    steps: list[str]
    """what would be done, in order"""


@dataclass(frozen=True)
class _Side:
    """A cluster that gets a peer."""

    name: ClusterSide
    client: HBaseClient
    peer: str
    there: Sequence[PeerConfig]
    tables: Mapping[str, TableDescriptor]
    """those of the spec as they are at the source, where they exist"""


def examine(spec: ResolvedSetupSpec, ledger: Ledger | None, keep_hours: float) -> SetupPlan:
    """Examine both clusters. `ledger`: None where there is none yet. Raises UsageError and TransientError as a
    migration's plan does."""
    plan = make_plan(spec, keep_hours)
    with HBaseClient(spec.source_address()) as source, HBaseClient(spec.target.address()) as target:
        tables = {pair.source: source.describe(pair.source) for pair in spec.tables if source.table_exists(pair.source)}
        sides = [_Side("source", source, spec.peer, peer_configs(source), tables)]
        if spec.peer_back is not None:
            sides.append(_Side("target", target, spec.peer_back, peer_configs(target), tables))
        findings = [finding for finding in plan.findings if finding.subject != _OF_LOG_KEEPER]
        for side in sides:
            findings += [*_switches(side), *_peer_findings(spec, ledger, side)]
        findings += [finding for table in tables.values() for finding in _table_findings(spec, table)]
        if spec.namespaces:
            findings += _namespace_findings(spec, source, target, "the source", "the target")
            if spec.peer_back is not None:
                findings += _namespace_findings(spec, target, source, "the target", "the source")
        if ledger is not None:
            findings += [*_setup_findings(spec, ledger, sides), *_left_findings(spec, ledger, sides)]
            findings += _pair_findings(spec, ledger)
        notes = [*_cost(spec), *_load_notes(spec, sides)]
    return SetupPlan(replace(plan, findings=findings), notes, list(_steps(spec, plan, tables)))


def require(found: SetupPlan) -> None:
    """Raise UsageError that lists every refusal, if there are any."""
    migration_plan.require(found.found)


def as_facts(found: SetupPlan) -> dict[str, Any]:
    """The plan as plain values."""
    return asdict(found.found) | {"notes": found.notes, "steps": found.steps}


def _switches(side: _Side) -> Iterator[Finding]:
    """What keeps a cluster from having a peer of which it can be told what it has shipped."""
    client = side.client
    if client.release.queues is not By.ZOOKEEPER:
        yield Finding(
            "refuse", side.name, f"HBase {client.version()} keeps replication queues in a table of its own: only "
            "queues in ZooKeeper can be read, those of HBase 1.4 to 2.6",
        )  # fmt: skip
    off = client.release.replication_may_be_off and any(
        one.get("hbase.replication", "").strip().lower() == "false" for one in some_settings(client)
    )
    if off:
        yield Finding(
            "refuse", side.name, "hbase.replication is false in its hbase-site.xml: it replicates nothing. Set it to "
            "true, and restart its servers one by one",
        )  # fmt: skip
    if client.peers_may_change() is False:
        yield Finding(
            "refuse", side.name, "replication peers cannot be changed now: peer_modification_switch true in HBase's "
            "shell",
        )  # fmt: skip


def _peer_findings(spec: ResolvedSetupSpec, ledger: Ledger | None, side: _Side) -> Iterator[Finding]:
    if any(peer.id == side.peer for peer in side.there):
        yield Finding("refuse", side.name, f"it has a peer {side.peer} already: choose another id, or remove that one")
    if spec.serial and side.client.release.since < (2, 2):
        yield Finding("refuse", side.name, f"HBase {side.client.version()} knows no SERIAL: leave `serial` out")
    if spec.namespaces and side.client.release.peers is By.ZOOKEEPER:
        yield Finding("refuse", side.name, f"peers of HBase {side.client.version()} know no namespaces")
    for peer in side.there:
        if peer.id == side.peer or keeps_log(ledger, peer):
            continue
        for table in side.tables.values():
            begins = [one for one in _chosen(spec, table) if _begins(side, peer, table, one)]
            if begins:
                yield Finding(
                    "refuse", table.name, f"peer {peer.id} at the {side.name} ({peer.cluster_key or peer.endpoint}, "
                    f"{what_it_replicates(peer)}) would begin to ship {first_of(begins)} as well, once {SCOPE} is 1: "
                    "have it leave the table out (set_peer_exclude_tableCFs, set_peer_tableCFs), or remove it",
                )  # fmt: skip


def _begins(side: _Side, peer: PeerConfig, table: TableDescriptor, family: str) -> bool:
    """Whether a peer would begin to ship a family. At the target the table is new."""
    ships = side.name == "source" and is_replicated(table.shown_families[family])
    return not ships and peer.replicates(table.name, family)


def _chosen(spec: ResolvedSetupSpec, table: TableDescriptor) -> list[str]:
    """The families of a table that are to be replicated and exist."""
    named = spec.names_of(table.name)
    return [name for name in sorted(table.shown_families) if named is None or name in named]


def _table_findings(spec: ResolvedSetupSpec, table: TableDescriptor) -> Iterator[Finding]:
    for family in spec.names_of(table.name) or ():
        if family not in table.shown_families:
            yield Finding("refuse", table.name, f"it has no family {family}, which `families` names")
    if table.durability == "SKIP_WAL":
        yield Finding("refuse", table.name, "its DURABILITY is SKIP_WAL: what is not in the log is not replicated")
    if table.read_only:
        yield Finding("refuse", table.name, "it is READONLY: make it writable (alter), so that its regions reopen")


def _namespace_findings(
    spec: ResolvedSetupSpec, here: HBaseClient, there: HBaseClient, side: str, other: str
) -> Iterator[Finding]:
    """Other tables of the namespaces that the peer would ship, and that the other cluster has not: the first edit of
    one would stop all that follows it."""
    mine = {pair.source for pair in spec.tables}
    for namespace in sorted({namespace_of(name) for name in mine}):
        for name in here.tables(namespace):
            if name in mine:
                continue
            shipped = {one for one, scope in scopes_of(here.describe(name)).items() if scope != "0"}
            if not shipped:
                continue
            if not there.table_exists(name):
                what = f"a table that {other} has not"
            elif lacking := sorted(shipped - there.describe(name).shown_families.keys()):
                what = f"whose family {lacking[0]} {other} has not"
            else:
                continue
            yield Finding(
                "refuse", name, f"its {SCOPE} is 1 at {side}, so a peer of the namespace {namespace} ships it, {what}: "
                "edits of it would stop all others. Create it there, or set its scope to 0",
            )  # fmt: skip


def _setup_findings(spec: ResolvedSetupSpec, ledger: Ledger, sides: Sequence[_Side]) -> Iterator[Finding]:
    """Setups in the ledger, unfinished or done, that are on the same cluster with a table or a peer of this one."""
    for side in sides:
        for other in in_force(ledger, side.client.cluster_id()):
            if other.run.name == spec.name and other.run.state == "running":
                continue  # this run itself
            end = f"`walferry replicate teardown {other.run.name}` ends it"
            if other.peer == side.peer:
                yield Finding("refuse", side.name, f"setup {other.run.run_id} has the peer {side.peer} there: {end}")
            for name, table in side.tables.items():
                if any(other.needs(name, family) for family in _chosen(spec, table)):
                    yield Finding("refuse", name, f"setup {other.run.run_id} replicates it from there already: {end}")


def _pair_findings(spec: ResolvedSetupSpec, ledger: Ledger) -> Iterator[Finding]:
    """An unfinished pair that has the name of the one that the setup will open: the plan comes before that."""
    if not spec.families and (other := unfinished_pair(ledger, spec.pair_name)) is not None:
        yield Finding(
            "refuse", other.run_id, f"an unfinished pair has the name {spec.pair_name}, by which the setup compares "
            f"both sides: end it by `walferry abort {spec.pair_name} --reason …`",
        )  # fmt: skip


def _left_findings(spec: ResolvedSetupSpec, ledger: Ledger, sides: Sequence[_Side]) -> Iterator[Finding]:
    """What aborted setups have left: recorded again, it would count as what was there before."""
    for side in sides:
        for run, kind, name in left_by_aborted(ledger, side.client.cluster_id()):
            if name == side.peer if kind == "peer" else name in side.tables:
                yield Finding(
                    "refuse", name, f"{kind} was left at the {side.name} by {run.run_id}, which was aborted: repeat "
                    f"`walferry abort {run.run_id} --reason …`",
                )  # fmt: skip


def _cost(spec: ResolvedSetupSpec) -> Iterator[str]:
    yield _SERIAL_COST if spec.serial else _NOT_SERIAL
    if spec.bandwidth:
        yield f"each region server ships at most {spec.bandwidth} bytes per second to a peer"
    if spec.families:
        yield (
            f"not compared at the end: of {first_of(sorted(spec.families))} only some families are replicated; "
            "the others have at the target what the snapshot had"
        )


def _load_notes(spec: ResolvedSetupSpec, sides: Sequence[_Side]) -> Iterator[str]:
    """What becomes of bulk loads, and of writes that skip the log."""
    for side in sides:
        wanted = PeerConfig.of(side.peer, False, peer_to_add(spec, side.name))
        for finding in source_findings(side.client, [wanted]):
            if finding.level != "stop" or finding.subject == BULK_LOADS:
                where = "" if side.name == "source" else " (of the target, which replicates back)"
                yield f"{finding.subject}{where}: {finding.message}"


def _steps(spec: ResolvedSetupSpec, plan: Plan, tables: Mapping[str, TableDescriptor]) -> Iterator[str]:
    for table in plan.tables:
        descriptor = tables[table.source]
        chosen = _chosen(spec, descriptor)
        due = [name for name in chosen if not is_replicated(descriptor.shown_families[name])]
        done = "" if len(due) == len(chosen) else f" (now 0 in {len(due)} of them)"
        yield (
            f"set {SCOPE} 1 of {first_of(chosen)} of {table.source}{done}, and wait until its "
            f"{amount(table.regions, 'region has', 'regions have')} opened again"
        )
    wanted = PeerConfig.of(spec.peer, False, peer_to_add(spec, "source"))
    yield f"add peer {spec.peer} at the source, disabled, to {wanted.cluster_key}, for {what_it_replicates(wanted)}"
    yield "roll the log of each region server of the source"
    for table in plan.tables:
        yield (
            f"take a snapshot of {table.source}, copy its {(table.bytes + table.memstore_bytes) / 1e6:.1f} MB, and "
            f"create {table.target} from it at the target"
        )
    if spec.peer_back is not None:
        back = PeerConfig.of(spec.peer_back, False, peer_to_add(spec, "target"))
        yield f"add peer {spec.peer_back} at the target, to {back.cluster_key}, and enable it"
    yield f"enable peer {spec.peer}, and wait up to {spec.ship_minutes:g} min until all is shipped"
    yield "compare both sides" if not spec.families else "(not compared)"
