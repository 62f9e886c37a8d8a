"""Findings about the source's log: whether it is kept, whether it exists, and whether it can be read."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress

from walferry.errors import (
    DamagedInputError,
    GapError,
    UnreadableInputError,
    WalKeyError,
)
from walferry.hbase.client import HBaseClient
from walferry.ledger.rows import ClusterSide
from walferry.migration.planning.finding import Finding
from walferry.replay.keeping.folder import folder_faults
from walferry.replay.keeping.obstacles import peer_obstacles
from walferry.replay.keeping.retention import TTL, retention_of
from walferry.run.log_folder import log_obstacle
from walferry.storage import FileSystem, Local, PermissionDeniedError
from walferry.wal.copies import as_url, open_folder
from walferry.wal.files import WalFile
from walferry.wal.open import open_wal

LEAST_TTL_SECONDS = 120.0
"""copying the source's WALs is risky if their time to live is shorter"""


def peer_findings(source: HBaseClient) -> Iterator[Finding]:
    """What prevents the run from using a replication peer."""
    for obstacle in peer_obstacles(source):
        yield Finding("refuse", "protect", f"{obstacle}. `protect: stage` needs no peer")


def stage_findings(url: str, source: HBaseClient, wals: Sequence[WalFile], keep_hours: float) -> Iterator[Finding]:
    """Whether copies of the log can be written to the operator's folder, and how much space they may take."""
    if faults := list(folder_faults(url, source.address)):
        yield from (Finding("refuse", "stage", fault) for fault in faults)
        return
    files, _ = open_folder(as_url(url), source.address)
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


def wal_folder_findings(side: ClusterSide, cluster: HBaseClient, tables: Iterable[str]) -> Iterator[Finding]:
    """Check that live servers of a side keep their logs where its address says. Of the target's log, it is read what
    others write, if the user may."""
    with suppress(PermissionDeniedError):  # which `rights` tells
        if (obstacle := log_obstacle(cluster, tables)) is not None:
            yield Finding("refuse", side, obstacle)


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
