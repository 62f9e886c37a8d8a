"""Servers beside the receivers that are stopped for two minutes, and go on after others have taken their place."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.receive.receivers import receivers
from integration.replication.writing import writer
from walferry.background import beside
from walferry.embedded.cluster import MiniCluster
from walferry.hbase.client import HBaseClient
from walferry.hbase.zookeeper import Server

pytestmark = [pytest.mark.cluster, pytest.mark.long]

STOPPED_S = 120
PATIENT = {
    "zookeeper.session.timeout": "400000",
    "zookeeper.session.timeout.localHBaseCluster": "400000",
    "hbase.zookeeper.property.tickTime": "20000",
}
"""settings of a cluster whose own servers outlive a ZooKeeper that is stopped for so long"""


def stopped(pid: int) -> None:
    """Stop a process for a while."""
    os.kill(pid, signal.SIGSTOP)
    try:
        time.sleep(STOPPED_S)
    finally:
        os.kill(pid, signal.SIGCONT)


@pytest.fixture
def patient(tmp_path: Path) -> Iterator[MiniCluster]:
    with MiniCluster.start(tmp_path / "patient", region_servers=2, hbase_site=PATIENT) as cluster:
        yield cluster


@pytest.mark.parametrize("serial", [True, False])
def test_a_server_of_the_source_that_is_stopped_ships_nothing_unnamed_when_it_goes_on(
    source: MiniCluster, target: MiniCluster, at_source: HBaseClient, victim: Server, tmp_path: Path, serial: bool
) -> None:
    with receivers(source, target, tmp_path, serial=serial) as two:
        with beside(writer(at_source, two.tables), "writer"):
            for table in two.tables:
                at_source.move_region(at_source.regions(table)[0], victim)
            time.sleep(5)
            stopped(source.pids["regionserver-1"])
            time.sleep(15)
        source.kill("regionserver-1")  # which has ended itself
        two.ship()
        if serial:
            two.equal(0)
            assert all(total.late == 0 for total in two.totals().values())
        two.differs_only_where_marked()


def test_a_target_that_is_stopped_with_its_zookeeper_gets_all_when_it_goes_on(
    source: MiniCluster, patient: MiniCluster, at_source: HBaseClient, tmp_path: Path
) -> None:
    with receivers(source, patient, tmp_path) as two:
        with beside(writer(at_source, two.tables), "writer"):
            time.sleep(5)
            stopped(patient.pids["hbase"])
            time.sleep(15)
        two.ship()
        two.equal(0)
        assert all(total.late == 0 for total in two.totals().values())
