"""The spec of HBase's own replication between two clusters: its keys, their defaults and their checks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, field_validator

from walferry.ledger import RunRecord
from walferry.run.given_spec import Connections, parse_keys, read_yaml
from walferry.run.recorded_spec import read_keys
from walferry.run.spec import RUN_NAME, Cluster, table_patterns

_PATTERNS = "replicated"
"""the key of `tables` in a recorded spec"""


class ReplicateSpec(BaseModel):
    """Which cluster replicates which tables, and where. Unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(
        title="Name",
        default="replication",
        pattern=RUN_NAME,
        description="Names the run that watches it. An unfinished run is continued.",
    )
    source: Cluster | str = Field(
        title="Source", default="hbase_source", description="Airflow connection of type hbase."
    )
    target: Cluster | str | None = Field(
        title="Target",
        default=None,
        description="Airflow connection of type hbase of the cluster that gets the changes; null: each peer's own, "
        "by its cluster key, which is reached as the source's user, by its `security` and `tls`.",
    )
    peer: str | None = Field(
        title="Peer", default=None, description="Id of the replication peer; null: all that lead to a cluster."
    )
    tables: list[str] = Field(
        title="Tables",
        default=["*"],
        min_length=1,
        description="The tables that should be replicated, as ns:table; * stands for any characters. Each of them that "
        "is not replicated whole is told.",
    )
    max_lag: int = Field(
        title="Largest lag, in seconds",
        default=300,
        ge=60,
        description="While it is watched, an edit that is not shipped for longer raises an alert.",
    )
    look_seconds: int = Field(
        title="Seconds between two looks",
        default=60,
        ge=10,
        le=3600,
        description="While it is watched: how often the queues are looked at.",
    )
    plan_minutes: int = Field(
        title="Minutes between two looks at the settings",
        default=15,
        ge=1,
        le=1440,
        description="While it is watched: how often the settings of both clusters are looked at, as `plan` does.",
    )
    canary: bool = Field(
        title="Fly a canary",
        default=False,
        description="While it is watched: with each look at the settings, write a row at each region server of the "
        "source, which must arrive. Creates the table walferry_canary_… at both clusters.",
    )

    @field_validator("tables")
    @classmethod
    def _each_once(cls, tables: list[str]) -> list[str]:
        return table_patterns(tables, "replicated")


class ResolvedReplicateSpec(ReplicateSpec):
    """A spec with its connections resolved."""

    source: Cluster
    target: Cluster | None

    def as_recorded(self) -> dict[str, Any]:
        """Plain values for the ledger, where `tables` are those that a run works on: this one has none."""
        return self.model_dump(mode="json") | {"tables": [], _PATTERNS: self.tables}


def load_replicate_spec(path: Path) -> ReplicateSpec:
    """Read a spec from YAML. Raises UsageError, which names the file, the key and the fault."""
    return parse_replicate_spec(read_yaml(path, "see replicate.example.yaml"), origin=str(path))


def parse_replicate_spec(content: Mapping[str, Any], *, origin: str) -> ReplicateSpec:
    """Validate the keys of a spec. Raises UsageError, which lists every fault."""
    return parse_keys(ReplicateSpec, content, origin=origin)


def resolve_replicate(spec: ReplicateSpec, connections: Connections) -> ResolvedReplicateSpec:
    """Replace connection ids by the clusters' addresses. Raises UsageError for an unknown one."""
    clusters = {
        side: connections(cluster).model_dump() if isinstance(cluster, str) else cluster and cluster.model_dump()
        for side, cluster in (("source", spec.source), ("target", spec.target))
    }
    return ResolvedReplicateSpec.model_validate(spec.model_dump() | clusters)


def recorded_replicate_spec(run: RunRecord) -> ResolvedReplicateSpec:
    """The spec of a run of kind `replication`. Raises UsageError for a spec that cannot be read."""
    keys = {key: value for key, value in run.spec.items() if key != _PATTERNS}
    return read_keys(ResolvedReplicateSpec, run, keys | {"tables": run.spec.get(_PATTERNS, ["*"])})
