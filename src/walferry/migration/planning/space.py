"""Findings about the target's file system (may the user write, is there space), and the size of tables."""

from __future__ import annotations

from collections.abc import Iterator

from walferry.apply.bulk_loader import staging_folder
from walferry.migration.planning.finding import Finding
from walferry.run.spec import Cluster, ResolvedSpec
from walferry.storage import FileSystem, Owner, PermissionDeniedError, WebHdfs
from walferry.wal.copies import hdfs_of

_REPLICATION = 3  # dfs.replication of nearly every cluster; the NameNode does not report its own
_BLOCK = 128 << 20  # dfs.blocksize of nearly every cluster


def root_findings(target: Cluster) -> Iterator[Finding]:
    """Whether the user may write below the target's rootdir."""
    root, files = target.address().root_path, hdfs_of(target.address())
    allowed = files.allows(root, "rwx")
    if allowed is None:
        yield Finding("warn", "target", f"cannot determine whether {files.user} may write to {root}")
    elif not allowed:
        message = f"{files.user} may not write to {root}; let the HBase user run it, or name `user`"
        yield Finding("refuse", "target", message)
    elif (owner := _other_owner(files, root)) is not None:
        try:
            files.give(root, owner)  # to whom it belongs: a superuser may, and nothing changes
        except PermissionDeniedError:
            message = (
                f"{root} belongs to {owner.user}, who could not {{}} the files that {files.user} copies there: let "
                f"{owner.user} run it, make {files.user} a superuser of HDFS (dfs.permissions.superusergroup), who "
                "gives them away, or use history: bulk"
            )
            if target.security is None:  # folders are as open as HDFS's umask makes them
                yield Finding("warn", "target", message.format("delete"))
            else:
                yield Finding("refuse", "target", message.format("read"))


def _other_owner(files: WebHdfs, root: str) -> Owner | None:
    """The owner of a folder, if that is not the user."""
    status = files.status(root)
    return None if status is None or status.owner is None or status.owner.user == files.user else status.owner


def staging_findings(spec: ResolvedSpec) -> Iterator[Finding]:
    """Whether the user may write to the staging folder, where files wait to be loaded, or create it, and whether HBase
    may then pass through it."""
    target, files = spec.target, hdfs_of(spec.target.address())
    seen: set[str] = set()
    for pair in spec.tables:
        wanted = folder = staging_folder(target.address().root_path, pair.target)
        try:
            while files.status(folder) is None:
                folder = folder.rpartition("/")[0]
        except PermissionDeniedError as error:
            yield Finding("refuse", "target", f"{error.message} (history: bulk writes to {wanted})")
            continue
        if folder in seen:
            continue
        seen.add(folder)
        allowed = files.allows(folder, "rwx")
        made = wanted.rpartition("/")[0]
        if allowed is None:
            yield Finding("warn", "target", f"cannot determine whether {files.user} may write to {folder}")
        elif not allowed:
            yield Finding(
                "refuse", "target", f"{files.user} may not write to {folder}; let the HBase user create {made} and "
                f"give it to {files.user}: hdfs dfs -mkdir -p {made}; hdfs dfs -chown {files.user} {made}; "
                f"hdfs dfs -chmod 711 {made}",
            )  # fmt: skip
        else:
            yield from _closed_to_hbase(files, target.address().root_path, made)


def _closed_to_hbase(files: WebHdfs, root_path: str, made: str) -> Iterator[Finding]:
    """HBase's servers take the files out of the staging folder as their own user, whom the root folder belongs to."""
    root, staging = files.status(root_path), files.status(made)
    if root is None or staging is None or root.owner is None or staging.owner is None or staging.mode is None:
        return
    if root.owner.user == staging.owner.user or staging.mode & 0o001:
        return
    # Whether a group or an ACL lets HBase in is not told.
    unsure = bool(staging.mode & 0o010)
    may = "may be unable to" if unsure else "cannot"
    yield Finding(
        "warn" if unsure else "refuse", "target", f"{made} has the mode {staging.mode:o}, so HBase's own user "
        f"{root.owner.user} {may} load files from there: hdfs dfs -chmod 711 {made}",
    )  # fmt: skip


def space_findings(spec: ResolvedSpec, needed: int) -> Iterator[Finding]:
    """Whether the target's file system has space for `needed` bytes, according to its NameNode."""
    root, files = spec.target.address().root_path, hdfs_of(spec.target.address())
    remaining = files.space_left()
    if remaining is None:
        message = "cannot determine how much space is left"
        if files.is_gateway():
            message = (
                f"{files.url} is no name node but a server before them, such as HttpFS: {message}, and new files have "
                "the replication of its own configuration"
            )
        yield Finding("warn", "target", message)
    elif remaining < needed * _REPLICATION:
        yield Finding(
            "warn", "target", f"{remaining / 1e9:.1f} GB are left, the tables' {needed / 1e9:.1f} GB need "
            f"{needed * _REPLICATION / 1e9:.1f} GB with {_REPLICATION} copies of each block",
        )  # fmt: skip

    # The clone looks for files in "archive". Bulk loading writes to "staging", and regions move the files to "data".
    folders = ("archive",) if spec.history == "clone" else ("staging", "staging/walferry", "data")
    for path in (root, *(f"{root}/{folder}" for folder in folders)):
        left = files.quota_left(path)
        if left is not None and left < needed * _REPLICATION + _BLOCK * _REPLICATION:
            # HDFS requires space for a whole block with all its copies before it starts one.
            yield Finding(
                "refuse" if left < needed else "warn", "target",
                f"the space quota on {path} leaves {max(left, 0) / 1e6:.1f} MB, the tables' {needed / 1e6:.1f} MB need "
                f"{needed * _REPLICATION / 1e6:.1f} MB with {_REPLICATION} copies of each block, and space for the "
                "block being written; raise it",
            )  # fmt: skip


def size_of(files: FileSystem, folder: str) -> int:
    """Bytes below a table's folder; a region that a split or merge removes meanwhile counts as 0."""
    try:
        entries = files.list(folder)
    except FileNotFoundError:
        return 0
    return sum(size_of(files, entry.path) if entry.is_dir else entry.length for entry in entries)
