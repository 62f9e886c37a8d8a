"""What a user can get wrong, on real servers: one line that says what to do, and nothing changed on either side.

Wrong addresses, tables and the like: test_plan.py. A WAL that cannot be decoded: test_quarantine.py. Tables that begin
a new history: test_lineage.py. Windows: test_window.py. What the board says to a wrong login: test_board.py.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
import yaml

from integration.migration.command import walferry
from integration.migration.moves import begin, content, copy_tables, fill, make_spec, run_of, spec_keys, unique
from walferry.embedded.cluster import MiniCluster, Ports
from walferry.embedded.processes import free_ports
from walferry.formats.proto import hbase_pb2 as pb
from walferry.hbase.client import HBaseClient
from walferry.hbase.errors import RequestTimeoutError
from walferry.storage import QuotaExceededError

pytestmark = pytest.mark.cluster

ACCESS = "org.apache.hadoop.hbase.security.access.AccessController"
Refusal = Callable[..., str]


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MiniCluster]:
    """A cluster that checks permissions, and that waits ten minutes before it calls a silent server dead."""
    site = {
        "hbase.security.authorization": "true",
        "hbase.coprocessor.master.classes": ACCESS,
        "hbase.coprocessor.region.classes": ACCESS,
        "hbase.coprocessor.regionserver.classes": ACCESS,
        "zookeeper.session.timeout": "600000",
        "hbase.zookeeper.property.maxSessionTimeout": "600000",
    }
    folder = tmp_path_factory.mktemp("guarded")
    with MiniCluster.start(folder, region_servers=2, ports=Ports.free(2), hbase_site=site) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def at_guarded(guarded: MiniCluster) -> Iterator[HBaseClient]:
    with HBaseClient(guarded.address) as client:
        yield client


def left_on(client: HBaseClient) -> tuple[Any, ...]:
    """What a run could leave on a cluster."""
    children = client.zk.get_children("/walferry") if client.zk.exists("/walferry") else []
    return client.tables(), sorted(s.name for s in client.snapshots()), client.peers(), children


@pytest.fixture
def refusal(
    source: MiniCluster, guarded: MiniCluster, at_source: HBaseClient, at_guarded: HBaseClient, tmp_path: Path
) -> Any:
    """`walferry start` of a spec that must be refused: what it says on stderr behind the log's lines."""

    def refused(keys: dict[str, Any]) -> str:
        (tmp_path / "move.yaml").write_text(yaml.safe_dump(keys))
        before = left_on(at_source), left_on(at_guarded)
        answer = walferry(tmp_path, "start", "move.yaml", "--yes")
        assert (left_on(at_source), left_on(at_guarded)) == before
        assert answer.returncode == 2, answer.stderr
        assert "Traceback" not in answer.stderr
        _, error = answer.stderr.split("error: ")
        return error

    return refused


def table_on(client: HBaseClient, rows: int = 20) -> str:
    name = unique()
    client.create_table(name, {"f": {}})
    fill(client, name, rows)
    client.flush_table(name)
    return name


def set_quota(cluster: MiniCluster, path: str, space: int) -> None:
    answer = requests.put(
        f"{cluster.address.webhdfs}/webhdfs/v1{path}",
        params={"op": "SETQUOTA", "storagespacequota": str(space), "user.name": cluster.address.user},
        timeout=10,
    )
    answer.raise_for_status()


def set_permission(cluster: MiniCluster, path: str, octal: str) -> None:
    answer = requests.put(
        f"{cluster.address.webhdfs}/webhdfs/v1{path}",
        params={"op": "SETPERMISSION", "permission": octal, "user.name": cluster.address.user},
        timeout=10,
    )
    answer.raise_for_status()


@pytest.mark.long
def test_a_user_without_permissions_at_the_source_is_told_which(
    guarded: MiniCluster, target: MiniCluster, at_guarded: HBaseClient, refusal: Refusal
) -> None:
    table = table_on(at_guarded)
    keys = spec_keys(guarded, target, [table])
    keys["source"]["user"] = "mallory"
    line = refusal(keys)
    assert f"source: HBase does not grant mallory global ADMIN, READ on {table}; in HBase's shell: " in line
    assert f"grant 'mallory', 'A'; grant 'mallory', 'R', '{table}'." in line


def test_a_user_without_permissions_at_the_target_is_told_which(
    source: MiniCluster, guarded: MiniCluster, at_source: HBaseClient, refusal: Refusal
) -> None:
    keys = spec_keys(source, guarded, [table_on(at_source)])
    keys["target"]["user"] = "mallory"
    line = refusal(keys)
    assert "target: HBase does not grant mallory global WRITE, global ADMIN; in HBase's shell: grant 'mallory'" in line
    assert "target: mallory may not write to /hbase" in line


def test_a_user_who_may_do_everything_is_not_refused(
    guarded: MiniCluster, target: MiniCluster, at_guarded: HBaseClient, tmp_path: Path
) -> None:
    table = table_on(at_guarded)
    with run_of(make_spec(guarded, target, [table]), tmp_path) as run:
        begin(run)
        copy_tables(run)
        assert len(content(target, table)) == 20
        assert content(target, table) == content(guarded, table)


def test_a_folder_that_the_user_may_not_read_is_named(
    source: MiniCluster, guarded: MiniCluster, at_source: HBaseClient, refusal: Refusal
) -> None:
    keys = spec_keys(source, guarded, [table_on(at_source)])
    keys["source"]["user"] = "mallory"
    set_permission(source, "/hbase/oldWALs", "700")
    try:
        line = refusal(keys)
    finally:
        set_permission(source, "/hbase/oldWALs", "755")
    assert "source: mallory may not read /hbase/oldWALs on the source's HDFS; as its superuser: hdfs dfs -setf" in line


def test_a_source_whose_peers_cannot_be_changed_is_refused(
    guarded: MiniCluster, target: MiniCluster, at_guarded: HBaseClient, refusal: Refusal
) -> None:
    def switch(on: bool) -> None:
        # Its request is one boolean, as is this answer.
        request = pb.IsReplicationPeerModificationEnabledResponse(enabled=on)
        at_guarded.master_call("ReplicationPeerModificationSwitch", request, pb.AddReplicationPeerResponse)

    keys = spec_keys(guarded, target, [table_on(at_guarded)])
    switch(False)
    try:
        assert "protect: replication peers cannot be changed at the source now" in refusal(keys)
    finally:
        switch(True)


def test_a_thrift_server_that_does_not_answer_is_refused_where_the_run_would_write_through_it(
    source: MiniCluster, guarded: MiniCluster, at_source: HBaseClient, refusal: Refusal
) -> None:
    (port,) = free_ports(1)
    keys = spec_keys(source, guarded, [table_on(at_source)], apply="thrift")
    keys["target"]["thrift"] = f"127.0.0.1:{port}"
    assert f"target: HBase's Thrift server at 127.0.0.1:{port} does not answer" in refusal(keys)


@pytest.mark.long
def test_a_quota_that_is_too_small_is_refused_and_one_met_in_the_middle_is_named_and_can_be_raised(
    source: MiniCluster,
    guarded: MiniCluster,
    at_source: HBaseClient,
    at_guarded: HBaseClient,
    refusal: Refusal,
    tmp_path: Path,
) -> None:
    table = table_on(at_source, 100)
    keys = spec_keys(source, guarded, [table])
    set_quota(guarded, "/hbase/archive", 1_000)
    try:
        assert "target: the space quota on /hbase/archive leaves 0.0 MB" in refusal(keys)
        set_quota(guarded, "/hbase/archive", -1)
        with run_of(make_spec(source, guarded, [table]), tmp_path) as run:
            begin(run)
            set_quota(guarded, "/hbase/archive", 1_000_000)  # enough for the plan, and not for a block
            with pytest.raises(QuotaExceededError, match=r"quota exceeded .*/hbase/archive/.*; raise it or free space"):
                copy_tables(run)
            set_quota(guarded, "/hbase/archive", -1)
            copy_tables(run)
            assert content(guarded, table) == content(source, table)
    finally:
        set_quota(guarded, "/hbase/archive", -1)


def test_a_region_server_that_hangs_is_given_up_and_named(guarded: MiniCluster) -> None:
    pid = guarded.pids["regionserver-1"]
    with HBaseClient(guarded.address, timeout_s=1) as impatient:
        hanging = next(server for server in impatient.servers() if server.port == guarded.ports.region_servers[1])
        os.kill(pid, signal.SIGSTOP)
        try:
            with pytest.raises(RequestTimeoutError, match=f"{hanging.address} did not answer .*RollWALWriter"):
                impatient.roll_wal(hanging)
        finally:
            os.kill(pid, signal.SIGCONT)
        impatient.roll_wal(hanging)
