"""Receivers between a real source that replicates natively and a real Kafka: each edit once, whatever happens."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from integration.migration.command import walferry
from integration.migration.moves import unique
from integration.receive.receivers import PARTITIONS, Receivers, kafka_receivers
from integration.streams.judging import SPLIT_KEYS, Client, Journal, Judge, Writer, wait_until, writing
from kafka_reading import read
from unit.receive.call_builder import REGION, Sent, call
from walferry.embedded.cluster import MiniCluster
from walferry.embedded.kafka import Broker
from walferry.formats.cells import encode_cell
from walferry.hbase.client import HBaseClient
from walferry.hbase.mutate import Cell

pytestmark = pytest.mark.cluster
FAMILY = {"VERSIONS": "50", "REPLICATION_SCOPE": "1"}


@pytest.fixture
def table(at_source: HBaseClient) -> Iterator[str]:
    """A table of five regions, whose families are replicated."""
    name = unique("k")
    at_source.create_table(name, {"f": FAMILY, "g": FAMILY}, SPLIT_KEYS)
    yield name
    at_source.disable_table(name)
    at_source.delete_table(name)


MakeJudge = Callable[[Receivers, str], Judge]


@pytest.fixture
def judge(broker: Broker) -> Iterator[MakeJudge]:
    """Makes a consumer of a table's topic."""
    with ExitStack() as opened:

        def make(receivers: Receivers, table: str) -> Judge:
            made = Judge(broker.address, f"{receivers.name}.{table}", PARTITIONS)
            opened.callback(made.close)
            return made

        yield make


def move_some(client: HBaseClient, table: str, times: int) -> None:
    """Move regions to other servers, one after the other."""
    dice = random.Random(times)
    for _ in range(times):
        region = dice.choice([region for region in client.regions(table) if region.server])
        client.move_region(region, next(server for server in client.servers() if server != region.server))


def test_edits_of_every_kind_come_once_in_the_order_of_each_row_and_an_abort_ends_the_run(
    source: MiniCluster, at_source: HBaseClient, broker: Broker, table: str, tmp_path: Path, judge: MakeJudge
) -> None:
    journal = Journal()
    with kafka_receivers(source, broker, tmp_path, [table], count=1) as one:
        dry = walferry(tmp_path, "receive", "receive.yaml", "--dry-run")
        assert dry.returncode == 0, dry.stderr
        assert f"topic: {table} -> {one.name}.{table}, " in dry.stdout
        assert f"the source's peer {one.peer} leads here" in dry.stdout
        with Client(source.address) as client:
            Writer(client, table, journal, "all").write_all_kinds()
        with writing(source, table, journal):
            time.sleep(5)
        judging = judge(one, table)
        judging.require(journal, table=table)
        seen = judging.seen()
        by_console = broker.consume(judging.topic, len(seen) + 1, timeout_s=5)
        assert sorted(line.split("\t")[3] for line in by_console) == sorted((one.value or b"").decode() for one in seen)
        total = one.totals()[table]
        assert total.late == 0
        status = walferry(tmp_path, "status", one.name)
        assert f"{table} -> topic {one.name}.{table}: {total.entries} entries" in status.stdout

        answer = one.abort()
        assert answer.returncode == 0, answer.stderr
        assert f"removed: sink /walferry/receive/{one.name} in ZooKeeper at " in answer.stdout
        assert f"remove_peer '{one.peer}'" in answer.stderr
        assert one.processes[0].wait(60) == 0
        assert at_source.zk.exists(f"/walferry/receive/{one.name}") is None


@pytest.mark.parametrize("serial", [False, True])
def test_a_kill_and_moves_under_load_lose_and_repeat_nothing(
    source: MiniCluster, at_source: HBaseClient, broker: Broker, table: str, tmp_path: Path, judge: MakeJudge,
    serial: bool,
) -> None:  # fmt: skip
    journal = Journal()
    with kafka_receivers(source, broker, tmp_path, [table], peer={"serial": serial}) as two:
        judging = judge(two, table)
        with writing(source, table, journal):
            judging.await_more(0)
            move_some(at_source, table, 4)
            two.processes[two.holder(table)].send_signal(signal.SIGKILL)
            time.sleep(1)
            move_some(at_source, table, 4)
            judging.await_more()
            two.start()
            move_some(at_source, table, 3)
            time.sleep(5)
        judging.require(journal, table=table, by_position=not serial)
        if serial:
            assert two.totals()[table].late == 0


def test_an_owner_that_was_suspended_until_another_one_took_over_writes_nothing_twice(
    source: MiniCluster, broker: Broker, table: str, tmp_path: Path, judge: MakeJudge
) -> None:
    journal = Journal()
    with kafka_receivers(source, broker, tmp_path, [table]) as two:
        judging = judge(two, table)
        with writing(source, table, journal):
            judging.await_more(0)
            suspended = two.holder(table)
            os.kill(two.processes[suspended].pid, signal.SIGSTOP)
            time.sleep(40)
            assert two.holder(table) != suspended
            count = judging.await_more()
            os.kill(two.processes[suspended].pid, signal.SIGCONT)
            judging.await_more(count)
            time.sleep(10)
        judging.require(journal, table=table)
        assert two.processes[suspended].poll() is None, "it goes on with other tables"


def test_what_is_sent_again_is_left_out_also_by_the_process_that_takes_over_from_a_killed_one(
    source: MiniCluster, at_source: HBaseClient, broker: Broker, table: str, tmp_path: Path
) -> None:
    with kafka_receivers(source, broker, tmp_path, [table], count=1) as one:
        clusters = [(at_source.cluster_uuid().int >> 64, at_source.cluster_uuid().int & (1 << 64) - 1)]

        def send(number: int) -> None:
            cell = encode_cell(b"r", b"f", b"q", 7, 4, b"%d" % number)
            one.send(*call([Sent([cell], REGION, table, number, 7, clusters)]))

        def sent() -> list[int]:
            seen = read(broker.address, f"{one.name}.{table}", PARTITIONS)
            return [json.loads(message.value or b"")["sequence_number"] for message in seen]

        for number in (9, 5, 9):
            send(number)
        assert sent() == [9, 5]
        one.processes[0].kill()
        one.start()
        wait_until(lambda: len(one.servers()) == 1, "the killed process is still listed")
        for number in (5, 9, 10):
            send(number)
        assert sent() == [9, 5, 10]
        total = one.totals()[table]
        assert (total.entries, total.repeated, total.late) == (3, 3, 1)


def test_a_message_that_is_too_large_is_named_and_comes_once_its_topic_takes_it(
    source: MiniCluster, at_source: HBaseClient, broker: Broker, table: str, tmp_path: Path
) -> None:
    admin = AdminClient({"bootstrap.servers": broker.address})
    with kafka_receivers(source, broker, tmp_path, [table], count=1) as one:
        topic = f"{one.name}.{table}"
        at_source.put(table, [Cell(b"large", b"f", b"q", b"x" * (1 << 20))])
        wait_until(lambda: any(process.refused for process in one.serving()), "nothing is refused")
        status = walferry(tmp_path, "status", one.name).stdout
        region = at_source.locate(table, b"large").encoded
        assert f"of region {region} of {table} cannot be sent to Kafka: the message has" in status
        assert "raise the topic's max.message.bytes, or set large_messages" in status
        entry = ConfigEntry("max.message.bytes", str(4 << 20), incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
        admin.incremental_alter_configs([resource])[resource].result(30)
        wait_until(one.totals, "the large message does not come")
        wait_until(lambda: read(broker.address, topic, PARTITIONS), "it is not committed")
        (value,) = [json.loads(seen.value or b"") for seen in read(broker.address, topic, PARTITIONS)]
        assert (value["row"], len(value["cells"])) == ("bGFyZ2U=", 1)


def test_what_was_written_before_the_start_is_left_out(
    source: MiniCluster, at_source: HBaseClient, broker: Broker, table: str, tmp_path: Path, judge: MakeJudge
) -> None:
    """A new peer gets the current logs from their beginning, with what was written before it."""
    at_source.put(table, [Cell(b"old", b"f", b"q", b"v")])
    time.sleep(1)
    start = datetime.now(UTC).isoformat()
    time.sleep(1)
    with kafka_receivers(source, broker, tmp_path, [table], count=1, receive={"start": start}) as one:
        at_source.put(table, [Cell(b"old", b"g", b"q", b"new")])
        judging = judge(one, table)
        wait_until(judging.seen, "nothing comes")
        time.sleep(3)
        (value,) = [json.loads(seen.value or b"") for seen in judging.seen()]
        assert [cell["family"] for cell in value["cells"]] == ["g"]
        assert "left out, written before the start of the run at" in one.said()
