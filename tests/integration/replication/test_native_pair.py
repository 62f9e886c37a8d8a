"""Passes over a pair that HBase's own replication keeps equal: what is under way, what is stuck, and what differs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from threading import Event

import pytest

from integration.migration.moves import content, spark
from integration.replication.fed_pair import Pair, pair_of, spec_of_pair, write
from integration.replication.native import table_at_both
from walferry.background import beside
from walferry.embedded.cluster import MiniCluster
from walferry.errors import UsageError
from walferry.hbase.client import HBaseClient
from walferry.hbase.mutate import delete_row
from walferry.ledger import Ledger
from walferry.migration.pairs import pair_shipping
from walferry.migration.pairs.pair_findings import pass_line
from walferry.migration.pairs.pair_pass import open_pair, verify_pair
from walferry.run.run import Run

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def pair(
    source: MiniCluster, target: MiniCluster, at_source: HBaseClient, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Pair]:
    folder = tmp_path_factory.mktemp("native_pair")
    with pair_of(source, target, at_source, folder) as made:
        yield made


def test_a_pair_under_load_is_equal_and_a_row_that_is_spoilt_at_the_target_alone_differs(
    pair: Pair, source: MiniCluster, target: MiniCluster, at_source: HBaseClient
) -> None:
    def load(over: Event) -> None:
        count = 0
        while not over.is_set():
            write(at_source, pair.table, b"row%03d" % (count % 500), b"%d" % count)
            count += 1

    with beside(load, "load"):
        assert pair.arrives(b"row099", 60)
        for _ in range(2):
            found = pair.one_pass()
            assert found["differing_rows"] == 0, found["differences"]
        write(pair.at_target, pair.table, b"spoilt")
        found = pair.one_pass()
        assert [(one["row"], one["state"]) for one in found["differences"] if one["state"] == "differs"] == [
            ("spoilt", "differs")
        ]
    shipped = found["shipped"]
    assert (shipped["peer"], shipped["why"]) == (pair.peer, "")
    assert shipped["rolled_ms"] < shipped["shipped_ms"]
    assert f"; peer {pair.peer} had shipped all that was written before 20" in pass_line(found)
    assert content(source, pair.table) != content(target, pair.table)


@pytest.mark.long
def test_rows_that_wait_in_a_stuck_queue_are_not_called_different_and_the_pass_says_what_stops_them(
    pair: Pair, source: MiniCluster, target: MiniCluster, at_source: HBaseClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(pair.at_target, pair.table, b"spoilt")
    assert pair.one_pass()["differing_rows"] == 1
    pair.at_target.disable_table(pair.beside)
    write(at_source, pair.beside, b"stops")
    rows = iter(b"waits%d" % n for n in range(100))
    write(at_source, pair.table, row := next(rows))
    while pair.arrives(row, 10):  # until the queue is seen to be stuck
        write(at_source, pair.table, row := next(rows))
    # Of a batch that the server sends again and again, the part for this table may arrive; what is behind it does not.
    write(at_source, pair.table, behind := next(rows))
    with monkeypatch.context() as shorter:
        shorter.setattr(pair_shipping, "LEAST_SECONDS", 20)
        found = pair.one_pass()
    states = {one["row"]: one["state"] for one in found["differences"] if one["row"] != row.decode()}
    assert states == {behind.decode(): "under way", "spoilt": "differs"}, "what was proved stays so"
    assert f"{pair.beside} is disabled at the sink: enable it" in found["shipped"]["why"]
    assert "NOT JUDGED: not shipped in 20 s: peer" in pass_line(found)

    pair.at_target.enable_table(pair.beside)
    found = pair.one_pass()
    assert [(one["row"], one["state"]) for one in found["differences"]] == [("spoilt", "differs")]
    assert found["shipped"]["why"] == ""

    pair.at_target.mutate(pair.table, [delete_row(b"spoilt")])
    found = pair.one_pass()
    assert (found["differing_rows"], found["under_way_rows"], found["shipped"]) == (0, 0, {})
    assert content(source, pair.table) == content(target, pair.table)


def test_a_peer_that_does_not_feed_the_pair_is_refused(
    pair: Pair, source: MiniCluster, target: MiniCluster, at_source: HBaseClient, tmp_path: Path
) -> None:
    with table_at_both(at_source, pair.at_target, "d") as other:
        for keys, fault in (
            ({"peer": pair.peer}, f"peer {pair.peer} does not replicate the family d of {other}"),
            ({"peer": "nobody"}, "the source has no replication peer nobody"),
        ):
            with Ledger.open(f"sqlite:///{tmp_path / keys['peer']}.db", actor="tester") as ledger:
                record = open_pair(ledger, spec_of_pair(source, target, other, **keys), "tester", 7)
                with Run(ledger, record.run_id) as run, pytest.raises(UsageError, match=fault):
                    verify_pair(run, spark)
