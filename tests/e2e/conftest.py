"""A real Airflow between two real clusters, booted once for all tests here."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from walferry.embedded.environment import Environment, Settings


@pytest.fixture(scope="session")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Environment]:
    """What `make up` boots, in a folder of the tests' own; windows of the log last a minute instead of an hour."""
    environment = Environment.lay_out(tmp_path_factory.mktemp("environment"), Settings())
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WALFERRY_REPLAY_CRON", "* * * * *")
        patch.setenv("WALFERRY_CLOCK_SKEW_SECONDS", "5")
        environment.start()
        try:
            environment.airflow.unpause("hbase_migrate")
            yield environment
        finally:
            environment.stop()
