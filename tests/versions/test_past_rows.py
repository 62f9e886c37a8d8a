"""Each version answers what a row was after each of its changes, as long as a read point from before them is held."""

from __future__ import annotations

import pytest

from integration.hbase.past_rows import FAMILIES, drop_what_was_written_over, hold, write_history
from integration.migration.moves import unique
from versions.conftest import OLDER
from walferry.embedded.cluster import MiniCluster
from walferry.hbase.client import HBaseClient
from walferry.hbase.past_rows import let_go, rows_at

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
