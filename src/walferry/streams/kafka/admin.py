"""Kafka's admin client, and its answers."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any, TypeVar

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from walferry.streams.kafka.errors import ClientLog, kafka_error
from walferry.streams.kafka.settings import KafkaSettings

T = TypeVar("T")

ANSWER_S = 10.0
"""how long an admin request may take; it is repeated until LONGEST_WAIT_S are over"""


def admin_client(settings: KafkaSettings, log: ClientLog) -> AdminClient:
    """A client for topics. Raises UsageError for a setting that it does not take."""
    try:
        return AdminClient(settings.common_settings() | {"log_level": 4} | log.configuration())
    except KafkaException as raised:
        raise kafka_error(raised.args[0], "setting up the client", settings) from None


def answer(futures: Mapping[Any, Future[T]]) -> T:
    """The answer to an admin request for one thing. Raises KafkaException."""
    (future,) = futures.values()
    try:
        return future.result(ANSWER_S + 5)
    except TimeoutError:
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "no answer")) from None
