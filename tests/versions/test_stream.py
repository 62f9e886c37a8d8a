"""`walferry stream` from each older HBase, and from other layouts of the log: every edit once, in row order."""

from __future__ import annotations

import json
import random
from itertools import groupby
from pathlib import Path

import pytest

from integration.migration.moves import unique
from integration.streams.bulk_loads import load_file
from integration.streams.judging import SPLIT_KEYS, Client, Journal, Writer, wait_until, writing
from integration.streams.streamers import PARTITIONS, Streamer, lay_out
from integration.streams.test_snapshot import messages, names, require_copy, require_no_overlap
from integration.streams.test_stream import move_some
from kafka_reading import read
from versions.conftest import OLDER
from versions.sites import SITES, SPREAD
from walferry.embedded.cluster import MiniCluster
from walferry.embedded.kafka import Broker
from walferry.hbase.client import HBaseClient

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]


@pytest.mark.parametrize("servers", [*OLDER, *SITES], indirect=True)
def test_edits_arrive_once_in_row_order_through_moves_a_split_a_merge_a_kill_and_a_truncation(
    source: MiniCluster, broker: Broker, tmp_path: Path
) -> None:
    table, journal, dice = unique("s"), Journal(), random.Random(7)
    streamer = lay_out(tmp_path, source, broker.address, [table])
    judge = streamer.judge(table)
    with HBaseClient(source.address) as here:
        here.create_table(table, {"f": {"VERSIONS": "50"}, "g": {"VERSIONS": "50"}}, SPLIT_KEYS)
        try:
            streamer.start()
            with writing(source, table, journal):
                judge.await_more(0)
                move_some(here, table, dice, 2)
                here.split_region(here.regions(table)[0], b"b")
                streamer.kill()
                move_some(here, table, dice, 1)
                here.merge_regions(here.regions(table)[-2:])
                process = streamer.launch("resume", streamer.name)
                move_some(here, table, dice, 2)
                judge.await_more()
            write_all_kinds(source, table, journal)
            loaded = load_file(source, here, table, b"loaded")
            here.disable_table(table)
            here.modify_table(here.describe(table).with_attribute("COMPACTION_ENABLED", "false"))
            here.truncate_table(table)
            write_all_kinds(source, table, journal)
            judge.require(journal, table=table)
            require_events(streamer, table, loaded, tells_truncation=here.release.opens_past_closing)
            assert process.poll() is None, streamer.said()
        finally:
            streamer.end()


@pytest.mark.parametrize("servers", OLDER, indirect=True)
def test_rows_come_first_and_changes_follow_without_a_gap_or_an_overlap(
    source: MiniCluster, broker: Broker, tmp_path: Path
) -> None:
    table, journal = unique("s"), Journal()
    streamer = lay_out(tmp_path, source, broker.address, [table], snapshot=True)
    with HBaseClient(source.address) as here:
        family = {"VERSIONS": "1000", "KEEP_DELETED_CELLS": "TRUE"}
        here.create_table(table, {"f": family, "g": family}, SPLIT_KEYS)
        write_all_kinds(source, table, journal)
        here.flush_table(table)
        try:
            with writing(source, table, journal):
                streamer.start()
                wait_until(lambda: names(messages(streamer, table)), "no rows come")
                here.split_region(here.regions(table)[0], b"b")
            found = require_copy(streamer, here, table)
            (name,) = names(found)
            require_no_overlap(found, name)
        finally:
            streamer.end()


def write_all_kinds(source: MiniCluster, table: str, journal: Journal) -> None:
    """The same rows at each call."""
    with Client(source.address) as client:
        Writer(client, table, journal, "all").write_all_kinds()


def require_events(streamer: Streamer, table: str, loaded: set[tuple[str, str]], *, tells_truncation: bool) -> None:
    """Each partition tells of the loaded file, of the new schema and, if the log does, of the truncation, from which on
    positions have a higher incarnation."""
    partitions: dict[int, list[tuple[int, str]]] = {number: [] for number in range(PARTITIONS)}
    files = []
    for one in read(streamer.address, f"{streamer.name}.{table}", PARTITIONS):
        value = json.loads(one.value or b"")
        event = value.get("event", {"kind": "change"})
        if event["kind"] == "bulk_load":
            files.append((one.partition, {(file["family"], file["name"]) for file in event["files"]}))
        else:
            partitions[one.partition].append((value["position"][0], event["kind"]))
    assert sorted(files) == [(number, loaded) for number in range(PARTITIONS)]
    told = [(1, "truncate"), (1, "schema")] if tells_truncation else [(1, "schema")]
    seen = [[kind for kind, _ in groupby(found)] for found in partitions.values()]
    assert all(kinds in ([(0, "change"), *told], [(0, "change"), *told, (1, "change")]) for kinds in seen), seen


@pytest.mark.parametrize("servers", [SPREAD], indirect=True)
def test_a_source_whose_logs_are_in_another_folder_than_the_spec_says_is_refused(
    source: MiniCluster, broker: Broker, tmp_path: Path
) -> None:
    table = unique("s")
    streamer = lay_out(tmp_path, source, broker.address, [table])
    streamer.write_spec(source={key: value for key, value in streamer.keys["source"].items() if key != "waldir"})
    with HBaseClient(source.address) as here:
        here.create_table(table, {"f": {}})
    answer = streamer.command("stream", "stream.yaml", "--dry-run")
    assert answer.returncode == 2, answer.stderr
    assert f"its hbase.wal.dir is {source.address.waldir}: set `waldir` to it" in answer.stderr
