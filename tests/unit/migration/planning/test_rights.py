"""What a plan says of rights where no server is needed to ask for them."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from unit.migration.filled_ledger import SPEC
from unit.migration.planning.versions import of_version
from walferry.hbase.errors import AccessDeniedError
from walferry.migration import plan
from walferry.migration.planning import left_behind, rights
from walferry.migration.planning.finding import Finding
from walferry.run.spec import ResolvedSpec
from walferry.security import Kerberos
from walferry.storage import FileStatus
from walferry.storage.filesystem import Owner

FERRY = Kerberos("ferry@EXAMPLE.COM")
ROOT = FileStatus("/hbase", 0, True, 1, 0, 0, Owner("hbase", "supergroup"), 0o711)
KEPT = {"hbase.rootdir.perms": "750", "hbase.wal.dir.perms": "750"}


class Files:
    """An HDFS whose folders the user may read, being none of its superusers."""

    user = "ferry"

    def __init__(self, *missing: str, superuser: bool = False, there: FileStatus = ROOT) -> None:
        self._missing, self._superuser = missing, superuser
        self._statuses = {status.path: status for status in (ROOT, there)}

    def allows(self, path: str, action: str) -> bool | None:
        if path in self._missing:
            return None
        return self._superuser or "w" not in action

    def status(self, path: str) -> FileStatus | None:
        return self._statuses.get(path)

    def list(self, path: str) -> list[FileStatus]:
        return []

    def acl(self, path: str) -> tuple[str, ...]:
        return ()


def spec(**more: Any) -> ResolvedSpec:
    """A migration between clusters with Kerberos."""
    secured = {**SPEC["source"], "security": {"principal": "ferry@EXAMPLE.COM", "keytab": "/none"}}
    secured.pop("user", None)
    source = secured | more.pop("source", {})
    return ResolvedSpec.model_validate(SPEC | {"source": source, "target": secured} | more)


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Finding]]:
    """What is found of a source's files, by the settings of its servers."""

    def ask(settings: dict[str, str] | None, files: Files | None = None, **source: Any) -> list[Finding]:
        monkeypatch.setattr(rights, "hdfs_of", lambda _: files or Files())
        monkeypatch.setattr(rights, "master_settings", lambda _: settings)
        return list(rights.file_findings(spec(source=source), of_version("2.6.3", settings)))

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


def test_a_superuser_of_hdfs_reads_whatever_a_master_sets(found: Callable[..., list[Finding]]) -> None:
    assert found({rights.UMASK: "077"}, Files(superuser=True)) == []


def test_the_folder_of_the_first_snapshot_is_to_be_made_before_it(found: Callable[..., list[Finding]]) -> None:
    (missing,) = found(KEPT, Files("/hbase/.hbase-snapshot"))
    assert "hdfs dfs -mkdir /hbase/.hbase-snapshot; hdfs dfs -chown hbase /hbase/.hbase-snapshot;" in missing.message
    assert found(KEPT, Files("/hbase/.hbase-snapshot", superuser=True)) == []


def test_what_a_version_does_not_tell_is_unknown_at_a_secured_cluster() -> None:
    unknown = of_version("1.7.2", security=FERRY)
    unknown.lacking_rights = lambda wanted: None  # type: ignore[method-assign]
    open_to_all = of_version("1.7.2")
    open_to_all.lacking_rights = lambda wanted: None  # type: ignore[method-assign]
    (told,) = rights.hbase_findings(spec(), unknown, open_to_all)
    assert (told.level, told.subject) == ("warn", "source")
    assert told.message.endswith("is unknown (grant 'ferry', 'A'; grant 'ferry', 'R', 'shop:orders')")


@pytest.mark.parametrize(
    ("version", "security", "options", "levels"),
    [
        ("1.7.2", FERRY, {"apply": "bulk", "history": "bulk"}, ["refuse", "refuse"]),
        ("1.7.2", FERRY, {}, ["warn"]),
        ("1.7.2", FERRY, {"apply": "rpc"}, []),
        ("1.7.2", None, {"apply": "bulk", "history": "bulk"}, []),
        ("2.6.3", FERRY, {"apply": "bulk", "history": "bulk"}, []),
    ],
)
def test_a_secured_1_x_is_never_loaded_in_bulk(
    version: str, security: Kerberos | None, options: dict[str, str], levels: list[str]
) -> None:
    findings = list(plan._bulk(spec(**options), of_version(version, security=security)))
    assert [finding.level for finding in findings] == levels
    assert all("SecureBulkLoadEndpoint" in finding.message for finding in findings)


def test_what_stays_at_the_source_is_told_or_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    table = FileStatus("/hbase/data/shop/orders", 0, True, 1, 0, 0, None, 0o750, has_acl=True, encrypted=True)
    monkeypatch.setattr(left_behind, "hdfs_of", lambda _: Files(there=table))

    def denied(*_: Any) -> bool:
        raise AccessDeniedError("no right")

    hidden: Any = SimpleNamespace(address=SimpleNamespace(user="ferry"), table_exists=denied)
    told = {finding.message for finding in left_behind.left_behind(spec(), hidden)}
    assert any("grants are not carried over; whether the table has some is unknown" in one for one in told)
    assert any("quotas are not carried over; whether there are some is unknown" in one for one in told)
    assert any(one.startswith(f"{table.path} is in an encryption zone") for one in told)
    assert f"HDFS's ACLs are not carried over: {table.path}" in told
    monkeypatch.setattr(left_behind, "grants_on", lambda *_: 3)
    shown: Any = SimpleNamespace(
        table_exists=lambda name: True,
        grants_on=lambda _: 3,
        scan=lambda _, row, stop: [b"x"] * (row == b"n.shop"),
    )
    told = {finding.message for finding in left_behind.left_behind(spec(), shown)}
    assert any(one.startswith("3 grants on it are not carried over") for one in told)
    assert any(one.startswith("quotas are not carried over: shop (") for one in told)
    none: Any = SimpleNamespace(table_exists=lambda name: False)
    monkeypatch.setattr(left_behind, "hdfs_of", lambda _: Files())
    assert list(left_behind.left_behind(spec(), none)) == []
