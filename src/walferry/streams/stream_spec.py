"""The spec of a stream: its keys, their defaults and their checks."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from importlib import import_module
from math import ceil
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, ValidationInfo, field_validator

from walferry.errors import UsageError
from walferry.hbase.address import ClusterAddress
from walferry.ledger import RunRecord
from walferry.run.given_spec import Connection, Connections, from_environment, parse_keys, read_yaml, tables_named
from walferry.run.recorded_spec import read_keys, topic_of
from walferry.run.spec import (
    RUN_NAME,
    Cluster,
    SourceRequests,
    Throttle,
    address_of,
    describe_faults,
    rate,
    table_patterns,
)
from walferry.streams.history.catalog import CatalogSettings, TableNames
from walferry.streams.history.catalog import settings_of_connection as catalog_of_connection
from walferry.streams.kafka.new_topics import Creation, positions_topic
from walferry.streams.kafka.settings import OF_CONSUMERS, KafkaSettings, is_secret
from walferry.streams.message.changes import BytesAs, Decode, Selection

SecretConnections = Callable[[str], Connection]
"""the fields of a connection that has secrets, by its id; raises UsageError if there is none"""
_IS_WEBHDFS = re.compile(r"s?webhdfs://")
_TOPIC_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")


class CreateTopics(BaseModel):
    """How topics are created that do not exist."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    partitions: int = Field(ge=1, description="of each change topic")
    replication: int = Field(default=-1, ge=-1, description="replicas; -1: as the cluster does by default")


def _bytes(value: Any) -> Any:
    """Parse 64000000, 64MB or 64MiB."""
    try:
        return int(rate(value))
    except (TypeError, ValueError):
        raise ValueError("give a number of bytes, such as 64MB") from None


ByteCount = Annotated[int, BeforeValidator(_bytes, json_schema_input_type=int | str), Field(ge=1_000_000)]
ONLY_KAFKA = (
    "kafka", "topic", "create_topics", "positions", "image", "upsert_topic", "bytes_as", "decode", "large_messages",
    "resolved",
)  # fmt: skip
"""keys that say how changes go to Kafka"""


class Iceberg(BaseModel):
    """A catalogue of Iceberg tables, and the tables that get the files of the folder, too."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    catalog: str = Field(
        default="iceberg_default", min_length=1, description="Airflow connection whose extra has pyiceberg's properties"
    )
    namespace: str = Field(pattern=r"^\w+(\.\w+)*$", description="of the tables")
    changes: str = Field(default="", pattern=r"^\w*$", description="the table of changes; default: the stream's name")
    events: str = Field(default="", pattern=r"^\w*$", description="the table of events; default: NAME_events")
    location: str = Field(
        default="",
        pattern=r"^(\w+:/.*)?$",
        description="the folder as a URL for engines, such as hdfs://nameservice/path; default: file://, if the folder "
        "is a path",
    )
    expire_days: float | None = Field(
        default=1, gt=0, description="snapshots are expired after so many days; null: never"
    )


class Parquet(BaseModel):
    """A folder of Parquet files, in place of Kafka, and when files are added to it: whichever is first."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    folder: str = Field(min_length=1, description="webhdfs://host:port;host:port/path, or a path")
    commit_seconds: float = Field(default=60, gt=0, le=3600, description="files are added so often")
    commit_bytes: ByteCount = Field(
        default=64_000_000, description="or once rows take so much memory: bytes, such as 64MB"
    )
    iceberg: Iceberg | None = Field(
        default=None,
        description="Iceberg tables of the same files: catalog, namespace, changes, events, location, expire_days",
    )

    @field_validator("iceberg")
    @classmethod
    def _has_location(cls, iceberg: Iceberg | None, info: ValidationInfo) -> Iceberg | None:
        if iceberg is not None and not iceberg.location and _IS_WEBHDFS.match(info.data.get("folder", "")):
            raise ValueError("give location: the folder as engines name it, such as hdfs://nameservice/path")
        return iceberg

    @property
    def location(self) -> str:
        """The folder as engines name it, without a trailing slash."""
        if self.iceberg is not None and self.iceberg.location:
            return self.iceberg.location.rstrip("/")
        return f"file://{Path(self.folder.removeprefix('file://')).absolute()}"


class Rows(BaseModel):
    """A range of rows: `start` is included, `stop` is not; an empty one is the end of the table."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    start: str = ""
    stop: str = ""


class StreamSpec(BaseModel):
    """What to stream, from where to where, and how. Unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(
        title="Name",
        pattern=RUN_NAME,
        description="Names the run, its peer at the source and its position topic. An unfinished run is continued.",
    )
    source: Cluster | str = Field(
        title="Source", default="hbase_source", description="Airflow connection of type hbase."
    )
    kafka: KafkaSettings | str = Field(
        title="Kafka",
        default="kafka_default",
        description="Airflow connection of type kafka, whose extra has the client's settings; or bootstrap and client. "
        "Secrets belong in a connection.",
    )
    parquet: Parquet | None = Field(
        title="Parquet",
        default=None,
        description="A folder for Parquet files, instead of Kafka: folder (webhdfs://host:port;host:port/path, or a "
        "path), commit_seconds, commit_bytes, iceberg.",
    )
    tables: list[str] = Field(
        title="Tables",
        min_length=1,
        description="As ns:table; * stands for any characters, such as ns:* for the tables that a namespace has when "
        "the stream is started. More may be added to an unfinished stream.",
    )
    topic: str = Field(
        title="Topic",
        default="{namespace}.{table}",
        description="The topic of a table's changes; {namespace} and {table} are filled in.",
    )
    create_topics: CreateTopics | None = Field(
        title="Create topics",
        default=None,
        description="Create topics that do not exist, with so many partitions; null: refuse.",
    )
    positions: str = Field(
        title="Position topic", default="", description="The position topic. Default: walferry.NAME.positions."
    )
    epoch: int = Field(title="Epoch", default=1, ge=1, description="Every message has it. Raise it to begin anew.")
    bytes_as: BytesAs = Field(
        title="How bytes are given",
        default=BytesAs.BASE64,
        description="Rows, qualifiers and values: base64, hex or utf8.",
    )
    families: list[str] = Field(title="Families", default=[], description="Only cells of these families; empty: all.")
    columns: list[str] = Field(
        title="Columns", default=[], description="Only cells of these columns, as family:qualifier; empty: all."
    )
    rows: list[Rows] = Field(title="Row ranges", default=[], description="Only rows in these ranges; empty: all.")
    decode: str | None = Field(
        title="Decoder of values",
        default=None,
        pattern=r"^[\w.]+:\w+$",
        description="module:function that decodes values: called with table, family, qualifier and value, it returns "
        "what JSON can hold. It is called for each cell, which is slow.",
    )
    large_messages: str | None = Field(
        title="Folder for large messages",
        default=None,
        description="Folder for messages that are larger than their topic takes: webhdfs://host:port;host:port/path, "
        "or a path. "
        "The topic then gets a message that names the file. null: such a message holds its region, in quarantine.",
    )
    image: Literal["none", "after"] = Field(
        title="Images",
        default="none",
        description="after: each change also has the row as a reader saw it after the change, which the source is "
        "asked for.",
    )
    upsert_topic: str | None = Field(
        title="Upsert topic",
        default=None,
        description="A compacted topic that gets the last image of each changed row; {namespace} and {table} are "
        "filled in. It needs image: after.",
    )
    snapshot: bool = Field(
        title="Rows first",
        default=False,
        description="Send the rows that a table has when it joins the stream, from a snapshot, before its changes.",
    )
    resolved: float = Field(
        title="Resolved times, in seconds",
        default=10,
        ge=0,
        description="Each partition is told so often up to which moment everything was sent; 0: never.",
    )
    max_lag: int = Field(
        title="Largest lag, in seconds",
        default=30,
        ge=1,
        description="Largest lag, in seconds, that counts as following; with parquet, commit_seconds are added.",
    )
    throttle: Throttle = Field(
        title="Throttle",
        default=Throttle(),
        description="The most that is sent per second, until `walferry throttle` changes it: write_bytes (of messages) "
        "and write_cells; null: no limit.",
    )
    source_requests: SourceRequests = Field(
        title="Requests to the source",
        default=SourceRequests(),
        description="At most so many requests to the source per second.",
    )

    @field_validator("tables")
    @classmethod
    def _each_once(cls, tables: list[str]) -> list[str]:
        return table_patterns(tables, "streamed")

    @field_validator("topic", "upsert_topic")
    @classmethod
    def _fills_in(cls, template: str | None) -> str | None:
        if template is None:
            return None
        try:
            name = template.format(namespace="n", table="t")
        except (KeyError, IndexError, ValueError):
            raise ValueError("only {namespace} and {table} are filled in") from None
        if not _TOPIC_NAME.fullmatch(name):
            raise ValueError("a topic's name has letters, digits, '.', '_' and '-' only")
        return template

    @field_validator("upsert_topic")
    @classmethod
    def _is_of_images(cls, template: str | None, info: ValidationInfo) -> str | None:
        known = info.data
        if template is None or not known.keys() >= {"name", "tables", "topic", "positions", "image"}:
            return template
        if known["image"] == "none":
            raise ValueError("it needs image: after")
        others = {topic_of(known["topic"], table) for table in known["tables"]}
        others.add(known["positions"] or positions_topic(known["name"]))
        if shared := others & {topic_of(template, table) for table in known["tables"]}:
            raise ValueError(f"topic {min(shared)} has something else already: give upserts topics of their own")
        return template

    @field_validator("kafka")
    @classmethod
    def _without_secrets(cls, kafka: KafkaSettings | str) -> KafkaSettings | str:
        secrets = [name for name in kafka.client if is_secret(name)] if isinstance(kafka, KafkaSettings) else []
        if secrets:
            raise ValueError(f"{', '.join(secrets)}: a spec has no secrets; put them into a connection of type kafka")
        return kafka

    @field_validator("columns")
    @classmethod
    def _have_families(cls, columns: list[str]) -> list[str]:
        for column in columns:
            if ":" not in column:
                raise ValueError(f"{column!r} is not a column: give family:qualifier")
        return columns

    @property
    def upsert_topics(self) -> dict[str, str]:
        """The upsert topic of each table; empty without one."""
        if self.upsert_topic is None:
            return {}
        return {table: topic_of(self.upsert_topic, table) for table in self.tables}

    def topic_of(self, table: str) -> str:
        """The topic of a table's changes."""
        return topic_of(self.topic, table)

    @property
    def positions_topic(self) -> str:
        """The position topic."""
        return self.positions or positions_topic(self.name)

    @property
    def positions_place(self) -> str:
        """Where the positions are, for people."""
        return f"topic {self.positions_topic}" if self.parquet is None else f"folder {self.parquet.folder}"

    @property
    def iceberg_tables(self) -> TableNames | None:
        """The Iceberg tables; None if there are none."""
        wanted = None if self.parquet is None else self.parquet.iceberg
        if wanted is None:
            return None
        return TableNames(wanted.namespace, wanted.changes or self.name, wanted.events or f"{self.name}_events")

    @property
    def selection(self) -> Selection:
        """Which cells are sent."""
        columns = (column.partition(":") for column in self.columns)
        return Selection(
            tuple(family.encode() for family in self.families),
            tuple((family.encode(), qualifier.encode()) for family, _, qualifier in columns),
            tuple((rows.start.encode(), rows.stop.encode()) for rows in self.rows),
        )

    @property
    def creation(self) -> Creation | None:
        """How topics are created."""
        wanted = self.create_topics
        return None if wanted is None else Creation(wanted.partitions, wanted.replication)

    def decoder(self) -> Decode | None:
        """The user's function. Raises UsageError if there is no such function."""
        if self.decode is None:
            return None
        module, _, name = self.decode.partition(":")
        try:
            function: Decode = getattr(import_module(module), name)
        except (ImportError, AttributeError) as error:
            raise UsageError(f"decode: there is no function {self.decode}: {error}", decode=self.decode) from error
        return function


class ResolvedStreamSpec(StreamSpec):
    """A spec with its source resolved. Kafka's connection is read by each process, since it has secrets."""

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
        """Plain values for the ledger; validating them gives the same spec."""
        return self.model_dump(mode="json")


def load_stream_spec(path: Path) -> StreamSpec:
    """Read a spec from YAML. Raises UsageError, which names the file, the key and the fault."""
    return parse_stream_spec(read_yaml(path, "see stream.example.yaml"), origin=str(path))


def parse_stream_spec(content: Mapping[str, Any], *, origin: str) -> StreamSpec:
    """Validate the keys of a spec. Raises UsageError, which lists every fault."""
    if content.get("parquet") is not None and (others := [key for key in ONLY_KAFKA if content.get(key) is not None]):
        raise UsageError(
            f"{origin}: {', '.join(others)}: a stream goes to Kafka or into a folder: with the key parquet, leave out "
            "those of Kafka",
            origin=origin,
        )
    return parse_keys(StreamSpec, content, origin=origin)


def resolve_stream(spec: StreamSpec, connections: Connections) -> ResolvedStreamSpec:
    """Replace the source's connection id by its address, and patterns by the names of the tables that there are. What
    waits for the next commit to a folder counts as followed.

    Raises UsageError for a pattern without a table, and the errors of the client.
    """
    source = spec.source if isinstance(spec.source, Cluster) else connections(spec.source)
    names = tables_named(spec.tables, address_of(source, spec.source_requests))
    max_lag = spec.max_lag + (0 if spec.parquet is None else ceil(spec.parquet.commit_seconds))
    resolved = {"source": source.model_dump(), "tables": names, "max_lag": max_lag}
    return ResolvedStreamSpec.model_validate(spec.model_dump() | resolved)


def recorded_stream_spec(run: RunRecord) -> ResolvedStreamSpec:
    """The spec of a stream as the ledger recorded it. Raises UsageError, which names the run and the key."""
    return read_keys(ResolvedStreamSpec, run, run.spec)


def environment_secrets(connection_id: str) -> Connection:
    """A connection that has secrets, from this process's environment: `AIRFLOW_CONN_<ID>`."""
    return from_environment(
        connection_id, "name another one in the spec (instead of Kafka's: kafka: {bootstrap: host:port})"
    )


def catalog_settings(spec: StreamSpec, connections: SecretConnections = environment_secrets) -> CatalogSettings:
    """How to reach the catalogue of Iceberg tables, with its secrets. Raises UsageError."""
    assert spec.parquet is not None, "the stream goes to Kafka"
    assert spec.parquet.iceberg is not None, "it has no Iceberg tables"
    return catalog_of_connection(spec.parquet.iceberg.catalog, connections(spec.parquet.iceberg.catalog))


def kafka_settings(spec: StreamSpec, connections: SecretConnections = environment_secrets) -> KafkaSettings:
    """The settings of Kafka's client with their secrets, from the spec or from the connection that it names.

    A connection has the client's settings in its extra, as Airflow's Kafka provider has them; those of consumers'
    groups are left out. Login and password are those of SASL. Raises UsageError.
    """
    if isinstance(spec.kafka, KafkaSettings):
        return spec.kafka
    return settings_of_connection(spec.kafka, connections(spec.kafka))


def settings_of_connection(connection_id: str, known: Connection) -> KafkaSettings:
    """The settings of Kafka's client that a connection has. Raises UsageError, which never quotes a value."""
    left_out = {"bootstrap.servers", *OF_CONSUMERS}
    settings = {name: value for name, value in known.extra.items() if name not in left_out}
    hosts = known.host and ",".join(
        host if ":" in host else f"{host}:{known.port or 9092}" for host in known.host.split(",")
    )
    if known.login:
        settings.setdefault("sasl.username", known.login)
    if known.password:
        settings.setdefault("sasl.password", known.password)
    try:
        return KafkaSettings(bootstrap=known.extra.get("bootstrap.servers") or hosts or "", client=settings)
    except ValidationError as error:
        raise UsageError(f"connection {connection_id}: {describe_faults(error)}", connection=connection_id) from None
