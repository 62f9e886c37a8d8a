"""A row is answered as it was after each of its changes, as long as a read point from before them is held."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from integration.hbase.past_rows import FAMILIES, ROW, drop_what_was_written_over, hold, write_history
from integration.hbase.read_points import point
from walferry.hbase.client import HBaseClient
from walferry.hbase.mutate import Cell
from walferry.hbase.past_rows import PastRow, hold_read_points, let_go, rows_at, still_held
from walferry.hbase.scan import rows_as_of

pytestmark = pytest.mark.cluster
MakeTable = Callable[..., str]


def test_flushes_and_compactions_keep_what_a_held_read_point_needs_and_only_that(
    client: HBaseClient, make_table: MakeTable
) -> None:
    table = make_table(FAMILIES)
    (region,) = client.regions(table)
    held = hold(client, region)
    written = write_history(client, table, region)
    drop_what_was_written_over(client, table)
    assert rows_at(client, [(held, written.past)]) == [written.seen]
    let_go(client, [held])
    assert still_held(client, [held]) == [False]
    assert rows_at(client, [(held, written.past)]) == [None]
    drop_what_was_written_over(client, table)
    found = [b"".join(rows_as_of(client, region, [ROW], past.first)) for past in written.past]
    assert found != written.seen


def test_a_compaction_in_memory_keeps_it_too(client: HBaseClient, make_table: MakeTable) -> None:
    table = make_table({"f": {"VERSIONS": "1", "IN_MEMORY_COMPACTION": "EAGER"}})
    (region,) = client.regions(table)
    held = hold(client, region)
    client.put(table, [Cell(ROW, b"f", b"q", b"first")])
    first = point(client, region)
    assert first is not None
    before = b"".join(client.scan(table, ROW, ROW + b"\0"))
    for number in range(40):  # 2% of the flush size is compacted in memory (inmemory.flush.threshold.factor)
        client.put(table, [Cell(b"other %d" % (number % 2), b"f", b"q", b"v" * 200_000)])
        client.put(table, [Cell(ROW, b"f", b"q", b"%d" % number)])
    assert rows_at(client, [(held, [PastRow(ROW, first, first)])]) == [[before]]


def test_rows_of_many_regions_are_answered_in_the_order_asked_and_absent_ones_are_empty(
    client: HBaseClient, make_table: MakeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("walferry.hbase.past_rows.ROWS_AT_ONCE", 3)
    monkeypatch.setattr("walferry.hbase.scan.MAX_RESULT_BYTES", 1000)  # several answers for each request
    table = make_table({"f": {"VERSIONS": "1"}}, [b"5"])
    regions = client.regions(table)
    rows = [b"%d %d" % (region, number) for region in (2, 7) for number in range(8)]
    client.put(table, [Cell(row, b"f", b"q%d" % column, row * 50) for row in rows for column in range(5)])
    seen = {row: b"".join(client.scan(table, row, row + b"\0")) for row in rows}
    held = hold_read_points(client, [(region.server.name, region) for region in regions if region.server])
    client.put(table, [Cell(row, b"f", b"q0", b"later") for row in rows])
    asked = []
    for at, mine in zip(held, (rows[7::-1], rows[8:]), strict=True):
        assert at is not None
        asked.append((at, [PastRow(row, at.number, at.number) for row in [*mine, b"2 none", *mine[:2]]]))
    found = rows_at(client, asked)
    assert found == [[seen.get(past.row, b"") for past in some] for _, some in asked]
    let_go(client, [at for at, _ in asked])


def test_a_region_that_has_closed_has_lost_its_read_point(client: HBaseClient, make_table: MakeTable) -> None:
    table = make_table(FAMILIES)
    (region,) = client.regions(table)
    held = hold(client, region)
    client.put(table, [Cell(ROW, b"f", b"q", b"v")])
    asked = [PastRow(ROW, held.number + 1, held.number + 1)]
    assert rows_at(client, [(held, asked)]) != [None]
    client.disable_table(table)
    assert rows_at(client, [(held, asked)]) == [None]
    client.enable_table(table)
    (again,) = client.regions(table)
    fresh = hold(client, again)
    assert rows_at(client, [(held, asked), (fresh, [])]) == [None, []]
    let_go(client, [held, fresh])
