"""The tests' clusters, with sources of each older version and of other settings in turn."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from booting import laid_out
from versions.sites import SITES, STORE_URI
from walferry.embedded import jars
from walferry.embedded.environment import Environment, Settings
from walferry.wal.keys import KEY_STORE

OLDER = [version for version in jars.VERSIONS if version != jars.NEWEST]


@pytest.fixture(scope="session", params=[*OLDER, *SITES])
def servers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Environment]:
    """What `make up SOURCE=…` boots."""
    name = request.param
    version = jars.NEWEST if name in SITES else name
    with (
        laid_out(tmp_path_factory.mktemp("servers"), Settings(source_version=version)) as environment,
        pytest.MonkeyPatch.context() as patch,
    ):
        if name in SITES:
            source = environment.source
            source.hbase_site = {**source.hbase_site, **SITES[name](source)}
        # For all: Spark's workers keep the environment in which the first test started its JVM.
        patch.setenv(KEY_STORE, STORE_URI)
        yield environment
