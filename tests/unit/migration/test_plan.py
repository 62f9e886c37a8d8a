from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from unit.formats.wal_builder import TRAILER, header
from unit.migration.filled_ledger import SPEC
from walferry.errors import UsageError
from walferry.hbase.client import HBaseClient
from walferry.hbase.descriptors import new_table
from walferry.hbase.versions import release_of
from walferry.hbase.zookeeper import Server
from walferry.migration import plan as plan_module
from walferry.migration.plan import (
    Finding,
    Plan,
    _codec,
    _peer,
    _room,
    _table,
    _version,
    _wal_folder,
    require,
)
from walferry.run.spec import Cluster, ResolvedSpec, TablePair
from walferry.storage import Local
from walferry.wal.files import WalFile, list_wals

GROUP = "rs%2C1%2C2"


def logs(root: Path, *contents: bytes) -> list[WalFile]:
    """Logs of one server, the oldest first."""
    for number, content in enumerate(contents):
        Local().write(f"{root}/WALs/rs,1,2/{GROUP}.{number}", [content])
    return list_wals(Local(), str(root))


def plan(*findings: Finding) -> Plan:
    return Plan("2.6", "2.6", "a", "b", [], 0, 0, list(findings))


@pytest.mark.parametrize(
    "fields", [{}, {"has_compression": True}, {"has_compression": True, "has_tag_compression": True}]
)
def test_a_plain_or_a_compressed_log_is_not_refused(fields: dict[str, object], tmp_path: Path) -> None:
    assert list(_codec(Local(), str(tmp_path), logs(tmp_path, header(**fields) + TRAILER))) == []


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
    (found,) = _codec(Local(), str(tmp_path), logs(tmp_path, header(**fields)))
    assert (found.level, found.subject) == ("refuse", "WAL codec")
    assert f"{GROUP}.0" in found.message


def test_the_newest_log_with_a_header_tells_the_codec(tmp_path: Path) -> None:
    old, new, empty, gone = logs(tmp_path, header(cell_codec_cls_name="org.example.Codec"), header(), b"", b"")
    Path(gone.path).unlink()
    assert list(_codec(Local(), str(tmp_path), [old, new, empty, gone])) == []
    assert len(list(_codec(Local(), str(tmp_path), [old, empty, gone]))) == 1
    assert list(_codec(Local(), str(tmp_path), [])) == []


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
    (finding,) = _wal_folder(client, Local(), str(tmp_path))
    assert (finding.level, finding.subject) == ("refuse", "source")
    assert finding.message == f"{tmp_path}/WALs has no folder of a live region server; {where}"
    logs(tmp_path, header())
    assert list(_wal_folder(client, Local(), str(tmp_path))) == []


def test_classes_that_a_master_may_not_look_for_are_named() -> None:
    empty = SimpleNamespace(table_enabled=lambda table: True, table_exists=lambda table: False)
    client = cast(HBaseClient, empty)
    table = new_table("t", {"f": {"hbase.hstore.engine.class": "org.example.Engine", "VERSIONS": "1"}})
    table = table.with_attribute("hbase.hstore.defaultengine.compactionpolicy.class", "org.example.Policy")
    (finding,) = _table(client, TablePair(source="t", target="t"), table)
    assert (finding.level, finding.subject) == ("warn", "t")
    assert finding.message.startswith("names org.example.Engine, org.example.Policy: without these classes")


@pytest.mark.parametrize(("durability", "what"), [("SKIP_WAL", "are not in the log"), ("ASYNC_WAL", "may be lost")])
def test_a_durability_that_acknowledges_too_early_is_told(durability: str, what: str) -> None:
    empty = SimpleNamespace(table_enabled=lambda table: True, table_exists=lambda table: False)
    client = cast(HBaseClient, empty)
    pair = TablePair(source="t", target="t")
    table = new_table("t", {"f": {}})
    assert list(_table(client, pair, table)) == []
    (finding,) = _table(client, pair, table.with_attribute("DURABILITY", durability))
    assert (finding.level, finding.subject) == ("warn", "t")
    assert what in finding.message


def test_every_refusal_is_in_the_one_error_and_warnings_are_not() -> None:
    refusals = [Finding("refuse", "a", "is disabled"), Finding("refuse", "b", "is not there")]
    with pytest.raises(UsageError) as caught:
        require(plan(refusals[0], Finding("warn", "c", "is large"), refusals[1]))
    assert str(caught.value) == "the plan refuses: a: is disabled; b: is not there"
    assert len(caught.value.findings) == 2
    require(plan(Finding("warn", "c", "is large")))


def of_version(version: str, settings: dict[str, str] | None = None) -> HBaseClient:
    client = SimpleNamespace(
        release=release_of(version),
        version=lambda: version,
        peers_may_change=lambda: None,
        servers=lambda: [Server("rs", 1, 2)],
        settings=lambda _: settings,
    )
    return cast(HBaseClient, client)


@pytest.mark.parametrize("version", ["1.7.2", "2.2.3", "2.5.7-hadoop3", "2.6.3"])
def test_a_version_that_the_tests_boot_is_no_finding(version: str) -> None:
    assert list(_version(of_version(version), "source")) == []


def test_a_target_to_which_no_test_migrates_is_a_warning() -> None:
    (found,) = _version(of_version("2.5.7"), "target")
    assert (found.level, found.message) == ("warn", "HBase 2.5.7 was never tried as a target, only as a source")
    for version in ("1.7.2", "2.2.3", "2.6.3"):
        assert list(_version(of_version(version), "target")) == []


@pytest.mark.parametrize("version", ["1.2.0-cdh5.16.2", "1.4.13", "2.0.6", "2.1.10"])
def test_a_source_whose_servers_may_lack_the_peers_class_is_refused(version: str) -> None:
    (found,) = _peer(of_version(version))
    assert found.level == "refuse"
    assert "could not start again" in found.message
    assert "`protect: stage` needs no peer" in found.message


@pytest.mark.parametrize("version", ["1.5.0", "1.7.2", "2.2.0", "2.3.7"])
def test_a_source_whose_servers_have_the_peers_class_is_no_finding(version: str) -> None:
    assert list(_peer(of_version(version))) == []


def test_replication_that_is_off_before_2_0_is_refused() -> None:
    (found,) = _peer(of_version("1.7.2", {"hbase.replication": "false"}))
    assert (found.level, found.subject) == ("refuse", "protect")
    assert "hbase.replication is false at the source" in found.message
    assert list(_peer(of_version("1.7.2", {"hbase.replication": "true"}))) == []
    assert list(_peer(of_version("2.6.3", {"hbase.replication": "false"}))) == [], "2.x has no such switch"


def test_a_version_that_was_never_tried_is_a_warning_that_names_what_is_assumed() -> None:
    (found,) = _version(of_version("1.2.0-cdh5.16.2"), "source")
    assert (found.level, found.subject) == ("warn", "source")
    assert found.message == (
        "HBase 1.2.0-cdh5.16.2 was never tried with walferry. It is assumed to be like 1.4: peers and states of tables "
        "by ZooKeeper, changes without procedures, replication queues in ZooKeeper"
    )


def test_a_source_with_its_queues_in_a_table_is_refused() -> None:
    (found,) = _peer(of_version("3.0.0"))
    assert (found.level, found.subject) == ("refuse", "protect")
    assert "replication queues in a table" in found.message


@pytest.mark.parametrize(
    ("history", "asked"), [("clone", {"", "/archive"}), ("bulk", {"", "/staging", "/staging/walferry", "/data"})]
)
def test_a_quota_is_looked_for_wherever_the_history_takes_space(
    history: str, asked: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(cluster: Cluster, path: str, query: dict[str, str]) -> SimpleNamespace | None:
        usage = {"QuotaUsage": {"spaceQuota": 100, "spaceConsumed": 99}}
        return SimpleNamespace(status_code=200, json=lambda: usage) if path.startswith("/webhdfs") else None

    monkeypatch.setattr(plan_module, "_ask", full)
    found = list(_room(ResolvedSpec.model_validate(SPEC | {"history": history}), 2))
    told = {finding.message.partition(" leaves")[0] for finding in found if finding.level == "refuse"}
    assert told == {f"the space quota on /hbase{folder}" for folder in asked}
