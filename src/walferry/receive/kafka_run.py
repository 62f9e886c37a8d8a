"""A run that receives into Kafka: its spec, its ledger, the source, and the ZooKeeper in which the source finds it."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from uuid import UUID, uuid5

from kazoo.client import KazooClient

from walferry.hbase.address import ClusterAddress
from walferry.hbase.zookeeper import ZooKeeper
from walferry.receive.kafka_spec import ResolvedKafkaReceiveSpec
from walferry.run.spec import TablePair
from walferry.streams.stream_run import MessagesRun


class KafkaReceiveRun(MessagesRun[ResolvedKafkaReceiveSpec]):
    """A run of kind `receive` without a target."""

    _CLIENTS = ("source", "_zookeeper", "source_files", "wal_files")

    SPEC = ResolvedKafkaReceiveSpec

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


def presented_id(source_id: UUID, name: str) -> UUID:
    """The id under which a run of that name shows itself to a source: always the same, and no cluster's."""
    return uuid5(source_id, f"walferry receive {name}")
