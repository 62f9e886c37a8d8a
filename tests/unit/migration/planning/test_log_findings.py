"""Whether the source's log can be kept and read, by what a plan finds."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from unit.formats.wal_builder import TRAILER, header
from unit.migration.planning.versions import of_version
from walferry.hbase.client import HBaseClient
from walferry.hbase.zookeeper import Server
from walferry.migration.planning.log_findings import codec_findings, peer_findings, wal_folder_findings
from walferry.storage import Local
from walferry.wal.files import WalFile, list_wals

GROUP = "rs%2C1%2C2"


def logs(root: Path, *contents: bytes) -> list[WalFile]:
    """Logs of one server, the oldest first."""
    for number, content in enumerate(contents):
        Local().write(f"{root}/WALs/rs,1,2/{GROUP}.{number}", [content])
    return list_wals(Local(), str(root))


@pytest.mark.parametrize(
    "fields", [{}, {"has_compression": True}, {"has_compression": True, "has_tag_compression": True}]
)
def test_a_plain_or_a_compressed_log_is_not_refused(fields: dict[str, object], tmp_path: Path) -> None:
    assert list(codec_findings(Local(), str(tmp_path), logs(tmp_path, header(**fields) + TRAILER))) == []


@pytest.mark.parametrize(
    "fields",
    [
        {"has_compression": True, "has_value_compression": True, "value_compression_algorithm": 0},
        {"cell_codec_cls_name": "org.example.OtherCodec"},
        {"encryption_key": b"key"},
        {
            "encryption_key": b"key",
            "cell_codec_cls_name": "org.apache.hadoop.hbase.regionserver.wal.SecureWALCellCodec",
        },
    ],
)
def test_a_log_that_cannot_be_read_is_refused_by_the_name_of_what_it_uses(
    fields: dict[str, object], tmp_path: Path
) -> None:
    (found,) = codec_findings(Local(), str(tmp_path), logs(tmp_path, header(**fields)))
    assert (found.level, found.subject) == ("refuse", "WAL codec")
    assert f"{GROUP}.0" in found.message


def test_the_newest_log_with_a_header_tells_the_codec(tmp_path: Path) -> None:
    old, new, empty, gone = logs(tmp_path, header(cell_codec_cls_name="org.example.Codec"), header(), b"", b"")
    Path(gone.path).unlink()
    assert list(codec_findings(Local(), str(tmp_path), [old, new, empty, gone])) == []
    assert len(list(codec_findings(Local(), str(tmp_path), [old, empty, gone]))) == 1
    assert list(codec_findings(Local(), str(tmp_path), [])) == []


@pytest.mark.parametrize(
    ("known", "where"),
    [
        ({"hbase.wal.dir": "hdfs://nn/wal"}, "its hbase.wal.dir is hdfs://nn/wal: set `waldir` to it"),
        ({}, "if hbase.wal.dir is set in its hbase-site.xml: set `waldir` to it"),
        (None, "if hbase.wal.dir is set in its hbase-site.xml: set `waldir` to it"),
    ],
)
def test_a_folder_without_logs_of_a_live_server_is_refused(
    known: dict[str, str] | None, where: str, tmp_path: Path
) -> None:
    server = Server("rs", 1, 2)
    client = cast(HBaseClient, SimpleNamespace(servers=lambda: [server], settings=lambda server: known))
    (tmp_path / "WALs" / "rs,1,1").mkdir(parents=True)  # left by an earlier life of the server
    (finding,) = wal_folder_findings(client, Local(), str(tmp_path))
    assert (finding.level, finding.subject) == ("refuse", "source")
    assert finding.message == f"{tmp_path}/WALs has no folder of a live region server; {where}"
    logs(tmp_path, header())
    assert list(wal_folder_findings(client, Local(), str(tmp_path))) == []


@pytest.mark.parametrize("version", ["1.2.0-cdh5.16.2", "1.4.13", "2.0.6", "2.1.10"])
def test_a_source_whose_servers_may_lack_the_peers_class_is_refused(version: str) -> None:
    (found,) = peer_findings(of_version(version))
    assert found.level == "refuse"
    assert "could not start again" in found.message
    assert "`protect: stage` needs no peer" in found.message


@pytest.mark.parametrize("version", ["1.5.0", "1.7.2", "2.2.0", "2.3.7"])
def test_a_source_whose_servers_have_the_peers_class_is_no_finding(version: str) -> None:
    assert list(peer_findings(of_version(version))) == []


def test_replication_that_is_off_before_2_0_is_refused() -> None:
    (found,) = peer_findings(of_version("1.7.2", {"hbase.replication": "false"}))
    assert (found.level, found.subject) == ("refuse", "protect")
    assert "hbase.replication is false at the source" in found.message
    assert list(peer_findings(of_version("1.7.2", {"hbase.replication": "true"}))) == []
    assert list(peer_findings(of_version("2.6.3", {"hbase.replication": "false"}))) == [], "2.x has no such switch"


def test_a_source_with_its_queues_in_a_table_is_refused() -> None:
    (found,) = peer_findings(of_version("3.0.0"))
    assert (found.level, found.subject) == ("refuse", "protect")
    assert "replication queues in a table" in found.message
