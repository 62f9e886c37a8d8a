from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from confluent_kafka.admin import AdminClient

from integration.streams.streamers import Lay, Streamer, lay_out
from walferry.embedded.cluster import MiniCluster
from walferry.embedded.kafka import Broker
from walferry.streams.kafka.settings import KafkaSettings


@pytest.fixture
def settings(broker: Broker) -> KafkaSettings:
    """How to reach the broker."""
    return KafkaSettings(bootstrap=broker.address)


@pytest.fixture
def admin(broker: Broker) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.address})


@pytest.fixture
def topic() -> str:
    """A name that no other topic has."""
    return f"topic-{uuid4().hex}"


@pytest.fixture
def lay(source: MiniCluster, broker: Broker, tmp_path: Path) -> Iterator[Lay]:
    """Lays out a stream of tables, whose processes and peer are gone at the end."""
    laid: list[Streamer] = []

    def one(*tables: str, bootstrap: str = "", **more: object) -> Streamer:
        laid.append(lay_out(tmp_path, source, bootstrap or broker.address, list(tables), **more))
        return laid[-1]

    yield one
    for streamer in laid:
        streamer.end()
