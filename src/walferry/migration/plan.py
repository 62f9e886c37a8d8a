"""Plan (preflight): looks at both clusters, changes nothing, says what would go wrong and what to do about it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Literal

import requests

from walferry.errors import UnfinishedInputError, UnreadableInputError, UsageError, WalferryError
from walferry.formats.wal import WalReader
from walferry.hbase.client import HBaseClient
from walferry.hbase.descriptors import TableDescriptor
from walferry.migration.context import Migration, data_folder, file_system
from walferry.migration.spec import Cluster, ResolvedSpec, TablePair
from walferry.storage import FileSystem
from walferry.wal.files import list_wals

log = logging.getLogger(__name__)

_REPLICATION = 3  # dfs.replication of nearly every cluster; the NameNode does not tell its own


@dataclass(frozen=True)
class Finding:
    """One thing the plan found: `refuse` stops the run, `warn` is for the operator to weigh."""

    level: Literal["refuse", "warn"]
    subject: str
    message: str


@dataclass(frozen=True)
class TablePlan:
    """What a table weighs."""

    source: str
    target: str
    regions: int
    bytes: int
    families: list[str]


@dataclass(frozen=True)
class Plan:
    """The outcome of the preflight."""

    source_version: str
    target_version: str
    source_cluster_id: str
    target_cluster_id: str
    tables: list[TablePlan]
    wal_bytes: int
    wal_files: int
    findings: list[Finding]

    def refusals(self) -> list[Finding]:
        """What must be mended before the run can start."""
        return [finding for finding in self.findings if finding.level == "refuse"]


def require(plan: Plan) -> None:
    """Raise UsageError with every refusal of the plan."""
    refusals = plan.refusals()
    if refusals:
        text = "; ".join(f"{finding.subject}: {finding.message}" for finding in refusals)
        raise UsageError(f"the plan refuses: {text}", findings=[asdict(finding) for finding in refusals])


def make_plan(spec: ResolvedSpec, *, resuming: bool = False) -> Plan:
    """Examine both clusters for a spec. Raises TransientError or UsageError when a side cannot be reached.

    `resuming`: the run has begun, so its target tables may be there.
    """
    with HBaseClient(spec.source.address()) as source, HBaseClient(spec.target.address()) as target:
        source_files, target_files = file_system(spec.source), file_system(spec.target)
        source_root, target_root = spec.source.address().root_path, spec.target.address().root_path
        for files, root, side in ((source_files, source_root, "source"), (target_files, target_root, "target")):
            if files.status(root) is None:
                raise UsageError(f"{side}: {root} is not there on its file system; check rootdir and webhdfs")
        findings: list[Finding] = []
        source_id, target_id = source.cluster_id(), target.cluster_id()
        if source_id == target_id:
            findings.append(
                Finding("refuse", "clusters", f"source and target are the same cluster ({source_id}); name two")
            )
        findings += _protection(source)
        wals = list_wals(source_files, source_root)
        findings += _codec(source_files, [(file.path, file.name) for file in wals if file.place.value == "live"])
        tables = []
        for pair in spec.tables:
            if not source.table_exists(pair.source):
                findings.append(Finding("refuse", pair.source, "there is no such table at the source"))
                continue
            descriptor = source.describe(pair.source)
            findings += _table(source, target, pair, descriptor, resuming)
            folder = data_folder(source_root, pair.source)
            tables.append(
                TablePlan(
                    pair.source,
                    pair.target,
                    len(source.regions(pair.source)),
                    _size(source_files, folder),
                    sorted(descriptor.families),
                )
            )
        findings += _room(spec, sum(table.bytes for table in tables))
        return Plan(
            source.version(), target.version(), source_id, target_id, tables,
            sum(file.length for file in wals), len(wals), findings,
        )  # fmt: skip


def _protection(source: HBaseClient) -> Iterator[Finding]:
    if source.replication_enabled() is False:
        yield Finding(
            "refuse", "protect", "replication is switched off at the source (hbase.replication=false), so a peer "
            "keeps no WAL; switch it on",
        )  # fmt: skip


def _codec(files: FileSystem, candidates: list[tuple[str, str]]) -> Iterator[Finding]:
    """The codec is a setting of the whole cluster: the newest readable header tells it."""
    for path, name in reversed(candidates):
        try:
            WalReader(files.read(path, 0, 4096), name)
        except (UnfinishedInputError, FileNotFoundError):
            continue
        except UnreadableInputError as error:
            yield Finding("refuse", "WAL codec", str(error))
        return


def _table(
    source: HBaseClient, target: HBaseClient, pair: TablePair, descriptor: TableDescriptor, resuming: bool
) -> Iterator[Finding]:
    refuse: Callable[[str], Finding] = lambda message: Finding("refuse", pair.source, message)  # noqa: E731
    if not source.table_enabled(pair.source):
        yield refuse("the table is disabled; enable it, so that its snapshot holds what its memory holds")
    if not resuming and target.table_exists(pair.target):
        yield refuse(f"target table {pair.target} is already there; drop it or map to another name")
    for family in descriptor.families.values():
        if family.is_mob:
            yield refuse(f"family {family.name} stores MOB files, which are not copied yet")
        if family.new_version_behavior:
            yield refuse(f"family {family.name} has NEW_VERSION_BEHAVIOR, whose outcome depends on sequence numbers")
        if family.data_block_encoding == "PREFIX_TREE":
            yield refuse(f"family {family.name} has block encoding PREFIX_TREE, which HBase 2 cannot read")
    coprocessors = [value for key, value in descriptor.attributes.items() if key.lower().startswith("coprocessor$")]
    if any("phoenix" in value.lower() for value in coprocessors):
        yield refuse("a Phoenix table: its indexes and catalogue are not migrated")
    elif coprocessors:
        yield Finding("warn", pair.source, "has coprocessors, which must be installed at the target, too")
    if source.table_exists("hbase:labels"):
        yield refuse("the source keeps visibility labels, whose numbers mean something else at the target")


def _room(spec: ResolvedSpec, needed: int) -> Iterator[Finding]:
    """Whether the target's file system lets the user write below rootdir and has room; asks its NameNode only."""
    root, user = spec.target.address().root_path, spec.target.address().user
    allowed = _ask(spec.target, f"/webhdfs/v1{root}", {"op": "CHECKACCESS", "fsaction": "rwx", "user.name": user})
    if allowed is None or allowed.status_code not in (200, 403):
        yield Finding("warn", "target", f"whether {user} may write to {root} could not be found out")
    elif allowed.status_code == 403:
        yield Finding("refuse", "target", f"{user} may not write to {root}; let the HBase user run it, or name `user`")
    state = _ask(spec.target, "/jmx", {"qry": "Hadoop:service=NameNode,name=FSNamesystemState"})
    try:
        remaining = int(state.json()["beans"][0]["CapacityRemaining"]) if state is not None else None
    except (ValueError, LookupError):
        remaining = None
    if remaining is None:
        yield Finding("warn", "target", "how much room is left could not be found out")
    elif remaining < needed * _REPLICATION:
        yield Finding(
            "warn", "target", f"{remaining / 1e9:.1f} GB are left, the tables' {needed / 1e9:.1f} GB need "
            f"{needed * _REPLICATION / 1e9:.1f} GB with {_REPLICATION} copies of each block",
        )  # fmt: skip


def _ask(cluster: Cluster, path: str, query: dict[str, str]) -> requests.Response | None:
    """One GET to the first NameNode that answers; None when none does."""
    for url in cluster.webhdfs.split(";"):
        try:
            return requests.get(url.rstrip("/") + path, params=query, timeout=10)
        except requests.RequestException:
            continue
    return None


def _size(files: FileSystem, folder: str) -> int:
    """Bytes below a table's folder; a region that splits or merges away meanwhile counts as nothing."""
    try:
        entries = files.list(folder)
    except FileNotFoundError:
        return 0
    return sum(_size(files, entry.path) if entry.is_dir else entry.length for entry in entries)


def plan_run(migration: Migration) -> dict[str, object]:
    """The run's first phase: plan and refuse. Facts: the plan as a mapping."""

    def work() -> dict[str, object]:
        plan = make_plan(migration.spec)
        for finding in plan.findings:
            log.warning("%s: %s: %s", finding.level, finding.subject, finding.message)
        require(plan)
        return asdict(plan)

    try:
        return migration.once("plan", work)
    except WalferryError as error:  # nothing was changed yet: a corrected spec may take the name
        migration.ledger.end_run(migration.run_id, "failed", migration.actor, str(error))
        raise


def target_faults(migration: Migration) -> list[str]:
    """What keeps edits from being applied to tables that are there already: a missing table or family, each as text."""
    faults = []
    for pair in migration.tables:
        if not migration.source.table_exists(pair.source):
            faults.append(f"there is no table {pair.source} at the source")
        elif not migration.target.table_exists(pair.target):
            faults.append(f"there is no table {pair.target} at the target; a replay needs one with the same families")
        else:
            here, there = migration.source.describe(pair.source), migration.target.describe(pair.target)
            lacking = sorted(here.families.keys() - there.families.keys())
            if lacking:
                faults.append(f"target table {pair.target} lacks the families {', '.join(lacking)}")
    return faults
