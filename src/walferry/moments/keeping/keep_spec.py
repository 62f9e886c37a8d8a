"""The spec of a run that keeps what restores any moment of tables: its keys, their defaults and their checks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator

from walferry.hbase.address import ClusterAddress
from walferry.ledger import RunRecord
from walferry.run.given_spec import Connections, parse_keys, read_yaml, tables_named
from walferry.run.recorded_spec import read_keys
from walferry.run.spec import (
    RUN_NAME,
    Cluster,
    SourceRequests,
    address_of,
    rate,
    require_folder,
    table_patterns,
)


def _size(value: Any) -> Any:
    try:
        return rate(value)
    except ValueError:
        raise ValueError("give a size above 0, such as 500GB or 2TiB") from None


class KeepSpec(BaseModel):
    """What to keep, of which tables, where, and for how long. Unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(
        title="Name",
        pattern=RUN_NAME,
        description="Names the run, its snapshots at the source and its folder. An unfinished run is continued.",
    )
    source: Cluster | str = Field(
        title="Source", default="hbase_source", description="Airflow connection of type hbase."
    )
    tables: list[str] = Field(
        title="Tables",
        min_length=1,
        description="As ns:table; * stands for any characters, such as ns:* for the tables that a namespace has when "
        "the run is started. More may be added to an unfinished run.",
    )
    folder: str = Field(
        title="Folder",
        description="Where the copies go, in a folder of the run's own: webhdfs://host:port/path, the host:port of "
        "several NameNodes separated by ; or a path. Best on another cluster than the source.",
    )
    base_hours: float = Field(
        title="Hours between bases",
        default=24,
        gt=0,
        description="Hours between two snapshots of a table. A restore applies the log since the last one before its "
        "moment.",
    )
    copy_bases: bool = Field(
        title="Copy bases",
        default=False,
        description="Also copy the files of the snapshots to the folder. Without it, they are lost with the source.",
    )
    keep_days: float = Field(
        title="Days to keep", default=7, gt=0, description="Each moment of so many days back can be restored."
    )
    keep_bytes: Annotated[float | None, BeforeValidator(_size, json_schema_input_type=float | str | None)] = Field(
        title="Largest folder",
        default=None,
        description="Once the folder has more bytes than this (500GB, 2TiB), the oldest bases go before their time, "
        "but never the newest one of a table; null: no limit.",
    )
    tail_seconds: float = Field(
        title="Seconds between looks at open logs",
        default=20,
        ge=0.1,
        description="Seconds between two looks at the logs that are still written; their new bytes are copied then. "
        "If the source is lost, the changes of about so many seconds are lost with it.",
    )
    source_requests: SourceRequests = Field(
        title="Requests to the source",
        default=SourceRequests(),
        description="At most so many requests to the source per second.",
    )

    @field_validator("tables")
    @classmethod
    def _each_once(cls, tables: list[str]) -> list[str]:
        return table_patterns(tables, "kept")

    @field_validator("folder")
    @classmethod
    def _is_a_folder(cls, folder: str) -> str:
        require_folder(folder)
        return folder


class ResolvedKeepSpec(KeepSpec):
    """A spec with its source resolved."""

    source: Cluster

    @field_validator("tables")
    @classmethod
    def _are_names(cls, tables: list[str]) -> list[str]:
        assert not any("*" in name for name in tables), "patterns are replaced by names before"
        return tables

    def log_address(self) -> ClusterAddress:
        """The source for a client that examines it."""
        return address_of(self.source, self.source_requests)

    def as_recorded(self) -> dict[str, Any]:
        """Plain values for the ledger, with what every run that follows a log has there (`run.spec.LogSpec`)."""
        return self.model_dump(mode="json") | {"protect": "stage", "stage": self.folder}


def load_keep_spec(path: Path) -> KeepSpec:
    """Read a spec from YAML. Raises UsageError, which names the file, the key and the fault."""
    return parse_keep_spec(read_yaml(path, "see keep.example.yaml"), origin=str(path))


def parse_keep_spec(content: Mapping[str, Any], *, origin: str) -> KeepSpec:
    """Validate the keys of a spec. Raises UsageError, which lists every fault."""
    return parse_keys(KeepSpec, content, origin=origin)


def resolve_keep(spec: KeepSpec, connections: Connections) -> ResolvedKeepSpec:
    """Replace the source's connection id by its address, and patterns by the names of the tables that there are.

    Raises UsageError for a pattern without a table, and the errors of the client.
    """
    source = spec.source if isinstance(spec.source, Cluster) else connections(spec.source)
    names = tables_named(spec.tables, address_of(source, spec.source_requests))
    return ResolvedKeepSpec.model_validate(spec.model_dump() | {"source": source.model_dump(), "tables": names})


def recorded_keep_spec(run: RunRecord) -> ResolvedKeepSpec:
    """The spec of a run as the ledger recorded it. Raises UsageError, which names the run and the key."""
    keys = {key: value for key, value in run.spec.items() if key in ResolvedKeepSpec.model_fields}
    return read_keys(ResolvedKeepSpec, run, keys)
