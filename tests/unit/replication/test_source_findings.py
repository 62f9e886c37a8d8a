from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any, cast

import pytest

from walferry.formats.proto import hbase_pb2 as pb
from walferry.hbase.client import HBaseClient
from walferry.hbase.peers import PeerConfig
from walferry.hbase.versions import release_of
from walferry.hbase.zookeeper import Server
from walferry.replication.source_findings import source_findings

PEER = PeerConfig.of("p", True, pb.ReplicationPeer(replicate_all=True))
WITH_TAGS = "org.apache.hadoop.hbase.codec.KeyValueCodecWithTags"
FINE = {"hbase.replication.bulkload.enabled": "true", "hbase.replication.cluster.id": "prod"}


def found(settings: dict[str, str] | None, version: str = "2.6.3", skipped: int | None = 0) -> list[str]:
    servers = [Server("rs", 1, 5), Server("rs", 2, 5)]
    source = SimpleNamespace(
        release=release_of(version), servers=lambda: servers, settings=lambda server: settings,
        unlogged_writes=lambda server: skipped if server.port == 2 else 0,
    )  # fmt: skip
    findings = source_findings(cast(HBaseClient, cast(Any, source)), [PEER])
    return [f"{one.level}: {one.subject}: {one.message}" for one in findings]


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({}, r"warn: bulk loads: hbase.replication.bulkload.enabled is not true at the source: files that are loaded"),
        (
            {"hbase.replication.bulkload.enabled": "true"},
            r"stop: bulk loads: .* but hbase.replication.cluster.id is not",
        ),
        (FINE, r"note: bulk loads: the sink reads the files .* needs a folder prod with the source's core-site.xml"),
    ],
)
def test_bulk_loads_need_their_settings(settings: dict[str, str], says: str) -> None:
    (line,) = found(settings | {"hbase.replication.rpc.codec": WITH_TAGS})
    assert re.match(says, line), line


def test_replication_that_is_off_stops_all_where_it_can_be_off() -> None:
    off = FINE | {"hbase.replication": "false"}
    assert found(off, "1.7.2")[0].startswith("stop: source: hbase.replication is false in its hbase-site.xml")
    assert not any("hbase.replication is false" in line for line in found(off))


def test_a_codec_without_tags_and_writes_that_skip_the_log_are_warned_of() -> None:
    codec = "org.apache.hadoop.hbase.codec.KeyValueCodec"
    lines = found(FINE | {"hbase.replication.rpc.codec": codec}, skipped=7)
    assert lines[1].startswith(f"warn: source: hbase.replication.rpc.codec is {codec}: TTLs and visibility labels")
    assert lines[2] == "warn: source: mutations skipped the log (SKIP_WAL) at rs:2 (7): they are not replicated"


def test_settings_that_nobody_tells_are_noted() -> None:
    (line,) = found(None)
    assert line.startswith("note: source: the settings of its region servers cannot be read (/conf)")
