"""A real Airflow between two real clusters, booted once for all tests here."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from walferry.embedded.environment import Environment, Settings


@pytest.fixture(scope="session")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Environment]:
    """What `make up` boots, in a folder of the tests' own."""
    environment = Environment.lay_out(tmp_path_factory.mktemp("environment"), Settings())
    environment.start()
    try:
        environment.airflow.unpause("hbase_migrate")
        yield environment
    finally:
        environment.stop()
