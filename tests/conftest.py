"""Real servers, booted once a session, when the first test asks for them; layers of tests in order of their cost."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

from walferry.embedded import processes
from walferry.embedded.cluster import Cluster, boot, shut_down
from walferry.embedded.environment import Environment, Settings
from walferry.hbase import admin

TESTS = Path(__file__).parent
LAYERS = ("unit", "integration", "e2e", "versions")
ALONE = {
    "integration/hbase/test_too_big.py",
    "integration/ledger/test_postgresql.py",
    "integration/migration/test_bad_input.py",
    "integration/migration/test_memory.py",
    "integration/spark/test_session.py",
    "integration/test_wheel.py",
}
"""files that boot servers of their own, or need none: the worker that is free first takes them"""
PORT_RANGES = 4
SETTLE_SECONDS = 4
CHEAP_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""what a JVM that lives for seconds or minutes needs: a third less CPU time of the whole machine"""
QUICK = {
    "WALFERRY_JVM_FLAGS": CHEAP_JVM,
    "SPARK_SUBMIT_OPTS": CHEAP_JVM,
    "WALFERRY_REQUEST_SECONDS": "8",
    "WALFERRY_SETTLE_SECONDS": str(SETTLE_SECONDS),
    "WALFERRY_CLAIM_SECONDS": "2",
    "WALFERRY_ZOOKEEPER_SESSION_SECONDS": "10",
}
"""for the tests' own process and every one that they start; also how long requests and sessions of a killed process are
waited out"""
QUICK_SITE = {
    # A server ends a request before its sender takes it for ended.
    "replication.sink.client.ops.timeout": str(SETTLE_SECONDS * 1000),
    # Procedures of the master (open, close, snapshot) wait this long for others to go along in one request.
    "hbase.procedure.remote.dispatcher.delay.msec": "10",
    # What was compacted is archived by a chore; a region whose split left references cannot be merged before.
    "hbase.hfile.compaction.discharger.interval": "2000",
}


def pytest_configure() -> None:
    gc.set_threshold(100_000, 50, 50)  # else a tenth of the unit tests' time goes into looking at imported modules
    # pyspark.sql.connect ends a program without a file, as pytest-xdist's workers are: it takes it for a doctest.
    main = sys.modules["__main__"]
    if not hasattr(main, "__file__"):
        main.__file__ = "a worker of pytest-xdist"
    # Workers that boot servers at the same time must not choose the same ports.
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % PORT_RANGES
    width = (processes.HIGHEST_PORT - processes.LOWEST_PORT) // PORT_RANGES
    processes.LOWEST_PORT += worker * width
    processes.HIGHEST_PORT = processes.LOWEST_PORT + width


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Unit tests first, which fail soonest; end-to-end tests last, since a running Airflow takes time from all."""
    items.sort(key=lambda item: LAYERS.index(item.path.relative_to(TESTS).parts[0]))


class ByServers(LoadScopeScheduling):  # type: ignore[misc]
    """`--dist loadscope`: one worker has the integration tests, another the end-to-end tests, each with clusters of its
    own; those in ALONE go to whoever is free."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0].removeprefix("tests/")
        return file if file in ALONE else file.partition("/")[0]


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling | None:
    return ByServers(config, log) if config.getvalue("dist") == "loadscope" else None


def pytest_collection_finish() -> None:
    gc.freeze()


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Environment]:
    """What `make up` boots, laid out in a folder of the tests' own: `clusters` starts one part, `environment` all."""
    laid_out = Environment.lay_out(tmp_path_factory.mktemp("servers"), Settings())
    for cluster in (laid_out.source, laid_out.target):
        cluster.hbase_site = {**cluster.hbase_site, **QUICK_SITE}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in QUICK.items():
            patch.setenv(name, value)
        patch.setattr(admin, "_MAX_POLL_S", 0.1)  # hundreds of procedures, of half a second each
        yield laid_out


@pytest.fixture(scope="session")
def clusters(servers: Environment) -> Iterator[tuple[Cluster, Cluster]]:
    """Source and target, booted side by side; the source has a second region server of its own process."""
    boot(servers.source, servers.target)
    yield servers.source, servers.target
    shut_down(servers.source, servers.target)


@pytest.fixture(scope="session")
def source(clusters: tuple[Cluster, Cluster]) -> Cluster:
    """The cluster that tables are moved from; shared by all tests, so each uses table names of its own."""
    return clusters[0]


@pytest.fixture(scope="session")
def target(clusters: tuple[Cluster, Cluster]) -> Cluster:
    """The cluster that tables are moved to; shared by all tests, so each uses table names of its own."""
    return clusters[1]
