"""The spec of a run to which a source replicates as to a cluster of its own kind: `walferry receive`."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Annotated, Any, Self

from pydantic import BaseModel, ByteSize, ConfigDict, Field, field_validator, model_validator

from walferry.run.spec import ResolvedSpec, Spec

OWN_NODES = "/walferry"
"""above all of walferry's nodes in ZooKeeper"""
ROOT = f"{OWN_NODES}/receive"
"""above the nodes of runs that give no path"""
DEFAULT_PORT = 16040
"""no server of HBase has it by default"""
_KEYS = frozenset({"name", "source", "target", "tables", "max_lag", "receive"})
_PATH = re.compile(r"(/[^/\s:,]+)+")
_MiB = 1 << 20


class Receiving(BaseModel):
    """How the source reaches the run, and how much the run takes from it at a time."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    path: str | None = Field(
        default=None,
        title="Path in ZooKeeper",
        description="Node in the target's ZooKeeper below which the source finds the processes of the run, as it finds "
        f"the servers of a cluster below `zookeeper.znode.parent`. null: {ROOT}/NAME.",
    )
    memory: Annotated[ByteSize, Field(ge=64 * _MiB)] = Field(
        default=ByteSize(512 * _MiB),
        validate_default=True,
        title="Memory",
        description="Bytes of calls that a process holds at a time: 512MiB. It refuses what is beyond that, and the "
        "source sends it again. Each process has its own.",
    )

    @field_validator("path")
    @classmethod
    def _is_a_path(cls, path: str | None) -> str | None:
        if path is not None and not _PATH.fullmatch(path):
            raise ValueError("give a whole path, such as /walferry/receive/orders, without : and ,")
        if path == OWN_NODES or (path is not None and path.startswith(f"{OWN_NODES}/") and not _is_below(path, ROOT)):
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


class ResolvedReceiveSpec(ResolvedSpec):
    """A spec with its connections resolved, and where this process listens."""

    receive: Receiving = Receiving()
    host: str | None = Field(default=None, exclude=True)
    """the name by which the source's region servers reach this process; None: what the machine calls itself"""
    port: int = Field(default=DEFAULT_PORT, exclude=True)
    """0: a free one"""

    @model_validator(mode="after")
    def _is_beside_the_target(self) -> Self:
        if _is_below(self.path, self.target.znode) or _is_below(self.target.znode, self.path):
            raise ValueError(f"receive.path: {self.path} is the target's own node, or above or below it")
        return self

    @property
    def path(self) -> str:
        """The node in the target's ZooKeeper below which the source finds the processes."""
        return self.receive.path or f"{ROOT}/{self.name}"

    @property
    def cluster_key(self) -> str:
        """How a peer of the source names the run, in place of a cluster: "quorum:port:path"."""
        return replace(self.target.address(), znode=self.path).cluster_key

    def at(self, host: str | None, port: int) -> ResolvedReceiveSpec:
        """The spec for a process that listens there."""
        return self.model_copy(update={"host": host, "port": port})

    def as_recorded(self) -> dict[str, Any]:
        """What all processes of the run share. `memory`, host and port are a process's own."""
        found = self.model_dump(mode="json", by_alias=True, include=set(_KEYS))
        return found | {"receive": {"path": self.path}}


def _is_below(path: str, node: str) -> bool:
    return path == node or path.startswith(f"{node}/")
