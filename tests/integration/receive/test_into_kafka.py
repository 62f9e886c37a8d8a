"""Receivers between a real source that replicates natively and a real Kafka: each edit once, whatever happens."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from base64 import b64decode
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from integration.ledger.conftest import ledger_url as ledger_url
from integration.ledger.conftest import postgresql as postgresql
from integration.migration.command import walferry
from integration.migration.moves import content, unique
from integration.receive.receivers import PARTITIONS, Receivers, kafka_receivers
from integration.streams.judging import SPLIT_KEYS, Client, Journal, Judge, Writer, wait_until, writing
from kafka_reading import read
from unit.receive.call_builder import REGION, Sent, call
from walferry.embedded.cluster import MiniCluster
from walferry.embedded.kafka import Broker
from walferry.formats.cells import encode_cell
from walferry.hbase.client import HBaseClient
from walferry.hbase.errors import RemoteTransientError
from walferry.hbase.mutate import Cell

pytestmark = pytest.mark.cluster
Away = Callable[[Broker], AbstractContextManager[None]]
FAMILY = {"VERSIONS": "50", "REPLICATION_SCOPE": "1"}
HIDES: dict[str, Callable[[Any, Any], bool]] = {
    "delete_version": lambda put, marker: (
        (put["family"], put["qualifier"], put["timestamp"])
        == (marker["family"], marker["qualifier"], marker["timestamp"])
    ),
    "delete_column": lambda put, marker: (
        (put["family"], put["qualifier"]) == (marker["family"], marker["qualifier"])
        and put["timestamp"] <= marker["timestamp"]
    ),
    "delete_family": lambda put, marker: put["family"] == marker["family"] and put["timestamp"] <= marker["timestamp"],
    "delete_family_version": lambda put, marker: (
        (put["family"], put["timestamp"]) == (marker["family"], marker["timestamp"])
    ),
}
"""whether a delete marker of a kind hides a put"""


MakeTable = Callable[[], str]
MakeJudge = Callable[[Receivers, str], Judge]


@pytest.fixture
def make_table(at_source: HBaseClient) -> Iterator[MakeTable]:
    """Makes tables of five regions, whose families are replicated."""
    made: list[str] = []

    def make() -> str:
        made.append(unique("k"))
        at_source.create_table(made[-1], {"f": FAMILY, "g": FAMILY}, SPLIT_KEYS)
        return made[-1]

    yield make
    for name in made:
        at_source.disable_table(name)
        at_source.delete_table(name)


@pytest.fixture
def table(make_table: MakeTable) -> str:
    return make_table()


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


def sent_number(at_source: HBaseClient, table: str, number: int) -> tuple[bytes, bytes]:
    """A call of the source with an edit that has this number."""
    source = at_source.cluster_uuid().int
    cell = encode_cell(b"r", b"f", b"q", 7, 4, b"%d" % number)
    return call([Sent([cell], REGION, table, number, 7, [(source >> 64, source & (1 << 64) - 1)])])


def values(broker: Broker, topic: str) -> list[dict[str, Any]]:
    """The values of all messages that were committed."""
    return [json.loads(seen.value or b"") for seen in read(broker.address, topic, PARTITIONS)]


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


@pytest.mark.parametrize("serial", [pytest.param(False, marks=pytest.mark.long), True])
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
            two.suspend(suspended)
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

        def sent() -> list[int]:
            return [value["sequence_number"] for value in values(broker, f"{one.name}.{table}")]

        for number in (9, 5, 9):
            one.send(*sent_number(at_source, table, number))
        assert sent() == [9, 5]
        one.processes[0].kill()
        one.start()
        wait_until(lambda: len(one.servers()) == 1, "the killed process is still listed")
        for number in (5, 9, 10):
            one.send(*sent_number(at_source, table, number))
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
        (value,) = values(broker, topic)
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
        wait_until(lambda: one.left_out().get(table), "the ledger does not say that anything was left out")


@contextmanager
def killed(broker: Broker) -> Iterator[None]:
    """The broker is dead meanwhile."""
    broker.kill()
    try:
        yield
    finally:
        broker.boot()


@contextmanager
def suspended(broker: Broker) -> Iterator[None]:
    """The broker takes connections meanwhile, and answers none."""
    assert broker.server is not None
    os.kill(broker.server.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(broker.server.pid, signal.SIGCONT)


@pytest.mark.long
@pytest.mark.parametrize(("away", "seconds"), [(killed, 40), (suspended, 120)])
def test_a_broker_that_is_away_under_load_is_named_by_every_refusal_and_costs_nothing(
    source: MiniCluster, at_source: HBaseClient, broker: Broker, make_table: MakeTable, tmp_path: Path,
    judge: MakeJudge, away: Away, seconds: int,
) -> None:  # fmt: skip
    table, other, journal = make_table(), make_table(), Journal()
    with kafka_receivers(source, broker, tmp_path, [table, other]) as two:
        judging = judge(two, table)
        two.send(*sent_number(at_source, other, 1))
        with writing(source, table, journal):
            judging.await_more(0)
            with away(broker):
                over = time.monotonic() + seconds
                while time.monotonic() < over:
                    with pytest.raises(RemoteTransientError, match=f"Kafka at {broker.address}, "):
                        two.send(*sent_number(at_source, other, 9), timeout_s=30)
                status = walferry(tmp_path, "status", two.name).stdout
                refusals = [one.last_refusal for one in two.serving()]
            judging.await_more()
        judging.require(journal, table=table)
        assert "refusing" in status
        assert f"Kafka at {broker.address}, " in status
        assert all(f"Kafka at {broker.address}, " in one for one in refusals if one), refusals
        two.send(*sent_number(at_source, other, 9))
        assert [value["sequence_number"] for value in values(broker, f"{two.name}.{other}")] == [1, 9]
        assert [process.poll() for process in two.processes] == [None, None]


@pytest.mark.long
def test_each_topic_of_several_tables_is_complete_when_one_of_two_processes_is_killed(
    source: MiniCluster, broker: Broker, make_table: MakeTable, tmp_path: Path, judge: MakeJudge
) -> None:
    journals = {make_table(): Journal() for _ in range(4)}
    with kafka_receivers(source, broker, tmp_path, list(journals)) as two:
        judges = {table: judge(two, table) for table in journals}
        with ExitStack() as load:
            for table, journal in journals.items():
                load.enter_context(writing(source, table, journal, writers=1, pause_s=0.03))
            for judging in judges.values():
                judging.await_more(0)
            assert {two.holder(table) for table in journals} == {0, 1}
            two.processes[0].kill()
            for judging in judges.values():
                judging.await_more()
            two.start()
            wait_until(lambda: {two.holder(table) for table in journals} == {1, 2}, "the new one gets no table")
            for judging in judges.values():
                judging.await_more()
        for table, judging in judges.items():
            judging.require(journals[table], table=table)


def test_merged_messages_tell_of_each_row_what_single_ones_tell_and_what_the_source_has(
    source: MiniCluster, broker: Broker, table: str, tmp_path: Path, judge: MakeJudge
) -> None:
    """Two runs receive the same edits. Of the one that merges a process is killed."""
    journal = Journal()
    for folder in ("single", "merged"):
        (tmp_path / folder).mkdir()
    with (
        kafka_receivers(source, broker, tmp_path / "single", [table], count=1) as single,
        kafka_receivers(source, broker, tmp_path / "merged", [table], merge_rows=True) as merged,
    ):
        with writing(source, table, journal, pause_s=0, times=8):
            judging = judge(merged, table)
            judging.await_more(100)
            merged.processes[merged.holder(table)].kill()
            judging.await_more()
            time.sleep(2)
        judging.require(journal, table=table)
        judge(single, table).require(journal, table=table)
        rows = {run.name: by_row(values(broker, f"{run.name}.{table}")) for run in (single, merged)}
        count = sum(map(len, rows[merged.name].values()))
        assert 0 < count < 0.9 * sum(map(len, rows[single.name].values())), "hardly anything was merged"
        for row, messages in rows[merged.name].items():
            require_merged(messages, rows[single.name][row])
        kept = {f"{row!r} {column!r}": cells for row, of in rows[merged.name].items() for column, cells in state(of)}
        assert kept == content(source, table)


def by_row(messages: list[dict[str, Any]]) -> dict[bytes, list[dict[str, Any]]]:
    rows: dict[bytes, list[dict[str, Any]]] = defaultdict(list)
    for message in messages:
        rows[b64decode(message["row"])].append(message)
    return rows


def require_merged(merged: list[dict[str, Any]], single: list[dict[str, Any]]) -> None:
    """Each merged message of a row has the cells of the next single ones, and all else of the last of them."""
    left = iter(single)
    for message in merged:
        cells: list[object] = []
        while len(cells) < len(message["cells"]):
            last = next(left)
            cells += last["cells"]
        assert message == {**last, "cells": cells}
    assert next(left, None) is None, "an edit is lost"


def state(messages: list[dict[str, Any]]) -> Iterator[tuple[bytes, list[tuple[bytes, int]]]]:
    """What a reader of HBase sees of a row after these messages, if nothing was compacted: by column, the values that
    no delete marker hides, newest first."""
    cells = [cell for message in messages for cell in message["cells"]]
    hidden = {kind: [cell for cell in cells if cell["kind"] == kind] for kind in HIDES}
    columns: dict[bytes, dict[int, bytes]] = defaultdict(dict)
    for put in (cell for cell in cells if cell["kind"] == "put"):
        if not any(hides(put, marker) for kind, hides in HIDES.items() for marker in hidden[kind]):
            column = put["family"].encode() + b":" + b64decode(put["qualifier"])
            columns[column][put["timestamp"]] = b64decode(put["value"])  # of one timestamp, the last one counts
    for column, versions in columns.items():
        yield column, [(versions[at], at) for at in sorted(versions, reverse=True)][: int(FAMILY["VERSIONS"])]


@pytest.mark.long
def test_the_place_of_a_run_may_be_in_a_zookeeper_that_is_not_the_sources(
    source: MiniCluster, at_source: HBaseClient, target: MiniCluster, broker: Broker, table: str, tmp_path: Path,
    judge: MakeJudge,
) -> None:  # fmt: skip
    journal, place = Journal(), f"{target.host}:{target.ports.zookeeper}"
    with kafka_receivers(source, broker, tmp_path, [table], at=target) as two:
        dry = walferry(tmp_path, "receive", "receive.yaml", "--dry-run")
        assert f"the source's peer {two.peer} leads here" in dry.stdout, dry.stderr
        judging = judge(two, table)
        with writing(source, table, journal):
            judging.await_more(0)
            two.processes[two.holder(table)].kill()
            judging.await_more()
        judging.require(journal, table=table)
        assert at_source.zk.exists(f"/walferry/receive/{two.name}") is None
        answer = two.abort()
        assert answer.returncode == 0, answer.stderr
        assert f"removed: sink /walferry/receive/{two.name} in ZooKeeper at {place}" in answer.stdout
        assert two.servers() == []


@pytest.mark.long
def test_a_run_whose_ledger_is_in_postgresql_loses_and_repeats_nothing_when_a_process_is_killed(
    source: MiniCluster, broker: Broker, table: str, tmp_path: Path, judge: MakeJudge, ledger_url: str
) -> None:
    journal = Journal()
    with kafka_receivers(source, broker, tmp_path, [table], ledger=ledger_url) as two:
        judging = judge(two, table)
        with writing(source, table, journal):
            judging.await_more(0)
            two.processes[two.holder(table)].kill()
            judging.await_more()
            two.start()
            time.sleep(5)
        judging.require(journal, table=table)
        assert two.totals()[table].late == 0
