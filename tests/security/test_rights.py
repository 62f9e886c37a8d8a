"""What docs/security.md says to grant is enough for a whole migration, and the plan names what of it is missing."""

from __future__ import annotations

import json
import re
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from booting import QUICK_SITE, quick
from integration.migration.command import walferry
from integration.migration.moves import cluster_keys, spec_keys
from walferry.apply.bulk_loader import staging_folder
from walferry.embedded import processes, tools
from walferry.embedded.cluster import MiniCluster, Ports, boot, shut_down
from walferry.embedded.kdc import Kdc
from walferry.embedded.kerberized import Secured
from walferry.errors import UsageError
from walferry.formats.cells import CellType, cell_starts, encode_cell
from walferry.formats.hfile_writer import StoreFormat, WrittenFile, hfile_chunks
from walferry.hbase.client import HBaseClient
from walferry.hbase.errors import AccessDeniedError, ReadOnlyTableError
from walferry.hbase.mutate import Cell
from walferry.migration.plan import make_plan
from walferry.migration.planning.finding import Finding
from walferry.run.spec import ResolvedSpec
from walferry.wal.copies import hdfs_of

pytestmark = pytest.mark.cluster

DOCUMENT = Path(__file__).parents[2] / "docs" / "security.md"
PROGRAM = Path(__file__).parent / "Rights.java"
TABLE = "shop:orders"
ADMIN, USER, SUPERUSER, CLONER = "admin", "ferry", "captain", "cloner"
MODE = "hbase.rootdir.perms"
UMASK = {"fs.permissions.umask-mode": "027"}
"""of a cluster that shows nothing to others: only default entries of ACLs open what HBase makes"""
UNCLEANED = {"hbase.master.cleaner.interval": "7200000"}
"""The cleaner would remove folders whose ACL a test is about to change."""


def commands(heading: str, user: str = USER) -> list[str]:
    """The commands below a heading of the document."""
    _, _, below = DOCUMENT.read_text().partition(f"\n### {heading}\n")
    blocks = re.findall(r"^```\n(.*?)^```$", below.partition("\n##")[0], re.MULTILINE | re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines() if line.startswith(("grant ", "hdfs dfs "))]
    return [re.sub(rf"\b{USER}\b", user, line) for line in lines]


AT_SOURCE, AT_TARGET = commands("At the source"), commands("At the target")


def undone(command: str) -> list[str]:
    """What takes away the rights that a command gives, one by one."""
    if (grant := re.fullmatch(r"grant ('\w+'), '\w+'(.*)", command)) is not None:
        return [f"revoke {grant[1]}{grant[2]}"]
    if (acl := re.fullmatch(r"hdfs dfs -setfacl (-R )?-m (user:\w+:)\S+ (\S+)", command)) is not None:
        inherited = [f"hdfs dfs -setfacl -x default:{acl[2]} {acl[3]}"] if ",default:" in command else []
        return [f"hdfs dfs -setfacl {acl[1] or ''}-x {acl[2]} {acl[3]}", *inherited]
    if (mode := re.fullmatch(r"hdfs dfs -chmod 711 (\S+)", command)) is not None:
        return [f"hdfs dfs -chmod 700 {mode[1]}"]
    return ["hdfs dfs -chown hbase /hbase/staging/walferry"] if f"-chown {USER} " in command else []


class Administrator:
    """Grants as superuser of HBase and HDFS, with their own programs."""

    def __init__(self, cluster: MiniCluster) -> None:
        assert cluster.security is not None
        self._process = subprocess.Popen(
            tools.command(cluster, str(PROGRAM), [cluster.rootdir.removesuffix("/hbase")]),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            env=processes.variables(cluster.security.logged_in(ADMIN)),
        )  # fmt: skip

    def run(self, *lines: str) -> list[str]:
        """Run commands; what they print."""
        printed = []
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        for line in lines:
            self._process.stdin.write(f"{line}\n")
            self._process.stdin.flush()
            while not (answer := self._process.stdout.readline()).startswith("= "):
                assert answer, f"{line}: the program has ended"
                printed.append(answer.rstrip())
            assert answer == "= ok\n", f"{line}: {answer}"
        return printed

    def end(self) -> None:
        self._process.communicate(timeout=60)


def as_user(cluster: MiniCluster, user: str) -> MiniCluster:
    """The same cluster, its address with another identity."""
    assert cluster.security is not None
    cluster.security.kdc.keytab([user])
    return replace(cluster, security=replace(cluster.security, user=user))


@pytest.fixture(scope="module")
def sides(kdc: Kdc, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[MiniCluster, MiniCluster]]:
    """Two secured clusters; only the source keeps the rights on its files when a master starts. At the target, HDFS has
    a superuser who is none of HBase."""
    folder = tmp_path_factory.mktemp("rights")
    security = Secured(kdc, superusers=(ADMIN, SUPERUSER), hdfs_superusers=(ADMIN,))
    common = {**QUICK_SITE, **UMASK, **UNCLEANED}
    kept = {**common, MODE: "750", "hbase.master.info.port": "0", "hbase.quota.enabled": "true"}
    source = MiniCluster(folder / "source", Ports.free(), False, kept, security=security)
    loaded = replace(security, hdfs_superusers=(ADMIN, CLONER))
    target = MiniCluster(folder / "target", Ports.free(), False, common, security=loaded)
    with quick():
        boot(source, target)
        try:
            yield source, target
        finally:
            shut_down(source, target)


@pytest.fixture(scope="module")
def source(sides: tuple[MiniCluster, MiniCluster]) -> MiniCluster:
    """The source with a table."""
    with HBaseClient(as_user(sides[0], ADMIN).address) as client:
        client.create_namespace("shop")
        client.create_table(TABLE, {"f": {"VERSIONS": "50"}}, [b"r10"])
        client.put(TABLE, [Cell(b"r%02d" % number, b"f", b"q", b"v", 1) for number in range(20)])
    return sides[0]


@pytest.fixture(scope="module")
def target(sides: tuple[MiniCluster, MiniCluster]) -> MiniCluster:
    """The target, with a namespace for the table."""
    with HBaseClient(as_user(sides[1], ADMIN).address) as client:
        client.create_namespace("shop")
    return sides[1]


@pytest.fixture(scope="module")
def here(source: MiniCluster) -> Iterator[Administrator]:
    """At the source; `ferry` has what the document says."""
    administrator = Administrator(source)
    administrator.run(*AT_SOURCE)
    yield administrator
    administrator.end()


@pytest.fixture(scope="module")
def there(target: MiniCluster) -> Iterator[Administrator]:
    """At the target; `ferry` has what the document says."""
    administrator = Administrator(target)
    administrator.run(*AT_TARGET)
    yield administrator
    administrator.end()


@pytest.fixture(scope="module")
def keys(source: MiniCluster, target: MiniCluster, here: Administrator, there: Administrator) -> dict[str, Any]:
    """A spec of the migration that the document's commands are for."""
    stage = f"web{cluster_keys(source)['webhdfs'].replace('http', 'hdfs')}/user/{USER}/logs"
    more = {"protect": "stage", "stage": stage, "history": "bulk", "write_stop": "readonly", "max_lag": 60}
    return spec_keys(source, target, [TABLE], **more)


def planned(keys: dict[str, Any], **more: Any) -> list[Finding]:
    """What the plan finds, also if it refuses the run before it has found all."""
    spec = ResolvedSpec.model_validate({**keys, **more})
    try:
        return make_plan(spec, 24.0).findings
    except UsageError as error:
        return [Finding(**one) for one in error.facts["findings"]]


def refusals(keys: dict[str, Any], **more: Any) -> list[Finding]:
    return [finding for finding in planned(keys, **more) if finding.level == "refuse"]


def with_user(keys: dict[str, Any], clusters: dict[str, MiniCluster], user: str) -> dict[str, Any]:
    return {**keys, **{side: cluster_keys(as_user(cluster, user)) for side, cluster in clusters.items()}}


@contextmanager
def writing(source: MiniCluster) -> Iterator[list[int]]:
    """Others write rows until the table is READONLY; the list gets how many."""
    written, over = [0], threading.Event()

    def write() -> None:
        with HBaseClient(as_user(source, ADMIN).address) as client:
            while not over.is_set():
                try:
                    client.put(TABLE, [Cell(b"w%06d" % written[0], b"f", b"q", b"w")])
                except ReadOnlyTableError:
                    return
                written[0] += 1
                time.sleep(0.02)

    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    try:
        yield written
    finally:
        over.set()
        writer.join(60)


def move(folder: Path, source: MiniCluster, keys: dict[str, Any]) -> dict[str, Any]:
    """Run the whole migration; the report's facts."""
    (folder / "move.yaml").write_text(yaml.safe_dump(keys))
    with writing(source) as written:
        moved = walferry(folder, "start", "move.yaml", "--yes", "--json")
        assert moved.returncode == 0, moved.stderr[-3000:]
    assert written[0] > 10
    assert "permission denied" not in moved.stderr.replace(
        "since the target's log cannot be read: permission denied", ""
    )
    facts: dict[str, Any] = json.loads(moved.stdout)
    return facts


def granted_to_superuser(here: Administrator, there: Administrator) -> None:
    """What the document says for a superuser of HBase: the commands for HDFS."""
    for administrator, heading in ((here, "At the source"), (there, "At the target")):
        administrator.run(*(line for line in commands(heading, SUPERUSER) if line.startswith("hdfs dfs ")))


def is_equal(facts: dict[str, Any]) -> bool:
    table = facts["tables"][TABLE]
    sums = [(table[f"{side}_rows"], table[f"{side}_digest"]) for side in ("source", "target")]
    return sums[0] == sums[1] and sums[0][0] > 30 and facts["unexplained"] == facts["gaps"] == facts["quarantine"] == 0


def clean(source: MiniCluster, target: MiniCluster, table: str = TABLE) -> None:
    """As before a migration."""
    with HBaseClient(as_user(target, ADMIN).address) as client:
        client.disable_table(table)
        client.delete_table(table)
    with HBaseClient(as_user(source, ADMIN).address) as client:
        client.set_read_only(TABLE, False)


def test_what_the_document_grants_is_enough_to_plan(keys: dict[str, Any]) -> None:
    found = planned(keys)
    assert [finding for finding in found if finding.level == "refuse"] == []
    said = "\n".join(f"{finding.subject}: {finding.message}" for finding in found)
    assert "HDFS's ACLs are not carried over: /hbase/data/shop/orders" in said
    assert re.search(r"shop:orders: \d grants? on it (is|are) not carried over", said), said
    assert "target: ferry may not read /hbase/WALs, so what others write" in said
    assert "the user may not ask the target whether it would create such a table" in said


def test_a_user_with_just_these_rights_runs_a_whole_migration(
    keys: dict[str, Any], source: MiniCluster, target: MiniCluster, there: Administrator, tmp_path: Path
) -> None:
    facts = move(tmp_path, source, keys)
    assert is_equal(facts)
    loaded = [line for line in there.run("hdfs dfs -ls -R /hbase/data/shop/orders") if "_SeqId_" in line]
    assert loaded, "what ferry has staged is the region's now, "
    assert {line.split()[0] for line in loaded} == {"-rw-rw-rw-"}, "and HBase may read, move and delete it"
    assert there.run("hdfs dfs -ls -R /hbase/staging/walferry") == []
    clean(source, target)


@pytest.mark.parametrize(
    ("side", "command", "undo"),
    [
        *(("source", command, undo) for command in AT_SOURCE for undo in undone(command)),
        *(("target", command, undo) for command in AT_TARGET for undo in undone(command)),
    ],
)
def test_the_plan_names_what_is_missing_and_the_command_that_gives_it(
    side: str, command: str, undo: str, keys: dict[str, Any], here: Administrator, there: Administrator
) -> None:
    administrator = here if side == "source" else there
    administrator.run(undo)
    try:
        found = refusals(keys)
        assert {finding.subject for finding in found} == {side}
        assert any(command in finding.message for finding in found), found
    finally:
        administrator.run(command)


def test_a_peer_needs_a_superuser_of_hbase_and_the_plan_says_so(keys: dict[str, Any]) -> None:
    (found,) = refusals(keys, protect="peer", stage=None)
    assert found.message.startswith("the source's ZooKeeper shows the queues of peers to superusers of HBase only")
    assert "add ferry to hbase.superuser" in found.message
    assert found.message.endswith("`protect: stage` needs no peer")


def test_what_a_superuser_of_hbase_sees_more_is_listed(
    keys: dict[str, Any], source: MiniCluster, target: MiniCluster, here: Administrator, there: Administrator
) -> None:
    granted_to_superuser(here, there)
    with HBaseClient(as_user(source, ADMIN).address) as client:
        client.put("hbase:quota", [Cell(b"t.shop:orders", b"q", b"s", b"PBUF")])
    spec = with_user(keys, {"source": source, "target": target}, SUPERUSER)
    try:
        found = planned(spec, protect="peer", stage=None, tables=[{"source": TABLE, "target": "shop:peered"}])
        assert [finding for finding in found if finding.level == "refuse"] == []
        assert any("quotas are not carried over: shop:orders" in finding.message for finding in found)
    finally:
        there.run(*AT_TARGET)


@pytest.mark.long
def test_a_superuser_of_hbase_who_is_none_of_hdfs_runs_a_whole_migration_with_a_peer(
    keys: dict[str, Any],
    source: MiniCluster,
    target: MiniCluster,
    here: Administrator,
    there: Administrator,
    tmp_path: Path,
) -> None:
    granted_to_superuser(here, there)
    spec = with_user(keys, {"source": source, "target": target}, SUPERUSER)
    # Another name: the lease of the table is its principal's.
    spec |= {"name": f"{keys['name']}_peer", "tables": [{"source": TABLE, "target": "shop:peered"}]}
    try:
        assert is_equal(move(tmp_path, source, {**spec, "protect": "peer", "stage": None}))
        clean(source, target, "shop:peered")
    finally:
        there.run(*AT_TARGET)


@pytest.fixture
def cloning(
    keys: dict[str, Any],
    source: MiniCluster,
    target: MiniCluster,
    here: Administrator,
    there: Administrator,
) -> Iterator[dict[str, Any]]:
    """A spec of a migration by a clone, whose user may do what the document says, but for the grant of a clone."""
    own_folder = (f"hdfs dfs -mkdir -p /user/{CLONER}", f"hdfs dfs -chown {CLONER} /user/{CLONER}")
    here.run(*commands("At the source", CLONER), *own_folder)
    there.run(*(line for line in commands("At the target", CLONER) if line.startswith("grant ")))
    spec = with_user(keys, {"source": source, "target": target}, CLONER)
    tables = [{"source": TABLE, "target": "shop:cloned"}]
    stage = keys["stage"].replace(f"/{USER}/", f"/{CLONER}/")
    yield {**spec, "name": f"{keys['name']}_clone", "tables": tables, "history": "clone", "stage": stage}
    there.run(f"revoke '{CLONER}'", f"revoke '{CLONER}', '@shop'")


def test_a_clone_needs_a_global_right_at_the_target_and_the_plan_says_so(
    cloning: dict[str, Any], keys: dict[str, Any], there: Administrator
) -> None:
    (found,) = refusals(cloning)
    (command,) = commands("With a clone", CLONER)
    assert (found.subject, f"global ADMIN; in HBase's shell: {command}." in found.message) == ("target", True)
    there.run(command)
    assert refusals(cloning) == []
    by_another = "\n".join(one.message for one in refusals(keys, history="clone"))
    assert "global ADMIN; in HBase's shell: grant 'ferry', 'A'" in by_another
    assert "ferry may not write to /hbase" in by_another


@pytest.mark.long
def test_a_user_with_the_rights_for_a_clone_runs_a_whole_migration(
    cloning: dict[str, Any], source: MiniCluster, target: MiniCluster, there: Administrator, tmp_path: Path
) -> None:
    there.run(f"revoke '{CLONER}', '@shop'", *commands("With a clone", CLONER))
    assert is_equal(move(tmp_path, source, cloning))
    clean(source, target, "shop:cloned")


@pytest.mark.long
def test_rights_outlast_the_start_of_a_master(
    keys: dict[str, Any], source: MiniCluster, target: MiniCluster, tmp_path: Path
) -> None:
    processes.stop([source.servers.pop("hbase")])
    source.start_server("hbase")
    source.await_ready("hbase")
    assert refusals(keys) == []
    assert is_equal(move(tmp_path, source, keys))
    clean(source, target)


def test_a_file_that_hbase_may_not_write_stays_where_it_is_and_the_answer_says_so(
    target: MiniCluster, there: Administrator
) -> None:
    """Why the mode of each file is set before it is loaded: HBase 2.6 moves it as itself."""
    with HBaseClient(as_user(target, ADMIN).address) as admin, HBaseClient(target.address) as client:
        client.create_table("shop:loaded", {"f": {}})
        files, path = hdfs_of(target.address), f"{staging_folder(target.address.root_path, 'shop:loaded')}/1"
        (region,) = client.regions("shop:loaded")
        try:
            files.mkdirs(path.rpartition("/")[0], 0o777)
            cells = np.frombuffer(encode_cell(b"r", b"f", b"q", 1, CellType.PUT, b"v"), np.uint8)
            files.write(path, hfile_chunks([(cells, cell_starts(cells))], StoreFormat(), 1, WrittenFile()))
            for mode in (0o600, 0o644):
                files.set_permission(path, mode)
                with pytest.raises(AccessDeniedError, match="Permission denied"):
                    client.bulk_load(region, [(b"f", path)], [])
                assert files.status(path) is not None
                assert client.store_files(region, b"f") == []
            files.set_permission(path, 0o666)
            assert client.bulk_load(region, [(b"f", path)], [])
            assert files.status(path) is None
            assert any(client.scan("shop:loaded"))
            client.disable_table("shop:loaded")
            client.enable_table("shop:loaded")
            assert any(client.scan("shop:loaded")), "the region opens with it"
        finally:
            admin.disable_table("shop:loaded")
            admin.delete_table("shop:loaded")
            files.delete(path.rpartition("/")[0], recursive=True)


def test_rights_that_the_next_master_takes_away_are_found_before(
    keys: dict[str, Any], source: MiniCluster, target: MiniCluster, there: Administrator
) -> None:
    with HBaseClient(as_user(target, ADMIN).address) as client:
        client.create_table(TABLE, {"f": {}})
    there.run(*AT_SOURCE)
    try:
        swapped = {**keys, "source": keys["target"], "target": keys["source"]}
        (found,) = (finding for finding in refusals(swapped) if finding.subject == "source")
        assert found.message.startswith(f"{MODE} is 700: the next master that becomes active sets HBase's folders back")
    finally:
        with HBaseClient(as_user(target, ADMIN).address) as client:
            client.disable_table(TABLE)
            client.delete_table(TABLE)
        there.run("revoke 'ferry'", *AT_TARGET)


@pytest.fixture
def old(kdc: Kdc, tmp_path: Path) -> Iterator[MiniCluster]:
    """A 1.x to whose HBase `ferry` has no rights, and to whose HDFS all."""
    security = Secured(kdc, superusers=(ADMIN,), hdfs_superusers=(ADMIN, USER))
    with (
        quick(),
        MiniCluster.start(
            tmp_path / "old", version="1.7.2", thrift=False, hbase_site=QUICK_SITE, security=security
        ) as cluster,
    ):
        yield cluster


@pytest.mark.long
def test_a_1_x_is_never_loaded_in_bulk_and_rights_that_it_does_not_tell_end_the_phase_that_needs_them(
    keys: dict[str, Any], old: MiniCluster, tmp_path: Path
) -> None:
    spec = {**keys, "name": "move_to_old", "target": cluster_keys(old)}
    found = planned(spec, apply="bulk")
    told = [finding.message for finding in found if finding.level == "refuse" and "SecureBulkLoad" in finding.message]
    assert [message.rpartition(": use ")[2] for message in told] == ["apply: auto or rpc", "history: clone"]
    spec["history"] = "clone"
    found = planned(spec)
    assert [finding for finding in found if finding.level == "refuse"] == []
    assert any("edits go by rpc, never in bulk" in finding.message for finding in found)
    unknown = "is unknown; what grants it: grant 'ferry', 'W'; grant 'ferry', 'A'"
    assert any(unknown in finding.message for finding in found)
    (tmp_path / "move.yaml").write_text(yaml.safe_dump(spec))
    moved = walferry(tmp_path, "start", "move.yaml", "--yes")
    assert moved.returncode == 1
    assert "AccessDeniedException: Insufficient permissions" in moved.stderr.splitlines()[-1]
    assert "clone shop:orders: started" in moved.stderr
    assert "clone shop:orders: done" not in moved.stderr
    with HBaseClient(as_user(old, ADMIN).address) as client:
        assert client.tables() == []
    ended = walferry(tmp_path, "abort", "move_to_old", "--reason", "no rights")
    assert ended.returncode == 0, ended.stderr
    with HBaseClient(as_user(old, ADMIN).address) as client:
        assert client.snapshots() == []
