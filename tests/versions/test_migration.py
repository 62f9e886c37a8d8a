"""The whole main job from each older HBase to the newest: a writer, moving regions, a kill, the cutover."""

from __future__ import annotations

import json
import random
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from integration.migration.command import walferry
from integration.migration.moves import fill, spec_keys, unique, visible
from integration.migration.test_cli import left_behind, phase_of, running, wait_until
from walferry.embedded.cluster import Cluster
from walferry.errors import WalferryError
from walferry.hbase.client import HBaseClient
from walferry.hbase.errors import ReadOnlyTableError
from walferry.hbase.mutate import Cell, delete_column, delete_family, delete_version, put

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1200)]
ROWS = [b"%c%d" % (letter, number) for letter in b"bhmqt" for number in range(8)]


def test_a_table_with_a_writer_and_moving_regions_is_migrated_killed_and_cut_over(
    source: Cluster, target: Cluster, tmp_path: Path
) -> None:
    table = unique()
    keys = spec_keys(source, target, [table], write_stop="readonly", max_lag=60)
    name = keys["name"]
    (tmp_path / "move.yaml").write_text(yaml.safe_dump(keys))
    with HBaseClient(source.address) as here, HBaseClient(target.address) as there:
        here.create_table(table, {"f": {"VERSIONS": "50"}, "g": {"VERSIONS": "50"}}, [b"m"])
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
            with running(tmp_path, "resume", name, "--yes") as process:
                process.wait(timeout=900)
                assert process.returncode == 0, (tmp_path / "err").read_text()
        assert load.errors == []
        assert load.moves > 2
        assert load.edits > 100

        assert here.describe(table).read_only
        seen = visible(target, table)
        assert len(seen) > 30
        assert seen == visible(source, table)
        assert left_behind(here, f"{name}-1") == left_behind(there, f"{name}-1") == []
        facts = json.loads(walferry(tmp_path, "report", name, "--json").stdout)
        assert (facts["gaps"], facts["quarantine"], facts["unexplained"]) == (0, 0, 0)
    shown = [path for path in tmp_path.rglob("*") if path.is_file() and b"?password=" in path.read_bytes()]
    assert shown == []  # neither ledger, nor reports, nor what the command said


class Load:
    """Edits at few timestamps, whose order decides, until the table refuses them; and a region that moves on and on."""

    def __init__(self, source: Cluster, table: str) -> None:
        self._source, self._table = source, table
        self._stop = threading.Event()
        self.edits = self.moves = 0
        self.errors: list[str] = []
        self.threads = [threading.Thread(target=work) for work in (self._edit, self._move)]

    def stop(self) -> None:
        """Stop both threads."""
        self._stop.set()
        for thread in self.threads:
            thread.join()

    def _edit(self) -> None:
        chance = random.Random(7)
        with HBaseClient(self._source.address) as client:
            while not self._stop.is_set():
                row, at = chance.choice(ROWS), chance.randint(1, 4)
                kind = chance.random()
                if kind < 0.05:
                    edit = delete_family(row, b"g", at)
                elif kind < 0.2:
                    edit = chance.choice([delete_version, delete_column])(row, b"f", b"q", at)
                else:
                    edit = put(row, [Cell(row, chance.choice([b"f", b"g"]), b"q", b"%d" % self.edits, at)])
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
            while not self._stop.wait(4):
                region = client.regions(self._table)[self.moves % 2]
                others = [server for server in client.servers() if server != region.server]
                try:
                    client.move_region(region, others[0])
                except WalferryError as error:
                    self.errors.append(str(error))
                    return
                self.moves += 1


@contextmanager
def under_load(source: Cluster, table: str) -> Iterator[Load]:
    load = Load(source, table)
    for thread in load.threads:
        thread.start()
    try:
        yield load
    finally:
        load.stop()
