"""`hbase_wal` as a stream, in a real local Spark: on a cluster whose servers roll, archive and die meanwhile."""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from integration.migration.moves import content, visible
from integration.spark.documented import documented, documented_block
from walferry.embedded.cluster import MiniCluster
from walferry.errors import UsageError, WalferryError
from walferry.hbase import mutate
from walferry.hbase.client import HBaseClient
from walferry.hbase.mutate import Cell
from walferry.hbase.zookeeper import Server
from walferry.spark import wal_source
from walferry.spark.changes_source import HBaseChangesDataSource
from walferry.spark.wal_query import WalQuery
from walferry.storage import WebHdfs

FIXTURES = Path(__file__).parents[2] / "fixtures" / "wal"
SERVER = "127.0.0.1,16020,1700000000000"
NAME = "127.0.0.1%2C16020%2C1700000000000"
MOST_BYTES = 60_000
MOST_FILES = 2


class Followed:
    """A stream with a checkpoint, and what each of its micro-batches gave out."""

    def __init__(
        self, spark: SparkSession, root: str, checkpoint: Path, source: str = "hbase_wal", **options: object
    ) -> None:
        self._spark = spark
        self._source = source
        self._root = root
        self.checkpoint = checkpoint
        self._options = options
        self.batches: dict[int, list[Row]] = {}
        self.repeated = 0
        self._between_batches = threading.Lock()
        self._stopping = False

    def _take(self, frame: DataFrame, batch: int) -> None:
        with self._between_batches:
            if self._stopping:
                raise RuntimeError("the query ends in the middle of a batch")
            rows = frame.collect()
        if self._source == "hbase_wal":
            rows.sort(key=lambda row: (row.file, row.offset, row["index"]))
        if batch in self.batches:
            self.repeated += 1
            assert rows == self.batches[batch], "a batch that is repeated must give out the same"
        self.batches[batch] = rows

    def start(self, **trigger: Any) -> StreamingQuery:
        self._stopping = False
        reader = self._spark.readStream.format(self._source)
        for name, value in self._options.items():
            reader = reader.option(name, str(value))
        writer = reader.load(self._root).writeStream.foreachBatch(self._take)
        return writer.option("checkpointLocation", str(self.checkpoint)).trigger(**trigger).start()

    def stop(self, query: StreamingQuery) -> None:
        """End a query, perhaps in a batch, but not while rows are collected: Spark may die of such an interrupt."""
        with self._between_batches:
            self._stopping = True
        query.stop()

    def catch_up(self) -> None:
        query = self.start(availableNow=True)
        assert query.awaitTermination(90), "a stream of what is available now does not end"

    def forget_last_commit(self) -> None:
        """As if Spark had been killed after its last batch, before it noted that the batch is done."""
        last = max((self.checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
        last.unlink()
        last.with_name(f".{last.name}.crc").unlink(missing_ok=True)

    @property
    def rows(self) -> list[Row]:
        return [row for batch in self.batches.values() for row in batch]

    def spans(self) -> list[dict[str, dict[str, Any]]]:
        """What each micro-batch was planned to read, from the checkpoint."""
        planned = sorted((self.checkpoint / "offsets").glob("[0-9]*"), key=lambda path: int(path.name))
        return [json.loads(path.read_text().splitlines()[-1])["spans"] for path in planned]


class Writer:
    """Puts one row after another in a thread, and knows those that were acknowledged."""

    def __init__(self, cluster: MiniCluster, table: str) -> None:
        self._cluster = cluster
        self._table = table
        self.written: list[bytes] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._write)

    def _write(self) -> None:
        with HBaseClient(self._cluster.address) as client:
            number = 0
            while not self._stop.is_set():
                row = b"%c-%06d" % (b"bkt"[number % 3], number)
                try:
                    client.put(self._table, [Cell(row, b"f", b"q", row * 20)])
                except WalferryError:
                    continue  # its server is dead: once more
                self.written.append(row)
                number += 1
                time.sleep(0.01)

    def __enter__(self) -> Writer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


def await_true(condition: Callable[[], bool], what: str, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


@pytest.fixture(autouse=True)
def nothing_goes_on(spark: SparkSession) -> Iterator[None]:
    yield
    for query in spark.streams.active:  # of a test that failed
        query.stop()


@pytest.fixture
def table(at_source: HBaseClient) -> Iterator[str]:
    name = f"t{uuid4().hex[:8]}"
    yield name
    if at_source.table_exists(name):
        at_source.disable_table(name)
        at_source.delete_table(name)


def archive_a_log(client: HBaseClient, files: WebHdfs, root: str, table: str) -> None:
    """Roll all logs twice, with a flush of the table in between, and wait until one has gone to the archive."""
    for server in client.servers():
        client.roll_wal(server)
    time.sleep(1)
    client.flush_table(table)
    archived = {file.name for file in files.list(f"{root}/oldWALs")}
    for server in client.servers():
        client.roll_wal(server)
    await_true(lambda: bool({file.name for file in files.list(f"{root}/oldWALs")} - archived), "no log is archived")


def require_each_edit_once(
    spark: SparkSession, source: MiniCluster, table: str, followed: Followed, writer: Writer
) -> None:
    """The stream gave out what a batch reads of the whole log, once, with all that was acknowledged and is shown."""
    assert source.address.webhdfs is not None
    root = source.address.wal_path
    batch = spark.read.format("hbase_wal").option("webhdfs", source.address.webhdfs).option("tables", table)
    cells = batch.option("user", source.address.user).load(f"{root}/WALs,{root}/oldWALs").collect()
    key = ("offset", "index", "sequence_number", "row", "family", "timestamp", "type", "value")

    def identity(row: Row) -> tuple[Any, ...]:
        return (PurePosixPath(row.file).name, *(row[name] for name in key))

    given = [identity(row) for row in followed.rows]
    assert sorted(given) == sorted(identity(row) for row in cells)
    assert len(set(given)) == len(given)
    edits = {bytes(row.row) for row in followed.rows if row.family != b"METAFAMILY"}
    assert set(writer.written) <= edits
    shown = {key.split(" ")[0] for key in content(source, table)}
    assert {repr(row) for row in edits} == shown


def require_bounded(followed: Followed) -> None:
    """No micro-batch read more than it may, and each went on where those before it had ended."""
    for spans in followed.spans():
        assert len(spans) <= MOST_FILES
        assert sum(span["stop"] - span["start"] for span in spans.values()) <= MOST_BYTES or len(spans) == 1
    per_file: dict[str, int] = {}
    for spans in followed.spans():
        for name, span in spans.items():
            assert span["start"] >= per_file.get(name, 0)
            per_file[name] = span["stop"]
    assert any(span["start"] > 0 for spans in followed.spans() for span in spans.values())


@pytest.mark.cluster
@pytest.mark.long
def test_every_edit_arrives_once_while_logs_are_rolled_and_archived_regions_move_and_split_and_a_server_dies(
    victim: Server, source: MiniCluster, at_source: HBaseClient, table: str, spark: SparkSession, tmp_path: Path
) -> None:
    assert source.address.webhdfs is not None
    files, root = WebHdfs(source.address.webhdfs, source.address.user), source.address.wal_path
    followed = Followed(
        spark,
        root,
        tmp_path / "checkpoint",
        webhdfs=source.address.webhdfs,
        user=source.address.user,
        tables=table,
        starting="latest",
        max_bytes_per_trigger=MOST_BYTES,
        max_files_per_trigger=MOST_FILES,
    )
    followed.catch_up()
    assert followed.rows == []
    at_source.create_table(table, {"f": {}}, (b"h", b"p"))
    at_source.move_region(at_source.regions(table)[0], victim)

    def seen() -> set[bytes]:
        return {bytes(row.row) for row in followed.rows}

    with Writer(source, table) as writer:
        query = followed.start(processingTime="200 milliseconds")
        await_true(lambda: len(writer.written) > 20, "nothing is written")
        row = writer.written[-1]
        await_true(lambda: row in seen(), "an edit in an open log does not arrive")
        archive_a_log(at_source, files, root, table)
        followed.stop(query)
        followed.catch_up()
        followed.forget_last_commit()

        query = followed.start(processingTime="200 milliseconds")
        row = writer.written[-1]
        await_true(lambda: row in seen(), "the stream does not go on after a restart")
        assert followed.repeated
        at_source.move_region(at_source.regions(table)[1], victim)
        at_source.split_region(at_source.regions(table)[2], b"t-000030")
        source.kill_region_server(1)
        source.start_region_server(1)
        count = len(writer.written)
        await_true(lambda: len(writer.written) > count + 50, "the dead server's regions do not open elsewhere")
        row = writer.written[-1]
        await_true(lambda: row in seen(), "the stream does not go on after the crash of a server")
        assert query.exception() is None
        followed.stop(query)
    await_true(
        lambda: not any(f.name.endswith("-splitting") for f in files.list(f"{root}/WALs")), "the log is not split"
    )
    followed.catch_up()

    require_each_edit_once(spark, source, table, followed, writer)
    assert any(victim.name.split(",")[2] in row.file for row in followed.rows)
    require_bounded(followed)


@pytest.mark.cluster
def test_changes_of_a_table_after_a_snapshot_of_it_give_what_a_client_reads(
    source: MiniCluster, at_source: HBaseClient, table: str, spark: SparkSession, tmp_path: Path
) -> None:
    address, root = source.address, str(urlsplit(source.address.rootdir).path)
    at_source.create_table(table, {"f": {"VERSIONS": "3"}, "g": {}}, (b"r3",))

    def write(value: bytes) -> None:
        at_source.put(table, [Cell(b"r%d" % n, family, b"q", value) for n in range(6) for family in (b"f", b"g")])

    write(b"before the stream")
    given = {"webhdfs": address.webhdfs, "user": address.user, "tables": table, "starting": "latest"}
    followed = Followed(spark, address.wal_path, tmp_path / "checkpoint", "hbase_changes", **given)
    followed.catch_up()
    assert followed.rows == []
    write(b"in both")
    at_source.mutate(table, [mutate.delete_family(b"r0", b"f")])
    at_source.snapshot(f"s{table}", table)
    try:
        write(b"in the log only")
        at_source.mutate(
            table,
            [
                mutate.delete_family(b"r1", b"f"),
                mutate.delete_column(b"r2", b"g", b"q"),
                mutate.delete_version(b"r4", b"f", b"q"),
            ],
        )
        followed.catch_up()
        names = documented("def columns_of") | {"spark": spark}
        exec(documented_block("def changes_of").split("\n\nstored")[0], names)
        stored = spark.read.format("hbase_snapshot").option("snapshot", f"s{table}").option("raw", "true")
        first = names["changes_of"](stored.option("webhdfs", address.webhdfs).load(root), table)
        changes = spark.createDataFrame(followed.rows, HBaseChangesDataSource({"path": "/"}).schema())
        state = names["columns_of"](first.unionByName(changes.select(first.columns))).where("timestamp IS NOT NULL")
        found = {
            (bytes(one.row), one.family.encode() + b":" + bytes(one.qualifier)): bytes(one.value)
            for one in state.collect()
        }
    finally:
        at_source.delete_snapshot(f"s{table}")
    assert found == {(row, column): cells[0][0] for row, column, cells in visible(source, table)}
    assert len(found) == 10
    assert found[b"r4", b"f:q"] == b"in both"


# ------------------------------------------------------------------ without a cluster


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for folder in (f"WALs/{SERVER}", "oldWALs"):
        (tmp_path / "hbase" / folder).mkdir(parents=True)
    return tmp_path / "hbase"


@pytest.mark.parametrize("kind", ["closed", "dictionary"])
def test_what_is_available_now_is_read_in_parts_of_the_size_that_is_asked_for(
    kind: str, root: Path, spark: SparkSession, tmp_path: Path
) -> None:
    shutil.copy(FIXTURES / f"{kind}.wal", root / "oldWALs" / f"{NAME}.1700000000001")
    shutil.copy(FIXTURES / "killed.wal", root / "oldWALs" / f"{NAME}.1700000000002")
    shutil.copy(FIXTURES / "closed.wal", root / "WALs" / SERVER / f"{NAME}.1700000000003")
    most = 1 + (FIXTURES / f"{kind}.wal").stat().st_size // 3
    followed = Followed(spark, f"file://{root}", tmp_path / "checkpoint", max_bytes_per_trigger=most)
    followed.catch_up()
    planned = [sum(span["stop"] - span["start"] for span in spans.values()) for spans in followed.spans()]
    assert len([size for size in planned if size]) >= 3
    assert max(planned) <= most
    expected = spark.read.format("hbase_wal").load(str(root)).collect()
    assert sorted((row.file, row.offset, row["index"]) for row in followed.rows) == sorted(
        (PurePosixPath(row.file).name, row.offset, row["index"]) for row in expected
    )
    followed.catch_up()  # nothing is new
    assert len(followed.rows) == len(expected)


def test_a_log_that_was_deleted_before_it_was_read_fails_the_query_and_is_named(
    root: Path, spark: SparkSession, tmp_path: Path
) -> None:
    path = root / "WALs" / SERVER / f"{NAME}.1700000000001"
    shutil.copy(FIXTURES / "killed.wal", path)
    followed = Followed(spark, str(root), tmp_path / "checkpoint")
    followed.catch_up()
    assert followed.rows
    path.unlink()
    with pytest.raises(StreamingQueryException, match=rf"{path.name} is missing from WALs, -splitting and oldWALs"):
        followed.catch_up()


def test_a_path_without_logs_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(StreamingQueryException, match=r"there is no folder .*/WALs"):
        Followed(spark, str(tmp_path), tmp_path / "checkpoint").catch_up()


def test_an_option_of_batches_fails_the_query_and_is_named(spark: SparkSession, root: Path, tmp_path: Path) -> None:
    with pytest.raises(Exception, match=r"on_unfinished is an option of spark\.read only"):
        Followed(spark, str(root), tmp_path / "checkpoint", on_unfinished="fail").catch_up()


def test_a_pyspark_that_is_too_old_for_streams_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wal_source, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"needs PySpark 4\.2 or newer"):
        wal_source.HBaseWalDataSource({"path": "/hbase"}).streamReader(StructType())


@pytest.mark.parametrize(
    ("options", "stream", "message"),
    [
        ({"from": "1"}, True, "from is an option of spark.read only"),
        ({"to": "1"}, True, "to is an option of spark.read only"),
        ({"on_unfinished": "fail"}, True, "on_unfinished is an option of spark.read only"),
        ({"starting": "latest"}, False, "starting is an option of spark.readStream only"),
        ({"max_files_per_trigger": "3"}, False, "max_files_per_trigger is an option of spark.readStream only"),
        ({"starting": "now"}, True, "starting is 'now'; it can be earliest or latest"),
        ({"max_bytes_per_trigger": "0"}, True, "max_bytes_per_trigger is '0', but must be a whole number above 0"),
        ({"max_files_per_trigger": "1.5"}, True, "max_files_per_trigger is '1.5'"),
        ({"path": "/a,/b"}, True, "the path of a stream is one folder"),
    ],
)
def test_an_option_that_makes_no_sense_is_named(options: dict[str, str], stream: bool, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        WalQuery.parse({"path": "/hbase"} | options, stream=stream)
