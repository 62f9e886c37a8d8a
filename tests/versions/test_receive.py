"""Each older source replicates to what poses as a sink's region servers: a bare RpcServer, and receivers."""

from __future__ import annotations

import os
import signal
import time
from contextlib import closing
from pathlib import Path

import pytest

from integration.migration.moves import unique
from integration.receive.receivers import PARTITIONS, kafka_receivers, receivers
from integration.receive.recording import receiving
from integration.replication.native import REPLICATED
from integration.replication.writing import writer
from integration.streams.judging import SPLIT_KEYS, Journal, Judge, writing
from versions.conftest import OLDER
from walferry.background import beside
from walferry.embedded.cluster import MiniCluster
from walferry.embedded.kafka import Broker
from walferry.hbase.client import HBaseClient

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]
SUSPENDED_SECONDS = 45
"""meanwhile its session in ZooKeeper ends, and others take its tables"""


@pytest.mark.parametrize("servers", OLDER, indirect=True)
def test_rows_arrive_and_what_was_refused_comes_again(source: MiniCluster, target: MiniCluster) -> None:
    with receiving(source, target) as receiver:
        receiver.write(b"first")
        (call,) = receiver.recorder.await_accepted(b"first")
        assert (call.service, call.method) == ("AdminService", "ReplicateWALEntry")
        receiver.recorder.refuse = 2
        receiver.write(b"second")
        calls = receiver.recorder.await_accepted(b"second")
        assert [call.refused for call in calls] == [True, True, False]
        assert len({(call.parameter, call.cells) for call in calls}) == 1
        receiver.presence.hide()
        receiver.write(b"third")
        receiver.presence.show()
        receiver.recorder.await_accepted(b"third")


@pytest.mark.parametrize("servers", OLDER, indirect=True)
def test_what_is_written_while_receivers_are_killed_stopped_and_moved_is_at_the_target(
    source: MiniCluster, target: MiniCluster, tmp_path: Path
) -> None:
    with receivers(source, target, tmp_path) as two:
        with HBaseClient(source.address) as here, beside(writer(here, two.tables), "writer"):
            time.sleep(5)
            two.processes[0].kill()
            two.start()
            time.sleep(5)
            two.suspend(1)
            time.sleep(SUSPENDED_SECONDS)
            os.kill(two.processes[1].pid, signal.SIGCONT)
            time.sleep(5)
            two.processes[2].terminate()
            assert two.processes[2].wait(60) == 0
            two.start()
            time.sleep(5)
        two.equal(240)
        assert len(two.serving()) == 2
        assert all(total.late == 0 for total in two.totals().values())


@pytest.mark.parametrize("servers", OLDER, indirect=True)
def test_edits_come_into_kafka_once_while_receivers_are_killed_and_stopped(
    source: MiniCluster, broker: Broker, tmp_path: Path
) -> None:
    table, journal = unique("k"), Journal()
    with HBaseClient(source.address) as here:
        here.create_table(table, {"f": REPLICATED | {"VERSIONS": "50"}, "g": REPLICATED}, SPLIT_KEYS)
        with (
            kafka_receivers(source, broker, tmp_path, [table]) as two,
            closing(Judge(broker.address, f"{two.name}.{table}", PARTITIONS)) as judge,
        ):
            with writing(source, table, journal):
                judge.await_more(0)
                two.processes[two.holder(table)].kill()
                judge.await_more()
                two.start()
                suspended = two.holder(table)
                two.suspend(suspended)
                time.sleep(SUSPENDED_SECONDS)
                count = judge.await_more()
                os.kill(two.processes[suspended].pid, signal.SIGCONT)
                judge.await_more(count)
            judge.require(journal, table=table)
            shown = broker.consume(f"{two.name}.{table}", len(judge.seen()) + 1, timeout_s=5)
            assert sorted(line.split("\t")[3] for line in shown) == sorted(
                (one.value or b"").decode() for one in judge.seen()
            )
        here.disable_table(table)
        here.delete_table(table)
