"""A region's read point, told by the very server process that was asked: up to where writes are acknowledged."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

import pytest

from integration.hbase.read_points import FAMILIES, numbers, point, write, write_asynchronously, write_waiting
from walferry.embedded.cluster import MiniCluster
from walferry.hbase.client import HBaseClient
from walferry.hbase.errors import RequestTimeoutError
from walferry.hbase.read_points import AT_ONCE
from walferry.hbase.zookeeper import Server

pytestmark = pytest.mark.cluster
MakeTable = Callable[..., str]


def await_true(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.2)


def test_it_is_the_number_of_the_newest_write(client: HBaseClient, source: MiniCluster, make_table: MakeTable) -> None:
    table = make_table(FAMILIES)
    (region,) = client.regions(table)
    for count in range(1, 4):
        write(client, table, b"row %d" % count)
        edits = numbers(source, region)
        assert len(edits) == count
        assert point(client, region) == edits[-1]
    client.flush_table(table)
    assert point(client, region) == numbers(source, region, of_edits=False)[-1] > edits[-1]
    write(client, table)
    assert point(client, region) == numbers(source, region)[-1]


def test_without_a_write_it_is_the_number_of_the_opening(
    client: HBaseClient, source: MiniCluster, make_table: MakeTable
) -> None:
    (region,) = client.regions(make_table(FAMILIES))
    (opened,) = numbers(source, region, of_edits=False)
    assert point(client, region) == opened > region.open_sequence


def test_many_are_answered_in_their_order_with_a_bounded_number_in_flight(
    client: HBaseClient, source: MiniCluster, make_table: MakeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = make_table(FAMILIES, [b"%02d" % number for number in range(1, 20)])
    regions = client.regions(table)
    for number, region in enumerate(regions):
        for _ in range(number):
            write(client, table, region.start or b"0")
    flying: list[int] = []
    most = [0]
    ordinary = client.pool.call

    def call(*arguments: object, **options: object) -> object:
        flying.append(1)
        most[0] = max(most[0], len(flying))
        try:
            time.sleep(0.01)
            return ordinary(*arguments, **options)  # type: ignore[arg-type]
        finally:
            flying.pop()

    monkeypatch.setattr(client.pool, "call", call)
    asked = [(region.server.name, region) for region in reversed(regions) if region.server is not None]
    found = client.read_points(asked)
    assert found == [numbers(source, region, of_edits=False)[-1] for region in reversed(regions)]
    assert len(set(found)) == len(regions) == 20
    assert 1 < most[0] <= AT_ONCE
    assert client.read_points([]) == []


def test_a_write_that_the_log_has_not_synced_is_beyond_it(
    client: HBaseClient, source: MiniCluster, make_table: MakeTable
) -> None:
    table = make_table(FAMILIES)
    (region,) = client.regions(table)
    write(client, table)
    before = point(client, region)
    assert before is not None
    with write_waiting(source, client, table):
        assert point(client, region) == before
    assert point(client, region) == before + 1 == numbers(source, region)[-1]


def test_a_write_that_does_not_wait_for_its_sync_is_not_beyond_it(
    client: HBaseClient, source: MiniCluster, make_table: MakeTable
) -> None:
    one, other = make_table(FAMILIES), make_table(FAMILIES)
    (region,) = client.regions(one)
    before = point(client, region)
    assert before is not None
    with write_waiting(source, client, other):
        write_asynchronously(client, one)
        assert point(client, region) == before + 1
    write(client, one)
    assert numbers(source, region) == [before + 1, before + 2]


def test_only_the_server_that_has_the_region_open_answers(
    client: HBaseClient, source: MiniCluster, make_table: MakeTable
) -> None:
    table = make_table(FAMILIES)
    (before,) = client.regions(table)
    write(client, table)
    other = next(server for server in client.servers() if server != before.server)
    assert point(client, before, other) is None
    client.move_region(before, other)
    (after,) = client.regions(table)
    assert before.server is not None
    assert after.server == other
    assert client.read_points([(before.server.name, before), (other.name, before)]) == [
        None, numbers(source, after, of_edits=False)[-1]
    ]  # fmt: skip
    client.disable_table(table)
    assert client.read_points([(before.server.name, before), (other.name, before)]) == [None, None]


def test_a_server_that_restarted_on_the_same_port_does_not_answer_for_the_one_before(
    client: HBaseClient, source: MiniCluster, make_table: MakeTable, victim: Server
) -> None:
    table = make_table(FAMILIES)
    (region,) = client.regions(table)
    client.move_region(region, victim)
    write(client, table)
    (before,) = numbers(source, region)
    assert point(client, region, victim) == before
    source.kill_region_server(1)
    assert point(client, region, victim) is None
    source.start_region_server(1)
    source.await_ready("regionserver-1")

    def successors() -> list[Server]:
        return [server for server in client.servers() if server.port == victim.port and server != victim]

    def open_elsewhere() -> bool:
        (now,) = client.regions(table)
        return now.server not in (None, victim)

    await_true(lambda: bool(successors()), "the server does not start again")
    await_true(open_elsewhere, "the dead server's region does not open again")
    (successor,) = successors()
    (now,) = client.regions(table)
    if now.server != successor:
        client.move_region(now, successor)
    assert successor.address == victim.address
    told = point(client, region, successor)
    assert told is not None
    assert told > before
    assert client.read_points([(victim.name, region), (successor.name, region)]) == [None, told]


def test_a_server_that_hangs_is_not_taken_for_one_without_the_region(
    client: HBaseClient, source: MiniCluster, make_table: MakeTable, victim: Server
) -> None:
    (region,) = client.regions(make_table(FAMILIES))
    client.move_region(region, victim)
    pid = source.pids["regionserver-1"]
    with HBaseClient(source.address, timeout_s=1) as impatient:
        os.kill(pid, signal.SIGSTOP)
        try:
            with pytest.raises(RequestTimeoutError, match=f"{victim.address} did not answer ClientService.Scan"):
                impatient.read_points([(victim.name, region)], attempts=1)
        finally:
            os.kill(pid, signal.SIGCONT)
        assert point(impatient, region, victim) is not None
