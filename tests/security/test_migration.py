"""The whole main job between secured clusters of two realms that do not trust each other, and with an open one."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from booting import QUICK_SITE, quick
from chaos.command import CUTOVER, Command
from integration.migration.command import environment, walferry
from integration.migration.moves import cluster_keys, content, fill, spec_keys, unique, visible
from integration.migration.test_cli import left_behind, nodes_of, phase_of, status, wait_until, writing
from integration.migration.test_window import edit, iso, now
from integration.streams.judging import wait_until as wait_until_so
from integration.streams.streamers import lay_out
from integration.streams.test_history import current, scanned
from security.secrets_hunt import Hunt, watched
from versions.test_migration import under_load
from walferry.embedded import processes
from walferry.embedded.certificates import Authority
from walferry.embedded.cluster import MiniCluster, Ports, boot, shut_down
from walferry.embedded.encrypted import of_hdfs, of_rpc
from walferry.embedded.kdc import HOST, Kdc, krb5_conf
from walferry.embedded.kerberized import Secured
from walferry.embedded.two_name_nodes import TwoNameNodes
from walferry.hbase.client import HBaseClient
from walferry.hbase.mutate import Cell
from walferry.ledger import Ledger
from walferry.replay.rights import znodes
from walferry.security import Tls
from walferry.streams.stream_spec import ONLY_KAFKA

pytestmark = [pytest.mark.cluster, pytest.mark.long, pytest.mark.timeout(1800)]

OLD_USER, NEW_USER = "loader", "mover"
TICKET = timedelta(minutes=2)
FAMILIES = {"f": {"VERSIONS": "50"}, "g": {"VERSIONS": "50"}}
LARGE = 3_000_000
ATTRIBUTES = {family: {"VERSIONS": "1000", "KEEP_DELETED_CELLS": "TRUE"} for family in "fg"}
"""so that no compaction forgets what a delete marker hides"""


@pytest.fixture(scope="module")
def other(kdc: Kdc, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kdc]:
    """A second KDC, whose realm knows nothing of the first one's. One krb5.conf names both."""
    folder = tmp_path_factory.mktemp("other")
    with Kdc.start(folder / "kdc", "OTHER.REALM") as started, pytest.MonkeyPatch.context() as patch:
        both = folder / "krb5.conf"
        both.write_text(krb5_conf(kdc, started))
        patch.setenv("KRB5_CONFIG", str(both))
        kdc.principal(OLD_USER, max_life=TICKET)
        started.principal(NEW_USER, max_life=TICKET)
        yield started


@pytest.fixture(scope="module")
def clusters(
    kdc: Kdc, other: Kdc, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[TwoNameNodes, MiniCluster]]:
    """Source and target: no name of user, realm or service is the same at both."""
    folder = tmp_path_factory.mktemp("realms")
    at_source = Secured(kdc, user=OLD_USER, superusers=(OLD_USER,), hdfs_superusers=(OLD_USER,))
    at_target = Secured(other, "hbprod", "privacy", user=NEW_USER, superusers=(NEW_USER,), hdfs_superusers=(NEW_USER,))
    here = TwoNameNodes(
        folder / "source", Ports.free(2), hbase_site=QUICK_SITE, version="2.2.3", security=at_source, nameservice="old"
    )
    there = MiniCluster(folder / "target", Ports.free(), hbase_site=QUICK_SITE, security=at_target)
    with quick():
        boot(here, there)
        try:
            yield here, there
        finally:
            shut_down(here, there)


@pytest.fixture(scope="module")
def source(clusters: tuple[TwoNameNodes, MiniCluster]) -> TwoNameNodes:
    return clusters[0]


@pytest.fixture(scope="module")
def target(clusters: tuple[TwoNameNodes, MiniCluster]) -> MiniCluster:
    return clusters[1]


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MiniCluster]:
    """A cluster without Kerberos, whose RPC is TLS only, and whose WebHDFS is reached by HTTPS."""
    folder = tmp_path_factory.mktemp("opened")
    authority = Authority(folder)
    mine = authority.issue("ferry", host=HOST)
    tls = Tls(ca=str(authority.bundle), certificate=str(mine.certificate), key=str(mine.key), rpc=True)
    (port,) = processes.free_ports(1)
    stores = folder / "cluster" / "conf"
    hdfs_site = {
        # The servers of one MiniDFSCluster wait for HTTP, too.
        **of_hdfs(authority, stores, HOST, address="127.0.0.1", policy="HTTP_AND_HTTPS"),
        "dfs.namenode.https-address": f"{HOST}:{port}",
    }
    hbase_site = {**QUICK_SITE, **of_rpc(authority)}
    with quick(), MiniCluster.start(folder / "cluster", hbase_site=hbase_site, hdfs_site=hdfs_site, tls=tls) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def half(kdc: Kdc, other: Kdc, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MiniCluster]:
    """A cluster of which only HDFS asks for a login. Requests `other`, which sets the krb5.conf of all."""
    folder = tmp_path_factory.mktemp("half")
    security = Secured(kdc, hbase=False, zookeeper=None, user=OLD_USER, hdfs_superusers=(OLD_USER,))
    with quick(), MiniCluster.start(folder / "cluster", hbase_site=QUICK_SITE, security=security) as cluster:
        yield cluster


@pytest.fixture
def hunt(source: TwoNameNodes, target: MiniCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hunt:
    """A folder for the commands of a test; what they log, all their libraries included, is in it, too."""
    made = Hunt(tmp_path, [Path(str(cluster.security.identity().keytab)) for cluster in (source, target)])  # type: ignore[union-attr]
    for name, value in made.prepared().items():
        monkeypatch.setenv(name, value)
    return made


@contextmanager
def going(folder: Path, number: int, *arguments: str) -> Iterator[Command]:
    """The command in a terminal of its own; killed -9 at the end if need be."""
    command = Command(folder, number, list(arguments), environment(folder))
    try:
        yield command
    finally:
        command.end()


def answered(command: Command) -> None:
    """Say yes to the cutover, and wait for the end."""
    wait_until(lambda: command.question() == CUTOVER, command.process)
    command.answer(CUTOVER)
    command.process.wait(timeout=600)
    assert command.process.returncode == 0, command.last_words()


def name_connections(patch: pytest.MonkeyPatch, **clusters: MiniCluster) -> None:
    """Name clusters by Airflow's variables, as a shell has them."""
    for name, cluster in clusters.items():
        keys = cluster_keys(cluster)
        host, _, port = keys.pop("zookeeper").rpartition(":")
        connection = {"conn_type": "hbase", "host": host, "port": int(port), "extra": keys}
        patch.setenv(f"AIRFLOW_CONN_{name.upper()}", json.dumps(connection))


def rounds(folder: Path, name: str) -> int:
    """How many rounds of the replay are applied."""
    with Ledger.open(f"sqlite:///{folder / 'ledger.db'}") as ledger:
        return ledger.of(ledger.find(name).run_id).rounds.totals().rounds


def await_rounds(command: Command, folder: Path, name: str) -> None:
    """Wait until two more rounds are applied: the second one has begun after now."""
    before = rounds(folder, name)
    wait_until(lambda: rounds(folder, name) > before + 1, command.process)


def test_a_migration_from_realm_to_realm_survives_a_kill_its_tickets_and_its_name_node_and_tells_no_secret(
    source: TwoNameNodes, target: MiniCluster, hunt: Hunt, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, name, folder = unique(), unique("move_"), hunt.folder
    name_connections(monkeypatch, old=source, new=target)
    keys = {"name": name, "source": "old", "target": "new", "tables": [table], "write_stop": "readonly", "max_lag": 60}
    (folder / "move.yaml").write_text(yaml.safe_dump(keys))
    monkeypatch.setenv("WALFERRY_HERE_BYTES", "1")  # rounds go by Spark
    monkeypatch.setenv("SPARK_MASTER", "local[2]")  # with Spark's page
    (port,) = processes.free_ports(1)
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", f"--conf spark.ui.port={port} pyspark-shell")
    page = f"http://127.0.0.1:{port}"

    with HBaseClient(source.address) as here, HBaseClient(target.address) as there:
        here.create_table(table, FAMILIES, [b"h", b"m"])
        # A compaction after a move drops markers, and the source then shows older puts that come after them.
        here.modify_table(here.describe(table).with_attribute("COMPACTION_ENABLED", "false"))
        fill(here, table)
        with under_load(source, table) as load:
            with going(folder, 1, "start", "move.yaml") as command, watched(command, page) as shown:
                wait_until(lambda: phase_of(folder, name) == "replay", command.process)
                await_rounds(command, folder, name)
            load.await_changes()
            with going(folder, 2, "resume", name) as command, watched(command, page) as more:
                first_ticket_ends = time.monotonic() + TICKET.total_seconds()
                await_rounds(command, folder, name)
                source.kill("nn1")
                source.activate("nn2")
                await_rounds(command, folder, name)
                wait_until(lambda: time.monotonic() > first_ticket_ends, command.process)
                await_rounds(command, folder, name)
                answered(command)
        assert here.describe(table).read_only
        seen = load.visible_at(target)
        assert len(seen) > 20
        assert seen == visible(source, table)
        assert left_behind(here, f"{name}-1") == left_behind(there, f"{name}-1") == []
        assert open_nodes(there) == set()

    facts = json.loads(walferry(folder, "report", name, "--json").stdout)
    assert (facts["gaps"], facts["quarantine"], facts["unexplained"]) == (0, 0, 0)
    assert status(folder, name)["state"] == "done"
    verified = walferry(folder, "verify", name, "--json")
    assert verified.returncode == 0, verified.stderr[-2000:]
    assert [table["second_reader"]["why"] for table in json.loads(verified.stdout)] == [""]
    assert "Kerberos does not let" not in (folder / "walferry-2.err").read_text()
    assert {OLD_USER, NEW_USER} <= {word for what in hunt.secrets() for word in what.split()}, "tokens of both"
    for pages in (shown, more):
        assert b"spark.master" in pages["Spark's page /environment/"]
    assert hunt.found({**shown, **{f"later {place}": text for place, text in more.items()}}) == []
    source.start_server("nn1")
    source.await_ready("nn1")


def open_nodes(client: HBaseClient) -> set[str]:
    """walferry's nodes that everybody may change, or empty."""
    return {path for path in nodes_of(client) if znodes._is_open(client.zk, path)}


HALF = (pytest.param(side, "half", marks=pytest.mark.matrix) for side in ("source", "target"))


@pytest.mark.parametrize(("side", "secured"), [("source", "target"), ("target", "target"), *HALF])
def test_a_table_moves_between_a_secured_cluster_and_an_open_one_behind_tls(
    side: str, secured: str, opened: MiniCluster, hunt: Hunt, monkeypatch: pytest.MonkeyPatch, request: Any
) -> None:
    monkeypatch.setenv("WALFERRY_HERE_BYTES", "1")  # by Spark's workers
    cluster: MiniCluster = request.getfixturevalue(secured)
    here, there = (cluster, opened) if side == "source" else (opened, cluster)
    table = unique()
    keys = spec_keys(here, there, [table], write_stop="readonly", max_lag=60)
    (hunt.folder / "move.yaml").write_text(yaml.safe_dump(keys))
    with HBaseClient(here.address) as client:
        client.create_table(table, FAMILIES, [b"r10"])
        fill(client, table)
        # So large that its files go to the data nodes directly, with the library's own login.
        client.put(table, [Cell(b"large", b"g", b"q", os.urandom(LARGE), 1)])
    with writing(here, table) as refusals:
        moved = walferry(hunt.folder, "start", "move.yaml", "--yes", "--json")
        assert moved.returncode == 0, moved.stderr[-2000:]
    assert len(refusals) == 1
    facts = json.loads(moved.stdout)
    assert (facts["gaps"], facts["quarantine"], facts["unexplained"]) == (0, 0, 0)
    seen = visible(there, table)
    assert len(seen) > 25
    assert seen == visible(here, table)
    with HBaseClient(there.address) as client:
        assert nodes_of(client)
        assert open_nodes(client) == (set() if there.address.zookeeper_login else nodes_of(client))
    assert hunt.found({"what it said": moved.stderr.encode()}) == []
    assert hunt.left() == []


def followed(history: Path, client: HBaseClient, table: str) -> bool:
    """Whether the files of a history have what the table has."""
    return any(history.glob("table=*/*/*/*.parquet")) and current(history, table) == scanned(client, table)


def test_windows_pairs_and_histories_work_between_realms(
    source: TwoNameNodes, target: MiniCluster, hunt: Hunt, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WALFERRY_CLOCK_SKEW_SECONDS", "0.3")  # all have one clock
    monkeypatch.setenv("WALFERRY_HERE_BYTES", "1")  # by Spark's workers
    table, folder = unique(), hunt.folder
    keys = spec_keys(source, target, [table])
    (folder / "pair.yaml").write_text(yaml.safe_dump(keys))
    parquet = {"folder": str(folder / "history"), "commit_seconds": 0.3}
    history = lay_out(folder, source, "", [table], parquet=parquet, **dict.fromkeys(ONLY_KAFKA))
    with HBaseClient(source.address) as here, HBaseClient(target.address) as there:
        for client in (here, there):
            client.create_table(table, ATTRIBUTES, [b"m"])
        try:
            history.start()
            begin = now()
            edit(here, table, 1)
            edge = now()
            edit(here, table, 2)
            wait_until_so(lambda: followed(folder / "history", here, table), "the history does not have all")
        finally:
            history.end()
        time.sleep(1)  # the window is over for every clock
        for start, end in ((begin, edge), (edge, now())):
            time.sleep(1)
            window = walferry(folder, "replay", "pair.yaml", "--from", iso(start), "--to", iso(end))
            assert window.returncode == 0, window.stderr[-2000:]
    assert len(content(source, table)) > 10
    assert content(target, table) == content(source, table)
    verified = walferry(folder, "verify", "--pair", "pair.yaml", "--json")
    assert verified.returncode == 0, verified.stderr[-2000:]
    assert hunt.found({}) == []
