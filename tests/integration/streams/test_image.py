"""Images on a real cluster and a real broker: exact ones are what the writer of the row saw after its write."""

from __future__ import annotations

import base64
import json
import os
import random
import signal
import subprocess
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from integration.migration.moves import unique
from integration.streams.judging import Client, wait_until
from integration.streams.streamers import PARTITIONS, Lay, Streamer
from kafka_reading import read
from walferry.embedded.cluster import MiniCluster
from walferry.formats.cells import cells_to_arrow, index_cells
from walferry.formats.proto import hbase_pb2 as pb
from walferry.hbase import mutate as change
from walferry.hbase.client import HBaseClient

pytestmark = pytest.mark.cluster

Shown = list[tuple[bytes, bytes, int, bytes]]
"""family, qualifier, timestamp and value of each cell that a reader sees"""
Images = dict[bytes, list[tuple[bool, Shown | None]]]
"""of each row: whether each image is exact, and its cells; None: the row was not read"""


class Kept:
    """What the writers of rows saw after each of their writes, in its order."""

    def __init__(self) -> None:
        self.rows: dict[bytes, list[Shown]] = defaultdict(list)
        self.repeated: set[bytes] = set()
        """rows of which a client may have sent a write twice: it cannot tell what a reader saw after the first"""

    @property
    def writes(self) -> int:
        return sum(len(seen) for seen in self.rows.values())


def scanned(client: HBaseClient, table: str, start: bytes = b"", stop: bytes = b"") -> dict[bytes, Shown]:
    """The rows that a reader sees."""
    found: dict[bytes, Shown] = defaultdict(list)
    for block in client.scan(table, start, stop):
        for cell in cells_to_arrow(index_cells(np.frombuffer(block, np.uint8))).to_pylist():
            found[cell["row"]].append((cell["family"], cell["qualifier"], cell["timestamp"], cell["value"]))
    return dict(found)


class Writer:
    """Writes to rows that nobody else writes to, and looks at each row after each write."""

    def __init__(self, client: Client, table: str, name: str) -> None:
        self._client, self._table = client, table
        self._dice = random.Random(name)
        self._rows = [b"%b-%b-%d" % (stem, name.encode(), number) for stem in (b"a", b"n") for number in range(4)]
        self._number = 0

    def write(self, kept: Kept) -> None:
        """Write something to a row."""
        row = self._dice.choice(self._rows)
        seen = kept.rows[row][-1] if kept.rows[row] else []
        repeats = self._client.repeats
        self._client.mutate(self._table, [self._edit(row, seen)])
        if self._client.repeats > repeats:
            kept.repeated.add(row)
        kept.rows[row].append(scanned(self._client, self._table, row, row + b"\0").get(row, []))

    def _edit(self, row: bytes, seen: Shown) -> pb.MutationProto:
        self._number += 1
        value = b"%d" % self._number
        of_g = [timestamp for family, _, timestamp, _ in seen if family == b"g"]
        edits: list[Callable[[], pb.MutationProto]] = [
            lambda: change.put(row, [change.Cell(row, b"f", b"q", value)]),
            lambda: change.put(row, [change.Cell(row, b"g", b"q", value), change.Cell(row, b"f", b"a", value)]),
            lambda: change.put(row, [change.Cell(row, b"g", b"q", value * 200)]),
            lambda: change.increment(row, b"f", b"n", 3),
            lambda: change.append(row, b"g", b"t", value),
            lambda: change.delete_version(row, b"g", b"q"),
            lambda: change.delete_column(row, b"f", b"q"),
            lambda: change.delete_family_version(row, b"g", max(of_g, default=1)),
            lambda: change.delete_family(row, b"g"),
            lambda: change.delete_row(row),
        ]
        return self._dice.choice([*edits[:5], *edits])()


@contextmanager
def writing(source: MiniCluster, table: str, kept: Kept) -> Iterator[None]:
    """Three writers write to the table until the block ends."""
    over = threading.Event()

    def write(number: int) -> None:
        with Client(source.address) as client:
            writer = Writer(client, table, f"w{number}")
            while not over.is_set():
                writer.write(kept)
                time.sleep(0.01)

    with ThreadPoolExecutor(3) as threads:
        running = [threads.submit(write, number) for number in range(3)]
        try:
            yield
        finally:
            over.set()
    for one in running:
        one.result()


@contextmanager
def suspended(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """A process does nothing until the block ends."""
    os.kill(process.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(process.pid, signal.SIGCONT)


def cells_of(shown: Sequence[dict[str, Any]]) -> Shown:
    return [
        (
            cell["family"].encode(), base64.b64decode(cell["qualifier"]), cell["timestamp"],
            base64.b64decode(cell["value"]),
        )
        for cell in shown
    ]  # fmt: skip


def images(streamer: Streamer, table: str) -> Images:
    """The images of each row, in its order."""
    found: Images = defaultdict(list)
    for one in read(streamer.address, f"{streamer.name}.{table}", PARTITIONS):
        value = json.loads(one.value or b"{}")
        if "cells" in value:
            image = value["image"]
            cells = cells_of(image["cells"]) if "cells" in image else None
            found[base64.b64decode(value["row"])].append((image["exact"], cells))
    return found


def await_writes(streamer: Streamer, table: str, kept: Kept) -> Images:
    """Wait until what is written now was sent."""
    writes, rows = kept.writes, list(kept.rows)
    found: Images = {}

    def are_sent() -> bool:
        nonlocal found
        found = images(streamer, table)
        return sum(len(found[row]) for row in rows) >= writes

    wait_until(are_sent, "a write is missing")
    return found


def require_exact_ones_are_right(streamer: Streamer, table: str, kept: Kept) -> Images:
    """Wait until every write was sent, and compare each exact image with what the writer saw."""
    found = await_writes(streamer, table, kept)
    for row in kept.rows.keys() - kept.repeated:
        writes = kept.rows[row]
        assert len(found[row]) == len(writes)
        for number, (seen, (is_exact, shown)) in enumerate(zip(writes, found[row], strict=True)):
            assert not is_exact or shown == seen, f"{row!r}, write {number}"
    return found


def await_exact(streamer: Streamer, table: str, client: HBaseClient, row: bytes) -> None:
    """Nothing else writes: write to a row until the image of a write is exact, without what SKIP_WAL wrote after it."""
    kept = Kept()
    unlogged = change.put(row, [change.Cell(row, b"f", b"unlogged", b"v")])
    unlogged.durability = pb.MutationProto.SKIP_WAL

    def is_exact() -> bool:
        client.put(table, [change.Cell(row, b"f", b"q", b"%d" % kept.writes)])
        kept.rows[row].append(scanned(client, table, row, row + b"\0")[row])
        client.mutate(table, [unlogged])
        client.put(table, [change.Cell(row + b" beside", b"f", b"q", b"v")])
        return require_exact_ones_are_right(streamer, table, kept)[row][-1][0]

    wait_until(is_exact, "no image is exact although nothing else goes on")
    client.put(table, [change.Cell(row, b"f", b"q", b"last")])  # the upsert topic then has what SKIP_WAL wrote


def upserted(streamer: Streamer, table: str) -> dict[bytes, Shown]:
    """What Flink's upsert-kafka makes of the upsert topic: the last value of each key, where null deletes it."""
    found: dict[bytes, Shown] = {}
    for one in read(streamer.address, f"{streamer.name}.{table}.upserts", PARTITIONS):
        key = base64.b64decode(json.loads(one.key or b"")["row"])
        if one.value is None:
            found.pop(key, None)
        else:
            found[key] = cells_of(json.loads(one.value)["cells"])
    return found


def test_exact_images_are_what_the_writer_saw_and_the_last_ones_make_the_table(
    source: MiniCluster, at_source: HBaseClient, lay: Lay
) -> None:
    table, kept = unique("s"), Kept()
    at_source.create_table(table, {"f": {"VERSIONS": "1"}, "g": {"VERSIONS": "50"}}, [b"h"])
    at_source.put(table, [change.Cell(b"before", b"f", b"q", b"v"), change.Cell(b"before", b"g", b"q", b"v")])
    streamer = lay(table, image="after", snapshot=True)
    streamer.write_spec(upsert_topic=f"{streamer.name}.{{table}}.upserts")
    streamer.start()
    wait_until(lambda: upserted(streamer, table), "the row of the snapshot does not come")
    assert images(streamer, table)[b"before"] == [(True, scanned(at_source, table)[b"before"])]
    await_exact(streamer, table, at_source, b"alone")
    with writing(source, table, kept):
        wait_until(lambda: kept.writes > 60, "nobody writes")
        at_source.flush_table(table)
        at_source.compact_table(table)
        wait_until(lambda: kept.writes > 120, "nobody writes")
        region = at_source.regions(table)[0]
        at_source.move_region(region, next(one for one in at_source.servers() if one != region.server))
        wait_until(lambda: kept.writes > 180, "nobody writes")
        streamer.kill()
        streamer.launch("resume", streamer.name)
        await_writes(streamer, table, kept)
    require_exact_ones_are_right(streamer, table, kept)
    await_exact(streamer, table, at_source, b"alone again")
    wait_until(lambda: upserted(streamer, table) == scanned(at_source, table), "the upserts are not the table")


def test_a_disabled_table_costs_its_own_images_only_and_a_readonly_one_nothing(
    at_source: HBaseClient, lay: Lay
) -> None:
    disabled, other = unique("s"), unique("s")  # the other will be READONLY
    for table in (disabled, other):
        at_source.create_table(table, {"f": {}})
    streamer = lay(disabled, other, image="after")
    with suspended(streamer.start()):
        for table in (disabled, other):
            at_source.put(table, [change.Cell(b"r", b"f", b"q", b"v")])
        at_source.disable_table(disabled)
        at_source.set_read_only(other, True)
        for server in at_source.servers():
            at_source.roll_wal(server)  # the stream would do so after half a minute
    written = Kept()
    written.rows[b"r"] = [scanned(at_source, other)[b"r"]]
    assert await_writes(streamer, other, written)[b"r"] == [(False, written.rows[b"r"][0])]
    assert await_writes(streamer, disabled, written)[b"r"] == [(False, None)]
    at_source.enable_table(disabled)
