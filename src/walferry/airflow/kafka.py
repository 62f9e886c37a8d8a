"""Connections of type `kafka`, as Airflow's Kafka provider has them: the extra has the settings of Kafka's client."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow.sdk import BaseHook

from walferry.airflow.secret_connection import secret_connection
from walferry.errors import WalferryError
from walferry.streams.stream_spec import settings_of_connection

if TYPE_CHECKING:
    from walferry.streams.kafka.settings import KafkaSettings

TEST_SECONDS = 10.0
"""how long the form's test button waits"""


class KafkaHook(BaseHook):
    """Reads a connection of type `kafka`. Used by the form, if Airflow's Kafka provider is not installed."""

    conn_name_attr = "kafka_conn_id"
    default_conn_name = "kafka_default"
    conn_type = "kafka"
    hook_name = "Kafka"

    def __init__(self, kafka_conn_id: str = default_conn_name) -> None:
        super().__init__()
        self.kafka_conn_id = kafka_conn_id

    def get_conn(self) -> KafkaSettings:
        """The settings of a client. Raises UsageError for a connection that cannot be used."""
        return settings_of_connection(self.kafka_conn_id, secret_connection(self.kafka_conn_id))

    def test_connection(self) -> tuple[bool, str]:
        """Log in and list the topics, for the form's test button. Returns one line either way."""
        try:
            return True, _examine(self.get_conn())
        except WalferryError as error:
            # Airflow gives a connection under test a made-up id.
            return False, str(error).replace(f"connection {self.kafka_conn_id}", "the connection")


def _examine(settings: KafkaSettings) -> str:
    from confluent_kafka import KafkaException

    from walferry.streams.kafka.admin import admin_client
    from walferry.streams.kafka.errors import ClientLog, kafka_error

    log = ClientLog(settings)
    try:
        metadata = admin_client(settings, log).list_topics(timeout=TEST_SECONDS)
    except KafkaException as raised:
        raise kafka_error(log.refusal or log.reason(raised.args[0]), "listing topics", settings) from None
    return f"Kafka cluster {metadata.cluster_id}, {len(metadata.brokers)} brokers, {len(metadata.topics)} topics"
