"""Findings about the target's file system (may the user write, is there space), and the size of tables."""

from __future__ import annotations

from collections.abc import Iterator

import requests

from walferry.apply.bulk_loader import staging_folder
from walferry.migration.planning.finding import Finding
from walferry.run.run import file_system
from walferry.run.spec import Cluster, ResolvedSpec
from walferry.storage import FileSystem, PermissionDeniedError

_REPLICATION = 3  # dfs.replication of nearly every cluster; the NameNode does not report its own
_BLOCK = 128 << 20  # dfs.blocksize of nearly every cluster


def root_findings(target: Cluster) -> Iterator[Finding]:
    """Whether the user may write below the target's rootdir."""
    root, user = target.address().root_path, target.address().user
    allowed = ask(target, f"/webhdfs/v1{root}", {"op": "CHECKACCESS", "fsaction": "rwx", "user.name": user})
    if allowed is None or allowed.status_code not in (200, 403):
        yield Finding("warn", "target", f"cannot determine whether {user} may write to {root}")
    elif allowed.status_code == 403:
        yield Finding("refuse", "target", f"{user} may not write to {root}; let the HBase user run it, or name `user`")


def staging_findings(spec: ResolvedSpec) -> Iterator[Finding]:
    """Whether the user may write to the staging folder, where files wait to be loaded, or create it."""
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
        allowed = ask(target, f"/webhdfs/v1{folder}", {"op": "CHECKACCESS", "fsaction": "rwx", "user.name": user})
        if allowed is None or allowed.status_code not in (200, 403):
            yield Finding("warn", "target", f"cannot determine whether {user} may write to {folder}")
        elif allowed.status_code == 403:
            yield Finding(
                "refuse", "target", f"{user} may not write to {folder}; let the HBase user create "
                f"{wanted.rpartition('/')[0]} and give it to {user}",
            )  # fmt: skip


def space_findings(spec: ResolvedSpec, needed: int) -> Iterator[Finding]:
    """Whether the target's file system has space for `needed` bytes, according to its NameNode."""
    root, user = spec.target.address().root_path, spec.target.address().user
    state = ask(spec.target, "/jmx", {"qry": "Hadoop:service=NameNode,name=FSNamesystemState"})
    try:
        remaining = int(state.json()["beans"][0]["CapacityRemaining"]) if state is not None else None
    except (ValueError, LookupError):
        remaining = None
    if remaining is None:
        yield Finding("warn", "target", "cannot determine how much space is left")
    elif remaining < needed * _REPLICATION:
        yield Finding(
            "warn", "target", f"{remaining / 1e9:.1f} GB are left, the tables' {needed / 1e9:.1f} GB need "
            f"{needed * _REPLICATION / 1e9:.1f} GB with {_REPLICATION} copies of each block",
        )  # fmt: skip

    # The clone looks for files in "archive". Bulk loading writes to "staging", and regions move the files to "data".
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
    """Bytes left in a folder's space quota; None if it has no quota or the NameNode does not report it (Hadoop 2)."""
    answer = ask(cluster, f"/webhdfs/v1{path}", {"op": "GETQUOTAUSAGE", "user.name": user})
    if answer is None or answer.status_code != 200:
        return None
    usage = answer.json()["QuotaUsage"]
    return None if usage["spaceQuota"] < 0 else int(usage["spaceQuota"]) - int(usage["spaceConsumed"])


def ask(cluster: Cluster, path: str, query: dict[str, str]) -> requests.Response | None:
    """Send one GET to the first NameNode that answers; None if none does."""
    for url in cluster.webhdfs.split(";"):
        try:
            return requests.get(url.rstrip("/") + path, params=query, timeout=10)
        except requests.RequestException:
            continue
    return None


def size_of(files: FileSystem, folder: str) -> int:
    """Bytes below a table's folder; a region that a split or merge removes meanwhile counts as 0."""
    try:
        entries = files.list(folder)
    except FileNotFoundError:
        return 0
    return sum(size_of(files, entry.path) if entry.is_dir else entry.length for entry in entries)
