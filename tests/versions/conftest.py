"""The tests' clusters: sources of each older version, older targets, and sources of other settings, in turn."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from booting import laid_out
from versions.sites import SITES, STORE_URI
from walferry.embedded import jars
from walferry.embedded.environment import Environment
from walferry.settings import EmbeddedServers
from walferry.wal.keys import KEY_STORE

OLDER = [version for version in jars.VERSIONS if version != jars.NEWEST]
BACK = {f"back to {version}": version for version in ("1.7.2", "2.2.3")}
"""the targets of ways back, by the name of the tests' parameter"""


@pytest.fixture(scope="session", params=[*OLDER, *BACK, *SITES])
def servers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Environment]:
    """What `make up SOURCE=…`, or `TARGET=…`, boots."""
    name = request.param
    here, there = name if name in OLDER else jars.NEWEST, BACK.get(name, jars.NEWEST)
    settings = EmbeddedServers.read().model_copy(update={"source_version": here, "target_version": there})
    with (
        laid_out(tmp_path_factory.mktemp("servers"), settings) as environment,
        pytest.MonkeyPatch.context() as patch,
    ):
        if name in SITES:
            source = environment.source
            source.hbase_site = {**source.hbase_site, **SITES[name](source)}
        # For all: Spark's workers keep the environment in which the first test started its JVM.
        patch.setenv(KEY_STORE, STORE_URI)
        yield environment


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All tests of the same clusters one after the other: they are booted once."""
    items.sort(key=lambda item: str(item.callspec.params.get("servers", "")) if hasattr(item, "callspec") else "")
