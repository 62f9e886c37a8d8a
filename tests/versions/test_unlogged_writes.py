"""What servers of older versions tell of mutations that skip the log, and which of their cells are new."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import pytest

from integration.migration.moves import unique
from versions.conftest import OLDER
from walferry.clock import now_ms
from walferry.embedded.cluster import MiniCluster
from walferry.formats.cells import CellType, cells_to_arrow, index_cells
from walferry.formats.proto import hbase_pb2 as pb
from walferry.hbase.client import HBaseClient
from walferry.hbase.mutate import Cell, delete_column, put

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]
LONGEST_S = 90
"""that servers of a loaded machine take to count"""


@pytest.mark.parametrize("servers", OLDER, indirect=True)
def test_a_server_counts_what_skips_its_log_and_shows_which_cells_are_new(source: MiniCluster) -> None:
    table = unique()
    with HBaseClient(source.address) as here:
        here.create_table(table, {"f": {"VERSIONS": "50"}}, [b"m"])
        here.put(table, [Cell(b"a", b"f", b"q", b"old", 1), Cell(b"z", b"f", b"q", b"old", 1)])
        here.flush_table(table)
        before, since_ms = told(here, lambda counts: True), now_ms()
        for row in (b"a", b"b"):
            unlogged = put(row, [Cell(row, b"f", b"q", b"in no log", None)])
            unlogged.durability = pb.MutationProto.SKIP_WAL
            here.mutate(table, [unlogged])
        here.mutate(table, [delete_column(b"z", b"f", b"q", now_ms())])
        after = told(here, lambda counts: sum(counts.values()) > sum(before.values()) + 1)
        assert sum(after.values()) == sum(before.values()) + 2
        blocks = [np.frombuffer(block, np.uint8) for block in here.scan_raw(table, since_ms=since_ms)]
        new = [cell for block in blocks for cell in cells_to_arrow(index_cells(block)).to_pylist()]
        assert [(cell["row"], cell["type"]) for cell in new] == [
            (b"a", CellType.PUT), (b"b", CellType.PUT), (b"z", CellType.DELETE_COLUMN)
        ]  # fmt: skip
        first, second = here.regions(table)
        assert first.changed_ms <= since_ms
        here.move_region(first, next(server for server in here.servers() if server != first.server))
        moved, stayed = here.regions(table)
        assert moved.changed_ms >= since_ms
        assert stayed.changed_ms == second.changed_ms


def told(client: HBaseClient, enough: Callable[[dict[str, int]], bool]) -> dict[str, int]:
    """The count of each server, once all of them tell it and it is enough. Servers restart their metrics some seconds
    after regions were opened, and tell nothing meanwhile."""
    seen: list[tuple[float, dict[str, int | None]]] = []
    began = time.monotonic()
    while time.monotonic() - began < LONGEST_S:
        counts = {server.name: client.unlogged_writes(server) for server in client.servers()}
        if not seen or counts != seen[-1][1]:
            seen.append((round(time.monotonic() - began, 1), counts))
        known = {server: count for server, count in counts.items() if count is not None}
        if len(known) == len(counts) and enough(known):
            return known
        time.sleep(0.2)
    raise AssertionError(f"what the servers told, and after how many seconds: {seen}")
