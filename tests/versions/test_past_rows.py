"""Each version answers what a row was after each of its changes, as long as a read point from before them is held."""

from __future__ import annotations

import pytest

from integration.hbase.past_rows import FAMILIES, ROW, drop_what_was_written_over, hold, write_history
from integration.hbase.read_points import point
from integration.migration.moves import unique
from versions.conftest import OLDER
from walferry.embedded.cluster import MiniCluster
from walferry.hbase.client import HBaseClient
from walferry.hbase.mutate import Cell, delete_version, increment
from walferry.hbase.past_rows import PastRow, let_go, rows_at

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]


@pytest.mark.parametrize("servers", OLDER, indirect=True)
def test_a_held_read_point_keeps_every_change_after_it(source: MiniCluster) -> None:
    table = unique()
    with HBaseClient(source.address) as here:
        here.create_table(table, FAMILIES)
        (region,) = here.regions(table)
        held = hold(here, region)
        written = write_history(here, table, region)
        assert rows_at(here, [(held, written.past)]) == [written.seen], "increments and appends"
        drop_what_was_written_over(here, table)
        assert rows_at(here, [(held, written.past)]) == [written.seen], "flushes and compactions"
        let_go(here, [held])
        assert rows_at(here, [(held, written.past)]) == [None]


@pytest.mark.parametrize("servers", OLDER, indirect=True)
def test_a_row_with_a_delete_of_one_version_is_not_told_where_an_increment_may_have_dropped_another(
    source: MiniCluster,
) -> None:
    table = unique()
    with HBaseClient(source.address) as here:
        here.create_table(table, {"f": {"VERSIONS": "1"}})
        (region,) = here.regions(table)
        for number in (1, 2):
            here.put(table, [Cell(ROW, b"f", b"n", number.to_bytes(8, "big"), 100 * number)])
        held = hold(here, region)
        here.mutate(table, [delete_version(ROW, b"f", b"n", 200)])
        deleted = point(here, region)
        assert deleted is not None
        seen = b"".join(here.scan(table, ROW, ROW + b"\0"))
        assert seen, "the older version shows up"
        past = [PastRow(ROW, deleted, deleted)]
        assert rows_at(here, [(held, past)]) == [[seen]]
        here.mutate(table, [increment(ROW, b"f", b"n", 1)])
        assert here.release.drops_versions or rows_at(here, [(held, past)]) == [[seen]], "wrong on 1.7.2 and 2.2.3"
        assert rows_at(here, [(held, past)], one_version={table: [b"f"]}) == [[None]]
        let_go(here, [held])
