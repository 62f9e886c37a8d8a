"""The load on a cluster: requests of this process, counted by service and slowed down to what the operator allows.

Counts are those of the whole process. Spark workers hand theirs over with the results of their tasks
(`walferry.spark.handing_over`). The clients count: `storage.webhdfs`, `storage.direct`, `hbase.rpc`,
`hbase.zookeeper`.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, fields
from enum import StrEnum
from functools import cache

from pyrate_limiter import Duration, Limiter, Rate

from walferry.clock import steady_s

RATE_SECONDS = 60.0
"""rates are averages over this time"""


class Service(StrEnum):
    """The service that a request goes to."""

    NAMENODE = "namenode"
    ZOOKEEPER = "zookeeper"
    REGION_SERVERS = "region_servers"
    """and the master"""


Counts = Counter[tuple[str, Service]]
"""requests, by cluster and service"""


@dataclass(frozen=True)
class RequestRates:
    """Requests per second that a process may send to each service of a cluster; None: no limit."""

    namenode: float | None = None
    zookeeper: float | None = None
    region_servers: float | None = None

    def shared_by(self, processes: int) -> RequestRates:
        """The rates for each of several processes."""
        rates = {one.name: getattr(self, one.name) for one in fields(self)}
        return RequestRates(**{name: None if rate is None else rate / processes for name, rate in rates.items()})


class Meter:
    """Counts the requests of this process to one cluster, and delays those above a rate."""

    def __init__(self, cluster: str, rates: RequestRates) -> None:
        self._cluster = cluster
        self._limiters = {
            service: _limiter(rate) for service in Service if (rate := getattr(rates, service.value)) is not None
        }

    def request(self, service: Service) -> None:
        """Wait until one more request may be sent, and count it."""
        global _waited
        waited, limiter = 0.0, self._limiters.get(service)
        if limiter is not None:
            began = steady_s()
            limiter.try_acquire(service)
            waited = steady_s() - began
        with _lock:
            _counts[self._cluster, service] += 1
            _waited += waited


@cache
def meter_of(cluster: str, rates: RequestRates) -> Meter:
    """The one meter of this process for a cluster, whatever clients it has."""
    return Meter(cluster, rates)


def _limiter(rate: float) -> Limiter:
    # At a low rate, allow one request at a time.
    every = Rate(round(rate), Duration.SECOND) if rate >= 10 else Rate(1, max(1, round(1000 / rate)))
    return Limiter(every, buffer_ms=1)


_lock = threading.Lock()
_counts: Counts = Counter()
_waited = 0.0
_workers: list[Callable[[], Counts]] = []


def taken() -> Counts:
    """What this process has counted since the last call: a worker hands it over to the driver."""
    global _counts
    with _lock:
        mine, _counts = _counts, Counter()
    return mine


def counted() -> Counts:
    """What this process has counted in total, including what its workers have handed over."""
    with _lock:
        total = Counter(_counts)
    for counts in _workers:
        total.update(counts())
    return total


def gather(counts: Callable[[], Counts]) -> None:
    """Let `counted` include what workers hand over."""
    _workers.append(counts)


def unhindered_s() -> float:
    """Seconds on a clock that leaves out the time for which requests of this process wait; for deadlines of servers."""
    return steady_s() - _waited


class Rates:
    """Requests per second over the last minute, computed from counts that only grow."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, Counts]] = deque()

    def __call__(self, counts: Counts) -> dict[str, dict[str, float]]:
        """The rates by cluster and service, computed from these counts and those of earlier calls."""
        now = steady_s()
        self._seen.append((now, counts))
        while len(self._seen) > 2 and self._seen[1][0] <= now - RATE_SECONDS:
            self._seen.popleft()
        then, before = self._seen[0]
        rates: dict[str, dict[str, float]] = {}
        for (cluster, service), count in counts.items():
            rate = (count - before[cluster, service]) / (now - then) if now > then else 0.0
            rates.setdefault(cluster, {})[service.value] = rate
        return rates
