"""What becomes of a request that the brokers do not answer."""

from __future__ import annotations

import time

import pytest
from confluent_kafka import KafkaError, KafkaException

from walferry.errors import TransientError
from walferry.streams.kafka.errors import LONGEST_WAIT_S, ClientLog, repeat
from walferry.streams.kafka.settings import KafkaSettings


def test_a_request_is_repeated_for_as_long_as_its_caller_has_time() -> None:
    waits: list[float] = []

    def request(wait_s: float) -> None:
        waits.append(wait_s)
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "no answer"))

    began, log = time.monotonic(), ClientLog(KafkaSettings(bootstrap="broker:9092"))
    with pytest.raises(TransientError, match="Kafka at broker:9092, committing, no success in 1 s: no answer"):
        repeat(request, "committing", log, longest_s=1)
    assert len(waits) > 1
    assert max(waits) <= 1
    assert time.monotonic() - began < LONGEST_WAIT_S
