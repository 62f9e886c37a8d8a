"""The spec of HBase's own replication between two clusters: its keys, their defaults and their checks."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, field_validator

from walferry.run.given_spec import Connections, parse_keys, read_yaml
from walferry.run.spec import Cluster, table_patterns


class ReplicateSpec(BaseModel):
    """Which cluster replicates which tables, and where. Unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True)

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
        description="The tables that should be replicated, as ns:table; * stands for any characters.",
    )

    @field_validator("tables")
    @classmethod
    def _each_once(cls, tables: list[str]) -> list[str]:
        return table_patterns(tables, "replicated")


class ResolvedReplicateSpec(ReplicateSpec):
    """A spec with its connections resolved."""

    source: Cluster
    target: Cluster | None


def load_replicate_spec(path: Path) -> ReplicateSpec:
    """Read a spec from YAML. Raises UsageError, which names the file, the key and the fault."""
    return parse_keys(ReplicateSpec, read_yaml(path, "see replicate.example.yaml"), origin=str(path))


def resolve_replicate(spec: ReplicateSpec, connections: Connections) -> ResolvedReplicateSpec:
    """Replace connection ids by the clusters' addresses. Raises UsageError for an unknown one."""
    clusters = {
        side: connections(cluster).model_dump() if isinstance(cluster, str) else cluster and cluster.model_dump()
        for side, cluster in (("source", spec.source), ("target", spec.target))
    }
    return ResolvedReplicateSpec.model_validate(spec.model_dump() | clusters)
