from __future__ import annotations

from collections.abc import Iterator

import pytest

from booting import CHEAP_JVM
from walferry.embedded.kafka import Broker


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A real Kafka broker; shared by all tests, so each uses topics of its own, and boots it again after a kill."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WALFERRY_JVM_FLAGS", CHEAP_JVM)
        with Broker.start(tmp_path_factory.mktemp("kafka")) as started:
            yield started
