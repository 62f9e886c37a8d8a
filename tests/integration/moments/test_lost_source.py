"""A table is restored from the keeper's folder alone, once its cluster is gone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from integration.migration.command import walferry
from integration.migration.moves import at_work, cluster_keys, content, unique
from integration.moments.keepers import Keeper, covered, has_bases
from integration.moments.writing import KEPT, Writer, now
from walferry.clock import now_ms
from walferry.embedded.cluster import MiniCluster, Ports
from walferry.hbase.client import HBaseClient

pytestmark = pytest.mark.cluster
SKEW_S = 0.3


@pytest.fixture
def lost(source: MiniCluster, tmp_path: Path) -> Iterator[MiniCluster]:
    """A cluster of the test's own, which it may kill."""
    with MiniCluster.start(tmp_path / "lost", region_servers=2, ports=Ports.free(2), version=source.version) as cluster:
        yield cluster


@pytest.fixture
def keeper(lost: MiniCluster, target: MiniCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Keeper]:
    """A run that copies everything to the target's HDFS."""
    monkeypatch.setenv("WALFERRY_CLOCK_SKEW_SECONDS", str(SKEW_S))
    standby: dict[str, Any] = cluster_keys(target)
    host, _, port = standby.pop("zookeeper").partition(":")
    given = {"conn_type": "hbase", "host": host, "port": int(port), "extra": standby}
    monkeypatch.setenv("AIRFLOW_CONN_STANDBY", json.dumps(given))
    folder = f"{target.address.webhdfs}/kept/{unique()}".replace("http", "webhdfs", 1)
    one = Keeper(tmp_path, {
        "name": unique("keep_"), "source": cluster_keys(lost), "folder": folder, "copy_bases": True, "tail_seconds": 1,
    })  # fmt: skip
    yield one
    one.kill()


def moment(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat()


def restored(keeper: Keeper, table: str, at: str) -> dict[str, Any]:
    """Restore a table to a new one of the target. Returns what the command says, with the name of the new table."""
    new = unique("new")
    arguments = ("restore", table, "--at", at, "--as", new, "--to", "standby", "--from-folder", "--json")
    answer = walferry(keeper.folder, *arguments)
    assert answer.returncode == 0, answer.stderr
    facts: dict[str, Any] = json.loads(answer.stdout)
    assert facts["new_table"] == new
    return facts


@pytest.mark.long
def test_a_table_of_a_lost_cluster_is_what_it_was_at_a_moment_and_at_the_last_look_at_its_log(
    lost: MiniCluster, target: MiniCluster, keeper: Keeper
) -> None:
    table = unique("lost")
    with HBaseClient(lost.address) as client:
        client.create_table(table, {"f": KEPT, "g": KEPT}, [b"m"])
        writer = Writer(client, table)
        with at_work(writer.write):
            writer.until(50)
            keeper.start(tables=[table])
            keeper.await_so(has_bases([table]), "there is no base")
            writer.until(100)
            client.split_region(client.locate(table, b"b"), b"e")
            for server in client.servers():
                client.roll_wal(server)
            writer.until(50)
            with writer.held:
                at_ms = now()
                then = content(lost, table)
            writer.until(50)
            keeper.await_so(lambda run: covered(run, at_ms + 1000), "the ends are not copied")
            while_alive = restored(keeper, table, moment(at_ms))
            lost.kill_region_server(1)
            writer.until(100)
        last = content(lost, table)
        stopped_ms = now_ms()
        keeper.await_so(lambda run: covered(run, stopped_ms), "the last ends are not copied")
        keeper.kill()
        for _ in range(30):
            writer.edit()
    for name in list(lost.servers):
        lost.kill(name)

    assert content(target, while_alive["new_table"]) == then
    at_moment = restored(keeper, table, moment(at_ms))
    assert content(target, at_moment["new_table"]) == then
    assert at_moment["doubts"] == []
    at_end = restored(keeper, table, "latest")
    assert content(target, at_end["new_table"]) == last
    assert "may be missing" in at_end["doubts"][0]
    with keeper.ledger() as ledger:
        assert f"; doubtful: {at_end['doubts'][0]}" in ledger.run(at_end["run"]).outcome
    assert at_moment["digest"] == while_alive["digest"] != at_end["digest"]

    refused = walferry(
        keeper.folder, "restore", table, "--at", moment(stopped_ms + 1000), "--as", "x", "--to", "standby",
        "--from-folder",
    )  # fmt: skip
    assert refused.returncode == 2
    assert "all of the log was copied up to" in refused.stderr
