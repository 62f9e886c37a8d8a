"""What 1.7.2 writes down of a table that begins anew, and of one that does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from integration.migration.moves import begin, content, copy_tables, make_spec, run_of, spark, unique
from walferry.embedded.cluster import MiniCluster
from walferry.hbase.client import HBaseClient
from walferry.hbase.mutate import Cell
from walferry.refusals import RefusalKind
from walferry.replay.rounds.follower import replay

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]
FAMILIES = {"f": {"VERSIONS": "50"}, "g": {"VERSIONS": "50"}}


@pytest.mark.parametrize("servers", ["1.7.2"], indirect=True)
def test_tables_that_begin_anew_are_held_and_what_happens_to_others_every_day_is_not_taken_for_that(
    source: MiniCluster, target: MiniCluster, tmp_path: Path
) -> None:
    truncated, restored, cloned, other = tables = [unique() for _ in range(4)]
    with HBaseClient(source.address) as here:
        for table in tables:
            here.create_table(table, FAMILIES, [b"h", b"m"])
            here.put(table, [Cell(row, b"f", b"q", b"old", 1) for row in (b"a", b"n")])
        for table in (restored, cloned):
            here.snapshot(f"kept-{table}", table)
        with run_of(make_spec(source, target, tables), tmp_path) as run:
            begin(run)
            copy_tables(run)
            for table in tables:
                here.put(table, [Cell(row, b"f", b"q", b"lost", 2) for row in (b"a", b"n")])
            for table in (truncated, restored, cloned):
                here.disable_table(table)
            here.truncate_table(truncated)
            here.restore_snapshot(f"kept-{restored}")
            here.enable_table(restored)
            here.delete_table(cloned)
            here.clone_snapshot(f"kept-{cloned}", cloned)
            for table in (truncated, restored, cloned):
                here.put(table, [Cell(b"b", b"f", b"q", b"anew", 3)])

            everyday(here, other)
            replay(run, spark(), until=lambda: True)
            held = {item.table: item.kind for item in run.ledger.quarantine.items()}
            assert held == dict.fromkeys((truncated, restored, cloned), RefusalKind.LINEAGE)
            assert content(target, other) == content(source, other) != {}

            here.set_read_only(other, True)
            replay(run, spark(), until=lambda: True)
            here.set_read_only(other, False)
            here.put(other, [Cell(b"z", b"f", b"q", b"after", 9)])
            replay(run, spark(), until=lambda: True)
            assert len(run.ledger.quarantine.items()) == 3
            assert content(target, other) == content(source, other)
            for table in (truncated, restored, cloned):
                assert not any("b'b'" in key for key in content(target, table)), table


def everyday(client: HBaseClient, table: str) -> None:
    """Moves with edits and without, a merge, READONLY and back, a split of which one half has no row: each time another
    value at one timestamp, so that the order of all these edits shows."""

    def write(value: bytes) -> None:
        client.put(table, [Cell(row, b"f", b"q", value, 5) for row in (b"a", b"n", b"z")])

    def move() -> None:
        for region in client.regions(table):
            client.move_region(region, next(server for server in client.servers() if server != region.server))

    write(b"first")
    move()
    move()
    client.merge_regions(client.regions(table)[:2])
    write(b"merged")
    move()
    client.set_read_only(table, True)
    client.set_read_only(table, False)
    write(b"written again")
    client.split_region(client.regions(table)[1], b"zz")
    client.put(table, [Cell(b"zzz", b"f", b"q", b"in the half without a row", 5)])
    write(b"split")
    move()
    write(b"last")
