"""Real servers, booted once a session, when the first test asks for them; layers of tests in order of their cost."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from walferry.embedded.cluster import Cluster, boot, shut_down
from walferry.embedded.environment import Environment, Settings

TESTS = Path(__file__).parent
LAYERS = ("unit", "integration", "e2e")
SETTLE_SECONDS = 4
QUICK = {
    "WALFERRY_REQUEST_SECONDS": "8",
    "WALFERRY_SETTLE_SECONDS": str(SETTLE_SECONDS),
    "WALFERRY_ZOOKEEPER_SESSION_SECONDS": "8",
}
"""how long requests and sessions of a killed process are waited out, here and in every process that a test starts"""


def pytest_configure() -> None:
    os.environ.update(QUICK)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Unit tests first, which fail soonest; end-to-end tests last, since a running Airflow takes time from all."""
    items.sort(key=lambda item: LAYERS.index(item.path.relative_to(TESTS).parts[0]))


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """What `make up` boots, laid out in a folder of the tests' own: `clusters` starts one part, `environment` all."""
    laid_out = Environment.lay_out(tmp_path_factory.mktemp("servers"), Settings())
    # A server ends a request before its sender takes it for ended.
    for cluster in (laid_out.source, laid_out.target):
        timeout = {"replication.sink.client.ops.timeout": str(SETTLE_SECONDS * 1000)}
        cluster.hbase_site = {**cluster.hbase_site, **timeout}
    return laid_out


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
