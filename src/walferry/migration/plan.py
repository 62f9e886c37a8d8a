"""Plan: examine both clusters, change nothing, and report what would go wrong and what to do about it."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

from walferry.errors import (
    TransientError,
    UsageError,
    WalferryError,
)
from walferry.hbase.client import HBaseClient
from walferry.hbase.descriptors import TableDescriptor
from walferry.hbase.thrift import connect
from walferry.hbase.writer_kind import WriterKind
from walferry.migration.planning.finding import Finding
from walferry.migration.planning.identity import Identity, identities
from walferry.migration.planning.left_behind import left_behind
from walferry.migration.planning.log_findings import codec_findings, peer_findings, stage_findings, wal_folder_findings
from walferry.migration.planning.name_nodes import name_node_findings
from walferry.migration.planning.rights import file_findings, foreign_log_findings, hbase_findings
from walferry.migration.planning.space import root_findings, size_of, space_findings, staging_findings
from walferry.migration.planning.tables import (
    existing_findings,
    fit_findings,
    source_findings,
    unreadable_findings,
)
from walferry.migration.schema import Fit, fit
from walferry.replay.pieces.bulk_pieces import cluster_fault, table_faults
from walferry.replay.rights import dirty, lease, znodes
from walferry.replay.rights.lease import resource
from walferry.run.cluster_ids import same_root
from walferry.run.run import Run, data_folder, file_system
from walferry.run.spec import ResolvedSpec, TablePair
from walferry.storage import FileSystem
from walferry.wal.copies import log_files_of
from walferry.wal.files import Place, list_wals

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TablePlan:
    """The size of a table."""

    source: str
    target: str
    regions: int
    bytes: int
    """bytes in files"""
    memstore_bytes: int
    """bytes that are in memory until the snapshot flushes them; a lower bound, see `HBaseClient.memstore_bytes`"""
    families: list[str]
    left_out: list[str]
    """names of the table's attributes that the target refuses and the target table will not have"""


@dataclass(frozen=True)
class Plan:
    """The result of the plan."""

    source_version: str
    target_version: str
    source_cluster_id: str
    target_cluster_id: str
    identities: list[Identity]
    """who walferry is at the secured ones of the clusters"""
    tables: list[TablePlan]
    wal_bytes: int
    wal_files: int
    findings: list[Finding]


def require(plan: Plan) -> None:
    """Raise UsageError that lists every refusal of the plan, if there are any."""
    _refuse(plan.findings)


def _refuse(findings: Sequence[Finding]) -> None:
    refusals = [finding for finding in findings if finding.level == "refuse"]
    if refusals:
        told = [f"{finding.subject}: {finding.message}" for finding in refusals]
        facts = [asdict(finding) for finding in refusals]
        raise UsageError(f"the plan refuses: {'; '.join(told)}", refusals=told, findings=facts)


def make_plan(spec: ResolvedSpec, keep_hours: float) -> Plan:
    """Examine both clusters for a spec; `keep_hours`: how long copies of applied WALs are kept.

    Raises TransientError or UsageError when a side cannot be reached.
    """
    try:
        return _examine(spec, keep_hours)
    except TransientError as error:
        for side, cluster in (("source", spec.source), ("target", spec.target)):
            for key, fact in (("webhdfs", "url"), ("wal_webhdfs", "url"), ("zookeeper", "zookeeper")):
                if fact in error.facts and error.facts[fact] == getattr(cluster, key):
                    raise type(error)(f"{side}.{key}: {error.message}", **error.facts) from error
        raise


def _examine(spec: ResolvedSpec, keep_hours: float) -> Plan:
    with HBaseClient(spec.source_address()) as source, HBaseClient(spec.target.address()) as target:
        who = list(identities({"source": source, "target": target}))
        files = file_system(spec.source, spec.source_address())
        source_id, target_id = source.cluster_id(), target.cluster_id()
        if source_id == target_id:
            message = f"source and target are the same cluster ({source_id}); name two"
            _refuse([Finding("refuse", "clusters", message)])
        _require_roots(spec, files, file_system(spec.target))
        findings = _first_findings(spec, source, target)
        of_log, root = log_files_of(source.address), source.address.wal_path
        wals = list_wals(of_log, root)
        findings += [*_version(source, "source"), *_version(target, "target")]
        findings += (
            peer_findings(source) if spec.stage is None else stage_findings(spec.stage, source, wals, keep_hours)
        )
        if spec.writer_kind is WriterKind.THRIFT:
            findings += _thrift(target)
        findings += _bulk(spec, target)
        findings += _leases(target, [pair.target for pair in spec.tables])
        live = [file for file in wals if file.place is Place.LIVE]
        findings += codec_findings(of_log, root, live)
        tables = []
        in_memory = source.memstore_bytes()
        for pair in spec.tables:
            if not source.table_exists(pair.source):
                findings.append(Finding("refuse", pair.source, "there is no such table at the source"))
                continue
            descriptor = source.describe(pair.source)
            found, fits = _pair_findings(spec, source, target, pair, descriptor)
            findings += found
            tables.append(
                TablePlan(
                    pair.source,
                    pair.target,
                    len(source.regions(pair.source)),
                    size_of(files, data_folder(spec.source.address().root_path, pair.source)),
                    in_memory.get(pair.source, 0),
                    sorted(descriptor.families),
                    list(fits.left_out),
                )
            )
        findings += left_behind(spec, source, target)
        findings += space_findings(spec, sum(table.bytes + table.memstore_bytes for table in tables))
        return Plan(
            source.version(), target.version(), source_id, target_id, who, tables,
            sum(file.length for file in wals), len(wals), findings,
        )  # fmt: skip


def _require_roots(spec: ResolvedSpec, source_files: FileSystem, target_files: FileSystem) -> None:
    """Raise UsageError unless both clusters' root folders exist, and are two."""
    if same_root(spec.source, spec.target):
        raise UsageError("source and target have the same root folder: correct `rootdir` and `webhdfs` of one of them")
    for files, cluster, side in ((source_files, spec.source, "source"), (target_files, spec.target, "target")):
        root = cluster.address().root_path
        if files.status(root) is None:
            raise UsageError(f"{side}: {root} does not exist on its file system; check rootdir and webhdfs")


def _first_findings(spec: ResolvedSpec, source: HBaseClient, target: HBaseClient) -> list[Finding]:
    """Findings about permissions and the logs' folders. Raises UsageError if one of them is a refusal: hardly anything
    else can be examined without permissions or the log."""
    findings = [
        *hbase_findings(spec, source, target),
        *file_findings(spec, source),
        *foreign_log_findings(target),
        *(root_findings(spec.target) if spec.history == "clone" else staging_findings(spec)),
    ]
    _refuse(findings)
    findings += wal_folder_findings("source", source, [pair.source for pair in spec.tables])
    findings += wal_folder_findings("target", target, [pair.target for pair in spec.tables])
    findings += name_node_findings({"source": source.address, "target": target.address})
    _refuse(findings)
    return findings


def _pair_findings(
    spec: ResolvedSpec, source: HBaseClient, target: HBaseClient, pair: TablePair, descriptor: TableDescriptor
) -> tuple[list[Finding], Fit]:
    """Findings about one table on both sides, and how its schema fits the target."""
    findings = list(source_findings(source, pair, descriptor))
    there = target.table_exists(pair.target)
    if there and spec.history == "bulk":
        findings += existing_findings(target, pair, descriptor)
    elif there:
        message = (
            f"target table {pair.target} already exists: map to another name. Drop it only if no run is moving "
            "it and no client uses it"
        )
        findings.append(Finding("refuse", pair.source, message))
    if spec.history == "bulk":
        findings += unreadable_findings(pair, descriptor)
    fits = fit(target, descriptor)
    if not there:
        findings += fit_findings(pair, fits)
    if spec.apply == "bulk":
        findings += [
            Finding("refuse", pair.source, f"{fault}: use apply: auto or rpc")
            for fault in table_faults(pair.target, descriptor)
        ]
    return findings, fits


def _version(client: HBaseClient, side: str) -> Iterator[Finding]:
    release = client.release
    if not release.tried:
        yield Finding(
            "warn", side, f"HBase {client.version()} was never tried with walferry. It is assumed to be like "
            f"{release.name}: {release.description}",
        )  # fmt: skip
    elif side == "target" and not release.tried_as_target:
        yield Finding("warn", side, f"HBase {client.version()} was never tried as a target, only as a source")


def _bulk(spec: ResolvedSpec, target: HBaseClient) -> Iterator[Finding]:
    """Whether the target's version takes HFiles, where the run loads some."""
    if (fault := cluster_fault(target)) is None:
        return
    if spec.apply == "bulk":
        yield Finding("refuse", "target", f"{fault}: use apply: auto or rpc")
    elif spec.apply == "auto":
        yield Finding("warn", "target", f"edits go by rpc, never in bulk: {fault}")
    if spec.history == "bulk":
        yield Finding("refuse", "target", f"{fault}: use history: clone")


def _leases(target: HBaseClient, tables: Sequence[str]) -> Iterator[Finding]:
    """Tables whose lease only another principal can take."""
    if not target.address.zookeeper_login:
        return
    for table in tables:
        for node in (lease.node_of(table), dirty.node_of(table)):
            if not znodes.may_change(target.zk, node):
                yield Finding("refuse", table, znodes.foreign(target.zk, node).message)


def _thrift(target: HBaseClient) -> Iterator[Finding]:
    if target.address.hbase_kerberos is not None:
        yield Finding(
            "refuse", "target", "apply: thrift is not possible at a cluster with Kerberos: its Thrift server takes "
            "tickets only, and Spark's workers have tokens; use rpc",
        )  # fmt: skip
        return
    try:
        connect(target.address).close()
    except TransientError as error:
        yield Finding("refuse", "target", f"{error}; is it up?")


def plan_run(run: Run) -> dict[str, object]:
    """The run's first phase: make the plan and require it. Facts: the plan as a mapping.

    Also raises FollowedTwiceError if another run follows a log into one of the target tables. A refusal ends the run as
    failed, so that a corrected spec can take the run's name.
    """

    def work() -> dict[str, object]:
        plan = make_plan(run.spec, run.log_times.keep_hours)
        for finding in plan.findings:
            log.warning("%s: %s: %s", finding.level, finding.subject, finding.message)
        require(plan)
        cluster = run.target.cluster_id()
        run.ledger.leases.require_alone(resource(cluster, pair.target) for pair in run.tables)
        return asdict(plan)

    try:
        return run.once("plan", work)
    except TransientError:
        raise  # retryable; a run that got no further gives its name up to another
    except WalferryError as error:
        run.ledger.end("failed", run.actor, str(error))
        raise
