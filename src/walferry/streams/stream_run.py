"""One run that sends messages, such as a stream: its spec, its ledger, and the source."""

from __future__ import annotations

from typing import Generic, TypeVar

from walferry.clock import now_ms
from walferry.ledger import Ledger, RunRecord
from walferry.run.recorded_spec import read_keys
from walferry.run.run import LogRun
from walferry.streams.kafka.settings import KafkaSettings
from walferry.streams.message.changes import Form
from walferry.streams.stream_spec import ResolvedStreamSpec, SecretConnections, environment_secrets, kafka_settings

_POSITIONS = "stream has recorded positions"
"""a note of the run: its destination has positions"""


S = TypeVar("S", bound=ResolvedStreamSpec)


class MessagesRun(LogRun, Generic[S]):
    """A run whose spec says how changes become messages."""

    SPEC: type[S]

    def __init__(
        self,
        ledger: Ledger,
        record: RunRecord | str,
        actor: str | None = None,
        secrets: SecretConnections = environment_secrets,
    ) -> None:
        """As `LogRun`. `secrets`: where connections are kept that have secrets."""
        super().__init__(ledger, record, actor)
        self.spec: S = read_keys(self.SPEC, self.record, self.record.spec)
        self.secrets = secrets

    def kafka(self) -> KafkaSettings:
        """How to reach Kafka, read anew each time: somebody may have changed a secret. Raises UsageError."""
        return kafka_settings(self.spec, self.secrets)

    def form(self) -> Form:
        """What changes look like. Raises UsageError if the decoder cannot be imported."""
        spec = self.spec
        return Form(self.source.cluster_id(), spec.epoch, spec.bytes_as, spec.selection, spec.decoder())


class StreamRun(MessagesRun[ResolvedStreamSpec]):
    """A run of kind `stream`."""

    SPEC = ResolvedStreamSpec

    @property
    def topics(self) -> dict[str, str]:
        """The topic of each table."""
        return {table: self.spec.topic_of(table) for table in self.spec.tables}

    @property
    def has_positions(self) -> bool:
        """Whether positions of the run have been written."""
        return self.ledger.notes.get(_POSITIONS) is not None

    def note_positions(self) -> None:
        """Note that positions of the run have been written."""
        self.ledger.notes.keep(_POSITIONS, {"at_ms": now_ms()})
