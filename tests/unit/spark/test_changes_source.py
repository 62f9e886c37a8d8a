"""The reader of `hbase_changes`, without Spark, beside that of `hbase_wal` on real logs."""

from __future__ import annotations

import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest

from unit.formats.wal_builder import TRAILER, entry, header
from walferry.errors import UsageError, WalferryError
from walferry.formats.cells import encode_cell
from walferry.formats.changes import CHANGE_SCHEMA
from walferry.security import OPEN, Kerberos, Security, Tls
from walferry.spark.changes_source import HBaseChangesDataSource
from walferry.spark.wal_query import WalQuery
from walferry.spark.wal_source import HBaseWalReader

FIXTURES = Path(__file__).parents[2] / "fixtures" / "wal"
PUT = encode_cell(b"row", b"f", b"q", 1, 4, b"value")


def read(path: Path, source: str = "hbase_changes", **options: object) -> list[dict[str, Any]]:
    given = {"path": str(path), **{name: str(value) for name, value in options.items()}}
    reader = HBaseWalReader(WalQuery.parse(given, source, stream=False))
    return [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]


def edits(path: Path, **options: object) -> list[dict[str, Any]]:
    return [cell for cell in read(path, "hbase_wal", **options) if cell["family"] != b"METAFAMILY"]


def identity(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in ("table", "region", "sequence_number", "row", "qualifier", "timestamp"))


def test_a_folder_gives_the_edits_that_hbase_wal_gives_but_no_marker(tmp_path: Path) -> None:
    for name in ("closed", "killed", "dictionary"):
        shutil.copy(FIXTURES / f"{name}.wal", tmp_path)
    found = read(tmp_path)
    assert [identity(row) for row in found] == [identity(cell) for cell in edits(tmp_path)]
    assert len(found) < len(read(tmp_path, "hbase_wal"))


def test_tables_and_times_narrow_what_is_read() -> None:
    path = FIXTURES / "closed.wal"
    times = sorted(cell["write_time"] for cell in edits(path))
    window = {"tables": "shop:orders", "from": times[len(times) // 4], "to": times[len(times) // 2]}
    found = read(path, **window)
    assert 0 < len(found) < len(edits(path))
    assert [identity(row) for row in found] == [identity(cell) for cell in edits(path, **window)]


def test_fields_choose_columns() -> None:
    rows = read(FIXTURES / "closed.wal", fields="row, _commit_version,row")
    assert list(rows[0]) == ["row", "_commit_version"]
    source = HBaseChangesDataSource({"path": "/x", "fields": "row,_commit_timestamp,cluster_ids"})
    assert source.schema().simpleString() == "struct<row:binary,_commit_timestamp:timestamp,cluster_ids:array<string>>"
    assert HBaseChangesDataSource({"path": "/x"}).schema().names == CHANGE_SCHEMA.names


def test_a_marker_of_an_unknown_kind_fails_the_read_of_its_table_only(tmp_path: Path) -> None:
    path = tmp_path / "new.wal"
    unknown = encode_cell(b"r", b"METAFAMILY", b"HBASE::NEVER_HEARD_OF", 1, 4)
    flush = encode_cell(b"r", b"METAFAMILY", b"HBASE::FLUSH", 1, 4)
    entries = [entry([PUT], table_name=b"t2"), entry([flush]), entry([unknown], 2)]
    path.write_bytes(header() + b"".join(entries) + TRAILER)
    with pytest.raises(WalferryError, match=r"new\.wal: the entry at byte \d+, of region \w+ of table t1, is a marker"):
        read(path)
    assert [row["row"] for row in read(path, tables="t2")] == [b"row"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "hbase_changes needs the path"),
        ({"path": "/x", "view": "cells"}, "hbase_changes has no option view"),
        ({"path": "/x", "fields": "row,type"}, r"hbase_changes: fields can be _change_type, .*; not \['type'\]"),
        ({"path": "/x", "fields": ""}, "fields can be"),
        ({"path": "/x", "from": "yesterday"}, "hbase_changes: from is 'yesterday'"),
        ({"path": "/x", "principal": "ferry@A"}, "hbase_changes: principal: give keytab or ccache"),
        ({"path": "/x", "principal": "ferry", "keytab": "/k"}, "hbase_changes: principal: give name@REALM"),
        ({"path": "/x", "principal": "ferry@A", "keytab": "Qk9P"}, "hbase_changes: keytab: give the whole path"),
        ({"path": "/x", "tls_ca": "ca.pem"}, "hbase_changes: tls_ca: give the whole path of a PEM file"),
        ({"path": "/x", "tls_key": "/k"}, "hbase_changes: tls_key: give certificate and key together"),
        ({"path": "/x", "tls_rpc": "true"}, "hbase_changes has no option tls_rpc"),
        ({"path": "/x", "starting": "latest"}, r"hbase_changes: starting is an option of spark\.readStream only"),
    ],
)
def test_a_wrong_option_is_named(options: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        WalQuery.parse(options, "hbase_changes", stream=False)


def test_an_identity_is_taken_from_the_options_and_never_from_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KRB5CCNAME", "FILE:/run/ferry")
    given = {"path": "/x", "principal": "ferry@A", "keytab": "/k"}
    assert WalQuery.parse(given, "hbase_changes").security == Security(Kerberos("ferry@A", "/k"))
    assert WalQuery.parse({"path": "/x", "ccache": "/c"}, "hbase_changes").security == Security(Kerberos(ccache="/c"))
    assert WalQuery.parse({"path": "/x"}, "hbase_changes").security == OPEN


@pytest.mark.parametrize("place", [{"path": "/x,swebhdfs://nn:1/y"}, {"path": "/x", "webhdfs": "b:2; https://nn:1"}])
def test_files_for_tls_are_taken_where_a_url_is_https(place: dict[str, str]) -> None:
    given = {**place, "TLS_ca": "/ca", "tls_certificate": "/me", "tls_key": "/me.key", "ccache": "/c"}
    expected = Security(Kerberos(ccache="/c"), Tls("/ca", "/me", "/me.key"))
    assert pickle.loads(pickle.dumps(WalQuery.parse(given, "hbase_changes"))).security == expected
    with pytest.raises(UsageError, match="hbase_changes: tls_ca: no URL is https, so nothing uses it"):
        WalQuery.parse({"path": "webhdfs://nn:1/y", "webhdfs": "http://nn:1", "tls_ca": "/ca"}, "hbase_changes")


def test_fields_are_no_option_of_hbase_wal() -> None:
    with pytest.raises(UsageError, match="hbase_wal has no option fields"):
        WalQuery.parse({"path": "/x", "fields": "row"})
