"""The whole main job from each older HBase to the newest, and back: a writer, regions that move, split and merge, a
kill, the cutover."""

from __future__ import annotations

import json
import random
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from integration.migration.command import walferry
from integration.migration.moves import fill, spec_keys, unique, visible
from integration.migration.test_cli import left_behind, phase_of, running, wait_until
from walferry.embedded.cluster import MiniCluster
from walferry.errors import WalferryError
from walferry.hbase.client import HBaseClient
from walferry.hbase.errors import ReadOnlyTableError
from walferry.hbase.mutate import Cell, delete_column, delete_family, delete_family_version, delete_version, put
from walferry.spark.snapshot_source import HBaseSnapshotReader, query_of

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1200)]
TTL_MS = 15_000
ROWS = [b"%c%d" % (letter, number) for letter in b"bhmqt" for number in range(8)]


def test_a_table_with_a_writer_and_moving_regions_is_migrated_killed_and_cut_over(
    source: MiniCluster, target: MiniCluster, tmp_path: Path
) -> None:
    table = unique()
    keys = spec_keys(source, target, [table], write_stop="readonly", max_lag=60)
    name = keys["name"]
    (tmp_path / "move.yaml").write_text(yaml.safe_dump(keys))
    with HBaseClient(source.address) as here, HBaseClient(target.address) as there:
        here.create_table(table, {"f": {"VERSIONS": "50"}, "g": {"VERSIONS": "50"}}, [b"h", b"m"])
        # A compaction after a move drops markers, and the source then shows older puts that come after them.
        here.modify_table(here.describe(table).with_attribute("COMPACTION_ENABLED", "false"))
        fill(here, table)
        plan = json.loads(walferry(tmp_path, "plan", "move.yaml", "--json").stdout)
        assert [finding for finding in plan["findings"] if finding["level"] == "refuse"] == []
        assert plan["source_version"].startswith(source.version)

        with under_load(source, table) as load:
            with running(tmp_path, "start", "move.yaml", "--yes") as process:
                wait_until(lambda: phase_of(tmp_path, name) == "copy", process)
            assert process.returncode == -signal.SIGKILL
            load.await_changes()  # past the fence, in what the rest of the run replays
            with running(tmp_path, "resume", name, "--yes") as process:
                process.wait(timeout=900)
                assert process.returncode == 0, (tmp_path / "err").read_text()
        assert here.describe(table).read_only
        seen = load.visible_at(target)
        assert len(seen) > 30
        assert seen == visible(source, table)
        assert seen == in_snapshot(source, here, table)
        assert seen == in_snapshot(target, there, table)
        assert left_behind(here, f"{name}-1") == left_behind(there, f"{name}-1") == []
        facts = json.loads(walferry(tmp_path, "report", name, "--json").stdout)
        assert (facts["gaps"], facts["quarantine"], facts["unexplained"]) == (0, 0, 0)
    shown = [path for path in tmp_path.rglob("*") if path.is_file() and b"?password=" in path.read_bytes()]
    assert shown == []  # neither ledger, nor reports, nor what the command said


def in_snapshot(cluster: MiniCluster, client: HBaseClient, table: str) -> list[Any]:
    """What `hbase_snapshot` reads of a snapshot of the table, as `visible` gives it."""
    name = f"read-{table}"
    client.snapshot(name, table)
    try:
        options = {"path": str(urlsplit(cluster.rootdir).path), "webhdfs": str(cluster.address.webhdfs)}
        reader = HBaseSnapshotReader(query_of({**options, "snapshot": name, "versions": "all"}))
        found: dict[tuple[bytes, bytes], list[tuple[bytes, int]]] = {}
        for partition in reader.partitions():
            for cell in (cell for batch in reader.read(partition) for cell in batch.to_pylist()):
                column = cell["row"], cell["family"] + b":" + cell["qualifier"]
                found.setdefault(column, []).append((cell["value"], cell["timestamp"]))
        return [(row, column, cells) for (row, column), cells in sorted(found.items())]
    finally:
        client.delete_snapshot(name)


class Load:
    """Edits at few timestamps, whose order decides, until the table refuses them; and regions that move on and on, of
    which one is split and two are merged."""

    def __init__(self, source: MiniCluster, table: str) -> None:
        self._source, self._table = source, table
        self._stop = threading.Event()
        self.edits = self.moves = 0
        self.changes = ["split", "merge"]
        self.errors: list[str] = []
        self.ended = 0.0
        self.threads = [threading.Thread(target=work) for work in (self._edit, self._move)]

    def stop(self) -> None:
        """Stop both threads."""
        self._stop.set()
        for thread in self.threads:
            thread.join()
        self.ended = time.monotonic()

    def await_changes(self) -> None:
        """Wait until a region was split and two were merged."""
        deadline = time.monotonic() + 120
        while self.changes and not self.errors:
            assert time.monotonic() < deadline, self.changes
            time.sleep(0.2)

    def visible_at(self, cluster: MiniCluster) -> list[Any]:
        """What a cluster shows of the table once the last edit that lives for a short time has ended; the load has done
        its work."""
        assert self.errors == []
        assert self.moves > 2
        assert self.edits > 100
        time.sleep(max(0.0, self.ended + TTL_MS / 1000 + 1 - time.monotonic()))
        return visible(cluster, self._table)

    def _edit(self) -> None:
        chance = random.Random(7)
        with HBaseClient(self._source.address) as client:
            while not self._stop.is_set():
                row, at = chance.choice(ROWS), chance.randint(1, 4)
                kind = chance.random()
                if kind < 0.05:
                    edit = chance.choice([delete_family, delete_family_version])(row, b"g", at)
                elif kind < 0.2:
                    edit = chance.choice([delete_version, delete_column])(row, b"f", b"q", at)
                elif kind > 0.95:
                    edit = put(row, [Cell(row, b"f", b"short-lived", b"%d" % self.edits)], ttl_ms=TTL_MS)
                else:
                    families = chance.choice([[b"f"], [b"g"], [b"f", b"g"]])
                    cells = [Cell(row, family, b"q", b"%d" % self.edits, at) for family in families]
                    edit = put(row, cells)
                try:
                    client.mutate(self._table, [edit])
                except ReadOnlyTableError:
                    self._stop.set()
                except WalferryError as error:
                    self.errors.append(str(error))
                    return
                self.edits += 1
                time.sleep(0.02)

    def _move(self) -> None:
        with HBaseClient(self._source.address) as client:
            while not self._stop.wait(3):
                try:
                    self._change(client)
                except WalferryError as error:
                    # The tables' regions reopen READONLY then, and a master of 1.x drops a move of such a one.
                    if not self._stop.is_set():
                        self.errors.append(str(error))
                    return

    def _change(self, client: HBaseClient) -> None:
        """Move a region, or, every third time as long as there is some, split or merge others."""
        regions = client.regions(self._table)
        if self.changes and self.moves % 3 == 2:
            # What comes from a split or merge cannot be merged or split again before a compaction.
            try:
                if self.changes[-1] == "merge":
                    client.merge_regions(regions[:2])
                else:
                    client.split_region(regions[-1], b"q")
            except WalferryError:
                return  # the run takes its snapshot, or a region is in transition: again the next time
            self.changes.pop()
        region = client.regions(self._table)[self.moves % 2]
        client.move_region(region, next(server for server in client.servers() if server != region.server))
        self.moves += 1


@contextmanager
def under_load(source: MiniCluster, table: str) -> Iterator[Load]:
    load = Load(source, table)
    for thread in load.threads:
        thread.start()
    try:
        yield load
    finally:
        load.stop()
