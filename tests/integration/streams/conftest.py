from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

import pytest
from confluent_kafka.admin import AdminClient

from booting import CHEAP_JVM
from walferry.embedded.kafka import Broker
from walferry.streams.kafka.settings import KafkaSettings


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A real Kafka broker; shared by all tests, so each uses topics of its own, and boots it again after a kill."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WALFERRY_JVM_FLAGS", CHEAP_JVM)
        with Broker.start(tmp_path_factory.mktemp("kafka")) as started:
            yield started


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
