"""The spec of a run that receives, of either form: into a target cluster (`run.receive_spec`), or into Kafka
(`kafka_spec`)."""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from walferry.errors import UsageError
from walferry.ledger import RunRecord
from walferry.receive.kafka_spec import KafkaReceiveSpec, ResolvedKafkaReceiveSpec
from walferry.run.given_spec import Connections, parse_keys, read_yaml, resolve_receive
from walferry.run.receive_spec import ReceiveSpec, ResolvedReceiveSpec
from walferry.run.recorded_spec import is_into_kafka, read_keys, receive_spec_of
from walferry.run.spec import Cluster, describe_faults

AnyReceiveSpec = ResolvedReceiveSpec | ResolvedKafkaReceiveSpec


def load_receive_spec(path: Path) -> ReceiveSpec | KafkaReceiveSpec:
    """Read a spec from YAML. Raises UsageError, which names the file, the key and the fault."""
    content = read_yaml(path, "see receive.example.yaml")
    if "kafka" not in content:
        return parse_keys(ReceiveSpec, content, origin=str(path))
    if "target" in content:
        raise UsageError(f"{path}: target: a run receives into a cluster or into Kafka: leave out target or kafka")
    return parse_keys(KafkaReceiveSpec, content, origin=str(path))


def resolve_any_receive(spec: ReceiveSpec | KafkaReceiveSpec, connections: Connections) -> AnyReceiveSpec:
    """Replace the ids of connections of type `hbase` by the clusters' addresses. Kafka's connection is read by each
    process, since it has secrets."""
    if isinstance(spec, ReceiveSpec):
        return resolve_receive(spec, connections)
    source = spec.source if isinstance(spec.source, Cluster) else connections(spec.source)
    try:
        return ResolvedKafkaReceiveSpec.model_validate(spec.model_dump() | {"source": source.model_dump()})
    except ValidationError as error:
        raise UsageError(describe_faults(error)) from error


def recorded_receive_spec(run: RunRecord) -> AnyReceiveSpec:
    """The spec of a run as the ledger recorded it. Raises UsageError, which names the run and the key."""
    return read_keys(ResolvedKafkaReceiveSpec, run, run.spec) if is_into_kafka(run) else receive_spec_of(run)
