"""A workload whose order decides what a table shows."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable

from walferry.hbase.client import HBaseClient
from walferry.hbase.mutate import Cell, append, delete_column, delete_family, delete_row, delete_version, increment, put

ROWS = [b"%c%d" % (letter, number) for letter in b"bgmsx" for number in range(4)]
KEPT = {"VERSIONS": "50", "KEEP_DELETED_CELLS": "TRUE"}
"""attributes of families with which what a table shows does not depend on when it was compacted"""


def now() -> int:
    """A moment with no edit within some milliseconds of it, unless others write."""
    time.sleep(0.05)
    at = time.time_ns() // 1_000_000
    time.sleep(0.05)
    return at


class Writer:
    """Writes edits of all kinds at few timestamps, so that their order decides; it can be held."""

    def __init__(self, client: HBaseClient, table: str) -> None:
        self.client, self.table = client, table
        self.held = threading.Lock()
        self.chance = random.Random(table)
        self.written = 0

    def write(self, over: Callable[[], bool]) -> None:
        while not over():
            with self.held:
                self.edit()

    def edit(self) -> None:
        row, stamp, dice = self.chance.choice(ROWS), self.chance.randint(1, 6), self.chance.random()
        family = self.chance.choice([b"f", b"g"])
        self.written += 1
        if dice < 0.06:
            edit = delete_row(row)
        elif dice < 0.12:
            edit = delete_family(row, family, stamp)
        elif dice < 0.2:
            edit = self.chance.choice([delete_version, delete_column])(row, family, b"q", stamp)
        elif dice < 0.25:
            edit = increment(row, b"f", b"sum")
        elif dice < 0.3:
            edit = append(row, b"g", b"text", b"%d," % self.written)
        elif dice < 0.5:
            edit = put(row, [Cell(row, of, b"q", b"%d" % self.written, stamp) for of in (b"f", b"g")])
        else:
            edit = put(row, [Cell(row, family, b"q", b"%d" % self.written, stamp)])
        self.client.mutate(self.table, [edit])

    def until(self, more: int) -> None:
        """Wait until some more edits are written."""
        wanted, deadline = self.written + more, time.monotonic() + 60
        while self.written < wanted:
            assert time.monotonic() < deadline, "the writer is stuck"
            time.sleep(0.01)
