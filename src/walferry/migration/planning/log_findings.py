"""Findings about the source's log: whether it is kept, whether it exists, and whether it can be read."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from walferry.errors import (
    DamagedInputError,
    GapError,
    UnreadableInputError,
    WalferryError,
    WalKeyError,
)
from walferry.hbase.client import HBaseClient
from walferry.hbase.server_pages import some_settings
from walferry.hbase.versions import By
from walferry.migration.planning.finding import Finding
from walferry.replay.keeping.by_copies import try_writing
from walferry.replay.keeping.retention import TTL, retention_of
from walferry.storage import FileSystem, Local
from walferry.wal.copies import as_url, open_folder
from walferry.wal.files import WalFile
from walferry.wal.open import open_wal

REPLICATION = "hbase.replication"
WAL_DIR = "hbase.wal.dir"
LEAST_TTL_SECONDS = 120.0
"""copying the source's WALs is risky if their time to live is shorter"""


def peer_findings(source: HBaseClient) -> Iterator[Finding]:
    """What prevents the run from using a replication peer."""
    instead = "`protect: stage` needs no peer"
    if not source.release.has_endpoint:
        yield Finding(
            "refuse", "protect", f"region servers of HBase {source.version()} may lack the class that the run's peer "
            "names, and could not start again while it is there; those of 1.5 to 1.7, and of 2.2 and newer, have it. "
            f"{instead}",
        )  # fmt: skip
    if source.release.queues is not By.ZOOKEEPER:
        yield Finding(
            "refuse", "protect", "the source keeps its replication queues in a table, which walferry cannot read "
            f"yet, so it cannot check whether the WALs are kept. {instead}",
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


def stage_findings(url: str, source: HBaseClient, wals: Sequence[WalFile], keep_hours: float) -> Iterator[Finding]:
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
            "warn", "stage", f"{TTL} is {kept.ttl_seconds:.0f} s: a WAL must be copied within that time after it is "
            f"closed; set it to {LEAST_TTL_SECONDS:.0f} s or more if you can",
        )  # fmt: skip
    yield Finding("warn", "stage", _growth(wals, keep_hours))


def _growth(wals: Sequence[WalFile], keep_hours: float) -> str:
    """How much space copies of the log take, estimated from the files that exist now."""
    kept = f"each is kept until it is applied, and for {keep_hours:g} h after it was copied"
    closed = [file for file in wals if file.length]
    hours = (time.time() * 1000 - min((file.number for file in closed), default=0)) / 3_600_000
    if not closed or hours > 24 * 365:
        return f"how fast the log grows is unknown; the copies take as much as the log: {kept}"
    rate = sum(file.length for file in closed) / max(hours, 1 / 60)
    most = rate * keep_hours
    return (
        f"the log grows by about {rate / 1e9:.3f} GB per hour, so its copies take at most {most / 1e9:.3f} GB, or what "
        f"the log grows by until replay has caught up, if that takes longer: {kept}"
    )


def wal_folder_findings(source: HBaseClient, files: FileSystem, root: str) -> Iterator[Finding]:
    """Check that live servers keep their logs below `root`: it may be the folder from before hbase.wal.dir was set.

    HBase writes recovered.edits, WALs/, oldWALs/ and corrupt/ below hbase.wal.dir since 1.4 (HBASE-17437).
    """
    servers = source.servers()
    if any(files.status(f"{root}/WALs/{server.name}") is not None for server in servers):
        return
    known = next(filter(None, (source.settings(server) for server in servers)), {}).get(WAL_DIR)
    where = f"its {WAL_DIR} is {known}" if known else f"if {WAL_DIR} is set in its hbase-site.xml"
    yield Finding("refuse", "source", f"{root}/WALs has no folder of a live region server; {where}: set `waldir` to it")


def codec_findings(files: FileSystem, root: str, wals: Sequence[WalFile]) -> Iterator[Finding]:
    """Check the WAL codec in the newest readable header: it is a setting of the whole cluster."""
    for file in sorted(wals, key=lambda file: file.number, reverse=True):
        try:
            if open_wal(files, root, file).header() is not None:
                return
        except GapError:
            continue  # an empty file, which HBase deleted when its server died
        except (UnreadableInputError, WalKeyError) as error:
            yield Finding("refuse", "WAL codec", str(error))
            return
        except DamagedInputError:
            continue  # a replay finds this log's damage if it reads the log
