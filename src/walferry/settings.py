"""Every variable of the environment that walferry reads: a model for each reader.

    Places.read().reports

`read` takes the values from the environment of this process. Only the edges call it, where a process starts: the
command, Airflow's tasks, Spark apps, a `Run`. They pass plain values on, also to Spark's workers. One module below
them, `wal.keys`, reads the environment itself, in each process that opens an encrypted WAL. docs/settings.md is made
from these models.
"""

from __future__ import annotations

import difflib
import logging
import os
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, SecretStr, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from walferry.errors import UsageError

log = logging.getLogger(__name__)

PREFIX = "WALFERRY_"


def variable_of(field: str) -> str:
    """The variable that a field of a model is read from."""
    return f"{PREFIX}{field.upper()}"


Count = Annotated[int, Field(ge=1)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
FromZero = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Port = Annotated[int, Field(ge=1, le=65_500)]
Cron = Annotated[str, Field(pattern=r"^(@[a-z]+|\S+( +\S+){4,5})$", json_schema_extra={"format": "cron"})]


class Variables(BaseSettings):
    """Some variables that are read together. The variable of the field `lanes` is WALFERRY_LANES."""

    model_config = SettingsConfigDict(alias_generator=variable_of, case_sensitive=True, frozen=True)

    @classmethod
    def read(cls) -> Self:
        """The values in the environment of this process.

        Raises UsageError that names the variable, its value unless that is a secret, and what is allowed.
        """
        try:
            return cls()
        except ValidationError as error:
            wrong = {str(fault["loc"][0]): fault["input"] for fault in error.errors()}
        rules = cls.model_json_schema()["properties"]
        said = [
            f"{name} {'is wrong' if is_secret(rules[name]) else f'is {value!r}'}: give {allowed(rules[name])}"
            for name, value in wrong.items()
        ]
        raise UsageError("; ".join(said), variables=sorted(wrong))


class Places(Variables):
    """Places"""

    model_config = SettingsConfigDict(env_ignore_empty=True)

    ledger: SecretStr = Field(
        default=SecretStr("sqlite:///.run/ledger.db"),
        description="URL of the ledger: `sqlite:////path/of/ledger.db` or `postgresql+psycopg2://user@host/db`",
    )
    reports: Path = Field(
        default=Path(".run/reports"), description="folder for reports and, in `data_docs`, for Data Docs"
    )
    cache: Path = Field(
        default=Path("~/.cache/walferry"),
        description="folder for downloads of the embedded servers, such as HBase's jars; all checkouts share it",
    )


class LogTimes(Variables):
    """Times of the source's log"""

    clock_skew_seconds: FromZero = Field(
        default=60,
        description="a window is complete this long after its end: at least the largest difference between the "
        "source's clocks, and the longest time that an edit takes to reach its file. `receive.history` waits for twice "
        "that; there this process's clock counts, too",
    )
    keep_hours: FromZero = Field(
        default=24,
        description="how long a run keeps WALs that it has applied, to replay windows again and to explain differences",
    )

    @property
    def clock_skew_ms(self) -> int:
        """`clock_skew_seconds` in ms"""
        return round(self.clock_skew_seconds * 1000)


class Writing(Variables):
    """What is sent to the target at a time"""

    request_aim_bytes: Count = Field(
        default=1 << 20,
        description="a request is full at this many bytes of cells; an entry's cells of one row stay together up to "
        "`WALFERRY_REQUEST_BYTES`",
    )
    request_bytes: Count = Field(
        default=4 << 20, description="most bytes of cells in one request; a larger cell is sent alone"
    )
    request_mutations: Count = Field(
        default=5_000,
        description="most mutations in one request; a region server warns about more "
        "(`hbase.rpc.rows.warning.threshold`)",
    )
    lanes: Count = Field(
        default=4, description="connections for each piece of a WAL group, each with one request under way"
    )
    read_ahead: Count = Field(
        default=2, description="batches of entries that may wait for each lane while the file is read"
    )
    read_ahead_bytes: Count = Field(
        default=64 << 20, description="bytes of batches that wait in all lanes of a piece; a larger batch waits alone"
    )
    piece_bytes: Count = Field(
        default=256 << 20,
        description="bytes of files, or of cells to be sorted, in one piece; a larger file is a piece of its own",
    )
    here_bytes: Count = Field(
        default=1 << 30,
        description="most bytes of a window, a copy or a comparison that a process does without Spark",
    )
    request_seconds: Seconds = Field(default=30, description="deadline of a request")
    settle_seconds: Seconds = Field(
        default=10, description="wait after a request whose outcome is unknown, until its server has ended it"
    )
    claim_seconds: Seconds = Field(default=10, description="how long a lease counts as held after it was confirmed")


class ZooKeeperSession(Variables):
    """ZooKeeper"""

    zookeeper_session_seconds: Seconds = Field(
        default=30, description="timeout of a run's sessions: the leases of a killed process are free after this time"
    )


class WalKeys(Variables):
    """Keys of encrypted WALs"""

    model_config = SettingsConfigDict(env_ignore_empty=True)

    wal_key_store: SecretStr | None = Field(
        default=None,
        description="a key store as in the source's `hbase.crypto.keyprovider.parameters`: `jceks:///path?password=…` "
        "or `pkcs12:///path?passwordFile=/path` (lines `alias=password`), with paths on this machine",
    )
    wal_key_name: str = Field(
        default="",
        description="the names of keys in it, separated by commas: the source's `hbase.crypto.wal.key.name`, "
        "`hbase.crypto.master.key.name` and `hbase.crypto.master.alternate.key.name`; without it, all "
        "keys are tried",
    )
    wal_key_hex: SecretStr | None = Field(
        default=None, description="instead of a store: the key, as 32, 48 or 64 hex digits"
    )
    wal_key_damaged: str = Field(
        default="",
        description="names of WAL files, separated by commas, whose own key is damaged: such a file counts as damaged "
        "from its start",
    )


class SparkJobs(Variables):
    """Spark"""

    shuffle_partitions: Count = Field(default=4, description="`spark.sql.shuffle.partitions` of walferry's sessions")
    environments: Path | None = Field(
        default=None,
        description="folder in which a Spark worker's machine unpacks the packed environment, by the environment of "
        "the worker; default: `walferry-<uid>` in the temp folder",
    )


class Schedules(Variables):
    """Schedules of the DAGs"""

    replay_cron: Cron = Field(default="0 * * * *", description="when `hbase_wal_replay` replays a window, in UTC")
    verify_cron: Cron = Field(
        default="*/5 * * * *",
        description="when `hbase_verify` does a pass, in UTC: more often than the source deletes closed logs (by "
        "HBase's default, after ten minutes)",
    )


class EmbeddedServers(Variables):
    """The servers of `make up`, the demo and the tests"""

    model_config = SettingsConfigDict(env_ignore_empty=True)

    source_version: str | None = Field(
        default=None, description="the source's HBase; default: the newest that can be booted"
    )
    target_version: str | None = Field(
        default=None, description="the target's HBase; default: the newest that can be booted"
    )
    port_base: Port | None = Field(
        default=None, description="source from this port on, target from +10, Airflow at +20; default: free ports"
    )
    spark_master: str = Field(default="local[*]", description="master of the Airflow connection `spark_default`")
    spark_workers: Annotated[int, Field(ge=0)] = Field(
        default=0, description="number of workers of a standalone Spark that is booted instead; 0: none"
    )
    security: Literal["kerberos"] | None = Field(
        default=None, description="what source and target of `make up` are secured with; default: nothing"
    )
    jvm_flags: str = Field(default="", description="more options of each server's JVM, as a shell splits them")


class OwnTests(Variables):
    """The tests and their fixtures"""

    model_config = SettingsConfigDict(env_ignore_empty=True)

    pictures: Path | None = Field(default=None, description="folder to which the tests of the board save its pictures")
    fixtures: Path | None = Field(
        default=None, description="folder to which `make_encoded.py` writes; default: its own"
    )
    more_jars: str = Field(
        default="", description="jars that the makers of fixtures need beside HBase's, as a class path"
    )
    tests_outcome: Path | None = Field(default=None, description="file to which each session of tests adds its outcome")
    chaos: str = Field(default="", description="marks the processes of one run of `make chaos`")
    measured: str = Field(default="", description="marks the processes whose memory a test measures")


MODELS: tuple[type[Variables], ...] = (
    Places, LogTimes, Writing, ZooKeeperSession, WalKeys, SparkJobs, Schedules, EmbeddedServers, OwnTests
)  # fmt: skip


_FORMATS = {"path": "a path", "cron": "a cron expression", "password": "text, which no message shows"}
_TYPES = {"integer": "a whole number", "number": "a number", "string": "text"}
_BOUNDS = {"minimum": "from {:g}", "exclusiveMinimum": "above {:g}", "maximum": "to {:g}"}


def allowed(rule: Mapping[str, Any]) -> str:
    """What may be given for a variable, by its part of the model's JSON schema: "a whole number from 1"."""
    rule = rule.get("anyOf", [rule])[0]
    if "const" in rule:
        return f"`{rule['const']}`"
    kind = _FORMATS.get(rule.get("format", "")) or _TYPES[rule["type"]]
    return " ".join([kind, *(text.format(rule[key]) for key, text in _BOUNDS.items() if key in rule)])


def is_secret(rule: Mapping[str, Any]) -> bool:
    """Whether a variable may hold a password or a key, by its part of the model's JSON schema."""
    return bool(rule.get("anyOf", [rule])[0].get("format") == "password")


def known_variables() -> list[str]:
    """The names of all variables."""
    return [variable_of(field) for model in MODELS for field in model.model_fields]


def unknown_variables(names: Iterable[str]) -> dict[str, str]:
    """The names that begin with WALFERRY_ but are not walferry's variables, each with the variable whose name is
    nearest."""
    known = known_variables()
    unknown = sorted(name for name in names if name.startswith(PREFIX) and name not in known)
    return {name: difflib.get_close_matches(name, known, n=1, cutoff=0)[0] for name in unknown}


@cache
def warn_of_unknown_variables() -> None:
    """Log a warning for each WALFERRY_ variable of this process's environment that nothing reads, once."""
    for name, nearest in unknown_variables(os.environ).items():
        log.warning("the variable %s is unknown and has no effect: the nearest known one is %s", name, nearest)
