"""What servers of older versions tell of mutations that skip the log, and which of their cells are new."""

from __future__ import annotations

import time

import numpy as np
import pytest

from integration.migration.moves import unique
from versions.conftest import OLDER
from walferry.clock import now_ms
from walferry.embedded.cluster import Cluster
from walferry.formats.cells import CellType, cells_to_arrow, index_cells
from walferry.formats.proto import hbase_pb2 as pb
from walferry.hbase.client import HBaseClient
from walferry.hbase.mutate import Cell, delete_column, put
from walferry.hbase.settings import COUNTED_LATE_MS

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]


@pytest.mark.parametrize("servers", OLDER, indirect=True)
def test_a_server_counts_what_skips_its_log_and_shows_which_cells_are_new(source: Cluster) -> None:
    table = unique()
    with HBaseClient(source.address) as here:
        here.create_table(table, {"f": {"VERSIONS": "50"}}, [b"m"])
        here.put(table, [Cell(b"a", b"f", b"q", b"old", 1), Cell(b"z", b"f", b"q", b"old", 1)])
        here.flush_table(table)
        before, since_ms = unlogged_writes(here), now_ms()
        assert None not in before.values(), "each server tells"
        for row in (b"a", b"b"):
            unlogged = put(row, [Cell(row, b"f", b"q", b"in no log", None)])
            unlogged.durability = pb.MutationProto.SKIP_WAL
            here.mutate(table, [unlogged])
        here.mutate(table, [delete_column(b"z", b"f", b"q", now_ms())])
        deadline = time.monotonic() + COUNTED_LATE_MS / 1000
        while total(unlogged_writes(here)) < total(before) + 2:
            assert time.monotonic() < deadline, "a mutation is counted in time"
            time.sleep(0.2)
        assert total(unlogged_writes(here)) == total(before) + 2
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


def unlogged_writes(client: HBaseClient) -> dict[str, int | None]:
    """The count of each server."""
    return {server.name: client.unlogged_writes(server) for server in client.servers()}


def total(counts: dict[str, int | None]) -> int:
    return sum(count or 0 for count in counts.values())
