"""`walferry stream` on a real cluster and a real broker: every edit once, in row order, whatever happens meanwhile."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from booting import CHEAP_JVM
from integration.migration.moves import unique
from integration.streams.judging import SPLIT_KEYS, Client, Journal, Writer, wait_until, writing
from integration.streams.streamers import Lay
from walferry.embedded.cluster import MiniCluster
from walferry.embedded.kafka import Broker
from walferry.hbase.client import HBaseClient
from walferry.hbase.mutate import Cell
from walferry.hbase.zookeeper import Server
from walferry.run.heartbeat import NOTE

pytestmark = pytest.mark.cluster


@pytest.fixture
def make_table(at_source: HBaseClient) -> Callable[[], str]:
    """Creates a table of five regions with a name of its own."""

    def make() -> str:
        name = unique("s")
        at_source.create_table(name, {"f": {"VERSIONS": "50"}, "g": {"VERSIONS": "50"}}, SPLIT_KEYS)
        return name

    return make


def move_some(client: HBaseClient, table: str, dice: random.Random, times: int) -> None:
    """Move regions to other servers, one after the other."""
    for _ in range(times):
        region = dice.choice([region for region in client.regions(table) if region.server])
        client.move_region(region, next(server for server in client.servers() if server != region.server))


def test_edits_of_every_kind_arrive_once_in_the_order_of_each_row_and_abort_ends_the_stream(
    source: MiniCluster, at_source: HBaseClient, broker: Broker, make_table: Callable[[], str], lay: Lay
) -> None:
    first, second = make_table(), make_table()
    streamer = lay(first, second, bytes_as="utf8")
    process = streamer.start()
    journals = {first: Journal(), second: Journal()}
    with Client(source.address) as client:
        for table, journal in journals.items():
            Writer(client, table, journal, "all").write_all_kinds()
    with writing(source, first, journals[first]), writing(source, second, journals[second]):
        time.sleep(3)
    judges = {table: streamer.judge(table) for table in journals}
    for table, journal in journals.items():
        judges[table].require(journal, table=table)
    assert process.poll() is None

    seen = judges[first].seen()
    by_console = broker.consume(judges[first].topic, len(seen) + 1, timeout_s=5)
    assert sorted(line.split("\t")[3] for line in by_console) == sorted((one.value or b"").decode() for one in seen)

    peers = at_source.peers()
    aborted = streamer.command("abort", streamer.name, "--reason", "it was a test")
    assert aborted.returncode == 0, aborted.stderr
    assert "removed: peer " in aborted.stdout
    assert len(peers.keys() - at_source.peers().keys()) == 1
    code, said = streamer.ended()
    assert (code, said) == (0, [f"run {streamer.name}-1 has ended as aborted"])


def test_kills_a_pause_moves_splits_and_merges_under_load_lose_repeat_and_reorder_nothing(
    source: MiniCluster, at_source: HBaseClient, make_table: Callable[[], str], lay: Lay
) -> None:
    table, journal, dice = make_table(), Journal(), random.Random(7)
    streamer = lay(table)
    judge = streamer.judge(table)
    streamer.start()
    with writing(source, table, journal):
        judge.await_more(0)
        move_some(at_source, table, dice, 3)
        streamer.kill()
        move_some(at_source, table, dice, 2)
        streamer.launch("resume", streamer.name)
        at_source.split_region(at_source.regions(table)[0], b"b")
        count = judge.await_more()
        streamer.kill()
        at_source.merge_regions(at_source.regions(table)[-2:])
        streamer.launch("resume", streamer.name)
        move_some(at_source, table, dice, 3)
        count = judge.await_more(count)

        assert streamer.command("pause", streamer.name).returncode == 0
        time.sleep(3)
        count = len(judge.seen())
        move_some(at_source, table, dice, 2)
        time.sleep(2)
        assert len(judge.seen()) == count
        resumed = streamer.command("resume", streamer.name)
        assert resumed.stdout == f"{streamer.name}-1 continues in the process that runs it\n", resumed.stderr
        move_some(at_source, table, dice, 2)
        judge.await_more(count)
        streamer.kill()
        streamer.launch("resume", streamer.name)
    judge.require(journal, table=table)


def test_a_process_that_was_suspended_while_another_took_over_adds_nothing_and_ends(
    source: MiniCluster, make_table: Callable[[], str], lay: Lay
) -> None:
    table, journal = make_table(), Journal()
    streamer = lay(table)
    judge = streamer.judge(table)
    suspended = streamer.start()
    with writing(source, table, journal):
        judge.await_more()
        os.kill(suspended.pid, signal.SIGSTOP)
        refused = streamer.command("resume", streamer.name)
        assert (refused.returncode, len(refused.stderr.splitlines())) == (2, 1), refused.stderr

        def takes_over() -> bool:
            process = streamer.launch("resume", streamer.name)
            while process.poll() is None:
                with streamer.ledger() as ledger:
                    notes = ledger.of(f"{streamer.name}-1").notes.named(NOTE).values()
                if any(facts["pid"] == process.pid for facts, _ in notes):
                    return True
                time.sleep(0.2)
            return False

        wait_until(takes_over, "nobody takes over")
        count = judge.await_more()
        os.kill(suspended.pid, signal.SIGCONT)
        code, said = streamer.ended(0)
        assert len(said) == 1, said
        assert said[0].startswith(f"error: another process has taken over {streamer.name}-1: this one ends")
        assert code == 1
        with streamer.ledger() as ledger:
            notes = ledger.of(f"{streamer.name}-1").notes.named(NOTE)
        at_work = {label: facts["pid"] for label, (facts, _) in notes.items()}
        assert at_work == dict.fromkeys(("", "stream"), streamer.processes[-1].pid)
        judge.await_more(count)
    judge.require(journal, table=table)
    assert streamer.processes[-1].poll() is None, streamer.said()


@pytest.mark.long
def test_the_broker_is_killed_while_it_is_streamed_to(
    source: MiniCluster, make_table: Callable[[], str], lay: Lay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, journal = make_table(), Journal()
    monkeypatch.setenv("WALFERRY_JVM_FLAGS", CHEAP_JVM)
    with Broker.start(tmp_path / "broker") as own:
        streamer = lay(table, bootstrap=own.address)
        judge = streamer.judge(table)
        process = streamer.start()
        with writing(source, table, journal):
            judge.await_more()
            for _ in range(2):
                own.kill()
                time.sleep(2)
                own.boot()
                judge.await_more()
        judge.require(journal, table=table)
        assert process.poll() is None, streamer.said()
        streamer.end()


@pytest.mark.long
def test_a_region_server_is_killed_with_bytes_in_its_log_that_it_had_not_acknowledged(
    victim: Server, source: MiniCluster, at_source: HBaseClient, make_table: Callable[[], str], lay: Lay
) -> None:
    table, journal = make_table(), Journal()
    for region in at_source.regions(table)[::2]:
        at_source.move_region(region, victim)
    streamer = lay(table)
    judge = streamer.judge(table)
    process = streamer.start()
    with writing(source, table, journal, writers=4, pause_s=0, all_kinds=False):
        judge.await_more()
        os.kill(source.pids["regionserver-1"], signal.SIGSTOP)
        time.sleep(2)  # what it had sent to its data node can be read
        source.kill_region_server(1)
        source.start_region_server(1)
        wait_until(
            lambda: all(region.server not in (None, victim) for region in at_source.regions(table)), "not recovered"
        )
        judge.await_more()
    judge.require(journal, table=table)
    assert any(call.is_repeated for calls in journal.rows.values() for call in calls)
    assert process.poll() is None, streamer.said()
    assert json.loads(streamer.command("quarantine", "list", streamer.name, "--json").stdout) == []


@pytest.mark.long
def test_what_a_server_has_logged_elsewhere_while_nobody_looked_ends_the_stream_by_its_name(
    victim: Server, source: MiniCluster, at_source: HBaseClient, lay: Lay
) -> None:
    """Its folder is gone when the stream looks again. The queue of the stream's peer still names the log."""
    at_source.create_table(table := unique("s"), {"f": {"VERSIONS": "1"}})
    streamer = lay(table)
    process = streamer.start()
    os.kill(process.pid, signal.SIGSTOP)
    source.kill_region_server(1)
    there = restarted(source, at_source, {"hbase.wal.dir": source.rootdir.replace("/hbase", "/elsewhere")})
    wait_until(lambda: at_source.regions(table)[0].server in at_source.servers(), "not recovered")
    at_source.move_region(at_source.regions(table)[0], there)
    put(at_source, table, b"elsewhere")
    # By its port, since ZooKeeper names the killed server until its session is over.
    other = next(server for server in at_source.servers() if server.port != there.port)
    at_source.move_region(at_source.regions(table)[0], other)
    pid = source.pids["regionserver-1"]
    os.kill(pid, signal.SIGTERM)  # so its regions are flushed: the master would look for its log here, in vain
    psutil.Process(pid).wait(60)
    source.kill_region_server(1)
    restarted(source, at_source, {})
    put(at_source, table, b"here")
    os.kill(process.pid, signal.SIGCONT)
    code, (line,) = streamer.ended()
    assert code == 6
    assert line.startswith(f"error: WAL file {there.name.replace(',', '%2C')}.")
    assert "is in the queue of the stream's peer, was not sent, and is in no folder of the log below /hbase" in line
    assert f"Either its server {there.name} logged elsewhere (hbase.wal.dir) while it wrote it, or" in line


def restarted(source: MiniCluster, at_source: HBaseClient, site: dict[str, str]) -> Server:
    """Region server 1, once it serves; `site`: properties of its own."""
    before = set(at_source.servers())
    source.start_region_server(1, site)
    source.await_ready("regionserver-1")
    port = source.ports.region_servers[1]
    return next(server for server in at_source.servers() if server.port == port and server not in before)


def put(client: HBaseClient, table: str, row: bytes) -> None:
    client.put(table, [Cell(row, b"f", b"q", b"v", 1)])
