"""`walferry stream` into Parquet files in HDFS that Iceberg tables have, too: pyiceberg reads every edit once."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyiceberg.io.fsspec
import pytest
from fsspec.implementations.webhdfs import WebHDFS
from pyiceberg.catalog import load_catalog
from pyiceberg.table import Table

from integration.migration.moves import cluster_keys, unique
from integration.streams.judging import SPLIT_KEYS, Journal, wait_until, writing
from integration.streams.streamers import Lay
from integration.streams.test_history import ATTRIBUTES, PAGE, scanned
from integration.streams.test_snapshot import fill
from walferry.embedded.cluster import MiniCluster
from walferry.hbase.client import HBaseClient
from walferry.streams.stream_spec import ONLY_KAFKA

pytestmark = pytest.mark.cluster

SECRET = "hush-hush-9"


class Reader:
    """Reads the tables as others do: by pyiceberg, whose files come by fsspec from HDFS."""

    def __init__(self, uri: str, name: str) -> None:
        self._catalog = load_catalog("lake", uri=uri, **{"py-io-impl": "pyiceberg.io.fsspec.FsspecFileIO"})
        self._name = name

    def table(self, suffix: str = "") -> Table:
        return self._catalog.load_table(f"shop.{self._name}{suffix}")

    def rows(self, suffix: str = "") -> pa.Table:
        """All rows of a table; none while there is no table."""
        if not self._catalog.table_exists(f"shop.{self._name}{suffix}"):
            return pa.table({"row": pa.array([], pa.binary()), "kind": pa.array([], pa.string())})
        return self.table(suffix).scan().to_arrow()

    def current(self, table: str) -> list[tuple[bytes, str, bytes, int, bytes]]:
        """What the query of the documentation shows of a table now."""
        found = re.search(r"```sql\n-- current state\n(.*?)```", PAGE.read_text(), re.DOTALL)
        assert found is not None
        asked = re.sub(r"read_parquet\('[^']*/_events/[^']*'\)", "events", found[1])
        asked = re.sub(r"read_parquet\([^)]*\)", "changes", asked).replace("shop:orders", table)
        with duckdb.connect() as connection:
            connection.register("changes", self.rows())
            connection.register("events", self.rows("_events"))
            return sorted(connection.execute(asked).fetchall())

    def close(self) -> None:
        self._catalog.close()


@pytest.fixture
def uri(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URI of a catalogue in SQLite, to which the connection `lake` leads."""
    made = f"sqlite:///{tmp_path / 'catalog.db'}"
    extra = {"uri": made, "s3.secret-access-key": SECRET}
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps({"conn_type": "generic", "extra": extra}))
    return made


@pytest.fixture
def hdfs(source: MiniCluster, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The part `parquet` of a spec, whose folder is in HDFS, where fsspec finds what is at hdfs://."""
    keys = cluster_keys(source)
    web, name_node = re.search(r"//([^/]+)", keys["webhdfs"]), re.search(r"hdfs://[^/]+", keys["rootdir"])
    assert web is not None
    assert name_node is not None
    host, port = web[1].split(":")
    monkeypatch.setitem(
        pyiceberg.io.fsspec.SCHEME_TO_FS,
        "hdfs",
        lambda *given: WebHDFS(host=host, port=int(port), user=source.address.user),
    )
    path = f"/{unique('lake')}/history"
    return {
        "folder": f"webhdfs://{web[1]}{path}",
        "commit_seconds": 0.3,
        "iceberg": {"catalog": "lake", "namespace": "shop", "location": f"{name_node[0]}{path}"},
    }


@pytest.mark.long
def test_tables_in_hdfs_have_what_a_scan_has_after_a_kill_and_each_edit_once(
    source: MiniCluster, at_source: HBaseClient, lay: Lay, uri: str, hdfs: dict[str, Any]
) -> None:
    table, journal = unique("s"), Journal()
    at_source.create_table(table, {"f": ATTRIBUTES, "g": ATTRIBUTES}, SPLIT_KEYS)
    fill(source, table, 500)
    streamer = lay(table, snapshot=True, parquet=hdfs, **dict.fromkeys(ONLY_KAFKA))
    tried = streamer.command("stream", "stream.yaml", "--dry-run")
    assert f"Iceberg table shop.{streamer.name}: to be made" in tried.stdout, tried.stderr
    reader = Reader(uri, streamer.name)
    streamer.start()
    with writing(source, table, journal):
        wait_until(lambda: "snapshot_begins" in reader.rows("_events")["kind"].to_pylist(), "no snapshot begins")
        streamer.kill()
        streamer.launch("resume", streamer.name)
        wait_until(lambda: "snapshot_ends" in reader.rows("_events")["kind"].to_pylist(), "the snapshot does not end")
        count = len(reader.table().snapshots())
        wait_until(lambda: len(reader.table().snapshots()) > count + 2, "nothing more is committed")
    expected = scanned(at_source, table)
    wait_until(lambda: reader.current(table) == expected, "the tables do not have what a scan has")
    aborted = streamer.command("abort", streamer.name, "--reason", "it was a test")
    assert aborted.returncode == 0, aborted.stderr
    assert streamer.ended() == (0, [f"run {streamer.name}-1 has ended as aborted"])

    rows = reader.rows().select(["table", "row", "_commit_version", "cell"])
    assert rows.group_by(rows.column_names).aggregate([]).num_rows == rows.num_rows
    tasks = list(reader.table().scan().plan_files())
    assert {task.file.partition[0] for task in tasks} == {table}
    assert {task.file.file_path.startswith(f"{hdfs['iceberg']['location']}/table=") for task in tasks} == {True}
    reader.close()
    said = [path for path in streamer.folder.rglob("*") if path.is_file()]
    assert len(said) >= 4
    assert [path for path in said if SECRET.encode() in path.read_bytes()] == []
