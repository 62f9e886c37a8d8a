"""The spec of a run to which a source replicates as to a cluster of its own kind: `walferry receive`."""

from __future__ import annotations

import re
import socket
from dataclasses import replace
from datetime import UTC
from typing import Annotated, Any, Literal, Self

from pydantic import AwareDatetime, BaseModel, ByteSize, ConfigDict, Field, field_validator, model_validator

from walferry.run.spec import ResolvedSpec, Spec
from walferry.security.accepting import Service, without_host
from walferry.security.accepting_tls import ServerTls

OWN_NODES = "/walferry"
"""above all of walferry's nodes in ZooKeeper"""
ROOT = f"{OWN_NODES}/receive"
"""above the nodes of runs that give no path"""
DEFAULT_PORT = 16040
"""no server of HBase has it by default"""
_KEYS = frozenset({"name", "source", "target", "tables", "max_lag", "source_requests", "receive"})
_PATH = re.compile(r"(/[^/\s:,]+)+")
_MiB = 1 << 20
_File = Annotated[str, Field(pattern=r"^/[^\x00\n]{1,1000}$")]


class ReceiverLogin(BaseModel):
    """Who the processes of a run are to the source's servers, where these log in by Kerberos."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    principal: str = Field(
        pattern=r"^[^@/\s]+/[^@/\s]+@[^@/\s]+$",
        title="Principal",
        description="The service principal of each process, hbase/_HOST@REALM: with the first part that the source's "
        "own region servers have. _HOST is the name by which the source reaches the process.",
    )
    keytab: _File = Field(
        title="Keytab",
        description="Path of the keytab with that principal's key, on the machine of each process.",
    )
    senders: list[Annotated[str, Field(pattern=r"^[^@/\s]+@[^@/\s]+$")]] = Field(
        default=[],
        title="Senders",
        description="Whose calls are taken: principals without their hosts, such as hbase@REALM. Default: those with "
        "the first part and the realm of `principal`.",
    )

    def service(self, host: str) -> Service:
        """The service that a process on this host is."""
        clients = frozenset(self.senders or [without_host(self.principal)])
        return Service(self.principal.replace("_HOST", host.lower()), self.keytab, clients)


class ReceiverTls(BaseModel):
    """What the processes of a run show of themselves, where the source's servers speak TLS to their sinks."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    certificate: _File = Field(
        title="Certificate",
        description="Path of a PEM file with the certificate of each process, on its own machine, and with those up to "
        "its authority. It names the host by which the source reaches the process.",
    )
    key: _File = Field(
        title="Key", description="Path of a PEM file with the certificate's private key, without a password."
    )
    ca: _File | None = Field(
        default=None,
        title="Authorities",
        description="Path of a PEM file with the authorities to trust: each client must show a certificate of theirs, "
        "and so must the processes to each other. null: clients need no certificate, and the processes trust the "
        "machine's authorities.",
    )

    def server(self) -> ServerTls:
        """The same, for the server."""
        return ServerTls(self.certificate, self.key, self.ca)


class Receiving(BaseModel):
    """How the source reaches the run, and how much the run takes from it at a time."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    path: str | None = Field(
        default=None,
        title="Path in ZooKeeper",
        description="Node in the target's ZooKeeper below which the source finds the processes of the run, as it finds "
        f"the servers of a cluster below `zookeeper.znode.parent`. null: {ROOT}/NAME.",
    )
    history: Literal["scan"] | None = Field(
        default=None,
        title="What the tables have already",
        description="scan: before edits of a table are applied, all that it has at the source is read and written to "
        "its target table, which must be empty. null: only what the source replicates is applied.",
    )
    login: ReceiverLogin | None = Field(
        default=None,
        title="Login",
        description="Who the processes are to a source whose servers log in by Kerberos. null: they do not log in.",
    )
    tls: ReceiverTls | None = Field(
        default=None,
        title="TLS",
        description="Calls are taken by TLS only, with these files. null: without TLS only.",
    )
    memory: Annotated[ByteSize, Field(ge=64 * _MiB)] = Field(
        default=ByteSize(512 * _MiB),
        validate_default=True,
        title="Memory",
        description="Bytes of calls that a process holds at a time: 512MiB. It refuses what is beyond that, and the "
        "source sends it again. Each process has its own.",
    )
    start: AwareDatetime | None = Field(
        default=None,
        title="Start",
        description="Edits written before this moment, by the clocks of the source's region servers, are left out: an "
        "ISO time with its zone. null: none are; to a new peer the source sends its current logs from their beginning.",
    )

    @model_validator(mode="after")
    def _has_one_beginning(self) -> Self:
        if self.start is not None and self.history is not None:
            raise ValueError("start: with `history` the copy says which edits are left out; give one of them only")
        return self

    @property
    def start_ms(self) -> int | None:
        """`start`, in ms since 1970 (UTC)."""
        return None if self.start is None else round(self.start.timestamp() * 1000)

    def as_recorded(self, path: str) -> dict[str, Any]:
        """What all processes of the run share; `login`, `tls` and `memory` are a process's own."""
        start = None if self.start is None else self.start.astimezone(UTC).isoformat()
        given = {"start": start, "history": self.history}
        return {"path": path} | {name: value for name, value in given.items() if value is not None}

    @field_validator("path")
    @classmethod
    def _is_a_path(cls, path: str | None) -> str | None:
        if path is not None and not _PATH.fullmatch(path):
            raise ValueError("give a whole path, such as /walferry/receive/orders, without : and ,")
        if path == OWN_NODES or (path is not None and path.startswith(f"{OWN_NODES}/") and not is_below(path, ROOT)):
            raise ValueError(f"walferry has other nodes there; give a path below {ROOT}, or outside of {OWN_NODES}")
        return path


class ReceiveSpec(Spec):
    """Those of a migration's keys that mean something here, and the part `receive`. Other keys are errors."""

    receive: Receiving = Receiving()

    @model_validator(mode="after")
    def _has_no_other_key(self) -> Self:
        if others := sorted(self.model_fields_set - _KEYS):
            raise ValueError(f"{others[0]}: a run that receives has no use for it: leave it out")
        return self


class Listening(BaseModel):
    """Where a process of a run listens."""

    host: str = Field(default="", exclude=True)
    """the name by which the source's region servers reach it; "": the spec is no process's"""
    port: int = Field(default=DEFAULT_PORT, exclude=True)
    """0: a free one"""

    def at(self, host: str | None, port: int) -> Self:
        """The spec for a process that listens there. Without a host, at what this machine calls itself."""
        return self.model_copy(update={"host": host or socket.getfqdn(), "port": port})


class ResolvedReceiveSpec(Listening, ResolvedSpec):
    """A spec with its connections resolved, and where this process listens."""

    receive: Receiving = Receiving()

    @model_validator(mode="after")
    def _is_beside_the_target(self) -> Self:
        if is_below(self.path, self.target.znode) or is_below(self.target.znode, self.path):
            raise ValueError(f"receive.path: {self.path} is the target's own node, or above or below it")
        return self

    @property
    def path(self) -> str:
        """The node in the target's ZooKeeper below which the source finds the processes."""
        return path_of(self.receive, self.name)

    @property
    def cluster_key(self) -> str:
        """How a peer of the source names the run, in place of a cluster: "quorum:port:path"."""
        return replace(self.target.address(), znode=self.path).cluster_key

    @property
    def source_tables(self) -> list[str]:
        """The tables at the source."""
        return [pair.source for pair in self.tables]

    def as_recorded(self) -> dict[str, Any]:
        """What all processes of the run share. `login`, `tls`, `memory`, host and port are a process's own."""
        found = self.model_dump(mode="json", by_alias=True, include=set(_KEYS))
        return found | {"receive": self.receive.as_recorded(self.path)}


def path_of(receiving: Receiving, name: str) -> str:
    """The node below which the source finds the processes of a run of that name."""
    return receiving.path or f"{ROOT}/{name}"


def is_below(path: str, node: str) -> bool:
    """Whether a node of ZooKeeper is another one, or below it."""
    return path == node or path.startswith(f"{node}/")
