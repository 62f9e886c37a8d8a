"""The tests' clusters, with a source of each older version in turn."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from booting import laid_out
from walferry.embedded import jars
from walferry.embedded.environment import Environment, Settings

OLDER = [version for version in jars.VERSIONS if version != jars.NEWEST]


@pytest.fixture(scope="session", params=OLDER)
def servers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Environment]:
    """What `make up SOURCE=…` boots."""
    with laid_out(tmp_path_factory.mktemp("servers"), Settings(source_version=request.param)) as environment:
        yield environment
