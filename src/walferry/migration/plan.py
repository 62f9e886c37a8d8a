"""Plan: examine both clusters, change nothing, and report what would go wrong and what to do about it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Literal

import requests

from walferry.apply.bulk_loader import staging_folder
from walferry.errors import (
    DamagedInputError,
    GapError,
    TransientError,
    UnreadableInputError,
    UsageError,
    WalferryError,
    WalKeyError,
)
from walferry.formats.value_codecs import CODECS
from walferry.hbase.client import HBaseClient
from walferry.hbase.descriptors import TableDescriptor
from walferry.hbase.settings import some_settings
from walferry.hbase.thrift import connect
from walferry.hbase.versions import By
from walferry.hbase.writer_kind import WriterKind
from walferry.migration.schema import Fit, family_differences, fit
from walferry.replay.keeping.by_copies import try_writing
from walferry.replay.keeping.retention import KEEP_HOURS, TTL, retention_of
from walferry.replay.pieces.bulk_pieces import table_faults
from walferry.replay.rights.durability import MEANWHILE, NOT_DURABLE
from walferry.replay.rights.lease import resource
from walferry.run.run import Run, data_folder, file_system
from walferry.run.spec import Cluster, ResolvedSpec, TablePair
from walferry.storage import FileSystem, Local, PermissionDeniedError
from walferry.wal.copies import as_url, open_folder
from walferry.wal.files import Place, WalFile, list_wals
from walferry.wal.open import open_wal

log = logging.getLogger(__name__)

REPLICATION = "hbase.replication"
_REPLICATION = 3  # dfs.replication of nearly every cluster; the NameNode does not report its own
"""a longer time-out of the target's own would make replay, and the wait for its lease, too long"""
WAL_DIR = "hbase.wal.dir"
LEAST_TTL_SECONDS = 120.0
"""a shorter time to live of the source's WALs is risky when they are copied"""
_BLOCK = 128 << 20  # dfs.blocksize of nearly every cluster


@dataclass(frozen=True)
class Finding:
    """A finding of the plan: `refuse` stops the run, `warn` is for the operator to judge."""

    level: Literal["refuse", "warn"]
    subject: str
    message: str


@dataclass(frozen=True)
class TablePlan:
    """The size of a table."""

    source: str
    target: str
    regions: int
    bytes: int
    """in files"""
    memstore_bytes: int
    """in memory until the snapshot flushes them; a lower bound, see `HBaseClient.memstore_bytes`"""
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
    tables: list[TablePlan]
    wal_bytes: int
    wal_files: int
    findings: list[Finding]


def require(plan: Plan) -> None:
    """Raise UsageError with every refusal of the plan."""
    _refuse(plan.findings)


def _refuse(findings: Sequence[Finding]) -> None:
    refusals = [finding for finding in findings if finding.level == "refuse"]
    if refusals:
        text = "; ".join(f"{finding.subject}: {finding.message}" for finding in refusals)
        raise UsageError(f"the plan refuses: {text}", findings=[asdict(finding) for finding in refusals])


def make_plan(spec: ResolvedSpec) -> Plan:
    """Examine both clusters for a spec. Raises TransientError or UsageError when a side cannot be reached."""
    try:
        return _examine(spec)
    except TransientError as error:
        for side, cluster in (("source", spec.source), ("target", spec.target)):
            for key, fact in (("webhdfs", "url"), ("zookeeper", "zookeeper")):
                if fact in error.facts and error.facts[fact] == getattr(cluster, key):
                    raise type(error)(f"{side}.{key}: {error.message}", **error.facts) from error
        raise


def _examine(spec: ResolvedSpec) -> Plan:
    with HBaseClient(spec.source_address()) as source, HBaseClient(spec.target.address()) as target:
        source_files, target_files = file_system(spec.source, spec.source_address()), file_system(spec.target)
        source_root, target_root = spec.source.address().root_path, spec.target.address().root_path
        for files, root, side in ((source_files, source_root, "source"), (target_files, target_root, "target")):
            if files.status(root) is None:
                raise UsageError(f"{side}: {root} does not exist on its file system; check rootdir and webhdfs")
        wal_root = spec.source.address().wal_path
        source_id, target_id = source.cluster_id(), target.cluster_id()
        findings = [
            *_rights(source, "source", ("ADMIN",), [pair.source for pair in spec.tables]),
            *_rights(target, "target", ("READ", "WRITE", "ADMIN"), []),
            *(_may_write(spec.target) if spec.history == "clone" else _may_stage(spec)),
        ]
        _refuse(findings)  # now: without permissions hardly anything else can be examined
        findings += _wal_folder(source, source_files, wal_root)
        _refuse(findings)  # nor without the log
        if source_id == target_id:
            findings.append(
                Finding("refuse", "clusters", f"source and target are the same cluster ({source_id}); name two")
            )
        wals = list_wals(source_files, wal_root)
        findings += [*_version(source, "source"), *_version(target, "target")]
        findings += _peer(source) if spec.stage is None else _stage(spec.stage, source, wals)
        if spec.writer_kind is WriterKind.THRIFT:
            findings += _thrift(target)
        findings += _codec(source_files, wal_root, [file for file in wals if file.place is Place.LIVE])
        tables = []
        in_memory = source.memstore_bytes()
        for pair in spec.tables:
            if not source.table_exists(pair.source):
                findings.append(Finding("refuse", pair.source, "there is no such table at the source"))
                continue
            descriptor = source.describe(pair.source)
            findings += _table(source, pair, descriptor)
            there = target.table_exists(pair.target)
            if there and spec.history == "bulk":
                findings += _existing(target, pair, descriptor)
            elif there:
                message = (
                    f"target table {pair.target} already exists: map to another name. Drop it only if no run is moving "
                    "it and no client uses it"
                )
                findings.append(Finding("refuse", pair.source, message))
            if spec.history == "bulk":
                findings += _unreadable(pair, descriptor)
            fits = fit(target, descriptor)
            if not there:
                findings += _fit(pair, fits)
            if spec.apply == "bulk":
                findings += [
                    Finding("refuse", pair.source, f"{fault}: use apply: auto or rpc")
                    for fault in table_faults(pair.target, descriptor)
                ]
            folder = data_folder(source_root, pair.source)
            tables.append(
                TablePlan(
                    pair.source,
                    pair.target,
                    len(source.regions(pair.source)),
                    _size(source_files, folder),
                    in_memory.get(pair.source, 0),
                    sorted(descriptor.families),
                    list(fits.left_out),
                )
            )
        findings += _room(spec, sum(table.bytes + table.memstore_bytes for table in tables))
        return Plan(
            source.version(), target.version(), source_id, target_id, tables,
            sum(file.length for file in wals), len(wals), findings,
        )  # fmt: skip


def _version(client: HBaseClient, side: str) -> Iterator[Finding]:
    release = client.release
    if not release.tried:
        yield Finding(
            "warn", side, f"HBase {client.version()} was never tried with walferry. It is assumed to be like "
            f"{release.name}: {release.description}",
        )  # fmt: skip
    elif side == "target" and not release.tried_as_target:
        yield Finding("warn", side, f"HBase {client.version()} was never tried as a target, only as a source")


def _peer(source: HBaseClient) -> Iterator[Finding]:
    """What stands in the way of a replication peer."""
    instead = "`protect: stage` needs no peer"
    if not source.release.has_endpoint:
        yield Finding(
            "refuse", "protect", f"region servers of HBase {source.version()} may lack the class that the run's peer "
            "names, and could not start again while it is there; those of 1.5 to 1.7, and of 2.2 and newer, have it. "
            f"{instead}",
        )  # fmt: skip
    if source.release.queues is not By.ZOOKEEPER:
        yield Finding(
            "refuse", "protect", "the source keeps its replication queues in a table, which walferry cannot read yet: "
            f"whether its WALs are kept could not be known. {instead}",
        )  # fmt: skip
    if source.release.replication_may_be_off and _replication_is_off(source):
        yield Finding(
            "refuse", "protect", f"{REPLICATION} is false at the source: its region servers keep nothing for a peer. "
            f"{instead}",
        )  # fmt: skip
    if source.peers_may_change() is False:
        yield Finding(
            "refuse", "protect", "replication peers cannot be changed at the source now, so none can keep its WALs; "
            f"allow it (peer_modification_switch true in HBase's shell). {instead}",
        )  # fmt: skip


def _replication_is_off(source: HBaseClient) -> bool:
    return any(found.get(REPLICATION) == "false" for found in some_settings(source))


def _stage(url: str, source: HBaseClient, wals: Sequence[WalFile]) -> Iterator[Finding]:
    """Whether copies of the log can be written to the operator's folder, and how much space they may take."""
    files, folder = open_folder(as_url(url), source.address.user)
    there = files.status(folder) is not None
    try:
        try_writing(files, folder)
        if not there:
            files.delete(folder)
    except (WalferryError, OSError) as error:
        yield Finding("refuse", "stage", f"copies of WALs cannot be written to {url}: {error}")
        return
    if isinstance(files, Local):
        yield Finding(
            "warn",
            "stage",
            f"{url} is a path of this machine: every Spark worker must see the same folder",
        )
    kept = retention_of(source)
    if kept.assumed:
        yield Finding(
            "warn", "stage", f"{TTL} is unknown: the source's region servers' web pages (/conf) do not answer. "
            f"HBase's default is assumed: a closed WAL may be deleted after {kept.ttl_seconds:.0f} s",
        )  # fmt: skip
    elif kept.ttl_seconds < LEAST_TTL_SECONDS:
        yield Finding(
            "warn", "stage", f"{TTL} is {kept.ttl_seconds:.0f} s: a WAL must be copied within that time of its close; "
            f"set it to {LEAST_TTL_SECONDS:.0f} s or more if you can",
        )  # fmt: skip
    yield Finding("warn", "stage", _growth(wals))


def _growth(wals: Sequence[WalFile]) -> str:
    """How much space copies of the log take, going by the files that there are now."""
    kept = f"each is kept until it is applied, and for {KEEP_HOURS:g} h after it was copied"
    closed = [file for file in wals if file.length]
    hours = (time.time() * 1000 - min((file.number for file in closed), default=0)) / 3_600_000
    if not closed or hours > 24 * 365:
        return f"how fast the log grows is unknown; the copies take as much as the log: {kept}"
    rate = sum(file.length for file in closed) / max(hours, 1 / 60)
    most = rate * KEEP_HOURS
    return (
        f"the log grows by about {rate / 1e9:.3f} GB per hour, so its copies take at most {most / 1e9:.3f} GB, or what "
        f"the log grows by until replay has caught up, if that takes longer: {kept}"
    )


def _rights(client: HBaseClient, side: str, everywhere: Sequence[str], readable: Sequence[str]) -> Iterator[Finding]:
    """Permissions that the run needs: roll WALs, add a peer, snapshot (ADMIN), read, and write."""
    lacking = client.lacking_rights(everywhere, readable)
    if lacking:
        yield Finding(
            "refuse", side, f"HBase does not grant {client.address.user} {', '.join(lacking)}; grant it, or name "
            "another `user`",
        )  # fmt: skip


def _thrift(target: HBaseClient) -> Iterator[Finding]:
    try:
        connect(target.address).close()
    except TransientError as error:
        yield Finding("refuse", "target", f"{error}; is it up?")


def _wal_folder(source: HBaseClient, files: FileSystem, root: str) -> Iterator[Finding]:
    """Whether the live servers' logs are below the folder given: another may be left from before hbase.wal.dir was set.

    HBase writes recovered.edits, WALs/, oldWALs/ and corrupt/ below hbase.wal.dir since 1.4 (HBASE-17437).
    """
    servers = source.servers()
    if any(files.status(f"{root}/WALs/{server.name}") is not None for server in servers):
        return
    known = next(filter(None, (source.settings(server) for server in servers)), {}).get(WAL_DIR)
    where = f"its {WAL_DIR} is {known}" if known else f"if {WAL_DIR} is set in its hbase-site.xml"
    yield Finding("refuse", "source", f"{root}/WALs has no folder of a live region server; {where}: set `waldir` to it")


def _codec(files: FileSystem, root: str, wals: Sequence[WalFile]) -> Iterator[Finding]:
    """The codec is a setting of the whole cluster: the newest readable header shows it."""
    for file in sorted(wals, key=lambda file: file.number, reverse=True):
        try:
            if open_wal(files, root, file).header() is not None:
                return
        except GapError:
            continue  # an empty one, deleted when its server died
        except (UnreadableInputError, WalKeyError) as error:
            yield Finding("refuse", "WAL codec", str(error))
            return
        except DamagedInputError:
            continue  # that log's damage is found by a replay, if it is read


def _table(source: HBaseClient, pair: TablePair, descriptor: TableDescriptor) -> Iterator[Finding]:
    refuse: Callable[[str], Finding] = lambda message: Finding("refuse", pair.source, message)  # noqa: E731
    if not source.table_enabled(pair.source):
        yield refuse("the table is disabled; enable it, so that its snapshot includes what is in memory")
    for family in descriptor.families.values():
        if family.is_mob:
            yield refuse(f"family {family.name} stores MOB files, which are not copied yet")
        if family.new_version_behavior:
            yield refuse(f"family {family.name} has NEW_VERSION_BEHAVIOR, whose result depends on sequence numbers")
        if "ENCRYPTION" in family.attributes:
            yield Finding(
                "warn", pair.source, f"family {family.name} is encrypted: the target opens its files only with the "
                "source's master key (hbase.crypto.master.key.name)",
            )  # fmt: skip
    if descriptor.durability in NOT_DURABLE:
        yield Finding("warn", pair.source, _not_durable(descriptor.durability))
    coprocessors = [value for key, value in descriptor.attributes.items() if key.lower().startswith("coprocessor$")]
    if any("phoenix" in value.lower() for value in coprocessors):
        yield refuse("a Phoenix table: its indexes and catalogue are not migrated")
    elif coprocessors:
        yield Finding("warn", pair.source, "has coprocessors, which must also be installed at the target")
    stated = [descriptor.attributes, *(family.attributes for family in descriptor.families.values())]
    names_class = (".class", "region.split.policy")
    if classes := sorted({value for some in stated for key, value in some.items() if key.endswith(names_class)}):
        yield Finding(
            "warn", pair.source, f"names {', '.join(classes)}: without these classes at the target's region servers "
            "its regions do not open, and older masters accept the table nevertheless",
        )  # fmt: skip
    if source.table_exists("hbase:labels"):
        yield refuse("the source has visibility labels, whose numbers mean something else at the target")


def _existing(target: HBaseClient, pair: TablePair, descriptor: TableDescriptor) -> Iterator[Finding]:
    """Whether the snapshot can be loaded into a table that exists."""
    refuse: Callable[[str], Finding] = lambda message: Finding("refuse", pair.source, message)  # noqa: E731
    if not target.table_enabled(pair.target):
        yield refuse(f"target table {pair.target} is disabled; enable it, or drop it")
    elif next(iter(target.scan_raw(pair.target)), None) is not None:
        yield refuse(f"target table {pair.target} is not empty; truncate it, drop it, or map to another name")
    there = target.describe(pair.target)
    if there.read_only:
        yield refuse(f"target table {pair.target} is READONLY")
    for difference in family_differences(descriptor, there):
        yield refuse(f"{difference}; with history: bulk the families of an existing table must be the source's")


def _unreadable(pair: TablePair, descriptor: TableDescriptor) -> Iterator[Finding]:
    """Whether there are store files that only HBase can read."""
    for family in descriptor.families.values():
        stated = family.attributes.items()
        codecs = sorted({value.upper() for name, value in stated if name.startswith("COMPRESSION")} - CODECS.keys())
        encrypted = ["encrypted"] if "ENCRYPTION" in family.attributes else []
        for what in encrypted + [f"compressed by {codec}" for codec in codecs]:
            yield Finding(
                "refuse", pair.source, f"files of family {family.name} are {what}, which history: bulk cannot read; "
                "use history: clone",
            )  # fmt: skip


def _fit(pair: TablePair, fits: Fit) -> Iterator[Finding]:
    if fits.refused:
        yield Finding(
            "refuse", pair.source, f"the target would not create such a table: {fits.reason}. Make the target able to "
            "(its hbase-site.xml, its libraries), or change the table at the source and compact it (major_compact)",
        )  # fmt: skip
    elif fits.left_out:
        yield Finding(
            "warn", pair.source, f"the target table will not have {', '.join(fits.left_out)}, which the target "
            f"refuses: {fits.reason}",
        )  # fmt: skip


def _not_durable(durability: str) -> str:
    what = "edits that were acknowledged just before a crash may be lost"
    if durability == "SKIP_WAL":
        what = "edits that set no durability themselves are not in the log, so they are not replayed"
    return (
        f"has DURABILITY {durability}: {what}. The target table inherits it, but has {MEANWHILE} while walferry "
        "applies edits to it"
    )


def _may_write(target: Cluster) -> Iterator[Finding]:
    """Whether the user may write below the target's rootdir."""
    root, user = target.address().root_path, target.address().user
    allowed = _ask(target, f"/webhdfs/v1{root}", {"op": "CHECKACCESS", "fsaction": "rwx", "user.name": user})
    if allowed is None or allowed.status_code not in (200, 403):
        yield Finding("warn", "target", f"whether {user} may write to {root} is unknown")
    elif allowed.status_code == 403:
        yield Finding("refuse", "target", f"{user} may not write to {root}; let the HBase user run it, or name `user`")


def _may_stage(spec: ResolvedSpec) -> Iterator[Finding]:
    """Whether the user may write where files wait to be loaded, or make that folder."""
    target, files = spec.target, file_system(spec.target)
    for pair in spec.tables:
        wanted = folder = staging_folder(target.address().root_path, pair.target)
        try:
            while files.status(folder) is None:
                folder = folder.rpartition("/")[0]
        except PermissionDeniedError as error:
            yield Finding("refuse", "target", f"{error.message} (history: bulk writes to {wanted})")
            continue
        user = target.address().user
        allowed = _ask(target, f"/webhdfs/v1{folder}", {"op": "CHECKACCESS", "fsaction": "rwx", "user.name": user})
        if allowed is None or allowed.status_code not in (200, 403):
            yield Finding("warn", "target", f"whether {user} may write to {folder} is unknown")
        elif allowed.status_code == 403:
            yield Finding(
                "refuse", "target", f"{user} may not write to {folder}; let the HBase user create "
                f"{wanted.rpartition('/')[0]} and give it to {user}",
            )  # fmt: skip


def _room(spec: ResolvedSpec, needed: int) -> Iterator[Finding]:
    """Whether the target's file system has space for so many bytes, according to its NameNode."""
    root, user = spec.target.address().root_path, spec.target.address().user
    state = _ask(spec.target, "/jmx", {"qry": "Hadoop:service=NameNode,name=FSNamesystemState"})
    try:
        remaining = int(state.json()["beans"][0]["CapacityRemaining"]) if state is not None else None
    except (ValueError, LookupError):
        remaining = None
    if remaining is None:
        yield Finding("warn", "target", "how much space is left is unknown")
    elif remaining < needed * _REPLICATION:
        yield Finding(
            "warn", "target", f"{remaining / 1e9:.1f} GB are left, the tables' {needed / 1e9:.1f} GB need "
            f"{needed * _REPLICATION / 1e9:.1f} GB with {_REPLICATION} copies of each block",
        )  # fmt: skip

    # Where the clone looks for files; where they wait to be loaded, and where a region then has them.
    folders = ("archive",) if spec.history == "clone" else ("staging", "staging/walferry", "data")
    for path in (root, *(f"{root}/{folder}" for folder in folders)):
        left = _quota_left(spec.target, path, user)
        if left is not None and left < needed * _REPLICATION + _BLOCK * _REPLICATION:
            # HDFS requires space for a whole block with all its copies before it starts one.
            yield Finding(
                "refuse" if left < needed else "warn", "target",
                f"the space quota on {path} leaves {max(left, 0) / 1e6:.1f} MB, the tables' {needed / 1e6:.1f} MB need "
                f"{needed * _REPLICATION / 1e6:.1f} MB with {_REPLICATION} copies of each block, and space for the "
                "block being written; raise it",
            )  # fmt: skip


def _quota_left(cluster: Cluster, path: str, user: str) -> int | None:
    """Bytes that a folder's space quota leaves; None without one, or if the NameNode does not say (Hadoop 2)."""
    answer = _ask(cluster, f"/webhdfs/v1{path}", {"op": "GETQUOTAUSAGE", "user.name": user})
    if answer is None or answer.status_code != 200:
        return None
    usage = answer.json()["QuotaUsage"]
    return None if usage["spaceQuota"] < 0 else int(usage["spaceQuota"]) - int(usage["spaceConsumed"])


def _ask(cluster: Cluster, path: str, query: dict[str, str]) -> requests.Response | None:
    """One GET to the first NameNode that answers; None when none does."""
    for url in cluster.webhdfs.split(";"):
        try:
            return requests.get(url.rstrip("/") + path, params=query, timeout=10)
        except requests.RequestException:
            continue
    return None


def _size(files: FileSystem, folder: str) -> int:
    """Bytes below a table's folder; a region that disappears meanwhile by a split or merge counts as 0."""
    try:
        entries = files.list(folder)
    except FileNotFoundError:
        return 0
    return sum(_size(files, entry.path) if entry.is_dir else entry.length for entry in entries)


def plan_run(run: Run) -> dict[str, object]:
    """The run's first phase: make the plan and require it. Facts: the plan as a mapping.

    Raises FollowedTwiceError, too, for a target table into which another run follows a log. A plan that refuses ends
    the run as failed, so that a corrected spec may take the name.
    """

    def work() -> dict[str, object]:
        plan = make_plan(run.spec)
        for finding in plan.findings:
            log.warning("%s: %s: %s", finding.level, finding.subject, finding.message)
        require(plan)
        cluster = run.target.cluster_id()
        run.ledger.leases.require_alone(resource(cluster, pair.target) for pair in run.tables)
        return asdict(plan)

    try:
        return run.once("plan", work)
    except TransientError:
        raise  # retryable; a run that got no further gives way to another of its name
    except WalferryError as error:
        run.ledger.end("failed", run.actor, str(error))
        raise
