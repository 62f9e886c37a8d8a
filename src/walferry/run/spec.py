"""The spec of a run: its keys, their defaults and their checks. Each key's description says what it does."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from difflib import get_close_matches
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from walferry.errors import UsageError
from walferry.hbase.address import ClusterAddress
from walferry.hbase.writer_kind import WriterKind
from walferry.request_meter import RequestRates
from walferry.security import Security
from walferry.security.spec import KerberosKeys, TlsKeys
from walferry.storage import open_file_system, plain_addresses, with_right_port

_HOST = r"(\[[0-9A-Fa-f:.]+\]|[^\s,:;/\[\]]+)"
_QUORUM = re.compile(rf"{_HOST}(:\d{{1,5}})?(,{_HOST}(:\d{{1,5}})?)*")
_HOST_AND_PORT = re.compile(rf"{_HOST}:\d{{1,5}}")
RUN_NAME = r"^[a-z][a-z0-9_]{0,39}$"
TABLE_NAME = r"^([A-Za-z0-9_]+:)?[A-Za-z0-9_][A-Za-z0-9_.-]*$"


class Cluster(BaseModel):
    """How to reach a cluster: the fields of an Airflow connection of type `hbase`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    zookeeper: str = Field(description="ZooKeeper quorum, host:port[,host:port…]")
    znode: str = Field(default="/hbase", description="zookeeper.znode.parent")
    webhdfs: str = Field(
        pattern=r"^https?://",
        description="WebHDFS of the NameNode, http://host:port; of several, separated by ;",
    )
    rootdir: str = Field(pattern=r"^([a-z0-9]+:/)?/", description="hbase.rootdir, for example hdfs://host:8020/hbase")
    waldir: str | None = Field(
        default=None,
        pattern=r"^([a-z0-9]+:/)?/.",
        description="hbase.wal.dir where it is set",
    )
    wal_webhdfs: str | None = Field(
        default=None,
        pattern=r"^https?://",
        validate_default=True,
        description="WebHDFS of the NameNode of waldir, if it is on another HDFS",
    )
    thrift: str | None = Field(default=None, description="Thrift server, host:port")
    user: str | None = Field(
        default=None, description="user name for HBase and HDFS where Kerberos is off; default: the OS user"
    )
    security: KerberosKeys | None = Field(default=None, description="who walferry is at a cluster with Kerberos")
    tls: TlsKeys | None = Field(default=None, description="which services are reached by TLS, and with which files")

    @field_validator("zookeeper")
    @classmethod
    def _is_a_quorum(cls, hosts: str) -> str:
        if not _QUORUM.fullmatch(hosts):
            raise ValueError("give host:port; separate several by commas, without spaces")
        return hosts

    @field_validator("thrift")
    @classmethod
    def _has_a_port(cls, server: str | None) -> str | None:
        if server is not None and not _HOST_AND_PORT.fullmatch(server):
            raise ValueError("give host:port")
        return server

    @field_validator("webhdfs", "rootdir", "waldir", "wal_webhdfs")
    @classmethod
    def _is_plain(cls, place: str | None, given: ValidationInfo) -> str | None:
        # An older walferry may have recorded what is refused today.
        plain = plain_addresses if str(given.field_name).endswith("webhdfs") else with_right_port
        return place if place is None or given.context else plain(place)

    @field_validator("wal_webhdfs")
    @classmethod
    def _reaches_the_logs(cls, webhdfs: str | None, given: ValidationInfo) -> str | None:
        root, wal = urlsplit(given.data.get("rootdir") or ""), urlsplit(given.data.get("waldir") or "")
        if webhdfs is None and root.netloc and wal.netloc and (root.scheme, root.netloc) != (wal.scheme, wal.netloc):
            raise ValueError("waldir is on another file system than rootdir: give the WebHDFS of its NameNode")
        if webhdfs is not None and not given.data.get("waldir"):
            raise ValueError("it is for a waldir on another HDFS than rootdir: give `waldir`, or leave this out")
        return webhdfs

    @field_validator("security")
    @classmethod
    def _is_the_only_identity(cls, security: KerberosKeys | None, given: ValidationInfo) -> KerberosKeys | None:
        if security is not None and given.data.get("user") is not None:
            raise ValueError("the user is that of the principal; leave `user` out")
        return security

    @field_validator("tls")
    @classmethod
    def _is_used(cls, tls: TlsKeys | None, given: ValidationInfo) -> TlsKeys | None:
        urls = f"{given.data.get('webhdfs')} {given.data.get('wal_webhdfs')}"
        if tls is not None and not (tls.rpc or tls.zookeeper or "https://" in urls):
            raise ValueError("no service uses it: set its `rpc` or `zookeeper`, or give `webhdfs` a https URL")
        return tls

    def address(self) -> ClusterAddress:
        """The address, for the client."""
        fields = self.model_dump(exclude_none=True, exclude={"security", "tls"})
        kerberos = None if self.security is None else self.security.kerberos()
        if kerberos is not None and kerberos.user is not None:
            fields["user"] = kerberos.user
        return ClusterAddress(**fields, security=Security(kerberos, None if self.tls is None else self.tls.tls()))


class TablePair(BaseModel):
    """A source table and its name at the target."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    source: str = Field(pattern=TABLE_NAME)
    target: str = Field(pattern=TABLE_NAME)

    @field_validator("source", "target")
    @classmethod
    def _plain_name(cls, name: str) -> str:
        # HBase omits the default namespace; one spelling avoids two names for one table.
        return name.removeprefix("default:")


def _table_pair(value: Any) -> Any:
    return {"source": value, "target": value} if isinstance(value, str) else value


Table = Annotated[
    TablePair,
    BeforeValidator(_table_pair, json_schema_input_type=Annotated[str, Field(pattern=TABLE_NAME)] | TablePair),
]


class TimeWindow(BaseModel):
    """A span of write time: `start` is included, `end` is not. Times without a zone are UTC."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    start: datetime = Field(alias="from", title="From", description="Start of the window, UTC.")
    end: datetime = Field(alias="to", title="To", description="End of the window, not included.")

    @field_validator("start", "end")
    @classmethod
    def _in_utc(cls, moment: datetime) -> datetime:
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)

    @model_validator(mode="after")
    def _ends_after_its_start(self) -> TimeWindow:
        if self.end <= self.start:
            raise ValueError(f"the window's end {self.end.isoformat()} is not after its start {self.start.isoformat()}")
        return self

    @property
    def start_ms(self) -> int:
        """First millisecond in it."""
        return round(self.start.timestamp() * 1000)

    @property
    def end_ms(self) -> int:
        """First millisecond after it."""
        return round(self.end.timestamp() * 1000)

    def __str__(self) -> str:
        return f"[{self.start:%Y-%m-%dT%H:%M:%S}Z, {self.end:%Y-%m-%dT%H:%M:%S}Z)"


class SourceRequests(BaseModel):
    """How many requests per second a run may send to the source; None: no limit."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    namenode: float | None = Field(default=None, ge=10, description="to the NameNode: listings, opened files")
    zookeeper: float | None = Field(default=None, ge=10, description="to ZooKeeper: servers, the peer's queues")
    region_servers: float | None = Field(
        default=None, ge=10, description="to the region servers and the master: rolls, scans of 2 MB each"
    )

    def rates(self) -> RequestRates:
        """The same, for the client."""
        return RequestRates(**self.model_dump())


_RATE = re.compile(r"(\d+(?:\.\d+)?) ?([kKMGT]?)(i?)B?(?:/s)?")


def rate(value: Any) -> Any:
    """Parse a rate per second: 50000, 50k, 20MB, 64MiB/s. Raises ValueError for other text, and unless above 0."""
    if isinstance(value, str):
        found = _RATE.fullmatch(value.strip())
        if found is None:
            raise ValueError("give a number per second, such as 50000, 50k, 20MB or 64MiB")
        number, unit, binary = found.groups()
        value = float(number) * (1024 if binary else 1000) ** " kMGT".index(unit.replace("K", "k") or " ")
    if isinstance(value, bool) or (isinstance(value, (int, float)) and not 0 < value < float("inf")):
        raise ValueError("give a number above 0")
    return value


_Rate = Annotated[float, BeforeValidator(rate, json_schema_input_type=float | str)]


class Throttle(BaseModel):
    """How much all processes of a run together may write to the target per second; None: no limit."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    write_bytes: _Rate | None = Field(default=None, description="bytes of cells, or of HFiles with cells: 20MB")
    write_cells: _Rate | None = Field(default=None, description="cells: 50000")


class Options(BaseModel):
    """The options of a run. Each key's default is defined only here."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    apply: Literal["auto", "bulk"] | WriterKind = Field(
        default="auto",
        title="How edits are applied",
        description="auto: by rpc, or in bulk where there is much log. bulk: as HFiles. thrift: without tags; "
        "then no table can be copied again.",
    )
    history: Literal["clone", "bulk"] = Field(
        default="clone",
        title="How the snapshot gets to the target",
        description="clone: its files are copied and cloned. bulk: its cells are loaded as HFiles.",
    )
    protect: Literal["peer", "stage"] = Field(
        default="peer",
        title="What keeps the source's WALs",
        description="peer: a disabled replication peer of the run's own. stage: copies of them in the folder `stage`.",
    )
    stage: str | None = Field(
        default=None,
        title="Folder for copies of WALs",
        description="For stage: webhdfs://host:port/path, the host:port of several NameNodes separated by ; or a path "
        "that the Spark workers see, too.",
    )
    write_stop: Literal["confirm", "readonly"] = Field(
        default="confirm",
        title="How writes stop",
        description="confirm: you stop the writers and say so. readonly: the source tables become READONLY.",
    )
    compare: Literal["auto", "snapshots", "scans"] = Field(
        default="scans",
        title="How both sides are compared",
        description="scans: of the region servers. snapshots: from files of both sides. auto: by size and family.",
    )
    max_lag: int = Field(
        default=30,
        ge=1,
        title="Largest lag, in seconds",
        description="Cutover is offered at or below it. It also steers: a round of the replay begins a quarter "
        "of it after the last one (2 to 60 s, or 2 s after much log); `walferry replay NAME` ends at or "
        "below it; tables are compared ahead and copied again only while the lag is "
        "at or below it; a whole comparison waits up to three times as long for the log; rows that differ in a pair or "
        "for the second reader are read again until it has passed; a lag that is five minutes longer raises an alert.",
    )
    max_comparison_age: int | None = Field(
        default=None,
        ge=1,
        title="Oldest comparison, in seconds",
        description="Cutover is offered only if each table was compared within this time; null: no such limit. With "
        "`compare_ahead`, tables are compared as a whole again before their comparison is that old.",
    )
    follow: bool = Field(
        default=True,
        title="Follow open logs",
        description="Edits in open logs are sent at once, so the target is about a second behind. Without it, "
        "edits are sent in rounds only, once their logs are closed.",
    )
    compare_ahead: bool = Field(
        default=True,
        title="Compare before the cutover",
        description="While the log is followed, each table is compared as a whole, then what was written since. "
        "Cutover is not offered before that. Without it, the write stop includes a whole comparison, and rows are not "
        "repaired by themselves before it.",
    )
    spot_check: int = Field(
        default=1000,
        ge=0,
        title="Rows for the second reader",
        description="After a comparison, HBase's own Java client also reads about this many rows of each table, if the "
        "Thrift servers of both clusters are known; 0: none.",
    )
    repair: Literal["auto", "ask"] = Field(
        default="auto",
        title="Repair of rows that differ",
        description="auto: while the log is followed, and in the write stop, rows are made equal to the source's. "
        "ask: only on `walferry repair`.",
    )
    unlogged_writes: Literal["compare", "recent", "ignore"] = Field(
        default="compare",
        title="Writes that skip the log",
        description="compare: if a server counts new ones (SKIP_WAL), its regions are compared again. recent: only "
        "those of their rows whose cells with timestamps since then are not the same on both sides; writes with older "
        "timestamps wait for a whole comparison (`max_comparison_age`). ignore: other tables of those servers have "
        "them, and all such writes wait for a whole comparison.",
    )
    source_requests: SourceRequests = Field(
        default=SourceRequests(),
        title="Requests to the source",
        description="At most this many per second, to namenode, zookeeper and region_servers; null: no limit. "
        "The driver may send half of them, its Spark workers together the other half.",
    )
    throttle: Throttle = Field(
        default=Throttle(),
        title="Throttle",
        description="The most that is written to the target per second, until `walferry throttle` changes it: "
        "write_bytes and write_cells; null: no limit. Copied files do not count.",
    )
    window: TimeWindow | None = Field(
        default=None, title="Window", description="For replays of a window; a migration has none."
    )

    @field_validator("apply", mode="before")
    @classmethod
    def _known_writer(cls, asked: Any) -> Any:
        known = ["auto", "bulk", *(kind.value for kind in WriterKind)]
        if asked not in known:
            raise ValueError(f"it can be {', '.join(known[:-1])} or {known[-1]}")
        return asked


class Spec(Options):
    """What to move, from where to where, and how. Unknown keys are errors."""

    name: str = Field(
        pattern=RUN_NAME,
        title="Name",
        description="Names the run and every object that it creates on the clusters. "
        "An unfinished run of that name is continued.",
    )
    source: Cluster | str = Field(
        default="hbase_source", title="Source", description="Airflow connection of type hbase."
    )
    target: Cluster | str = Field(
        default="hbase_target", title="Target", description="Airflow connection of type hbase."
    )
    tables: list[Table] = Field(
        min_length=1,
        title="Tables",
        description='As ns:table, or {"source": "ns:a", "target": "ns:b"} for another name at the target.',
    )

    @field_validator("tables")
    @classmethod
    def _each_table_once(cls, tables: list[TablePair]) -> list[TablePair]:
        for side in ("source", "target"):
            names = [getattr(pair, side) for pair in tables]
            doubles = sorted({name for name in names if names.count(name) > 1})
            if doubles:
                raise ValueError(f"{side} table named twice: {', '.join(doubles)}")
        system = [pair.source for pair in tables if pair.source.startswith("hbase:")]
        if system:
            raise ValueError(f"system tables are not migrated: {', '.join(system)}")
        return tables

    @model_validator(mode="after")
    def _stage_has_a_folder(self) -> Spec:
        if self.protect != "stage":
            if self.stage is not None:
                raise ValueError("stage: only `protect: stage` copies WALs to a folder")
            return self
        if self.stage is None:
            raise ValueError("protect: stage needs a folder (stage: webhdfs://host:port/path)")
        try:
            require_folder(self.stage)
        except ValueError as error:
            raise ValueError(f"stage: {error}") from None
        return self


def require_folder(url: str) -> None:
    """Raise ValueError unless this is the URL or the path of a folder for copies of WALs."""
    try:
        _, path = open_file_system(url)
    except UsageError as error:
        raise ValueError(str(error)) from None
    if not path.startswith("/") or not path.strip("/"):
        raise ValueError("give the whole path of a folder")
    if any(sign in url for sign in "#?%"):
        raise ValueError("a folder whose path has #, ? or % cannot be written as a URL")
    if {"WALs", "oldWALs"} & set(path.split("/")):
        raise ValueError("a folder of HBase's own, which deletes unknown files there")


def table_patterns(tables: Sequence[str], done: str) -> list[str]:
    """Names of tables, or patterns with `*`, without the namespace `default`.

    Raises ValueError for one that is no name, is named twice, or is a system table. `done`: what is not done with
    those.
    """
    names = [name.removeprefix("default:") for name in tables]
    for name in names:
        if not re.fullmatch(TABLE_NAME, name.replace("*", "x")):
            raise ValueError(f"{name!r} is not the name of a table: give ns:table")
        if names.count(name) > 1:
            raise ValueError(f"{name} is named twice")
        if name.startswith("hbase:"):
            raise ValueError(f"system tables are not {done}: {name}")
    return names


class LogSpec(BaseModel):
    """What every run that follows a log has recorded, whatever it does with the log; other keys are ignored."""

    model_config = ConfigDict(frozen=True)

    source: Cluster
    tables: list[Table]
    protect: Literal["peer", "stage"] = "peer"
    stage: str | None = None
    source_requests: SourceRequests = SourceRequests()

    def source_address(self, workers: int = 0) -> ClusterAddress:
        """The source for the driver or, with `workers`, for each of that many Spark workers.

        The driver may send half of the requests that `source_requests` allows; the workers share the other half.
        """
        address = replace(self.source.address(), rates=self.source_requests.rates())
        return address.shared_by(2 * max(1, workers))


def address_of(source: Cluster, requests: SourceRequests) -> ClusterAddress:
    """A source for the driver of a spec that is not recorded yet."""
    return LogSpec(source=source, tables=[], source_requests=requests).source_address()


class ResolvedSpec(Spec):
    """A spec with its connections resolved, so that every process of the run uses the same addresses."""

    source: Cluster
    target: Cluster

    @model_validator(mode="after")
    def _thrift_has_an_address(self) -> ResolvedSpec:
        if self.writer_kind is WriterKind.THRIFT and self.target.thrift is None:
            raise ValueError("apply: thrift needs the address of the target's Thrift server (thrift: host:port)")
        return self

    def source_address(self) -> ClusterAddress:
        """The source for the driver."""
        return self.log().source_address()

    def log(self) -> LogSpec:
        """The part about the source's log."""
        return LogSpec(
            source=self.source, tables=self.tables, protect=self.protect, stage=self.stage,
            source_requests=self.source_requests,
        )  # fmt: skip

    @property
    def writer_kind(self) -> WriterKind:
        """The protocol that sends edits to the target, unless they go in bulk."""
        return self.apply if isinstance(self.apply, WriterKind) else WriterKind.RPC

    def as_recorded(self) -> dict[str, Any]:
        """Plain values for the ledger; validating them gives the same spec."""
        return self.model_dump(mode="json", by_alias=True)


def describe_faults(error: ValidationError) -> str:
    """Pydantic's findings in one line, without the values given (they may be secrets)."""
    faults = []
    for fault in error.errors(include_url=False):
        if fault["loc"][-1:] == ("str",) and isinstance(fault["input"], dict):
            continue  # the cluster is given as a mapping, so "not a connection id" is no fault
        place = ".".join(str(part) for part in fault["loc"] if part not in ("Cluster", "str")) or "spec"
        if fault["type"] == "model_type":
            message = "give a mapping of keys"
        else:
            message = fault["msg"].removeprefix("Value error, ")
        faults.append(f"{place}: {unknown_key(fault['loc'][-1]) if fault['type'] == 'extra_forbidden' else message}")
    return "; ".join(dict.fromkeys(faults))


def unknown_key(key: object) -> str:
    """The message for an unknown key; it suggests the known key that this one resembles."""
    models = (Spec, Cluster, KerberosKeys, TablePair, TimeWindow, SourceRequests, Throttle)
    known = {field.alias or name for model in models for name, field in model.model_fields.items()}
    if key in known:
        return "this key does not belong here"
    alike = get_close_matches(str(key), known, n=1, cutoff=0.75)
    return f"unknown key; did you mean {alike[0]}?" if alike else "unknown key"
