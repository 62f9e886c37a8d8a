"""One run of a stream: its spec, its ledger, and the source."""

from __future__ import annotations

from walferry.ledger import Ledger, RunRecord
from walferry.run.run import LogRun
from walferry.streams.sink import Shard
from walferry.streams.stream_spec import recorded_stream_spec


class StreamRun(LogRun):
    """A run of kind `stream`."""

    def __init__(self, ledger: Ledger, record: RunRecord | str, actor: str | None = None) -> None:
        """As `LogRun`."""
        super().__init__(ledger, record, actor)
        self.spec = recorded_stream_spec(self.record)

    @property
    def topics(self) -> dict[str, str]:
        """The topic of each table."""
        return {table: self.spec.topic_of(table) for table in self.spec.tables}

    def shard(self) -> Shard:
        """Who writes to Kafka. Its name is the spec's: a new run of the same name goes on where the last one ended."""
        return Shard(self.source.cluster_id(), self.spec.name)
