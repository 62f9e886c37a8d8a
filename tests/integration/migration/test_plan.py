"""The plan on real clusters: what it measures, what it refuses, and that it changes nothing."""

from __future__ import annotations

import time
from typing import Any

import pytest

from integration.migration.moves import fill, make_spec, unique
from walferry.embedded.cluster import MiniCluster
from walferry.embedded.processes import free_ports
from walferry.errors import UsageError, WalferryError
from walferry.hbase import zookeeper
from walferry.hbase.client import HBaseClient
from walferry.migration.plan import Plan, make_plan, require
from walferry.run.spec import ResolvedSpec

pytestmark = pytest.mark.cluster


def state(client: HBaseClient) -> tuple[Any, ...]:
    """What a plan could have changed on a cluster."""
    children = client.zk.get_children("/walferry") if client.zk.exists("/walferry") else []
    return client.tables(), sorted(s.name for s in client.snapshots()), client.peers(), children


@pytest.fixture
def refusal(at_source: HBaseClient, at_target: HBaseClient) -> Any:
    """Plans a spec that must be refused, without a change on either side; the one line."""

    def refused(spec: ResolvedSpec) -> str:
        before = state(at_source), state(at_target)
        with pytest.raises(UsageError) as caught:
            require(make_plan(spec, 24))
        assert (state(at_source), state(at_target)) == before
        assert "\n" not in str(caught.value)
        return str(caught.value)

    return refused


def subjects(plan: Plan) -> list[tuple[str, str]]:
    return [(finding.level, finding.subject) for finding in plan.findings]


def test_a_plan_tells_what_the_tables_weigh_and_finds_nothing_wrong(
    source: MiniCluster, target: MiniCluster, at_source: HBaseClient, at_target: HBaseClient
) -> None:
    table = unique()
    at_source.create_table(table, {"f": {}, "g": {}}, [b"m"])
    fill(at_source, table, 50)
    at_source.flush_table(table)
    before = state(at_source), state(at_target)
    plan = make_plan(make_spec(source, target, [table], apply="bulk"), 24)
    assert plan.findings == []
    (found,) = plan.tables
    assert (found.source, found.target, found.regions, found.families) == (table, table, 2, ["f", "g"])
    assert found.bytes > 50 * 20
    assert plan.source_version.startswith("2.")
    assert plan.source_cluster_id != plan.target_cluster_id
    assert plan.wal_files >= 2  # one for each region server
    assert (state(at_source), state(at_target)) == before


def test_a_cluster_is_not_moved_to_itself(source: MiniCluster, at_source: HBaseClient, refusal: Any) -> None:
    table = unique()
    at_source.create_table(table, {"f": {}})
    line = refusal(make_spec(source, source, [{"source": table, "target": unique()}]))
    assert "source and target are the same cluster" in line


def test_every_fault_is_in_one_refusal(
    source: MiniCluster, target: MiniCluster, at_source: HBaseClient, at_target: HBaseClient, refusal: Any
) -> None:
    missing, taken, disabled = unique("missing"), unique("taken"), unique("disabled")
    mob, order = unique("mob"), unique("order")
    at_source.create_table(taken, {"f": {}})
    at_target.create_table(taken, {"f": {}})
    at_source.create_table(disabled, {"f": {}})
    at_source.disable_table(disabled)
    at_source.create_table(mob, {"f": {"IS_MOB": "true", "MOB_THRESHOLD": "100"}})
    at_source.create_table(order, {"f": {"NEW_VERSION_BEHAVIOR": "true"}})
    line = refusal(make_spec(source, target, [missing, taken, disabled, mob, order], apply="bulk"))
    for part in (
        f"{missing}: there is no such table at the source",
        f"{taken}: target table {taken} already exists: map to another name. Drop it only if no run is moving it "
        "and no client uses it",
        f"{disabled}: the table is disabled; enable it",
        f"{mob}: family f stores MOB files",
        f"{order}: family f has NEW_VERSION_BEHAVIOR",
        f"{mob}: {mob}:f keeps large values in MOB files: use apply: auto or rpc",
    ):
        assert part in line
    at_source.enable_table(disabled)


def test_a_target_that_the_user_may_not_write_to_is_refused(
    source: MiniCluster, target: MiniCluster, at_source: HBaseClient, refusal: Any
) -> None:
    table = unique()
    at_source.create_table(table, {"f": {}})
    spec = make_spec(source, target, [table])
    stranger = spec.target.model_copy(update={"user": "stranger"})
    line = refusal(spec.model_copy(update={"target": stranger}))
    assert line == (
        "the plan refuses: target: stranger may not write to /hbase; let the HBase user run it, or name `user`"
    )


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("zookeeper", "127.0.0.1:{port}", "{side}.zookeeper: ZooKeeper at 127.0.0.1:{port} did not answer"),
        ("webhdfs", "http://127.0.0.1:{port}", "{side}.webhdfs: WebHDFS at http://127.0.0.1:{port} does not answer"),
        ("rootdir", "hdfs://127.0.0.1:1/elsewhere", "/elsewhere does not exist on its file system"),
        ("znode", "/elsewhere", "has no /elsewhere/hbaseid"),
    ],
)
@pytest.mark.parametrize("side", ["source", "target"])
def test_a_wrong_address_is_named_within_a_minute(
    side: str,
    key: str,
    value: str,
    message: str,
    source: MiniCluster,
    target: MiniCluster,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(zookeeper, "CONNECT_TIMEOUT_S", 1.0)  # the real one: hbase/test_client.py
    (port,) = free_ports(1)
    spec = make_spec(source, target, ["any"])
    wrong = getattr(spec, side).model_copy(update={key: value.format(port=port)})
    started = time.monotonic()
    with pytest.raises(WalferryError) as caught:
        make_plan(spec.model_copy(update={side: wrong}), 24)
    assert message.format(port=port, side=side) in str(caught.value)
    assert time.monotonic() - started < 60
