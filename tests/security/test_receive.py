"""A source whose servers log in by Kerberos replicates to receivers that do, too."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from booting import QUICK_SITE, quick
from integration.migration.command import walferry
from integration.receive.receivers import Receivers, receivers
from integration.replication.writing import writer
from security.each import EACH
from walferry.background import beside
from walferry.embedded.cluster import MiniCluster
from walferry.embedded.kdc import HOST, Kdc
from walferry.embedded.kerberized import Secured
from walferry.hbase.client import HBaseClient
from walferry.hbase.mutate import Cell

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def sink(kdc: Kdc, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MiniCluster]:
    folder = tmp_path_factory.mktemp("sink")
    with quick(), MiniCluster.start(folder, thrift=False, hbase_site=QUICK_SITE, security=Secured(kdc)) as cluster:
        yield cluster


def login(kdc: Kdc) -> dict[str, object]:
    """The key of the spec by which receivers are region servers of the source's service."""
    keytab = kdc.keytab([f"hbase/{HOST}"])
    return {"receive": {"login": {"principal": f"hbase/_HOST@{kdc.realm}", "keytab": str(keytab)}}}


@EACH
def test_edits_arrive_with_the_protection_of_the_source_while_a_receiver_is_killed(
    secured: MiniCluster, sink: MiniCluster, kdc: Kdc, tmp_path: Path
) -> None:
    with (
        receivers(secured, sink, tmp_path, more=login(kdc)) as two,
        HBaseClient(secured.address) as here,
        beside(writer(here, two.tables), "writer"),
    ):
        kill_one_of_both(two)
        two.ship()
        assert f"has logged in as hbase/{HOST}@{kdc.realm}" in two.said()
        assert all(total.entries for total in two.totals().values())


def kill_one_of_both(two: Receivers) -> None:
    """Once each process writes one table, so that calls are passed on; then another one begins."""
    deadline = time.monotonic() + 60
    while sorted(len(process.tables) for process in two.serving()) != [1, 1]:
        assert time.monotonic() < deadline, two.said()
        time.sleep(0.5)
    time.sleep(5)
    two.processes[0].send_signal(signal.SIGKILL)
    two.start()
    time.sleep(5)


def test_a_receiver_that_is_nobody_says_in_its_status_that_the_source_wants_to_log_in(
    secured: MiniCluster, sink: MiniCluster, tmp_path: Path
) -> None:
    with receivers(secured, sink, tmp_path, 1, 1) as one, HBaseClient(secured.address) as here:
        here.put(one.tables[0], [Cell(b"row", b"d", b"q", b"v")])
        deadline = time.monotonic() + 60
        while "knows no principal (`receive.login`)" not in one.serving()[0].last_refusal:
            assert time.monotonic() < deadline, one.said()
            time.sleep(0.5)


def test_a_keytab_without_the_key_of_the_receivers_host_is_shown_before_anything_begins(
    secured: MiniCluster, sink: MiniCluster, kdc: Kdc, tmp_path: Path
) -> None:
    with receivers(secured, sink, tmp_path, 0, 1, more=login(kdc)):
        for more in ("--dry-run", "--json"):
            done = walferry(tmp_path, "receive", "receive.yaml", "--host", "elsewhere.example", "--port", "0", more)
            assert done.returncode == 2, done.stderr
            assert f"is of no use for hbase/elsewhere.example@{kdc.realm}" in done.stderr
