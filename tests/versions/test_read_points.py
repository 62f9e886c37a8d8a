"""Each version tells read points, and lets them pass a write's number only once the log has synced it."""

from __future__ import annotations

import pytest

from integration.hbase.read_points import FAMILIES, numbers, point, write, write_waiting
from integration.migration.moves import unique
from versions.conftest import OLDER
from walferry.embedded.cluster import MiniCluster
from walferry.hbase.client import HBaseClient

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]


@pytest.mark.parametrize("servers", OLDER, indirect=True)
def test_a_server_tells_the_number_of_the_newest_synced_write(source: MiniCluster) -> None:
    table = unique()
    with HBaseClient(source.address) as here:
        here.create_table(table, FAMILIES)
        (region,) = here.regions(table)
        assert region.server is not None
        assert point(here, region) == numbers(source, region, of_edits=False)[-1]
        write(here, table)
        before = numbers(source, region)[-1]
        assert point(here, region) == before
        with write_waiting(source, here, table):
            assert point(here, region) == before
        assert point(here, region) == before + 1 == numbers(source, region)[-1]
        here.flush_table(table)
        write(here, table)
        assert point(here, region) == numbers(source, region)[-1]
        here.move_region(region, next(server for server in here.servers() if server != region.server))
        (moved,) = here.regions(table)
        assert moved.server is not None
        assert here.read_points([(region.server.name, region), (moved.server.name, region)]) == [
            None, numbers(source, region, of_edits=False)[-1]
        ]  # fmt: skip
