"""Findings about rights that the run's user lacks: HBase's, and those on the files of both clusters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from walferry.hbase.address import ClusterAddress
from walferry.hbase.client import HBaseClient
from walferry.hbase.rights import Right, as_refused, commands
from walferry.hbase.server_pages import master_settings, some_settings
from walferry.migration.planning.finding import Finding
from walferry.run.run import archive_folder, data_folder
from walferry.run.spec import ResolvedSpec
from walferry.snapshots.manifest import SNAPSHOTS
from walferry.storage import PermissionDeniedError, WebHdfs
from walferry.wal.copies import hdfs_of
from walferry.wal.files import parse_wal_name

UMASK = "fs.permissions.umask-mode"
_GROUP = 0o050
_LOOKED_AT = 5
"""entries of a folder, the newest: those that are older were readable when a right was granted"""


@dataclass(frozen=True)
class _Folder:
    """A folder that the run reads, with all below it, or only passes through ("--x"). `grows`: HBase makes files and
    folders in it that the run reads."""

    path: str
    action: Literal["r-x", "--x"] = "r-x"
    grows: bool = True
    of_log: bool = False
    """it has files that the run does not read: those of hbase:meta, of the master and of procedures"""


@dataclass(frozen=True)
class _Area:
    """Folders whose modes a master sets to the same setting, `perms`."""

    files: WebHdfs
    perms: str
    of_hbase: str
    """what only HBase's own user and superusers of this HDFS may write"""
    folders: tuple[_Folder, ...]

    def is_closed(self) -> bool:
        """Whether the user has only rights that can be taken away."""
        return self.files.allows(self.of_hbase, "-w-") is False


def hbase_findings(spec: ResolvedSpec, source: HBaseClient, target: HBaseClient) -> Iterator[Finding]:
    """Rights that HBase does not grant: at the source to roll logs, take snapshots and set READONLY (ADMIN) and to
    read; at the target to send edits (WRITE, ReplicateWALEntry) and to make tables."""
    namespaces = sorted({pair.target.rpartition(":")[0] or "default" for pair in spec.tables})
    if spec.history == "clone":  # a snapshot that another has taken (AccessController.preCloneSnapshot)
        to_make = [Right("ADMIN")]
    else:
        to_make = [Right("ADMIN", namespace=name) for name in namespaces]
    wanted = {
        "source": [Right("ADMIN"), *(Right("READ", pair.source) for pair in spec.tables)],
        "target": [Right("WRITE"), *to_make],
    }
    for side, client in (("source", source), ("target", target)):
        lacking = client.lacking_rights(wanted[side])
        if lacking == [] and side == "target":  # who makes a table may read it
            there = [Right("READ", pair.target) for pair in spec.tables if target.table_exists(pair.target)]
            lacking = client.lacking_rights(there) if there else []
        if lacking:
            yield Finding("refuse", side, as_refused(client.address.user, lacking))
        elif lacking is None and client.address.hbase_kerberos is not None and not client.release.tells_rights:
            yield Finding(
                "warn", side, f"HBase {client.version()} does not tell what it grants: whether {client.address.user} "
                f"has what the run needs is unknown; what grants it: {commands(client.address.user, wanted[side])}",
            )  # fmt: skip


def file_findings(spec: ResolvedSpec, source: HBaseClient) -> Iterator[Finding]:
    """What the user may not read of the source's files, now, or once a master has started or HBase has made others.

    Of HBase's own user and superusers of HDFS, whom nothing is closed to, one question is asked for each file system.
    """
    address = source.address
    areas = [area for area in _areas(address, [pair.source for pair in spec.tables]) if area.is_closed()]
    if not areas:
        return
    closes = address.hbase_kerberos is not None and not _open_to_others(address)
    found = [finding for area in areas for folder in area.folders for finding in _unreadable(area.files, folder)]
    if closes:
        found += _no_snapshots_yet(hdfs_of(address), _Folder(f"{address.root_path}/{SNAPSHOTS}", "--x"))
    yield from found
    if found or address.security.kerberos is None:
        return
    user = areas[0].files.user
    settings = master_settings(source) or next(iter(some_settings(source)), None)
    yield from _taken_back(settings, user, [area.perms for area in areas])
    if settings is not None and _bits(settings.get(UMASK, "022"), unreadable=0) & _GROUP:
        yield Finding(
            "refuse", "source", f"{UMASK} is {settings[UMASK]} at the source's servers: HBase's new files would be "
            f"closed to {user}, whatever their ACL says. Set it to 022 or 027 in their core-site.xml or "
            "hbase-site.xml, and restart them one by one",
        )  # fmt: skip
    for area in areas if closes else []:
        for folder in area.folders:
            yield from _not_inherited(area.files, folder)


def foreign_log_findings(target: HBaseClient) -> Iterator[Finding]:
    """Whether the user may read the target's log, which shows what others write there."""
    address = target.address
    files, path = hdfs_of(address.of_log), f"{address.wal_path}/WALs"
    if files.allows(path, "r-x") is False:
        yield Finding(
            "warn", "target", f"{files.user} may not read {path}, so what others write to the target tables before "
            f"they open is not seen. To have it seen: {_command(files.user, _Folder(path))}, and the same with "
            f"{address.wal_path}/oldWALs",
        )  # fmt: skip


def _areas(address: ClusterAddress, tables: list[str]) -> list[_Area]:
    """The folders of a source that the run reads, each after those that lead to it."""
    files, root, wals = hdfs_of(address), address.root_path, address.wal_path
    data = [data_folder(root, table) for table in tables]
    archived = [archive_folder(root, table) for table in tables]
    log = tuple(_Folder(f"{wals}/{name}", of_log=True) for name in ("WALs", "oldWALs"))
    others = (
        # Others' snapshots are not read. A snapshot is made in .tmp, and has the ACL of that when it is moved up.
        *(_Folder(path, "--x") for path in (f"{root}/{SNAPSHOTS}", f"{root}/{SNAPSHOTS}/.tmp")),
        # HBase's cleaner removes folders that are empty from the archive, and HBase makes them again.
        *(_Folder(path, "--x") for path in (f"{root}/archive", f"{root}/archive/data", *_parents(archived))),
        *map(_Folder, archived),
        *(_Folder(path, "--x", grows=False) for path in (f"{root}/data", *_parents(data))),
        *map(_Folder, data),
    )
    of_root = _Area(files, "hbase.rootdir.perms", f"{root}/hbase.id", others)
    if address.waldir is None or (address.wal_webhdfs is None and wals == root):
        return [replace(of_root, folders=(*log, *others))]
    return [of_root, _Area(hdfs_of(address.of_log), "hbase.wal.dir.perms", f"{wals}/WALs", log)]


def _parents(paths: list[str]) -> list[str]:
    return sorted({path.rpartition("/")[0] for path in paths})


def _unreadable(files: WebHdfs, folder: _Folder) -> Iterator[Finding]:
    allowed = files.allows(folder.path, folder.action)
    if allowed is False:
        yield _refused(files, folder, folder.path)
    elif allowed and folder.action == "r-x" and (closed := _closed_below(files, folder)) is not None:
        yield _refused(files, folder, closed)


def _refused(files: WebHdfs, folder: _Folder, path: str) -> Finding:
    right = "pass through" if folder.action == "--x" else "read"
    return Finding(
        "refuse", "source", f"{files.user} may not {right} {path} on the source's HDFS; as its superuser: "
        f"{_command(files.user, folder)}",
    )  # fmt: skip


def _command(user: str, folder: _Folder) -> str:
    """The command that gives the right."""
    inherited = f",default:user:{user}:r-x" if folder.grows else ""
    with_all_below = "-R " if folder.action == "r-x" else ""
    return f"hdfs dfs -setfacl {with_all_below}-m user:{user}:{folder.action}{inherited} {folder.path}"


def _no_snapshots_yet(files: WebHdfs, folder: _Folder) -> Iterator[Finding]:
    """HBase makes the folder with the first snapshot, by its umask."""
    root = files.status(folder.path.rpartition("/")[0])
    if root is None or root.owner is None or root.owner.user == files.user:
        return
    missing = files.allows(folder.path, folder.action) is None and files.status(folder.path) is None
    if missing and files.allows(f"{root.path}/hbase.id", "-w-") is False:
        yield Finding(
            "refuse", "source", f"{folder.path} does not exist yet, and HBase would close it to {files.user}; as a "
            f"superuser of its HDFS: hdfs dfs -mkdir {folder.path}; hdfs dfs -chown {root.owner.user} {folder.path}; "
            f"{_command(files.user, folder)}",
        )  # fmt: skip


def _closed_below(files: WebHdfs, folder: _Folder) -> str | None:
    """A newer file or folder below that the user may not read; None if none is found."""
    try:
        listed = [one for one in files.list(folder.path) if not folder.of_log or one.is_dir or parse_wal_name(one.name)]
    except FileNotFoundError:
        return None  # HBase has removed it meanwhile
    entries = sorted(listed, key=lambda one: -one.modified_ms)[:_LOOKED_AT]
    for entry in entries:
        if files.allows(entry.path, "r-x" if entry.is_dir else "r--") is False:
            return entry.path
    below = next((entry for entry in entries if entry.is_dir), None)
    return None if below is None else _closed_below(files, replace(folder, path=below.path))


def _taken_back(settings: Mapping[str, str] | None, user: str, names: list[str]) -> Iterator[Finding]:
    """Rights that end when a master becomes active: under Kerberos it sets the mode of archive and data to
    `hbase.rootdir.perms`, and that of WALs and oldWALs to `hbase.wal.dir.perms` if they are elsewhere, by default 700,
    and so the most that entries of an ACL and the group may do (MasterFileSystem.checkSubDir). `settings`: the
    master's, or else a region server's; None if neither are shown."""
    if settings is None:
        yield Finding(
            "warn", "source", f"the web pages (/conf) of the source's servers do not answer, so it is unknown whether "
            f"{' and '.join(names)} is 750. If not, the next master that becomes active takes {user}'s rights "
            "on the files away",
        )  # fmt: skip
        return
    for name in names:
        mode = settings.get(name, "700")
        if _bits(mode, unreadable=_GROUP) & _GROUP != _GROUP:
            yield Finding(
                "refuse", "source", f"{name} is {mode}: the next master that becomes active sets HBase's folders back "
                f"to that, and {user} can no longer read them, whatever their ACL says. Set it to 750 in the "
                "hbase-site.xml of all masters, and restart them",
            )  # fmt: skip


def _bits(mode: str, *, unreadable: int) -> int:
    """An octal mode; `unreadable` for one in letters, which HDFS takes, too."""
    try:
        return int(mode, 8)
    except ValueError:
        return unreadable


def _not_inherited(files: WebHdfs, folder: _Folder) -> Iterator[Finding]:
    """An ACL that HBase's new files in a folder will not have, where its umask closes them to others."""
    mine = f"user:{files.user}:"
    entries = files.acl(folder.path) if folder.grows else []
    readable = any(entry.startswith(f"default:{mine}r-x") for entry in entries)
    if any(entry.startswith(mine) for entry in entries) and not readable:
        yield Finding(
            "refuse", "source", f"{folder.path} has no default entry for {files.user} in its ACL, so what HBase makes "
            f"there from now on is closed to {files.user}; as a superuser of its HDFS: "
            f"{_command(files.user, folder)}",
        )  # fmt: skip


def _open_to_others(address: ClusterAddress) -> bool:
    """Whether the umask of HBase's servers lets everybody read, as the folders of their logs show."""
    try:
        folders = hdfs_of(address.of_log).list(f"{address.wal_path}/WALs")
    except (FileNotFoundError, PermissionDeniedError):
        return False
    return bool(folders) and all((one.mode or 0) & 0o005 == 0o005 for one in folders)
