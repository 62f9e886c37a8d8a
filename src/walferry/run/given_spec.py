"""The spec as a person gives it: one YAML file, or the same keys as DAG params, and the connections that it names."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import parse_qsl, unquote, urlsplit

import yaml
from pydantic import BaseModel, ValidationError

from walferry.errors import UsageError
from walferry.hbase.address import ClusterAddress
from walferry.hbase.client import HBaseClient
from walferry.run.pair_spec import PairSpec, ResolvedPairSpec
from walferry.run.receive_spec import ReceiveSpec, ResolvedReceiveSpec
from walferry.run.setup_spec import ResolvedSetupSpec, SetupSpec
from walferry.run.spec import Cluster, ResolvedSpec, Spec, describe_faults
from walferry.security.spec import KerberosKeys, TlsKeys

Connections = Callable[[str], Cluster]
Keys = TypeVar("Keys", bound=BaseModel)


def load_spec(path: Path) -> Spec:
    """Read a spec from YAML. Raises UsageError, which names the file, the key and the fault."""
    return parse_spec(read_yaml(path, "see migration.example.yaml"), origin=str(path))


def load_pair_spec(path: Path) -> PairSpec:
    """Read a pair's spec from YAML, as `load_spec` does."""
    return parse_keys(PairSpec, read_yaml(path, "see migration.example.yaml"), origin=str(path))


def load_setup_spec(path: Path) -> SetupSpec:
    """Read a setup's spec from YAML, as `load_spec` does."""
    return parse_keys(SetupSpec, read_yaml(path, "see setup.example.yaml"), origin=str(path))


def resolve_setup(spec: SetupSpec, connections: Connections) -> ResolvedSetupSpec:
    """Replace connection ids by the clusters' addresses, as `resolve` does."""
    return _resolved_as(ResolvedSetupSpec, spec, connections)


def resolve_receive(spec: ReceiveSpec, connections: Connections) -> ResolvedReceiveSpec:
    """Replace connection ids by the clusters' addresses, as `resolve` does."""
    return _resolved_as(ResolvedReceiveSpec, spec, connections)


def read_yaml(path: Path, otherwise: str) -> dict[str, Any]:
    """Read the keys of a spec. Raises UsageError, which names the file and says where it is no YAML; `otherwise`: what
    to do if it has no keys."""
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"cannot read the spec {path}: {error.strerror}", file=str(path)) from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not UTF-8 at byte {error.start}", file=str(path)) from error
    except yaml.YAMLError as error:
        # The error's full text quotes the file, which may hold secrets.
        mark = getattr(error, "problem_mark", None)
        where = f" in line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        what = getattr(error, "problem", None) or "unreadable"
        raise UsageError(f"{path} is not YAML{where}: {what}", file=str(path)) from error
    if not isinstance(content, dict):
        raise UsageError(f"{path} is not a mapping of keys; {otherwise}", file=str(path))
    return content


def parse_spec(content: Mapping[str, Any], *, origin: str) -> Spec:
    """Validate the keys of a spec. Raises UsageError, which lists every fault; `origin` says where the keys were
    given."""
    return parse_keys(Spec, content, origin=origin)


def parse_keys(model: type[Keys], content: Mapping[str, Any], *, origin: str) -> Keys:
    """Validate the keys of any kind of spec, as `parse_spec` does."""
    try:
        return model.model_validate(content)
    except ValidationError as error:
        raise UsageError(f"{origin}: {describe_faults(error)}", origin=origin) from None


def tables_named(wanted: Sequence[str], source: ClusterAddress) -> list[str]:
    """The tables that are named, and those of the source that match a pattern with `*`, each once.

    Raises UsageError for a pattern without a table, and the errors of the client.
    """
    if not any("*" in name for name in wanted):
        return list(wanted)
    with HBaseClient(source) as client:
        return matching_tables(wanted, client.tables())


def matching_tables(wanted: Sequence[str], there: Sequence[str]) -> list[str]:
    """The tables that are named, or match a pattern with `*`, each once. Raises UsageError for a pattern without a
    table."""
    found: dict[str, None] = {}
    for name in wanted:
        matching = [table for table in there if fnmatchcase(table, name)] if "*" in name else [name]
        if not matching:
            raise UsageError(f"no table of the source matches {name}", pattern=name)
        found |= dict.fromkeys(matching)
    return list(found)


def refuse_window(spec: Spec, origin: str) -> None:
    """Raise UsageError for a spec with a window: a migration replays all of the log."""
    if spec.window is not None:
        raise UsageError(
            f"{origin}: window: a migration has none; to replay one, use `walferry replay --from … --to …`",
            origin=origin,
        )


def with_window(spec: Spec, window: Mapping[str, str]) -> Spec:
    """The spec with a window ("from", "to": ISO 8601). Raises UsageError for one that cannot be parsed."""
    return parse_spec(spec.model_dump(by_alias=True) | {"window": dict(window)}, origin="window")


def resolve(spec: Spec, connections: Connections) -> ResolvedSpec:
    """Replace connection ids by the clusters' addresses; of a pair's spec, into a ResolvedPairSpec."""
    return _resolved_as(ResolvedPairSpec if isinstance(spec, PairSpec) else ResolvedSpec, spec, connections)


def _resolved_as(model: type[Keys], spec: Spec, connections: Connections) -> Keys:
    clusters = {
        side: cluster if isinstance(cluster, Cluster) else connections(cluster)
        for side, cluster in (("source", spec.source), ("target", spec.target))
    }
    keys = spec.model_dump(by_alias=True) | {side: cluster.model_dump() for side, cluster in clusters.items()}
    try:
        return model.model_validate(keys)
    except ValidationError as error:
        raise UsageError(describe_faults(error)) from error


_OF_CONNECTIONS = ("znode", "webhdfs", "rootdir", "waldir", "wal_webhdfs", "thrift", "user")


def cluster_from_connection(
    connection_id: str, host: str | None, port: int | None, extra: Mapping[str, Any], login: str | None = None
) -> Cluster:
    """Read a connection of type `hbase`: `host` is the ZooKeeper quorum, `port` is for hosts that name none, and
    `extra` has the rest."""
    if not host:
        raise UsageError(
            f"connection {connection_id} has no host: set it to the ZooKeeper quorum", connection=connection_id
        )
    quorum = ",".join(part if ":" in part else f"{part}:{port or 2181}" for part in map(str.strip, host.split(",")))
    known = {key: extra[key] for key in _OF_CONNECTIONS if extra.get(key)}
    security = {key: extra[key] for key in KerberosKeys.model_fields if extra.get(key)}
    security |= _nested(connection_id, extra, "security")
    if security:
        known["security"] = security
    elif login:
        known.setdefault("user", login)
    tls = {key: extra[f"tls_{key}"] for key in TlsKeys.model_fields if extra.get(f"tls_{key}")}
    tls |= _nested(connection_id, extra, "tls")
    if tls:
        known["tls"] = tls
    try:
        return Cluster(zookeeper=quorum, **known)
    except ValidationError as error:
        raise UsageError(f"connection {connection_id}: {describe_faults(error)}", connection=connection_id) from error


def _nested(connection_id: str, extra: Mapping[str, Any], name: str) -> dict[str, Any]:
    """A mapping as the spec has it: a form has one level of fields, but JSON may have it, and a URI as text."""
    given = extra.get(name) or {}
    try:
        found = json.loads(given) if isinstance(given, str) else given
    except json.JSONDecodeError:
        found = None
    if not isinstance(found, Mapping):
        message = f"connection {connection_id}: {name} must be a mapping, as in a spec"
        raise UsageError(message, connection=connection_id)
    return dict(found)


@dataclass(frozen=True)
class Connection:
    """The fields of an Airflow connection. The password is a secret: it is in no text of this object."""

    host: str | None
    port: int | None
    login: str | None
    password: str | None = field(repr=False)
    extra: Mapping[str, Any] = field(repr=False)


def environment_connection(connection_id: str) -> Cluster:
    """Read a connection of type `hbase` from `AIRFLOW_CONN_<ID>`, as JSON or URI, as Airflow does."""
    known = from_environment(connection_id, "write the cluster into the spec")
    return cluster_from_connection(connection_id, known.host, known.port, known.extra, known.login)


def from_environment(connection_id: str, otherwise: str) -> Connection:
    """Read a connection of any type from `AIRFLOW_CONN_<ID>`, as JSON or URI, as Airflow does.

    Raises UsageError, which never quotes the variable's value; `otherwise`: what else the user can do.
    """
    variable = f"AIRFLOW_CONN_{connection_id.upper()}"
    text = os.environ.get(variable)
    if not text:
        raise UsageError(
            f"connection {connection_id} is not known: set {variable}, or {otherwise}", connection=connection_id
        )
    try:
        return _json_connection(text) if text.lstrip().startswith("{") else _uri_connection(text)
    except (ValueError, TypeError, AttributeError):
        # The error's own text may quote the value, and with it a password.
        raise UsageError(f"{variable} is neither Airflow's JSON nor its URI format", connection=connection_id) from None


def _json_connection(text: str) -> Connection:
    fields = json.loads(text)
    extra = fields.get("extra") or {}
    port = fields.get("port")
    return Connection(
        fields.get("host"),
        int(port) if port else None,
        fields.get("login"),
        fields.get("password"),
        dict(json.loads(extra) if isinstance(extra, str) else extra),
    )


def _uri_connection(text: str) -> Connection:
    """`hbase://login@host:port/?key=value`, each part percent-encoded; several hosts are one encoded part."""
    parts = urlsplit(text)
    credentials, _, place = parts.netloc.rpartition("@")
    host, _, port = (place, "", "") if "," in place else place.partition(":")
    extra = dict(parse_qsl(parts.query))
    if "__extra__" in extra:  # Airflow writes extras here that a query cannot hold
        extra = json.loads(extra["__extra__"])
    login, _, password = credentials.partition(":")
    return Connection(
        unquote(host), int(port) if port else None, unquote(login) or None, unquote(password) or None, extra
    )
