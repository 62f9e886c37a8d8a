"""Requests are counted, and kept to a rate."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from walferry import request_meter
from walferry.clock import steady_s
from walferry.request_meter import Meter, Rates, RequestRates, Service


@pytest.fixture(autouse=True)
def nothing_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_meter, "_counts", Counter())
    monkeypatch.setattr(request_meter, "_workers", [])


def test_requests_are_counted_by_cluster_and_service() -> None:
    old, new = Meter("old:2181/hbase", RequestRates()), Meter("new:2181/hbase", RequestRates())
    old.request(Service.NAMENODE)
    old.request(Service.NAMENODE)
    old.request(Service.ZOOKEEPER)
    new.request(Service.NAMENODE)
    assert request_meter.counted() == {
        ("old:2181/hbase", Service.NAMENODE): 2,
        ("old:2181/hbase", Service.ZOOKEEPER): 1,
        ("new:2181/hbase", Service.NAMENODE): 1,
    }


def test_what_a_worker_hands_over_is_counted_once() -> None:
    meter = Meter("zk/hbase", RequestRates())
    meter.request(Service.NAMENODE)
    handed = request_meter.taken()
    assert (handed, request_meter.taken()) == ({("zk/hbase", Service.NAMENODE): 1}, {})
    request_meter.gather(lambda: handed)
    meter.request(Service.NAMENODE)
    assert request_meter.counted() == {("zk/hbase", Service.NAMENODE): 2}


@pytest.mark.parametrize(("rate", "requests", "least_seconds"), [(20, 25, 1.0), (4, 3, 0.5)])
def test_requests_above_the_rate_wait(rate: float, requests: int, least_seconds: float) -> None:
    meter, began = Meter("zk/hbase", RequestRates(namenode=rate)), steady_s()
    for _ in range(requests):
        meter.request(Service.NAMENODE)
    assert steady_s() - began > 0.9 * least_seconds


def test_a_rate_for_one_service_does_not_delay_another() -> None:
    meter, began = Meter("zk/hbase", RequestRates(namenode=0.01)), steady_s()
    for _ in range(1_000):
        meter.request(Service.ZOOKEEPER)
    assert steady_s() - began < 50


def test_processes_that_share_a_rate_have_it_together() -> None:
    rates = RequestRates(namenode=100, region_servers=3).shared_by(4)
    assert rates == RequestRates(namenode=25, zookeeper=None, region_servers=0.75)


def test_the_rate_is_the_last_minutes(monkeypatch: pytest.MonkeyPatch) -> None:
    moments: Iterator[float] = iter([0.0, 10.0, 60.0, 100.0, 130.0])
    monkeypatch.setattr(request_meter, "steady_s", lambda: next(moments))
    rates = Rates()
    of = ("zk/hbase", Service.NAMENODE)
    shown = [rates(Counter({of: count}))["zk/hbase"]["namenode"] for count in (5, 25, 125, 125, 325)]
    assert shown == [0.0, 2.0, 2.0, 100 / 90, 200 / 70]


def test_time_in_which_requests_wait_does_not_count_for_deadlines() -> None:
    meter, began, unhindered = Meter("zk/hbase", RequestRates(namenode=2)), steady_s(), request_meter.unhindered_s()
    for _ in range(3):
        meter.request(Service.NAMENODE)
    assert request_meter.unhindered_s() - unhindered < steady_s() - began - 0.9
