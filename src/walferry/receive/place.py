"""Where a source finds the processes of a run: in the ZooKeeper of the target, or in that which the spec of a run into
Kafka names."""

from __future__ import annotations

from walferry.hbase.address import ClusterAddress
from walferry.ledger import Ledger, RunRecord
from walferry.ledger.rows import ClusterSide
from walferry.receive.given import AnyReceiveSpec
from walferry.receive.kafka_run import KafkaReceiveRun
from walferry.run.receive_spec import ResolvedReceiveSpec
from walferry.run.recorded_spec import is_into_kafka
from walferry.run.run import Run

AnyReceiveRun = Run | KafkaReceiveRun


def receive_run(ledger: Ledger, record: RunRecord) -> AnyReceiveRun:
    """A run of kind `receive`, with what it needs of its destination."""
    return KafkaReceiveRun(ledger, record.run_id) if is_into_kafka(record) else Run(ledger, record.run_id)


def place_of(run: AnyReceiveRun) -> ClusterAddress:
    """The ZooKeeper in which the source finds the processes."""
    return run.target_address() if isinstance(run, Run) else run.zookeeper_address()


def sink_id_of(run: AnyReceiveRun) -> str:
    """The id of the cluster that the source takes the run for."""
    return run.target.cluster_id() if isinstance(run, Run) else str(run.presented_id())


def side_of(spec: AnyReceiveSpec) -> ClusterSide:
    """At which cluster the ledger has the nodes. A run into Kafka has but a source."""
    return "target" if isinstance(spec, ResolvedReceiveSpec) else "source"
