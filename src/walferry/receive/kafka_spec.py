"""The spec of a run that receives into Kafka: the keys of `walferry receive`, and those of a stream about messages."""

from __future__ import annotations

import zlib
from dataclasses import replace
from typing import Any, Self

from pydantic import Field, field_validator, model_validator

from walferry.hbase.address import ClusterAddress
from walferry.run.receive_spec import Listening, Receiving, is_below, path_of
from walferry.streams.stream_spec import ResolvedStreamSpec, StreamSpec

_OF_MESSAGES = (
    "kafka", "topic", "create_topics", "positions", "epoch", "bytes_as", "families", "columns", "rows", "decode",
    "large_messages",
)  # fmt: skip
"""keys that mean what they mean for a stream"""
KEYS = frozenset({"name", "source", "tables", "max_lag", "receive", "merge_rows", *_OF_MESSAGES})
_HOST_AND_PORT = r"[^\s,:;/]+:\d{1,5}"


class KafkaReceiving(Receiving):
    """How the source reaches the run. There is no target in whose ZooKeeper it could look."""

    zookeeper: str | None = Field(
        default=None,
        title="ZooKeeper",
        pattern=rf"^{_HOST_AND_PORT}(,{_HOST_AND_PORT})*$",
        description="The ZooKeeper in which the source finds the processes of the run, and in which these have their "
        "leases: host:port[,host:port…], without a login. null: the source's own.",
    )

    @field_validator("history")
    @classmethod
    def _is_not_sent(cls, history: str | None) -> str | None:
        if history is not None:
            raise ValueError("what tables have already is not sent to Kafka; leave it out")
        return history


class KafkaReceiveSpec(StreamSpec):
    """Those of a stream's keys that mean something here, and the part `receive`. Other keys are errors."""

    receive: KafkaReceiving = KafkaReceiving()
    merge_rows: bool = Field(
        default=False,
        title="Merge rows",
        description="Edits of one row that come one right after the other in a call become one message, with all their "
        "cells, at the position of the last one.",
    )

    @model_validator(mode="after")
    def _has_no_other_key(self) -> Self:
        if others := sorted(self.model_fields_set - KEYS):
            raise ValueError(f"{others[0]}: a run that receives into Kafka has no use for it: leave it out")
        return self

    @field_validator("tables")
    @classmethod
    def _are_named(cls, tables: list[str]) -> list[str]:
        if patterns := [name for name in tables if "*" in name]:
            raise ValueError(f"{patterns[0]} is a pattern: name each table, as the source's peer does")
        known: dict[int, str] = {}
        for name in tables:
            other = known.setdefault(number_of(name), name)
            if other != name:
                raise ValueError(f"{other} and {name} would have one transactional id: receive them in two runs")
        return tables


class ResolvedKafkaReceiveSpec(Listening, ResolvedStreamSpec):
    """A spec with its source resolved, and where this process listens."""

    receive: KafkaReceiving = KafkaReceiving()
    merge_rows: bool = False

    @model_validator(mode="after")
    def _is_beside_the_source(self) -> Self:
        own, path = self.source.znode, self.path
        if self.receive.zookeeper is None and (is_below(path, own) or is_below(own, path)):
            raise ValueError(f"receive.path: {path} is the source's own node, or above or below it")
        return self

    @property
    def path(self) -> str:
        """The node in ZooKeeper below which the source finds the processes."""
        return path_of(self.receive, self.name)

    @property
    def source_tables(self) -> list[str]:
        """The tables at the source."""
        return self.tables

    @property
    def cluster_key(self) -> str:
        """How a peer of the source names the run, in place of a cluster: "quorum:port:path"."""
        return replace(self.zookeeper_address(), znode=self.path).cluster_key

    def source_address(self) -> ClusterAddress:
        """The source for a client that examines it."""
        return self.log_address()

    def zookeeper_address(self) -> ClusterAddress:
        """The ZooKeeper in which the source finds the processes."""
        zookeeper = self.receive.zookeeper
        return self.source.address() if zookeeper is None else ClusterAddress(zookeeper)

    def as_recorded(self) -> dict[str, Any]:
        """What all processes of the run share. `login`, `tls`, `memory`, host and port are a process's own."""
        found = self.model_dump(mode="json", include=set(KEYS))
        receiving = self.receive.as_recorded(self.path)
        if self.receive.zookeeper is not None:
            receiving["zookeeper"] = self.receive.zookeeper
        return found | {"receive": receiving}


def number_of(table: str) -> int:
    """The number in a table's transactional id: always the same, in whatever run of that name the table is."""
    return zlib.crc32(table.encode())
