"""`python -m chaos.writer FOLDER`: an application that writes to the source's tables and keeps a journal of it.

It has a thread per table, and ends once the file `stop-writing` exists and every mutation that it has begun has an
outcome. While the file `pause-writing` exists it rests; thread N says so by a file `pause-writing-N`. What it needs to
know is in FOLDER/writer.json.
"""

from __future__ import annotations

import json
import random
import sys
import threading
import time
import zlib
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

from chaos.journal import Entry, Journal, Outcome
from walferry.errors import TransientError
from walferry.formats.proto import hbase_pb2 as pb
from walferry.hbase import mutate
from walferry.hbase.address import ClusterAddress
from walferry.hbase.client import HBaseClient
from walferry.hbase.mutate import Cell

STOP_FILE, PAUSE_FILE = "stop-writing", "pause-writing"
_FAMILIES = {
    "j": {"VERSIONS": "3"},  # what the journal decides
    "c": {"VERSIONS": "1"},  # counters
    "f": {"VERSIONS": "100"},
    "g": {"VERSIONS": "100"},
    "h": {"VERSIONS": "2"},
}
LOGGED = ("keep", "stream")
"""modes in which a table must be what its log says, whatever was flushed and compacted"""
WHOLE = {"VERSIONS": "1000", "KEEP_DELETED_CELLS": "TRUE"}
"""so that no compaction forgets a version or a delete marker"""
OF_OLD = ("f", "g", "h")
"""families of edits at timestamps of the past"""
ROWS = 40
OLD = b"old"
"""rows with this at their end are written with timestamps of the past"""
PAUSE_S = 0.06
APART_S = 0.02
"""between edits of one decided column: HBase's servers give both the same timestamp within a millisecond"""
TIMEOUT_S = 8.0


def families(mode: str) -> Mapping[str, Mapping[str, str]]:
    """The families of a table, with their attributes."""
    return {**_FAMILIES, **dict.fromkeys(OF_OLD, WHOLE)} if mode in LOGGED else _FAMILIES


def old_row(number: int) -> bytes:
    """A row whose edits are at timestamps of the past; there are ROWS / 2 of them."""
    return row_key(b"row%03d" % number + OLD)


def row_key(name: bytes) -> bytes:
    """A row whose first byte, by which regions are split, is spread over all values."""
    return bytes([zlib.crc32(name) & 0xFF]) + name


class TableWriter:
    """Edits of one table, one after the other."""

    def __init__(self, client: HBaseClient, table: str, seed: int, full: bool, journal: Journal) -> None:
        self._client, self._table, self._full, self._journal = client, table, full, journal
        self._rng = random.Random(f"{seed} {table.rpartition('_')[2]}")
        self._count = 0
        self._touched: dict[bytes, float] = {}
        self._clock: dict[bytes, int] = {}
        self._versions: dict[bytes, list[int]] = defaultdict(list)

    def step(self) -> None:
        """One edit, or a few that belong together."""
        self._count += 1
        kind = self._rng.random()
        if kind < 0.35:
            self._once()
        elif kind < 0.55:
            self._decided()
        elif kind < 0.65:
            self._add()
        elif kind < 0.75 and self._full:
            self._old()
        else:
            self._own_timestamps()

    def _once(self) -> None:
        row = row_key(b"once%06d" % self._count)
        value = b"once %d" % self._count
        self._send("put", row, "j:once", mutate.put(row, [Cell(row, b"j", b"once", value)]), value.decode())

    def _decided(self) -> None:
        row = row_key(b"row%03d" % self._rng.randrange(ROWS))
        time.sleep(max(0.0, self._touched.get(row, 0) + APART_S - time.monotonic()))
        if self._rng.random() < 0.2:
            self._send("delete", row, "j:last", mutate.delete_column(row, b"j", b"last"), None)
        else:
            value = b"%d" % self._count
            self._send("put", row, "j:last", mutate.put(row, [Cell(row, b"j", b"last", value)]), value.decode())
        self._touched[row] = time.monotonic()

    def _add(self) -> None:
        row = row_key(b"row%03d" % self._rng.randrange(ROWS))
        amount = self._rng.randint(1, 9)
        self._send("add", row, "c:count", mutate.increment(row, b"c", b"count", amount), str(amount))

    def _own_timestamps(self) -> None:
        """Edits at timestamps of our own, which rise within each row: all four deletes, two puts in one millisecond."""
        row = row_key(b"row%03d" % self._rng.randrange(ROWS))
        at = self._clock[row] = max(time.time_ns() // 1_000_000, self._clock.get(row, 0) + 1)
        value = b"%d" % self._count
        kind = self._rng.random()
        if kind < 0.45:
            names = self._rng.choice([[b"f"], [b"g"], [b"f", b"g"]])
            cells = [Cell(row, family, b"q", value, at) for family in names]
            column = "+".join(f"{family.decode()}:q" for family in names)
            self._send("put own", row, column, mutate.put(row, cells), value.decode(), at)
            self._versions[row].append(at)
        elif kind < 0.65:  # the later of two puts at one timestamp wins
            for text in (b"before", value):
                self._send("tie", row, "f:q", mutate.put(row, [Cell(row, b"f", b"q", text, at)]), text.decode(), at)
        elif kind < 0.75 and self._versions[row]:
            before = self._versions[row][-1]
            self._send("delete version", row, "f:q", mutate.delete_version(row, b"f", b"q", before), None, before)
        elif kind < 0.85 and self._versions[row]:
            before = self._versions[row].pop()
            edit = mutate.delete_family_version(row, b"g", before)
            self._send("delete family version", row, "g:q", edit, None, before)
        elif kind < 0.95:
            self._send("delete column", row, "f:q", mutate.delete_column(row, b"f", b"q", at), None, at)
        else:
            self._send("delete family", row, "g:q", mutate.delete_family(row, b"g", at), None, at)

    def _old(self) -> None:
        """Edits at few timestamps of long ago: what is seen depends on their order, and on flushes and compactions."""
        row = old_row(self._rng.randrange(ROWS // 2))
        at, family = self._rng.randint(1, 6), self._rng.choice([b"f", b"g", b"h"])
        value = b"%d" % self._count
        kind, column, shown = self._rng.random(), f"{family.decode()}:q", None
        if kind < 0.6:
            what, shown, edit = "old put", value.decode(), mutate.put(row, [Cell(row, family, b"q", value, at)])
        elif kind < 0.7:
            what, edit = "old delete version", mutate.delete_version(row, family, b"q", at)
        elif kind < 0.8:
            what, edit = "old delete column", mutate.delete_column(row, family, b"q", at)
        elif kind < 0.9:
            what, edit = "old delete family version", mutate.delete_family_version(row, family, at)
        else:
            what, edit = "old delete family", mutate.delete_family(row, family, at)
        self._send(what, row, column, edit, shown, at)

    def _send(
        self, what: str, row: bytes, column: str, edit: pb.MutationProto, value: str | None, at: int | None = None
    ) -> None:
        began, clock = time.time_ns() // 1_000_000, time.monotonic()
        outcome: Outcome = "acked"
        try:
            self._client.mutate(self._table, [edit])
        except TransientError:
            outcome = "unknown"
        took = int((time.monotonic() - clock) * 1000)
        self._journal.write(Entry(self._table, row.hex(), column, what, value, began, took, outcome, at))


def write(folder: Path) -> None:
    """Write to all tables until the stop file exists."""
    facts = json.loads((folder / "writer.json").read_text())
    address = ClusterAddress(**facts["source"])
    failures: list[BaseException] = []

    def work(table: str, number: int) -> None:
        journal = Journal(folder / f"journal-{number}.jsonl")
        try:
            with HBaseClient(address, timeout_s=TIMEOUT_S) as client:
                writer = TableWriter(client, table, facts["seed"], facts["mode"] != "mild", journal)
                while not (folder / STOP_FILE).exists():
                    if (folder / PAUSE_FILE).exists():
                        (folder / f"{PAUSE_FILE}-{number}").touch()
                    else:
                        writer.step()
                    time.sleep(PAUSE_S)
        except BaseException as error:
            failures.append(error)
        finally:
            journal.close()

    threads = [threading.Thread(target=work, args=(table, i)) for i, table in enumerate(facts["tables"])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


if __name__ == "__main__":
    write(Path(sys.argv[1]))
