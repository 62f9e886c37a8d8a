"""What stops HBase's own replication is named, on two real clusters that replicate."""

from __future__ import annotations

import json
import subprocess
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from integration.migration.command import walferry
from integration.replication.native import cluster_key, make_both, native_peer, spec_of
from integration.streams.judging import wait_until
from walferry.embedded.cluster import MiniCluster, Ports
from walferry.formats.proto import hbase_pb2 as pb
from walferry.hbase.client import HBaseClient
from walferry.hbase.mutate import Cell
from walferry.hbase.quotas import exceeded_quotas
from walferry.replication import canary

pytestmark = pytest.mark.cluster

Plan = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def at_target(target: MiniCluster) -> Iterator[HBaseClient]:
    with HBaseClient(target.address) as client:
        yield client


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MiniCluster]:
    """A cluster with quotas, at which its servers look each second."""
    chores = ("master.quotas.observer", "regionserver.quotas.fs.utilization", "regionserver.quotas.policy.refresher")
    site = {f"hbase.{chore}.chore.{when}": "1000" for chore in chores for when in ("period", "delay")}
    folder = tmp_path_factory.mktemp("small")
    with MiniCluster.start(
        folder, ports=Ports.free(1), thrift=False, hbase_site={"hbase.quota.enabled": "true", **site}
    ) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def at_small(small: MiniCluster) -> Iterator[HBaseClient]:
    with HBaseClient(small.address) as client:
        yield client


@pytest.fixture
def add(source: MiniCluster, target: MiniCluster) -> Iterator[Callable[..., str]]:
    """Adds a native peer to the target, which is gone at the end."""
    with ExitStack() as stack:
        yield lambda *tables, sink=target, **config: stack.enter_context(native_peer(source, sink, tables, **config))


@pytest.fixture
def plan(source: MiniCluster, tmp_path: Path) -> Plan:
    """`walferry replicate plan` for a spec with these keys."""

    def run(*options: str, target: MiniCluster | None = None, **keys: Any) -> subprocess.CompletedProcess[str]:
        answer = walferry(tmp_path, "replicate", "plan", spec_of(tmp_path, source, target, **keys), *options)
        assert "Traceback" not in answer.stderr
        return answer

    return run


def stops(answer: subprocess.CompletedProcess[str]) -> list[str]:
    return [line.removeprefix("stop: ") for line in answer.stdout.splitlines() if line.startswith("stop: ")]


def test_a_pair_that_works_has_nothing_that_stops_it_and_its_canary_arrives_from_each_server(
    at_source: HBaseClient, at_target: HBaseClient, source: MiniCluster, target: MiniCluster, add: Any, plan: Plan
) -> None:
    table = make_both(at_source, at_target, ["f", "g"])
    peer = add(table, canary.table_of(at_source.cluster_id()))
    answer = plan("--canary", peer=peer, tables=[table])
    assert (stops(answer), answer.returncode) == ([], 0), answer.stdout + answer.stderr
    assert f"peer {peer}: enabled, to {cluster_key(target)} (HBase 2.6.3" in answer.stdout
    assert f"{table}: f by {peer}; g by {peer}\n" in answer.stdout
    arrived = [line for line in answer.stdout.splitlines() if "arrived after" in line]
    assert len(arrived) == len(source.ports.region_servers)
    found = json.loads(plan("--json", "--canary", "--dry-run", peer=peer, tables=[table]).stdout)
    assert found["tables"] == {table: {"f": [peer], "g": [peer]}}
    assert found["peers"][0]["cluster_id"] == at_target.cluster_id()
    assert found["canary"][0]["arrivals"] == []


def test_scope_0_and_a_family_that_no_peer_names_are_stops_with_the_commands(
    at_source: HBaseClient, at_target: HBaseClient, source: MiniCluster, target: MiniCluster, plan: Plan
) -> None:
    table = make_both(at_source, at_target, ["f", "g"])
    at_source.modify_table(at_source.describe(table).unreplicated())
    with native_peer(source, target, {table: ["f"]}) as peer:
        answer = plan(peer=peer, tables=[table])
    assert answer.returncode == 1
    assert stops(answer) == [
        f"{table}: families f, g have REPLICATION_SCOPE 0, so no edit of them is replicated: alter '{table}', "
        "{NAME => 'f', REPLICATION_SCOPE => '1'}, {NAME => 'g', REPLICATION_SCOPE => '1'}. What was written before "
        "must be copied",
        f"{table}: peer {peer} does not replicate family g: append_peer_tableCFs '{peer}', {{'{table}' => ['g']}}",
    ]
    assert answer.stderr.splitlines()[-1] == f"error: 2 findings stop edits: see {table}"


def test_what_lacks_at_the_sink_is_named(at_source: HBaseClient, at_target: HBaseClient, add: Any, plan: Plan) -> None:
    gone, off, closed = (make_both(at_source, at_target) for _ in range(3))
    narrow = make_both(at_source, at_target, ["f"])
    other = "n_of_two_families"
    at_target.create_table(other, {"f": {"VERSIONS": "3"}})
    at_source.create_table(other, {one: {"VERSIONS": "1", "REPLICATION_SCOPE": "1"} for one in ("f", "g")})
    at_target.disable_table(gone)
    at_target.delete_table(gone)
    at_target.disable_table(off)
    at_target.set_read_only(closed, True)
    peer = add(gone, off, closed, narrow, other)
    answer = plan(peer=peer, tables=[gone, off, closed, narrow, other])
    where = f"at the sink of peer {peer}"
    found = stops(answer)
    assert sorted(line.partition(". Until then, the first such edit")[0] for line in found) == sorted(
        [
            f"{gone}: it is missing {where}: create it there, with the family f",
            f"{off}: it is disabled {where}: enable it",
            f"{closed}: it is READONLY {where}: alter '{closed}', READONLY => 'false'",
            f"{other}: it lacks the family g {where}: add it there",
        ]
    )
    assert f"warn: {other}: family f {where} differs: VERSIONS is not set at the source, 3 there" in answer.stdout


@pytest.fixture
def drops(at_source: HBaseClient, at_target: HBaseClient) -> Iterator[list[str]]:
    """Tables that must not outlive the test: a server that recovers a family which is not UTF-8 aborts, and so does
    each one after it (NullPointerException in HRegion.replayRecoveredEdits, 2.6.3)."""
    tables = list[str]()
    yield tables
    for client in (at_source, at_target):
        for table in tables:
            client.disable_table(table)
            client.delete_table(table)


def test_a_family_that_is_not_utf_8_is_planned_and_waited_for(
    at_source: HBaseClient, at_target: HBaseClient, add: Any, plan: Plan, tmp_path: Path, drops: list[str]
) -> None:
    drops.append(table := make_both(at_source, at_target))
    both = at_source.describe(table)
    both.schema.column_families.add(name=b"\xff", attributes=both.schema.column_families[0].attributes)
    at_source.modify_table(both)
    peer = add(table)
    answer = plan(peer=peer, tables=[table])
    assert f"{table}: f by {peer}; \\xff by {peer}\n" in answer.stdout
    (line,) = stops(answer)
    assert line.startswith(f"{table}: it lacks the family \\xff at the sink of peer {peer}: add it there")
    at_source.put(table, [Cell(b"r", b"\xff", b"q", b"v")])
    told = json.loads(walferry(tmp_path, "replicate", "status", "replicate.yaml", "--json").stdout)
    (edit,) = [one["oldest"] for one in told["peers"][0]["queues"] if one["oldest"]]
    assert (edit["table"], edit["families"]) == (table, ["\\xff"])
    at_target.modify_table(both)


def test_a_disabled_peer_is_named(at_source: HBaseClient, at_target: HBaseClient, add: Any, plan: Plan) -> None:
    table = make_both(at_source, at_target)
    peer = add(table, enabled=False)
    assert stops(plan(peer=peer, tables=[table])) == [
        f"peer {peer}: it is disabled, and keeps each log since: enable_peer '{peer}' in HBase's shell"
    ]


@pytest.mark.long
def test_a_key_that_leads_to_no_cluster_to_none_with_servers_or_to_the_source_itself_is_named(
    at_source: HBaseClient, at_target: HBaseClient, target: MiniCluster, add: Any, plan: Plan
) -> None:
    """As after somebody has moved the sink. (HBase 2.6 adds no peer whose key leads nowhere.)"""
    table, zk = make_both(at_source, at_target), at_target.zk
    zk.create("/moved/hbaseid", str(uuid.uuid4()).encode(), makepath=True)
    peer = add(table, key=f"{target.address.zookeeper}:/moved")
    sink = f"peer {peer}: its sink takes no changes: "
    assert stops(plan(peer=peer, tables=[table])) == [f"{sink}no region server of it is alive"]
    (leads_elsewhere,) = stops(plan(peer=peer, tables=[table], target=target))
    assert leads_elsewhere.startswith(
        f"peer {peer}: its key {target.address.zookeeper}:/moved leads to another cluster"
    )
    zk.set("/moved/hbaseid", at_source.cluster_id().encode())
    assert stops(plan(peer=peer, tables=[table]))[0].startswith(
        f"{sink}it is the source itself, or a copy of it: both have the cluster id {at_source.cluster_id()}"
    )
    zk.delete("/moved", recursive=True)
    assert stops(plan(peer=peer, tables=[table])) == [
        f"{sink}there is no HBase below /moved of ZooKeeper at {target.address.zookeeper}, but there is one below "
        "/hbase: correct the peer's key, or the `target`"
    ]


def test_a_port_that_the_sources_servers_do_not_reach_is_shown_by_the_canary(
    at_source: HBaseClient, at_target: HBaseClient, source: MiniCluster, target: MiniCluster, add: Any, plan: Plan
) -> None:
    """The peer's key leads to nodes that name the sink and a region server of it behind a port where nobody answers, as
    a firewall makes it look; walferry itself reaches the sink."""
    table, zk = make_both(at_source, at_target), at_target.zk
    own = canary.table_of(at_source.cluster_id())
    zk.create("/blocked/hbaseid", at_target.cluster_id().encode(), makepath=True)
    zk.create("/blocked/rs/127.0.0.1,1,1", makepath=True)
    try:
        peer = add(table, own, key=f"{target.address.zookeeper}:/blocked")
        answer = plan("--canary", "--wait", "10", target=target, peer=peer, tables=[table])
    finally:
        zk.delete("/blocked", recursive=True)
    assert stops(answer) == []
    for port in source.ports.region_servers:
        assert f"canary: peer {peer}: the row written at 127.0.0.1:{port} has not arrived in 10 s" in answer.stdout
    assert "the names and ports that they have in its ZooKeeper" in answer.stderr.splitlines()[-1]
    assert answer.returncode == 1


def test_a_loop_is_named(
    at_source: HBaseClient, at_target: HBaseClient, source: MiniCluster, target: MiniCluster, add: Any, plan: Plan
) -> None:
    table = make_both(at_source, at_target)
    peer = add(table)
    with native_peer(target, source, [table]) as back:
        answer = plan(peer=peer, tables=[table])
    assert f"warn: peer {peer}: a loop: its sink replicates back to the source (peer {back} there)." in answer.stdout
    assert answer.returncode == 0


@pytest.mark.long
def test_a_table_over_its_quota_of_space_is_named(
    at_source: HBaseClient, at_small: HBaseClient, small: MiniCluster, add: Any, plan: Plan
) -> None:
    """With a limit of one byte, which HBase's shell sets by `set_quota`: the same cell of hbase:quota."""
    table = make_both(at_source, at_small)
    peer = add(table, sink=small)
    assert stops(plan(peer=peer, tables=[table])) == []
    limit = b"PBUF" + bytes([0x1A, 4, 0x08, 1, 0x10, pb.NO_INSERTS])  # Quotas.space: soft_limit, violation_policy
    at_small.put("hbase:quota", [Cell(b"t." + table.encode(), b"q", b"s", limit)])
    at_small.put(table, [Cell(b"r", b"f", b"q", b"v")])
    at_small.flush_table(table)
    wait_until(lambda: f"table {table}" in exceeded_quotas(at_small), "the master does not see it")
    (line,) = stops(plan(peer=peer, tables=[table]))
    where = f"at the sink of peer {peer}"
    assert line.startswith(
        f"{table}: it takes no writes {where}: the table {table} is over its quota of space (NO_INSERTS); raise"
    )


def test_a_source_without_a_peer_replicates_nothing(at_source: HBaseClient, at_target: HBaseClient, plan: Plan) -> None:
    table = make_both(at_source, at_target)
    assert stops(plan(tables=[table])) == [
        "source: it has no replication peer that leads to a cluster: nothing is replicated. In HBase's shell: add_peer"
    ]


def test_bad_input_is_one_line(plan: Plan, at_source: HBaseClient, at_target: HBaseClient) -> None:
    table = make_both(at_source, at_target)
    assert "has no replication peer nobody; its peers: " in plan(peer="nobody", tables=[table]).stderr
    assert "no table of the source matches nothing*" in plan(tables=["nothing*"]).stderr
    assert "there is no table nothing on the cluster at" in plan(tables=["nothing"]).stderr
    wrong = plan(tabels=[table])
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert "tabels" in wrong.stderr


def test_a_canary_waits_for_no_peer_that_does_not_ship_it(
    at_source: HBaseClient, at_target: HBaseClient, add: Any, plan: Plan
) -> None:
    table = make_both(at_source, at_target)
    peer = add(table)
    answer = plan("--canary", peer=peer, tables=[table])
    name = canary.table_of(at_source.cluster_id())
    why = f"peer {peer} replicates named tables only; in HBase's shell: append_peer_tableCFs '{peer}', "
    assert f"canary: {why}{{'{name}' => []}}" in answer.stdout
    assert answer.stderr.splitlines()[-1].startswith("error: the canary was not flown: ")
    assert answer.returncode == 1
