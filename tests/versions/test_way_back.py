"""From the newest version into older ones, with other sinks, scanners and administration: windows, and a copy again."""

from __future__ import annotations

import random
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from integration.migration.moves import content, make_spec, raw, run_of, skip, spark, unique
from versions.conftest import BACK
from walferry.embedded.cluster import MiniCluster
from walferry.hbase.client import HBaseClient
from walferry.hbase.mutate import (
    Cell,
    append,
    delete_column,
    delete_family,
    delete_family_version,
    delete_row,
    delete_version,
    increment,
    put,
)
from walferry.ledger import Ledger
from walferry.migration.repairing.copy_again import copy_again
from walferry.replay.windows.window import open_window, replay_window
from walferry.run.run import Run

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]
FAMILIES = {"f": {"VERSIONS": "50"}, "g": {"VERSIONS": "50"}}
ROWS = [b"%c%d" % (letter, number) for letter in b"bmt" for number in range(4)]
TTL_MS = 4_000


@pytest.mark.parametrize("way", ["rpc", "bulk"])
@pytest.mark.parametrize("servers", BACK, indirect=True)
def test_windows_into_an_older_version_keep_order_deletes_tags_and_timestamps(
    way: str, source: MiniCluster, target: MiniCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WALFERRY_CLOCK_SKEW_SECONDS", "0.3")
    table = unique()
    with HBaseClient(source.address) as here, HBaseClient(target.address) as there:
        for client in (here, there):
            client.create_table(table, FAMILIES, [b"m"])
            client.modify_table(client.describe(table).with_attribute("COMPACTION_ENABLED", "false"))
        edges = [moment()]
        for step in range(2):
            write(here, table, step)
            edges.append(moment())
        time.sleep(0.5)
        with Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}", actor="tester") as ledger:
            for begin, end in [(edges[1], edges[2]), (edges[0], edges[1])]:  # the later one first
                spec = make_spec(source, target, [table], window={"from": iso(begin), "to": iso(end)}, apply=way)
                spec = spec.model_copy(update={"name": "replay"})
                with Run(ledger, open_window(ledger, spec, "tester").run_id) as run:
                    replay_window(run, spark)
        kept = {cell for row in ROWS for cell in raw(here, table, row) if cell[2] != 4}
        assert {kind for _, _, kind, _ in kept} >= {8, 10, 12, 14}, "each kind of delete"
        time.sleep(TTL_MS / 1000)
        assert content(target, table) == content(source, table) != {}


@pytest.mark.parametrize("servers", BACK, indirect=True)
def test_a_table_of_an_older_version_is_emptied_and_copied_again(
    source: MiniCluster, target: MiniCluster, tmp_path: Path
) -> None:
    table = unique()
    with HBaseClient(source.address) as here, HBaseClient(target.address) as there:
        for client in (here, there):
            client.create_table(table, FAMILIES, [b"m"])
            client.modify_table(client.describe(table).with_attribute("COMPACTION_ENABLED", "false"))
        write(here, table, 0)
        there.put(table, [Cell(row, b"f", b"q", b"of nobody", 9) for row in ROWS])
        there.mutate(table, [delete_column(row, b"g", b"q", 9) for row in ROWS])
        time.sleep(TTL_MS / 1000)
        with run_of(make_spec(source, target, [table]), tmp_path) as run:
            skip(run, "check_copy")
            assert copy_again(run, table, "all of it differs").is_done
        kept = {cell for row in ROWS for cell in raw(here, table, row) if cell[2] != 4}
        assert {cell for row in ROWS for cell in raw(there, table, row) if cell[2] != 4} == kept != set()
        assert content(target, table) == content(source, table) != {}


def write(client: HBaseClient, table: str, step: int) -> None:
    """Several edits of one row, column and timestamp in a row, of one or two families, and a move in between."""
    chance = random.Random(step)
    for number in range(150):
        row, at = chance.choice(ROWS), chance.randint(1, 4)
        value = b"%d-%d" % (step, number)
        both = [Cell(row, family, b"q", value, at) for family in (b"f", b"g")]
        edits = [
            put(row, both),
            put(row, [Cell(row, b"f", b"short-lived", value)], ttl_ms=TTL_MS),
            put(row, [Cell(row, b"f", b"now", value)]),
            delete_version(row, b"f", b"q", at),
            delete_column(row, b"g", b"q", at),
            delete_family(row, b"g", at),
            delete_family_version(row, b"f", at),
            delete_row(row),
            increment(row, b"f", b"count"),
            append(row, b"g", b"text", b"+"),
        ]
        weights = [8, 2, 2, 1, 1, 1, 1, 0.2, 1, 1]
        client.mutate(table, [chance.choices(edits, weights)[0]])
        if number == 75:
            region = client.regions(table)[step]
            client.move_region(region, next(server for server in client.servers() if server != region.server))


def moment() -> int:
    """A moment with no edit within some milliseconds of it."""
    time.sleep(0.05)
    at = time.time_ns() // 1_000_000
    time.sleep(0.05)
    return at


def iso(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat()
