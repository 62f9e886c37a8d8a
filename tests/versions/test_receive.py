"""Each older source replicates to what poses as a sink's region servers: a bare RpcServer, and receivers."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from integration.receive.receivers import receivers
from integration.receive.recording import receiving
from integration.replication.writing import writer
from versions.conftest import OLDER
from walferry.background import beside
from walferry.embedded.cluster import MiniCluster
from walferry.hbase.client import HBaseClient

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]


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
def test_what_is_written_while_a_receiver_is_killed_is_at_the_target(
    source: MiniCluster, target: MiniCluster, tmp_path: Path
) -> None:
    with receivers(source, target, tmp_path) as two:
        with HBaseClient(source.address) as here, beside(writer(here, two.tables), "writer"):
            time.sleep(5)
            two.processes[0].send_signal(signal.SIGKILL)
            time.sleep(5)
        two.equal(180)
        assert all(total.late == 0 for total in two.totals().values())
