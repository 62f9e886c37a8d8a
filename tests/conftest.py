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

from booting import CHEAP_JVM, QUICK_SITE, laid_out, quick
from outcome import pytest_sessionfinish as pytest_sessionfinish
from walferry.embedded import processes
from walferry.embedded.cluster import MiniCluster
from walferry.embedded.environment import Environment
from walferry.embedded.kafka import Broker
from walferry.embedded.kdc import PACKAGES, Kdc, missing_programs
from walferry.embedded.kerberized import Secured
from walferry.embedded.two_name_nodes import TwoNameNodes
from walferry.settings import EmbeddedServers

TESTS = Path(__file__).parent
LAYERS = ("unit", "e2e", "integration", "security", "versions", "faults")
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


@pytest.fixture(autouse=True)
def as_another_process() -> Iterator[None]:
    """What a test has this process learn of HDFS, as a worker of Spark's or from a failure, ends with the test."""
    yield
    if direct := sys.modules.get("walferry.storage.direct"):
        direct._rest_until.clear()
    if name_nodes := sys.modules.get("walferry.storage.name_nodes"):
        name_nodes._learned.clear()


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Environment]:
    """What `make up` boots, laid out in a folder of the tests' own: `clusters` starts one part, `environment` all."""
    with laid_out(tmp_path_factory.mktemp("servers"), EmbeddedServers.read()) as environment:
        yield environment


@pytest.fixture(scope="session")
def clusters(servers: Environment) -> Iterator[tuple[MiniCluster, MiniCluster]]:
    """Source and target, booted side by side; the source has a second region server of its own process."""
    servers.start_clusters()
    yield servers.source, servers.target
    servers.stop_clusters()


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


@pytest.fixture(scope="session")
def kdc(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kdc]:
    """A real KDC, which all processes started from now on find, this one included. A test that stops it boots it again.

    Skips where there is no KDC to boot, or no python-gssapi.
    """
    if missing := missing_programs():
        pytest.skip(f"no KDC: {', '.join(missing)} missing ({PACKAGES})")
    pytest.importorskip("gssapi", reason="no python-gssapi: `make kerberos` installs it")
    with pytest.MonkeyPatch.context() as patch, Kdc.start(tmp_path_factory.mktemp("kdc")) as started:
        patch.setenv("KRB5_CONFIG", str(started.config))
        yield started


@pytest.fixture(scope="session", params=["2.6.3-authentication"])
def secured(
    request: pytest.FixtureRequest, kdc: Kdc, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[MiniCluster]:
    """A secured cluster, whose address names the principal `ferry`. Another HBase or hbase.rpc.protection:

    @pytest.mark.parametrize("secured", ["1.7.2-privacy", "2.2.3-integrity"], indirect=True)
    """
    version, qop = request.param.split("-")
    folder, security = tmp_path_factory.mktemp("secured"), Secured(kdc, qop=qop)
    with quick(), MiniCluster.start(folder, version=version, hbase_site=QUICK_SITE, security=security) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def two_name_nodes(kdc: Kdc, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoNameNodes]:
    """A secured cluster with two name nodes. A test that kills one starts it again."""
    folder = tmp_path_factory.mktemp("two_name_nodes")
    with quick(), TwoNameNodes.start(folder, hbase_site=QUICK_SITE, security=Secured(kdc)) as cluster:
        yield cluster
