"""Files that are loaded at a real source, which ships their markers, come to the target by way of receivers, and are
told to Kafka."""

from __future__ import annotations

import json
import signal
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from booting import laid_out
from integration.migration.command import walferry
from integration.migration.moves import taken_away, unique
from integration.receive.receivers import PARTITIONS, Receivers, kafka_receivers, receivers
from integration.replication.native import REPLICATED
from integration.replication.writing import writer
from integration.streams.bulk_loads import load_cells
from integration.streams.judging import SPLIT_KEYS, Journal, Judge, writing
from kafka_reading import read
from walferry.background import beside
from walferry.clock import now_ms
from walferry.embedded.cluster import MiniCluster
from walferry.embedded.environment import Environment
from walferry.embedded.kafka import Broker
from walferry.formats.cells import CellType, cells_to_arrow, encode_cell, index_cells
from walferry.hbase.client import HBaseClient
from walferry.hbase.mutate import Cell
from walferry.hbase.peers import enable_peer
from walferry.replay.rights import dirty
from walferry.settings import EmbeddedServers
from walferry.spark.clients import shared_files

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]
SHIPPED = {"hbase.replication.bulkload.enabled": "true", "hbase.replication.cluster.id": "source"}
TTL = (8, (1 << 40).to_bytes(8, "big"))
"""a cell's own TTL, as a tag"""


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Environment]:
    """A source that replicates bulk loads, and a target."""
    with laid_out(tmp_path_factory.mktemp("loading"), EmbeddedServers.read()) as environment:
        environment.source.hbase_site = {**environment.source.hbase_site, **SHIPPED}
        environment.start_clusters()
        yield environment
        environment.stop_clusters()


@pytest.fixture
def source(pair: Environment) -> MiniCluster:
    return pair.source


@pytest.fixture
def target(pair: Environment) -> MiniCluster:
    return pair.target


@pytest.fixture
def here(source: MiniCluster) -> Iterator[HBaseClient]:
    with HBaseClient(source.address) as client:
        yield client


@pytest.fixture
def there(target: MiniCluster) -> Iterator[HBaseClient]:
    with HBaseClient(target.address) as client:
        yield client


def until(condition: Callable[[], object], what: str, seconds: float = 90) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.2)


def cell(
    row: bytes, time: int, value: bytes = b"v", kind: int = CellType.PUT, family: bytes = b"d", tags: Any = ()
) -> bytes:
    return encode_cell(row, family, b"" if kind == CellType.DELETE_FAMILY else b"q", time, kind, value, tags)


def many(row: bytes, count: int, size: int) -> list[bytes]:
    """Puts of new rows that begin with `row`."""
    return [cell(row + b" loaded %05d" % number, 1_000, b"%d" % number * (size // 5)) for number in range(count)]


def stored(client: HBaseClient, table: str, row: bytes) -> list[tuple[Any, ...]]:
    """All cells of a row, markers and tags too."""
    found: list[tuple[Any, ...]] = []
    for block in client.scan_raw(table, row, row + b"\0"):
        columns = cells_to_arrow(index_cells(np.frombuffer(block, np.uint8))).columns
        found += zip(*(column.to_pylist() for column in columns), strict=True)
    return found


def all_is_shipped(receiving: Receivers, here: HBaseClient) -> None:
    """The source no longer keeps files for the peer."""
    path = f"/hbase/replication/hfile-refs/{receiving.peer}"
    until(lambda: not (here.zk.exists(path) and here.zk.get_children(path)), "files of bulk loads are not shipped")


def test_loads_of_all_kinds_of_cells_come_while_a_writer_writes_and_nothing_is_kept_for_them(
    source: MiniCluster, target: MiniCluster, here: HBaseClient, there: HBaseClient, tmp_path: Path
) -> None:
    with receivers(source, target, tmp_path) as two:
        first, now = two.tables[0], now_ms()
        here.put(first, [Cell(b"row1 gone", b"d", b"q", b"older", now - 2000)])
        here.put(first, [Cell(b"row1 stays", b"d", b"q", b"newer", now + 9)])
        with beside(writer(here, two.tables), "writer"):
            time.sleep(2)
            load_cells(source, here, first, b"row1", {
                "d": [
                    cell(b"row1 gone", now - 1000, b"", CellType.DELETE_FAMILY),
                    cell(b"row1 stays", now, b"", CellType.DELETE_COLUMN),
                    *(cell(b"row1 versions", now + number, b"%d" % number) for number in range(3)),
                    cell(b"row1 tagged", now, tags=[TTL]),
                    cell(b"row100", now, b"beside the writer"),
                ],
                "e": [cell(b"row1 tagged", now, family=b"e", tags=[TTL])],
            })  # fmt: skip
            for row in (b"row3", b"row6"):  # another file of the first region would have it compacted
                for table in two.tables:
                    load_cells(source, here, table, row, {"d": many(row, 20, 100)})
            time.sleep(3)
        two.equal()
        for row in (b"row1 gone", b"row1 stays", b"row1 versions", b"row1 tagged"):
            assert stored(there, first, row) == stored(here, first, row)
        assert [bool(tags) for *_, tags in stored(there, first, b"row1 tagged")] == [True, True]
        assert len(stored(there, first, b"row1 versions")) == 3
        all_is_shipped(two, here)
        for table in two.tables:
            assert two.totals()[table].late == 0
            assert dirty.marks(there.zk, table) == []


def test_a_receiver_that_is_killed_in_the_middle_of_a_load_is_followed_by_one_that_begins_it_again(
    source: MiniCluster, target: MiniCluster, here: HBaseClient, there: HBaseClient, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setenv("WALFERRY_REQUEST_MUTATIONS", "2")
    with receivers(source, target, tmp_path) as two:
        table = two.tables[0]
        until(lambda: any(table in one.tables for one in two.serving()), "nobody holds the table")
        holder = next(one.server for one in two.serving() if table in one.tables)
        cells = many(b"row1", 2000, 500)

        def has(number: int) -> bool:
            row = b"row1 loaded %05d" % number
            return bool(stored(there, table, row))

        with beside(writer(here, two.tables), "writer"):
            time.sleep(2)
            load_cells(source, here, table, b"row1", {"d": cells})
            until(lambda: has(5), "the load does not begin")
            killed = next(one for one, server in zip(two.processes, two.started, strict=True) if server == holder)
            killed.send_signal(signal.SIGKILL)
            assert not has(1999), "the load was over before the kill"
            time.sleep(2)
        two.equal(240)
        assert has(1999)
        all_is_shipped(two, here)
        assert dirty.marks(there.zk, table) == []


def test_a_file_that_was_compacted_before_it_is_shipped_is_read_from_the_archive(
    source: MiniCluster, target: MiniCluster, here: HBaseClient, tmp_path: Path
) -> None:
    with receivers(source, target, tmp_path, count=1, tables=1, enabled=False) as one:
        (table,), files = one.tables, shared_files(source.address)
        plan = walferry(tmp_path, "receive", "receive.yaml", "--dry-run")
        assert plan.returncode == 0, plan.stderr
        assert "is disabled" in plan.stdout
        assert "bulk loads" not in plan.stdout
        (path,) = load_cells(source, here, table, b"row1", {"d": many(b"row1", 10, 10)})
        here.put(table, [Cell(b"row1", b"d", b"q", b"v")])
        here.compact_region(table, b"row1", [b"d"])
        until(lambda: files.status(path) is None, "the file is not archived")
        enable_peer(here, one.peer)
        one.equal()
        assert one.totals()[table].entries == 2
        all_is_shipped(one, here)


def test_a_file_that_is_gone_is_refused_by_its_name_until_it_is_there_again(
    source: MiniCluster, target: MiniCluster, here: HBaseClient, tmp_path: Path
) -> None:
    with receivers(source, target, tmp_path, count=1, tables=1, enabled=False) as one:
        (table,), files = one.tables, shared_files(source.address)
        (path,) = load_cells(source, here, table, b"row1", {"d": many(b"row1", 10, 10)})
        with taken_away(files, path):
            enable_peer(here, one.peer)
            until(lambda: one.serving()[0].refused, "nothing is refused")
            assert f"its file {path} is gone" in one.serving()[0].last_refusal
        one.equal()


def test_loads_come_once_as_events_of_every_partition_in_their_place_also_when_a_process_is_killed(
    source: MiniCluster, here: HBaseClient, broker: Broker, tmp_path: Path
) -> None:
    table, journal, loads = unique("k"), Journal(), []
    here.create_table(table, {"f": REPLICATED, "g": REPLICATED}, SPLIT_KEYS)
    with kafka_receivers(source, broker, tmp_path, [table]) as two:
        topic = f"{two.name}.{table}"

        def load(*rows: bytes) -> None:
            for row in rows:
                cells = {family: [cell(row, 1, family=family.encode())] for family in ("f", "g")}
                loads.append({tuple(path.split("/")[-2:]) for path in load_cells(source, here, table, row, cells)})

        with closing(Judge(broker.address, topic, PARTITIONS)) as judge:
            with writing(source, table, journal):
                judge.await_more(0)
                load(b"a loaded", b"h loaded", b"a loaded")
                two.processes[two.holder(table)].send_signal(signal.SIGKILL)
                load(b"h loaded", b"t loaded")
                judge.await_more()
            judge.require(journal, table=table)
        all_is_shipped(two, here)
        told: dict[int, list[set[Any]]] = defaultdict(list)
        numbers: dict[tuple[int, str], list[int]] = defaultdict(list)
        for seen in read(broker.address, topic, PARTITIONS):
            value = json.loads(seen.value or b"")
            numbers[seen.partition, value["region"]].append(value["sequence_number"])
            if "event" in value:
                assert value["event"]["kind"] == "bulk_load"
                told[seen.partition].append({(file["family"], file["name"]) for file in value["event"]["files"]})
        assert sorted(told) == list(range(PARTITIONS))
        for those in told.values():
            assert sorted(map(sorted, those)) == sorted(map(sorted, loads))
        for of_region in numbers.values():
            assert of_region == sorted(of_region)
    here.disable_table(table)
    here.delete_table(table)
