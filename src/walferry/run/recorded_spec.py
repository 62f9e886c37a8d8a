"""The spec of a run as the ledger recorded it, read with the same models as a spec that a person gives.

A key that an older walferry did not record has the model's default. Each function raises UsageError for a spec that it
cannot read; the error names the run and the key.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from walferry.errors import UsageError
from walferry.ledger import RunRecord
from walferry.ledger.rows import RunKind
from walferry.run.pair_spec import ResolvedPairSpec
from walferry.run.receive_spec import ResolvedReceiveSpec
from walferry.run.setup_spec import ResolvedSetupSpec
from walferry.run.spec import Cluster, LogSpec, Options, ResolvedSpec, Table, describe_faults

Keys = TypeVar("Keys", bound=BaseModel)


_MODELS: Mapping[RunKind, type[ResolvedSpec]] = {
    "pair": ResolvedPairSpec, "setup": ResolvedSetupSpec, "receive": ResolvedReceiveSpec,
}  # fmt: skip
"""of whole specs; others are a ResolvedSpec"""


class _Tables(BaseModel):
    tables: list[Table] = []


class _Source(BaseModel):
    source: Cluster | None = None


class _Target(BaseModel):
    target: Cluster | None = None


def spec_of(run: RunRecord) -> ResolvedSpec:
    """The whole spec. A watch has none: it has no name, target or tables."""
    return read_keys(_MODELS.get(run.kind, ResolvedSpec), run, run.spec)


def setup_spec_of(run: RunRecord) -> ResolvedSetupSpec:
    """The whole spec of a run that sets up HBase's own replication."""
    return read_keys(ResolvedSetupSpec, run, run.spec)


def peer_of(run: RunRecord) -> str | None:
    """The source's replication peer that feeds the target of a pair; None if none is named."""
    peer = run.spec.get("peer")
    return None if peer is None else str(peer)


def peer_back_of(run: RunRecord) -> str | None:
    """The target's replication peer that feeds the source of a pair; None if none is named."""
    peer = run.spec.get("peer_back")
    return None if peer is None else str(peer)


def log_spec_of(run: RunRecord) -> LogSpec:
    """The part of the spec about the source's log, of any kind of run that follows one."""
    return read_keys(LogSpec, run, run.spec)


def options_of(run: RunRecord) -> Options:
    """The run's options; a watch has them too."""
    return read_keys(Options, run, {key: run.spec[key] for key in Options.model_fields if key in run.spec})


def source_of(run: RunRecord) -> Cluster | None:
    """The cluster whose log the run reads; None if none is recorded."""
    return read_keys(_Source, run, run.spec).source


def target_of(run: RunRecord) -> Cluster | None:
    """The cluster that the run writes to; None if none is recorded, for example for a watch."""
    return read_keys(_Target, run, run.spec).target


def source_tables(run: RunRecord) -> list[str]:
    """The run's source tables by name, as the WAL names them: without the namespace `default`; [] for a watch."""
    return list(target_tables(run))


def target_tables(run: RunRecord) -> dict[str, str]:
    """The target table of each source table, ordered by source table; both without the namespace `default`."""
    pairs = read_keys(_Tables, run, run.spec).tables
    return {pair.source: pair.target for pair in sorted(pairs, key=lambda pair: pair.source)}


def is_into_kafka(run: RunRecord) -> bool:
    """Whether a run of kind `receive` has Kafka in place of a target."""
    return run.kind == "receive" and run.spec.get("kafka") is not None


def topics_of(run: RunRecord) -> dict[str, str]:
    """The topic of each table of a run that sends to Kafka, ordered by table; {} for other runs."""
    if not is_into_kafka(run) and (run.kind != "stream" or run.spec.get("parquet") is not None):
        return {}
    return {table: topic_of(str(run.spec.get("topic", "")), table) for table in source_tables(run)}


def topic_of(template: str, table: str) -> str:
    """The topic of a table's changes, by the template of a stream's spec."""
    namespace, _, name = table.rpartition(":")
    return template.format(namespace=namespace or "default", table=name)


def receive_spec_of(run: RunRecord) -> ResolvedReceiveSpec:
    """The spec of a run of kind `receive` that has a target. Raises UsageError as `read_keys`."""
    return read_keys(ResolvedReceiveSpec, run, run.spec)


def read_keys(model: type[Keys], run: RunRecord, keys: Mapping[str, Any]) -> Keys:
    """Recorded keys as the model of their kind of run. Raises UsageError, which names the run and the key."""
    try:
        return model.model_validate(keys, context={"recorded": True})
    except ValidationError as error:
        raise UsageError(
            f"the spec that the ledger has of run {run.run_id} cannot be read: {describe_faults(error)}", run=run.run_id
        ) from error
