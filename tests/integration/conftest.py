from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql import SparkSession

from walferry.embedded.cluster import MiniCluster
from walferry.hbase.address import ClusterAddress
from walferry.hbase.client import HBaseClient
from walferry.hbase.zookeeper import Server
from walferry.spark import clients
from walferry.spark.session import open_session


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """One local Spark session for all tests."""
    session = open_session("tests")
    yield session
    session.stop()


@pytest.fixture(scope="session", autouse=True)
def shared_clients() -> Iterator[list[HBaseClient]]:
    """Those of this process, where pieces are applied without Spark. Their sockets are closed at the end."""
    made: list[HBaseClient] = []

    class Recorded(HBaseClient):
        def __init__(self, address: ClusterAddress, **more: Any) -> None:
            super().__init__(address, **more)
            made.append(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clients, "HBaseClient", Recorded)
        yield made
    for client in made:
        client.pool.close()


@pytest.fixture(scope="session")
def at_source(source: MiniCluster) -> Iterator[HBaseClient]:
    """A client of the source."""
    with HBaseClient(source.address) as client:
        yield client


@pytest.fixture
def victim(source: MiniCluster, at_source: HBaseClient) -> Iterator[Server]:
    """The region server that may be killed; a new one stands in its place afterwards."""
    port = source.ports.region_servers[1]
    before = next(server for server in at_source.servers() if server.port == port)
    yield before
    if "regionserver-1" not in source.servers:
        source.start_region_server(1)
        source.await_ready("regionserver-1")
    deadline = time.monotonic() + 60
    while sorted(server.port for server in at_source.servers()) != sorted(source.ports.region_servers):
        assert time.monotonic() < deadline, "the source does not have its servers back"
        time.sleep(0.5)
