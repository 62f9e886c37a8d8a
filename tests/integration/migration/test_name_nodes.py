"""A migration from behind HttpFS to an HDFS with two name nodes, which die while it copies and while it replays."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from booting import QUICK_SITE, quick
from chaos.command import CUTOVER, Command
from integration.migration.command import environment, walferry
from integration.migration.moves import fill, spec_keys, unique, visible
from integration.migration.test_cli import phase_of, status, wait_until, writing
from walferry.embedded.cluster import MiniCluster
from walferry.embedded.httpfs import HttpFs
from walferry.embedded.two_name_nodes import TwoNameNodes
from walferry.hbase.client import HBaseClient
from walferry.hbase.mutate import Cell
from walferry.ledger import Ledger

pytestmark = [pytest.mark.cluster, pytest.mark.long]

LARGE = 3_000_000


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoNameNodes]:
    with quick(), TwoNameNodes.start(tmp_path_factory.mktemp("pair"), hbase_site=QUICK_SITE) as cluster:
        yield cluster


def lost(pair: TwoNameNodes, before: str, after: str) -> None:
    """kill -9 the active name node; the other one becomes active after a while, and the first one comes back."""
    pair.kill(before)
    time.sleep(2)
    pair.activate(after)
    pair.start_server(before)


def rounds(folder: Path, name: str) -> int:
    with Ledger.open(f"sqlite:///{folder / 'ledger.db'}") as ledger:
        return ledger.of(ledger.find(name).run_id).rounds.totals().rounds


def test_a_table_moves_whole_through_httpfs_and_past_two_name_nodes_that_die(
    source: MiniCluster, pair: TwoNameNodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WALFERRY_HERE_BYTES", "1")  # by Spark's workers
    monkeypatch.delenv("HADOOP_CONF_DIR", raising=False)
    table, name = unique(), unique("move_")
    with HBaseClient(source.address) as client, HttpFs.start(source) as gateway:
        client.create_table(table, {"f": {"VERSIONS": "50"}, "g": {"VERSIONS": "50"}}, [b"r10"])
        fill(client, table)
        for number in range(4):  # so large that the copies go to the data nodes directly
            client.put(table, [Cell(b"large%d" % number, b"g", b"q", os.urandom(LARGE), 1)])
        keys = spec_keys(source, pair, [table], name=name, write_stop="readonly", max_lag=60)
        keys["source"] |= {"webhdfs": gateway.url, "rootdir": "/hbase"}
        (tmp_path / "move.yaml").write_text(yaml.safe_dump(keys))
        command = Command(tmp_path, 1, ["start", "move.yaml"], environment(tmp_path))
        try:
            with writing(source, table) as refusals:
                wait_until(lambda: phase_of(tmp_path, name) == "copy", command.process)
                lost(pair, "nn1", "nn2")
                wait_until(lambda: phase_of(tmp_path, name) == "replay", command.process)
                begun = rounds(tmp_path, name)
                wait_until(lambda: rounds(tmp_path, name) > begun, command.process)
                pair.await_ready("nn1")
                lost(pair, "nn2", "nn1")
                done = rounds(tmp_path, name)
                wait_until(lambda: rounds(tmp_path, name) > done + 1, command.process)
                wait_until(lambda: command.question() == CUTOVER, command.process)
                command.answer(CUTOVER)
                assert command.process.wait(timeout=600) == 0, command.last_words()
        finally:
            command.end()
    assert len(refusals) == 1
    assert status(tmp_path, name)["state"] == "done"
    facts = json.loads(walferry(tmp_path, "report", name, "--json").stdout)
    assert (facts["gaps"], facts["quarantine"], facts["unexplained"]) == (0, 0, 0)
    seen = visible(pair, table)
    assert len(seen) > 24
    assert seen == visible(source, table)
    said = (tmp_path / "walferry-1.err").read_text()
    assert "cannot be used directly" not in said
