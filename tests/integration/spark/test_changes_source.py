"""`hbase_changes` in a real local Spark, on real WALs: what arrives, and what docs/dataframes.md asks of it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession

from integration.spark.documented import documented, documented_block
from walferry.formats.changes import CHANGE_SCHEMA, entry_changes
from walferry.formats.wal import WalReader

FIXTURES = Path(__file__).parents[2] / "fixtures" / "wal"
CLOSED = FIXTURES / "closed.wal"
SERVER = "127.0.0.1,16020,1700000000000"
NAME = "127.0.0.1%2C16020%2C1700000000000"
Column = tuple[str, bytes, str, bytes]


def changes_of(path: Path) -> list[dict[str, Any]]:
    batches = WalReader([path.read_bytes()], path.name)
    return [row for batch in batches for row in entry_changes(batch, path.name).to_pylist()]


def state_of(changes: list[dict[str, Any]]) -> dict[Column, tuple[bytes, int]]:
    """What HBase would show of each column: the newest put that no delete hides."""
    found: dict[Column, tuple[int, int, int, bytes]] = {}
    deletes = [change for change in changes if change["_change_type"] != "put"]
    for put in changes:
        if put["_change_type"] != "put" or any(hides(delete, put) for delete in deletes):
            continue
        rank = put["timestamp"], put["_commit_version"], put["cell"], put["value"]
        column = put["table"], put["row"], put["family"], put["qualifier"]
        found[column] = max(found.get(column, (-1, -1, -1, b"")), rank)
    return {column: (value, timestamp) for column, (timestamp, _, _, value) in found.items()}


def hides(delete: dict[str, Any], put: dict[str, Any]) -> bool:
    kind = delete["_change_type"]
    names = ["table", "row", "family", *(["qualifier"] if kind in ("delete_version", "delete_column") else [])]
    if any(delete[name] != put[name] for name in names):
        return False
    if "version" in kind:
        return bool(put["timestamp"] == delete["timestamp"])
    return bool(put["timestamp"] <= delete["timestamp"])


def as_state(rows: list[Row]) -> dict[Column, tuple[bytes, int]]:
    return {
        (row.table, bytes(row.row), row.family, bytes(row.qualifier)): (bytes(row.value), row.timestamp)
        for row in rows
        if row.timestamp is not None
    }


def plain(row: Row) -> dict[str, Any]:
    """As Arrow has it; Spark gives times in the zone of this machine."""
    found = {name: bytes(value) if isinstance(value, bytearray) else value for name, value in row.asDict().items()}
    return found | {"_commit_timestamp": row["_commit_timestamp"].astimezone(UTC)}


@pytest.fixture(scope="module")
def expected() -> list[dict[str, Any]]:
    return changes_of(CLOSED)


@pytest.fixture(scope="module")
def changes(spark: SparkSession) -> Iterator[DataFrame]:
    zone = spark.conf.get("spark.sql.session.timeZone") or "UTC"
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    frame = spark.read.format("hbase_changes").load(str(CLOSED)).cache()
    frame.createOrReplaceTempView("changes")
    yield frame
    frame.unpersist()
    spark.catalog.dropTempView("changes")
    spark.conf.set("spark.sql.session.timeZone", zone)


def test_every_change_of_a_file_arrives_with_the_declared_columns(
    changes: DataFrame, expected: list[dict[str, Any]]
) -> None:
    assert changes.columns == CHANGE_SCHEMA.names
    found = [plain(row) for row in changes.collect()]
    assert found == expected
    assert {row["_change_type"] for row in found} > {"put", "delete_version", "delete_column", "delete_family"}


def test_the_state_of_each_column_is_what_hbase_would_show(
    changes: DataFrame, expected: list[dict[str, Any]], spark: SparkSession
) -> None:
    state = state_of(expected)
    assert len(state) < len({(c["table"], c["row"], c["family"], c["qualifier"]) for c in expected})
    spark.sql(documented_block("TEMPORARY VIEW columns"))
    rows = spark.table("columns").collect()
    assert as_state(rows) == state
    assert len(rows) > len(state)  # deleted ones
    assert as_state(documented("def columns_of")["columns_of"](changes).collect()) == state


def moments(expected: list[dict[str, Any]]) -> tuple[datetime, datetime]:
    times = sorted({change["_commit_timestamp"] for change in expected})
    return times[len(times) // 3], times[2 * len(times) // 3]


def test_a_row_as_of_a_moment_has_only_what_was_written_until_then(
    changes: DataFrame, expected: list[dict[str, Any]]
) -> None:
    last, until = next(
        (change, until)
        for change in expected
        for of_row in [[one for one in expected if (one["table"], one["row"]) == (change["table"], change["row"])]]
        if (until := state_of([one for one in of_row if one["_commit_timestamp"] <= change["_commit_timestamp"]]))
        and until != state_of(of_row)
    )
    block = documented_block("moment = ", **{
        "2026-11-28 12:00:00": f"{last['_commit_timestamp']:%F %T.%f}", "shop:orders": last["table"],
        'b"order-1042"': repr(last["row"]),
    })  # fmt: skip
    names = documented("def columns_of") | {"changes": changes}
    exec(block, names)
    assert as_state(names["row"].collect()) == until


def test_what_changed_between_two_moments_is_in_the_order_of_each_row(
    changes: DataFrame, expected: list[dict[str, Any]], spark: SparkSession
) -> None:
    start, stop = moments(expected)
    window = {"2026-11-28 11:00:00": f"{start:%F %T.%f}", "2026-11-28 12:00:00": f"{stop:%F %T.%f}"}
    rows = spark.sql(documented_block("ORDER BY table, row, _commit_version, cell", **window)).collect()
    inside = [change for change in expected if start <= change["_commit_timestamp"] < stop]
    inside.sort(key=lambda change: (change["table"], change["row"], change["_commit_version"], change["cell"]))
    assert [plain(row) for row in rows] == inside
    names = documented("def columns_of") | {"changes": changes}
    exec(documented_block("differing = ", **window), names)
    before = state_of([change for change in expected if change["_commit_timestamp"] < start])
    after = state_of([change for change in expected if change["_commit_timestamp"] < stop])
    differing = {(row.table, bytes(row.row), row.family, bytes(row.qualifier)) for row in names["differing"].collect()}
    assert {one for one in {*before, *after} if before.get(one) != after.get(one)} <= differing
    assert {one[:2] for one in differing} <= {(change["table"], change["row"]) for change in inside}


def test_a_stream_that_merges_what_each_micro_batch_touched_keeps_the_state(
    spark: SparkSession, expected: list[dict[str, Any]], tmp_path: Path
) -> None:
    """Spark alone has no table that takes MERGE: its clauses are applied here."""
    for folder in (f"WALs/{SERVER}", "oldWALs"):
        (tmp_path / "hbase" / folder).mkdir(parents=True)
    shutil.copy(CLOSED, tmp_path / "hbase" / "oldWALs" / f"{NAME}.1700000000001")
    kept = str(tmp_path / "changes")
    names = documented("def columns_of")
    exec(documented_block("def merge", **{
        'saveAsTable("changes")': f"parquet({kept!r})", 'session.table("changes")': f"session.read.parquet({kept!r})",
        "session.sql(MERGE)": "take(session.table('merged').collect())",
    }), names)  # fmt: skip
    state: dict[Column, tuple[bytes, int]] = {}

    def take(rows: list[Row]) -> None:
        for row in rows:
            state.pop((row.table, bytes(row.row), row.family, bytes(row.qualifier)), None)
        state.update(as_state(rows))

    names["take"] = take
    numbers: list[int] = []

    def merge(batch: DataFrame, number: int) -> None:
        numbers.append(number)
        for _ in range(1 + number % 2):  # as if Spark had been killed in every other one
            names["merge"](batch, number)

    reader = spark.readStream.format("hbase_changes").option("max_bytes_per_trigger", CLOSED.stat().st_size // 2)
    writer = reader.load(str(tmp_path / "hbase")).writeStream.foreachBatch(merge)
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
    assert query.awaitTermination(90)
    assert len(numbers) >= 2
    assert state == state_of(expected)
    spark._jsparkSession.sessionState().sqlParser().parsePlan(names["MERGE"])  # raises if Spark does not take it
