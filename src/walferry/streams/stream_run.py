"""One run of a stream: its spec, its ledger, and the source."""

from __future__ import annotations

from walferry.ledger import Ledger, RunRecord
from walferry.run.run import LogRun
from walferry.streams.kafka.settings import KafkaSettings
from walferry.streams.kafka.sink import Shard
from walferry.streams.stream_spec import KafkaConnections, environment_kafka, kafka_settings, recorded_stream_spec


class StreamRun(LogRun):
    """A run of kind `stream`."""

    def __init__(
        self,
        ledger: Ledger,
        record: RunRecord | str,
        actor: str | None = None,
        kafka: KafkaConnections = environment_kafka,
    ) -> None:
        """As `LogRun`. `kafka`: where Kafka's connection is kept."""
        super().__init__(ledger, record, actor)
        self.spec = recorded_stream_spec(self.record)
        self._kafka = kafka

    def kafka(self) -> KafkaSettings:
        """How to reach Kafka, read anew each time: somebody may have changed a secret. Raises UsageError."""
        return kafka_settings(self.spec, self._kafka)

    @property
    def topics(self) -> dict[str, str]:
        """The topic of each table."""
        return {table: self.spec.topic_of(table) for table in self.spec.tables}

    def shard(self) -> Shard:
        """Who writes to Kafka. Its name is the spec's: a new run of the same name goes on where the last one ended."""
        return Shard(self.source.cluster_id(), self.spec.name)
