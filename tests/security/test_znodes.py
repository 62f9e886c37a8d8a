"""walferry's own nodes at a ZooKeeper with logins: the driver's principal has them, workers have no login (R8, R13)."""

from __future__ import annotations

import base64
import json
import logging
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError
from kazoo.security import OPEN_ACL_UNSAFE

from booting import CHEAP_JVM, QUICK_SITE, quick
from integration.migration.moves import unique
from unit.migration.filled_ledger import SPEC
from walferry.embedded.cluster import MiniCluster
from walferry.embedded.kdc import Kdc
from walferry.embedded.kerberized import Secured
from walferry.hbase import HBaseClient
from walferry.hbase.authentication import purpose_of
from walferry.hbase.errors import AccessDeniedError
from walferry.ledger import Ledger
from walferry.migration.plan import _leases
from walferry.replay.rights import dirty, znodes
from walferry.replay.rights.claims import Claims
from walferry.replay.rights.dirty import MOST_MARKS, DirtyRows
from walferry.replay.rights.lease import Attempt, HeldLease, check, held_leases, holder_of, supersede
from walferry.replay.rights.throttle_share import node_of, publishing
from walferry.run.run import Run
from walferry.security import Security

pytestmark = pytest.mark.cluster

FOLDERS = ("/walferry", "/walferry/leases", "/walferry/dirty", "/walferry/throttles")

WORKER = """
import base64, os, pickle, signal, sys
from walferry.errors import WalferryError
from walferry.security.handed import Handed, Issued, take

sys.modules["gssapi"] = None  # as where the extra is not installed
purpose, claims, table = pickle.loads(base64.b64decode(sys.stdin.readline()))
take(Handed({purpose: Issued(1)}))
try:
    claims([table])
    print("holds", flush=True)
    claims = claims.of_attempt("7-3", 1)
    claims([table])
    print("supersedes", flush=True)
    os.kill(os.getpid(), signal.SIGSTOP)
    claims([table])
    print("may send", flush=True)
except WalferryError as error:
    print(type(error).__name__, flush=True)
    claims.mark_dirty({table: (b"a", b"b")})
"""


@pytest.fixture
def driver(secured: MiniCluster) -> Iterator[HBaseClient]:
    """A driver's client, which has logged in as `ferry`."""
    with HBaseClient(secured.address) as client:
        yield client


@pytest.fixture
def anyone(secured: MiniCluster) -> Iterator[KazooClient]:
    """Somebody who has not logged in."""
    with stranger(secured) as client:
        yield client


@contextmanager
def stranger(cluster: MiniCluster) -> Iterator[KazooClient]:
    client = KazooClient(cluster.address.zookeeper)
    client.start()
    try:
        yield client
    finally:
        client.stop()
        client.close()


@contextmanager
def held(driver: HBaseClient, table: str, wait_seconds: float = 0) -> Iterator[HeldLease]:
    """The lease, as a driver of this address takes it."""
    closed = driver.address.zookeeper_login
    with held_leases(
        driver.zk, [table], holder="run one-1 (kim)", request_seconds=0, wait_seconds=wait_seconds, closed=closed
    ) as leases:
        yield leases[table]


def claims_of(driver: HBaseClient, lease: HeldLease) -> Claims:
    return Claims(driver.address, {lease.table: lease}, "one-1", seconds=1, quiet_seconds=0)


def rows(table: str, number: int = 0) -> DirtyRows:
    return DirtyRows.of(table, b"a", b"b", "one-1", 1, number)


def below(zk: KazooClient, path: str) -> Iterator[str]:
    for name in zk.get_children(path):
        yield f"{path}/{name}"
        yield from below(zk, f"{path}/{name}")


def changes_of(zk: KazooClient, path: str) -> Mapping[str, Callable[[], object]]:
    return {
        "set": lambda: zk.set(path, b"{}"),
        "delete": lambda: zk.delete(path),
        "create": lambda: zk.create(f"{path}/more"),
        "open": lambda: zk.set_acls(path, OPEN_ACL_UNSAFE),
    }


def allowed(zk: KazooClient, path: str, *but: str) -> list[str]:
    """What the session may do with a node, of all changes but some."""
    found = []
    for name, change in changes_of(zk, path).items():
        if name not in but:
            try:
                change()
            except NoAuthError:
                continue
            found.append(name)
    return found


@contextmanager
def run_of(tmp_path: Path, driver: HBaseClient) -> Iterator[Run]:
    """As much of a run as the marks and the throttle use."""
    with Ledger.open(f"sqlite:///{tmp_path}/ledger.db", actor="test") as ledger:
        run_id = ledger.open_run("move", "me", SPEC, "me").run_id
        yield cast(
            Run,
            SimpleNamespace(
                ledger=ledger.of(run_id),
                run_id=run_id,
                actor="me",
                target=driver,
                target_address=lambda: driver.address,
            ),
        )


def test_everybody_reads_leases_and_throttles_and_only_the_driver_changes_them(
    driver: HBaseClient, anyone: KazooClient, tmp_path: Path
) -> None:
    table = unique()
    with held(driver, table) as lease, run_of(tmp_path, driver) as run:
        with publishing(run, driver.zk, node_of(lease), closed=True):
            check(anyone, lease)
            path = f"/walferry/leases/{table}"
            nodes = [path, *below(anyone, path), node_of(lease)]
            assert {"holder", "superseded", "1"} < {node.rpartition("/")[2] for node in nodes}
            for node in nodes:
                assert anyone.get(node)
                assert allowed(anyone, node) == [], node
            for folder in FOLDERS[1:]:
                assert allowed(anyone, folder, "create") == [], folder
            check(driver.zk, lease)
        assert driver.zk.exists(node_of(lease)) is None
    assert holder_of(anyone, table) is None


def test_only_who_has_the_holders_password_supersedes_an_attempt(
    driver: HBaseClient, anyone: KazooClient, secured: MiniCluster, caplog: pytest.LogCaptureFixture
) -> None:
    table = unique()
    caplog.set_level(logging.DEBUG)
    with held(driver, table) as lease, stranger(secured) as worker:
        given_up = f"/walferry/leases/{table}/superseded/{lease.number}"
        with pytest.raises(AccessDeniedError, match="belongs to sasl:ferry"):
            supersede(anyone, replace(lease, password="guessed"), Attempt("7-3", 1))
        for _ in range(2):
            supersede(worker, lease, Attempt("7-3", 1))
        assert len(worker.auth_data) == 1
        supersede(worker, lease, Attempt("7-3", 2))
        assert set(anyone.get_children(given_up)) == {"7-3.0", "7-3.1"}
        for session in (anyone, worker):
            assert allowed(session, f"{given_up}/7-3.0") == []
        assert lease.password
        assert lease.password not in f"{lease} {claims_of(driver, lease)} {caplog.text}"
        with held_leases(driver.zk, [unique()], holder="x", request_seconds=0, wait_seconds=0, closed=True) as others:
            (other,) = others.values()
            assert other.password != lease.password
    with held(driver, table) as lease:
        assert list(below(driver.zk, f"/walferry/leases/{table}/superseded")) == [
            f"/walferry/leases/{table}/superseded/{lease.number}"
        ]


def test_everybody_marks_rows_and_only_the_driver_removes_marks(
    driver: HBaseClient, anyone: KazooClient, tmp_path: Path
) -> None:
    table = unique()
    path = f"/walferry/dirty/{table}"
    with held(driver, table), run_of(tmp_path, driver) as run:
        for number in range(MOST_MARKS):
            dirty._create(anyone, rows(table, number), closed=True)
        dirty._create(anyone, rows(table, 200), closed=True)
        dirty._create(anyone, rows(table, 201), closed=True)
        found = dirty.marks(anyone, table)
        assert [mark.at_ms for mark in found[MOST_MARKS:]] == [200, 201], "who may not remove marks leaves them"
        assert allowed(anyone, path, "create") == []
        assert allowed(anyone, f"{path}/{found[0].name}") == []
        assert allowed(driver.zk, f"{path}/{found[0].name}", "delete") == [], "nobody changes a mark"
        dirty._create(driver.zk, rows(table, 202), closed=True)
        found = dirty.marks(anyone, table)
        assert [mark.at_ms for mark in found[MOST_MARKS:]] == [202]
        dirty.remove(run, found)
        assert dirty.marks(anyone, table) == []
        dirty._create(anyone, rows(table), closed=True)
        assert len(dirty.marks(driver.zk, table)) == 1, "a worker that is late finds where to mark"


def test_a_process_whose_ticket_has_ended_marks_rows_all_the_same(
    driver: HBaseClient, secured: MiniCluster, tmp_path: Path
) -> None:
    table = unique()
    assert secured.address.security.kerberos is not None
    lost = Security(replace(secured.address.security.kerberos, keytab=None, ccache=f"FILE:{tmp_path / 'none'}"))
    with held(driver, table):
        dirty.mark(replace(secured.address, security=lost), rows(table))
        assert len(dirty.marks(driver.zk, table)) == 1


def test_where_the_room_for_marks_is_gone_a_worker_makes_it_and_the_next_holder_closes_it(
    driver: HBaseClient, anyone: KazooClient
) -> None:
    table = unique()
    with held(driver, table):
        driver.zk.delete(f"/walferry/dirty/{table}")
        dirty._create(anyone, rows(table), closed=True)
    with held(driver, table):
        assert allowed(anyone, f"/walferry/dirty/{table}", "create") == []
        assert len(dirty.marks(driver.zk, table)) == 1


def test_a_lease_of_another_principal_is_told(
    driver: HBaseClient, secured: MiniCluster, kdc: Kdc, tmp_path: Path
) -> None:
    table = unique()
    path, marks = f"/walferry/leases/{table}", f"/walferry/dirty/{table}"
    with held(driver, table):
        pass
    ours = secured.address.security.kerberos
    assert ours is not None
    kerberos = replace(ours, principal=kdc.principal("other"), keytab=str(kdc.keytab(["other"])))
    other = Security(kerberos)

    def refused(security: Security, node: str) -> None:
        with (
            HBaseClient(replace(secured.address, security=security)) as client,
            pytest.raises(AccessDeniedError, match=f"{node} in the target's ZooKeeper belongs to sasl:ferry") as told,
            held(client, table),
        ):
            pass
        assert told.value.facts["owner"] == "sasl:ferry"

    before = driver.zk.get(path)
    assert [znodes.may_change(driver.zk, node) for node in (path, marks, f"{path}-new")] == [True, True, True]
    assert driver.zk.get(path) == before, "the question changes nothing"
    assert driver.zk.exists(f"{path}-new") is None
    with HBaseClient(replace(secured.address, security=other)) as client:
        assert [znodes.may_change(client.zk, node) for node in (path, marks, f"{path}-new")] == [False, False, True]
        assert [finding.subject for finding in _leases(client, [table, f"{table}-new"])] == [table, table]
    refused(Security(replace(kerberos, zookeeper_service=None)), path)
    refused(other, path)
    for node in (path, *below(driver.zk, path)):
        driver.zk.set_acls(node, OPEN_ACL_UNSAFE)  # as the message says
    refused(other, marks)
    assert json.loads(driver.zk.get(path)[0]) == {"number": 2, "left": True, "request_seconds": 0}
    for node in (marks, path, *below(driver.zk, path)):
        driver.zk.set_acls(node, OPEN_ACL_UNSAFE)
    with HBaseClient(replace(secured.address, security=other)) as client, held(client, table) as lease:
        assert lease.number == 3, "one was refused"
        assert json.loads(driver.zk.get(path)[0])["left"] is False
        assert allowed(driver.zk, path, "delete") == []  # in its own /walferry/leases, once the node is empty
        with run_of(tmp_path, client) as run, publishing(run, client.zk, node_of(lease), closed=True):
            assert allowed(driver.zk, node_of(lease), "delete") == []


def test_what_an_open_time_has_left_is_taken_over_and_closed(driver: HBaseClient, anyone: KazooClient) -> None:
    table = unique()
    path, marks = f"/walferry/leases/{table}", f"/walferry/dirty/{table}"
    with held(driver, unique()):
        pass
    for folder in FOLDERS:
        if driver.zk.exists(folder):
            driver.zk.set_acls(folder, OPEN_ACL_UNSAFE)
    anyone.create(path, json.dumps({"number": 4, "left": True}).encode())
    anyone.create(f"{path}/superseded/4/7-3.0", makepath=True)
    dirty._create(anyone, rows(table), closed=False)
    with held(driver, table) as lease:
        assert lease.number == 5
        assert list(below(anyone, f"{path}/superseded")) == [f"{path}/superseded/5"]
        for node in (path, *below(anyone, path)):
            assert allowed(anyone, node) == [], node
        for folder in ("/walferry/leases", "/walferry/dirty", marks):
            assert allowed(anyone, folder, "create") == [], folder
        assert allowed(anyone, "/walferry", "create", "delete") == []  # everybody deletes in ZooKeeper's root
        assert len(dirty.marks(driver.zk, table)) == 1


@contextmanager
def worker(claims: Claims, table: str) -> Iterator[subprocess.Popen[str]]:
    """A worker of Spark's: without python-gssapi, krb5.conf and ticket."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith("KRB5")}
    with subprocess.Popen(
        [sys.executable, "-c", WORKER],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=variables | {"KRB5_CONFIG": os.devnull},
    ) as process:  # fmt: skip
        assert process.stdin is not None
        process.stdin.write(f"{base64.b64encode(pickle.dumps((purpose_of(claims.target), claims, table))).decode()}\n")
        process.stdin.flush()
        try:
            yield process
        finally:
            process.kill()


def test_a_worker_without_a_login_has_claims_and_loses_them_while_it_is_suspended(
    driver: HBaseClient, secured: MiniCluster
) -> None:
    table = unique()
    with HBaseClient(secured.address) as first, worker_of(first, table) as process:
        assert process.stdout is not None
        assert [process.stdout.readline().strip() for _ in range(2)] == ["holds", "supersedes"]
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
        first.close()
        with held(driver, table, wait_seconds=30):
            os.kill(process.pid, signal.SIGCONT)
            output, _ = process.communicate(timeout=120)
            assert output.split() == ["LeaseLostError"]
            assert [(mark.first, mark.number) for mark in dirty.marks(driver.zk, table)] == [("'a'", 1)]


@contextmanager
def worker_of(driver: HBaseClient, table: str) -> Iterator[subprocess.Popen[str]]:
    """A worker of a driver that vanishes: its session ends before it releases the lease."""
    taken = held_leases(driver.zk, [table], holder="run one-1", request_seconds=1, wait_seconds=0, closed=True)
    with worker(claims_of(driver, taken.__enter__()[table]), table) as process:
        yield process


@pytest.mark.long
def test_a_zookeeper_that_lets_nobody_in_without_a_login_is_told_by_who_has_none(tmp_path: Path, kdc: Kdc) -> None:
    with quick(), pytest.MonkeyPatch.context() as patch:
        patch.setenv("WALFERRY_JVM_FLAGS", f"{CHEAP_JVM} -Dzookeeper.sessionRequireClientSASLAuth=true")
        with MiniCluster.start(tmp_path, hbase_site=QUICK_SITE, security=Secured(kdc)) as cluster:
            table = unique()
            with HBaseClient(cluster.address) as driver, worker_of(driver, table) as process:
                output, _ = process.communicate(timeout=120)
                assert output.split() == ["LoginRefusedError"]
