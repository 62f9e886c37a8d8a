from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from walferry.spark.session import open_session


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """One local Spark session for all tests."""
    session = open_session("tests")
    yield session
    session.stop()
