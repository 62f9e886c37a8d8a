"""Real servers, booted once a session, when the first test asks for them; layers of tests in order of their cost."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from xdist.scheduler import LoadScopeScheduling

from booting import CHEAP_JVM, laid_out
from outcome import pytest_sessionfinish as pytest_sessionfinish
from walferry.embedded import processes
from walferry.embedded.cluster import MiniCluster, boot, shut_down
from walferry.embedded.environment import Environment
from walferry.embedded.kafka import Broker
from walferry.settings import EmbeddedServers

TESTS = Path(__file__).parent
LAYERS = ("unit", "e2e", "integration", "versions", "faults")
PORT_RANGES = 4

settings.register_profile("walferry", deadline=None)  # no test judges how long a loaded machine takes
settings.load_profile("walferry")


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
    """Unit tests first, which fail soonest; then the end-to-end tests, which no two workers can share."""
    items.sort(key=lambda item: LAYERS.index(item.path.relative_to(TESTS).parts[0]))


class ByServers(LoadScopeScheduling):  # type: ignore[misc]
    """`--dist loadscope`: one worker has the end-to-end tests; integration tests go file by file, and the versions of
    HBase one by one, to the worker that is free. Each worker has clusters of its own."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0].removeprefix("tests/")
        if file.startswith("versions/"):
            return nodeid.partition("[")[2] or file
        return file if file.startswith("integration/") else file.partition("/")[0]


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling | None:
    return ByServers(config, log) if config.getvalue("dist") == "loadscope" else None


def pytest_collection_finish() -> None:
    gc.freeze()


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Environment]:
    """What `make up` boots, laid out in a folder of the tests' own: `clusters` starts one part, `environment` all."""
    with laid_out(tmp_path_factory.mktemp("servers"), EmbeddedServers.read()) as environment:
        yield environment


@pytest.fixture(scope="session")
def clusters(servers: Environment) -> Iterator[tuple[MiniCluster, MiniCluster]]:
    """Source and target, booted side by side; the source has a second region server of its own process."""
    boot(servers.source, servers.target)
    yield servers.source, servers.target
    shut_down(servers.source, servers.target)


@pytest.fixture(scope="session")
def source(clusters: tuple[MiniCluster, MiniCluster]) -> MiniCluster:
    """The cluster that tables are moved from; shared by all tests, so each uses table names of its own."""
    return clusters[0]


@pytest.fixture(scope="session")
def target(clusters: tuple[MiniCluster, MiniCluster]) -> MiniCluster:
    """The cluster that tables are moved to; shared by all tests, so each uses table names of its own."""
    return clusters[1]


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A real Kafka broker; shared by all tests, so each uses topics of its own, and boots it again after a kill."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WALFERRY_JVM_FLAGS", CHEAP_JVM)
        with Broker.start(tmp_path_factory.mktemp("kafka")) as started:
            yield started
