"""What a plan says of rights where no server is needed to ask for them."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from unit.migration.filled_ledger import SPEC
from unit.migration.planning.versions import of_version
from walferry.hbase.address import ClusterAddress
from walferry.hbase.errors import AccessDeniedError, RegionNotServedError, TableStateError
from walferry.hbase.rights import Right, as_refused
from walferry.migration import plan
from walferry.migration.planning import left_behind, rights
from walferry.migration.planning.finding import Finding
from walferry.run.spec import ResolvedSpec
from walferry.security import OPEN, Kerberos, Security
from walferry.storage import FileStatus
from walferry.storage.filesystem import Owner

FERRY = Security(Kerberos("ferry@EXAMPLE.COM"))
ROOT = FileStatus("/hbase", 0, True, 1, 0, 0, Owner("hbase", "supergroup"), 0o711)
SNAPSHOTS = "/hbase/.hbase-snapshot"
ARCHIVE = "/hbase/archive"
LOG_HDFS = "http://127.0.0.1:2"
KEPT = {"hbase.rootdir.perms": "750", "hbase.wal.dir.perms": "750"}


class Files:
    """An HDFS whose folders the user may read, being none of its superusers."""

    user = "ferry"

    def __init__(
        self,
        *missing: str,
        superuser: bool = False,
        there: FileStatus = ROOT,
        umask: int = 0o027,
        modes: dict[str, str] | None = None,
        acls: dict[str, tuple[str, ...]] | None = None,
    ) -> None:
        """`umask`: HBase's; `modes`: what the user may do with a path, if not all but to write; `acls`: of paths."""
        self._missing, self._superuser, self._umask = missing, superuser, umask
        self._statuses = {status.path: status for status in (ROOT, there)}
        self._modes, self._acls = modes or {}, acls or {}

    def allows(self, path: str, action: str) -> bool | None:
        if path in self._missing:
            return None
        return self._superuser or set(action) <= set(self._modes.get(path, "r-x"))

    def status(self, path: str) -> FileStatus | None:
        return self._statuses.get(path)

    def list(self, path: str) -> list[FileStatus]:
        """In each folder one that HBase has made, and with it the paths that are known."""
        if path.endswith("/WALs"):
            return [FileStatus(f"{path}/rs,1,2", 0, True, 1, 0, 0, None, 0o777 & ~self._umask)]
        known = [one for one in self._modes if one.rpartition("/")[0] == path]
        return [FileStatus(one, 0, "/oldWALs/" not in one, 1, 0, 0) for one in known]

    def acl(self, path: str) -> tuple[str, ...]:
        return self._acls.get(path, ())


def spec(**more: Any) -> ResolvedSpec:
    """A migration between clusters with Kerberos."""
    secured = {**SPEC["source"], "security": {"principal": "ferry@EXAMPLE.COM", "keytab": "/none"}}
    secured.pop("user", None)
    source = {key: value for key, value in (secured | more.pop("source", {})).items() if value is not None}
    return ResolvedSpec.model_validate(SPEC | {"source": source, "target": secured} | more)


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Finding]]:
    """What is found of a source's files, by the settings of its servers."""

    def ask(
        settings: dict[str, str] | None, files: Files | None = None, of_log: Files | None = None, **source: Any
    ) -> list[Finding]:
        def hdfs_of(address: ClusterAddress) -> Files:
            return (of_log if address.webhdfs == LOG_HDFS else files) or Files()

        monkeypatch.setattr(rights, "hdfs_of", hdfs_of)
        monkeypatch.setattr(rights, "master_settings", lambda _: settings)
        run = spec(source=source)
        return list(rights.file_findings(run, of_version("2.6.3", settings, run.source.address())))

    return ask


def test_nothing_is_found_where_the_next_master_leaves_the_rights(found: Callable[..., list[Finding]]) -> None:
    assert found(KEPT) == []


def test_each_setting_that_takes_rights_away_is_named(found: Callable[..., list[Finding]]) -> None:
    (closed,) = found({})
    assert closed.message.startswith("hbase.rootdir.perms is 700: the next master")
    apart = found({}, waldir="/wal")
    assert [one.message.split()[0] for one in apart] == ["hbase.rootdir.perms", "hbase.wal.dir.perms"]
    (log,) = found({"hbase.rootdir.perms": "0750"}, waldir="/wal")
    assert (log.level, log.message.split(":")[0]) == ("refuse", "hbase.wal.dir.perms is 700")
    assert found({"hbase.rootdir.perms": "0750"}, waldir="/hbase") == [], "HBase takes that for no other folder"


@pytest.mark.parametrize(
    ("superusers", "refused"),
    [
        ((False, False), ["hbase.rootdir.perms", "hbase.wal.dir.perms"]),
        ((True, False), ["hbase.wal.dir.perms"]),
        ((False, True), ["hbase.rootdir.perms"]),
        ((True, True), []),
    ],
)
def test_a_log_on_another_hdfs_has_its_own_setting_and_superusers(
    superusers: tuple[bool, bool], refused: list[str], found: Callable[..., list[Finding]]
) -> None:
    """Also where its path is that of the root folder."""
    root, log = (Files(superuser=one) for one in superusers)
    findings = found({}, root, log, waldir="hdfs://logs/hbase", wal_webhdfs=LOG_HDFS)
    assert [one.message.split()[0] for one in findings] == refused


def test_settings_that_no_server_shows_are_unknown(found: Callable[..., list[Finding]]) -> None:
    (unknown,) = found(None)
    assert unknown.level == "warn"
    assert "it is unknown whether hbase.rootdir.perms is 750" in unknown.message


@pytest.mark.parametrize(
    ("umask", "closed"), [("022", False), ("027", False), ("077", True), ("0077", True), ("u=rwx,g=rx", False)]
)
def test_a_umask_that_closes_new_files_to_everybody_is_refused(
    umask: str, closed: bool, found: Callable[..., list[Finding]]
) -> None:
    findings = found({**KEPT, rights.UMASK: umask})
    assert [one.message.startswith(f"{rights.UMASK} is {umask} at") for one in findings] == [True] * closed


def test_an_open_cluster_has_no_such_master(found: Callable[..., list[Finding]]) -> None:
    assert found({rights.UMASK: "077"}, Files(umask=0o077), security=None) == []
    (closed,) = found({}, Files(modes={"/hbase/data/shop": "---"}), security=None)
    assert closed.message.startswith("ferry may not pass through /hbase/data/shop on the source's HDFS")


@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("rs%2C1%2C2.rs%2C1%2C2.regiongroup-0.1700000000000", True),
        ("rs%2C1%2C2.1700000000000", True),
        ("master%2C1%2C2.1700000000000$masterlocalwal$", False),
        ("rs%2C1%2C2.meta.1700000000000.meta", False),
        ("pv2-00000000000000000001.log", False),
    ],
)
def test_what_the_run_does_not_read_in_the_log_may_be_closed(
    name: str, read: bool, found: Callable[..., list[Finding]]
) -> None:
    """A master moves its own log to the others, with the mode that it had."""
    path = f"/hbase/oldWALs/{name}"
    findings = found(KEPT, Files(modes={path: "---"}))
    assert [one.message.startswith(f"ferry may not read {path}") for one in findings] == [True] * read


def test_a_superuser_of_hdfs_reads_whatever_a_master_sets(found: Callable[..., list[Finding]]) -> None:
    assert found({rights.UMASK: "077"}, Files(superuser=True)) == []


def test_the_folder_of_the_first_snapshot_is_to_be_made_before_it(found: Callable[..., list[Finding]]) -> None:
    (missing,) = found(KEPT, Files(SNAPSHOTS))
    assert f"hdfs dfs -mkdir {SNAPSHOTS}; hdfs dfs -chown hbase {SNAPSHOTS};" in missing.message
    assert found(KEPT, Files(SNAPSHOTS, superuser=True)) == []


def test_the_folder_of_the_first_snapshot_is_made_by_hbase_where_it_lets_all_read(
    found: Callable[..., list[Finding]],
) -> None:
    assert found(KEPT, Files(SNAPSHOTS, umask=0o022)) == []
    assert found(KEPT, Files(SNAPSHOTS), security=None) == [], "an open cluster, whatever its umask"


def test_what_is_others_below_the_archive_and_among_the_snapshots_may_be_closed(
    found: Callable[..., list[Finding]],
) -> None:
    passed = {ARCHIVE: "--x", f"{ARCHIVE}/data": "--x", f"{ARCHIVE}/data/shop": "--x", SNAPSHOTS: "--x"}
    closed = {f"{ARCHIVE}/data/bank": "---", f"{ARCHIVE}/data/shop/salaries": "---", f"{SNAPSHOTS}/nightly": "---"}
    assert found(KEPT, Files(modes=passed | closed)) == []


@pytest.mark.parametrize(
    ("path", "action"),
    [
        (SNAPSHOTS, "--x"),
        (f"{SNAPSHOTS}/.tmp", "--x"),
        (ARCHIVE, "--x"),
        (f"{ARCHIVE}/data", "--x"),
        (f"{ARCHIVE}/data/shop", "--x"),
        (f"{ARCHIVE}/data/shop/orders", "r-x"),
    ],
)
def test_what_leads_to_the_snapshot_and_its_files_is_open_now_and_when_hbase_makes_it_again(
    path: str, action: str, found: Callable[..., list[Finding]]
) -> None:
    below = "-R " if action == "r-x" else ""
    command = f"hdfs dfs -setfacl {below}-m user:ferry:{action},default:user:ferry:r-x {path}"
    (closed,) = found(KEPT, Files(modes={path: "---"}))
    assert closed.message.endswith(command)
    mine = (f"user:ferry:{action}",)
    (fading,) = found(KEPT, Files(acls={path: mine}))
    assert (fading.message.split()[0], fading.message.endswith(command)) == (path, True)
    assert found(KEPT, Files(acls={path: (*mine, "default:user:ferry:--x")})) == [fading]
    assert found(KEPT, Files(acls={path: (*mine, "default:user:ferry:r-x")})) == []
    assert found(KEPT, Files(acls={path: mine}, umask=0o022)) == []


def test_a_file_of_the_table_that_is_closed_is_found(found: Callable[..., list[Finding]]) -> None:
    (closed,) = found(KEPT, Files(modes={f"{ARCHIVE}/data/shop/orders/r1": "---"}))
    assert closed.message.startswith(f"ferry may not read {ARCHIVE}/data/shop/orders/r1")


@pytest.mark.parametrize(
    ("history", "target", "wanted"),
    [
        ("clone", "shop:orders", [Right("WRITE"), Right("ADMIN")]),
        ("bulk", "shop:orders", [Right("WRITE"), Right("ADMIN", namespace="shop")]),
        ("bulk", "orders", [Right("WRITE"), Right("ADMIN", namespace="default")]),
    ],
)
def test_a_clone_of_a_snapshot_of_others_needs_a_global_right(history: str, target: str, wanted: list[Right]) -> None:
    source, there = (of_version("2.6.3", security=FERRY) for _ in range(2))
    source.lacking_rights = lambda wanted: []  # type: ignore[method-assign]
    there.lacking_rights = lambda wanted: list(wanted)  # type: ignore[method-assign]
    pairs = [{"source": "shop:orders", "target": target}]
    (lacking,) = rights.hbase_findings(spec(history=history, tables=pairs), source, there)
    assert lacking.message == as_refused("ferry", wanted)


@pytest.mark.parametrize("there", [True, False])
def test_a_target_table_that_exists_is_read(there: bool) -> None:
    source, target = (of_version("2.6.3", security=FERRY) for _ in range(2))
    source.lacking_rights = lambda wanted: []  # type: ignore[method-assign]
    target.lacking_rights = lambda wanted: [one for one in wanted if one.action == "READ"]  # type: ignore[method-assign]
    target.table_exists = lambda table: there  # type: ignore[method-assign]
    found = list(rights.hbase_findings(spec(), source, target))
    assert [one.message for one in found] == [as_refused("ferry", [Right("READ", "shop:orders")])] * there


def test_the_namespace_is_made_before_a_right_on_it_is_granted() -> None:
    assert as_refused("ferry", [Right("WRITE"), Right("ADMIN", namespace="shop")]) == (
        "HBase does not grant ferry global WRITE, ADMIN on the namespace shop; in HBase's shell: grant 'ferry', 'W'; "
        "grant 'ferry', 'A', '@shop' (before that, if it does not exist: create_namespace 'shop'). Or name another "
        "user or principal"
    )
    assert "create_namespace" not in as_refused("ferry", [Right("ADMIN", namespace="default")])
    both = as_refused("ferry", [Right("ADMIN", namespace="shop"), Right("CREATE", namespace="shop")])
    assert both.count("create_namespace 'shop'") == 1


def test_what_a_version_does_not_tell_is_unknown_at_a_secured_cluster() -> None:
    unknown = of_version("1.7.2", security=FERRY)
    unknown.lacking_rights = lambda wanted: None  # type: ignore[method-assign]
    open_to_all = of_version("1.7.2")
    open_to_all.lacking_rights = lambda wanted: None  # type: ignore[method-assign]
    (told,) = rights.hbase_findings(spec(), unknown, open_to_all)
    assert (told.level, told.subject) == ("warn", "source")
    assert told.message.endswith("is unknown; what grants it: grant 'ferry', 'A'; grant 'ferry', 'R', 'shop:orders'")


@pytest.mark.parametrize(
    ("version", "security", "options", "levels"),
    [
        ("1.7.2", FERRY, {"apply": "bulk", "history": "bulk"}, ["refuse", "refuse"]),
        ("1.7.2", FERRY, {}, ["warn"]),
        ("1.7.2", FERRY, {"apply": "rpc"}, []),
        ("1.7.2", OPEN, {"apply": "bulk", "history": "bulk"}, []),
        ("2.6.3", FERRY, {"apply": "bulk", "history": "bulk"}, []),
    ],
)
def test_a_secured_1_x_is_never_loaded_in_bulk(
    version: str, security: Security, options: dict[str, str], levels: list[str]
) -> None:
    findings = list(plan._bulk(spec(**options), of_version(version, security=security)))
    assert [finding.level for finding in findings] == levels
    assert all("SecureBulkLoadEndpoint" in finding.message for finding in findings)


def test_what_stays_at_the_source_is_told_or_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    table = FileStatus("/hbase/data/shop/orders", 0, True, 1, 0, 0, None, 0o750, has_acl=True, encrypted=True)
    monkeypatch.setattr(left_behind, "hdfs_of", lambda _: Files(there=table))

    def denied(*_: Any) -> bool:
        raise AccessDeniedError("no right")

    address = spec().source.address()
    there: Any = SimpleNamespace(address=address)
    hidden: Any = SimpleNamespace(address=address, table_exists=denied)
    told = {finding.message for finding in left_behind.left_behind(spec(), hidden, there)}
    assert any("grants are not carried over; whether the table has some is unknown" in one for one in told)
    assert any("quotas are not carried over; whether there are some is unknown" in one for one in told)
    assert any(one.startswith(f"{table.path} is in an encryption zone") for one in told)
    assert f"HDFS's ACLs are not carried over: {table.path}" in told
    monkeypatch.setattr(left_behind, "grants_on", lambda *_: 3)
    shown: Any = SimpleNamespace(
        address=address,
        table_exists=lambda name: True,
        grants_on=lambda _: 3,
        scan=lambda _, row, stop: [b"x"] * (row == b"n.shop"),
    )
    told = {finding.message for finding in left_behind.left_behind(spec(), shown, there)}
    assert any(one.startswith("3 grants on it are not carried over") for one in told)
    assert any(one.startswith("quotas are not carried over: shop (") for one in told)
    shown.scan = lambda _, row, stop: [b"x"] * (row == b"n.default")
    told = {finding.message for finding in left_behind._quotas(shown, ["orders"])}
    assert told == {"quotas are not carried over: default (list_quotas in HBase's shell)"}
    none: Any = SimpleNamespace(address=address, table_exists=lambda name: False)
    monkeypatch.setattr(left_behind, "hdfs_of", lambda _: Files())
    assert list(left_behind.left_behind(spec(), none, there)) == []


def test_a_system_table_that_cannot_be_read_now_is_no_reason_to_refuse_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(left_behind, "hdfs_of", lambda _: Files())

    def closed(*_: Any) -> list[bytes]:
        raise TableStateError("hbase:quota is disabled")

    def grants(*_: Any) -> int:
        raise RegionNotServedError("hbase:acl is nowhere")

    monkeypatch.setattr(left_behind, "grants_on", grants)
    source: Any = SimpleNamespace(address=spec().source.address(), table_exists=lambda _: True, scan=closed)
    found = list(left_behind.left_behind(spec(), source, source))
    assert {finding.level for finding in found} == {"warn"}
    assert {finding.message.split(";")[1] for finding in found} == {
        " whether the table has some is unknown", " whether there are some is unknown: hbase:quota is disabled",
    }  # fmt: skip
