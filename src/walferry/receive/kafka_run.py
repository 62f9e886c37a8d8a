"""A run that receives into Kafka: its spec, its ledger, the source, and the ZooKeeper in which the source finds it."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from uuid import UUID, uuid5

from kazoo.client import KazooClient

from walferry.hbase.address import ClusterAddress
from walferry.hbase.zookeeper import ZooKeeper
from walferry.ledger import Ledger, RunRecord
from walferry.receive.kafka_spec import ResolvedKafkaReceiveSpec
from walferry.run.recorded_spec import read_keys
from walferry.run.run import LogRun
from walferry.run.spec import TablePair
from walferry.streams.kafka.settings import KafkaSettings
from walferry.streams.message.changes import Form
from walferry.streams.stream_spec import SecretConnections, environment_secrets, kafka_settings


class KafkaReceiveRun(LogRun):
    """A run of kind `receive` without a target."""

    _CLIENTS = ("source", "_zookeeper", "source_files", "wal_files")

    def __init__(
        self,
        ledger: Ledger,
        record: RunRecord | str,
        actor: str | None = None,
        secrets: SecretConnections = environment_secrets,
    ) -> None:
        """As `LogRun`. `secrets`: where connections are kept that have secrets."""
        super().__init__(ledger, record, actor)
        self.spec = read_keys(ResolvedKafkaReceiveSpec, self.record, self.record.spec)
        self.secrets = secrets

    @property
    def tables(self) -> list[TablePair]:
        """The tables; both names are the source's."""
        return [TablePair(source=table, target=table) for table in self.spec.tables]

    def zookeeper_address(self) -> ClusterAddress:
        """The ZooKeeper in which the source finds the processes, and in which they have their leases."""
        return replace(self.spec.zookeeper_address(), session_seconds=self._session_seconds)

    @property
    def zk(self) -> KazooClient:
        """A session there."""
        return self._zookeeper.client

    @cached_property
    def _zookeeper(self) -> ZooKeeper:
        address = self.zookeeper_address()
        return ZooKeeper(address.zookeeper, self.spec.path, address.meter(), address.session_seconds, address.security)

    def presented_id(self) -> UUID:
        """The id of the cluster that the source takes the run for."""
        return presented_id(self.source.cluster_uuid(), self.spec.name)

    def kafka(self) -> KafkaSettings:
        """How to reach Kafka, read each time: somebody may have changed a secret. Raises UsageError."""
        return kafka_settings(self.spec, self.secrets)

    def form(self) -> Form:
        """What messages look like. Raises UsageError if the decoder cannot be imported."""
        spec = self.spec
        return Form(self.source.cluster_id(), spec.epoch, spec.bytes_as, spec.selection, spec.decoder())


def presented_id(source_id: UUID, name: str) -> UUID:
    """The id under which a run of that name shows itself to a source: always the same, and no cluster's."""
    return uuid5(source_id, f"walferry receive {name}")
