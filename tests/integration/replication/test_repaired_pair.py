"""Rows of a pair that HBase's own replication feeds are repaired while it goes on, from one side and from both."""

from __future__ import annotations

from itertools import count as count_up
from itertools import cycle
from pathlib import Path
from threading import Event

import pytest

from integration.migration.moves import content, raw
from integration.replication.fed_pair import FAMILY, Pair, pair_of, write
from integration.replication.native import await_row, verify_replication
from walferry.background import beside
from walferry.embedded.cluster import MiniCluster
from walferry.formats.cells import CellType
from walferry.formats.proto import hbase_pb2 as pb
from walferry.hbase.client import HBaseClient
from walferry.hbase.mutate import Cell, delete_column, put
from walferry.migration.pairs import pair_repair, pair_shipping
from walferry.migration.pairs.pair_findings import pass_line
from walferry.migration.pairs.pair_repair import ask
from walferry.migration.repairing import repair as repairing

pytestmark = pytest.mark.cluster

WRITTEN = "it has been repaired, and is being written: the next pass shows whether it is equal"
LOADED = 300
"""rows that are written all the time, each with the same few timestamps"""


def unlogged(client: HBaseClient, table: str, mutation: pb.MutationProto) -> None:
    """Write something that is not replicated."""
    mutation.durability = pb.MutationProto.SKIP_WAL
    client.mutate(table, [mutation])


def lost(row: bytes, value: bytes = b"v", timestamp: int | None = None) -> pb.MutationProto:
    return put(row, [Cell(row, FAMILY, b"q", value, timestamp)])


def test_rows_are_repaired_under_load_and_no_edit_that_arrives_meanwhile_is_lost(
    source: MiniCluster, target: MiniCluster, at_source: HBaseClient, tmp_path: Path
) -> None:
    with pair_of(source, target, at_source, tmp_path) as pair:
        table = pair.table
        wrong = dict.fromkeys(("missing", "tie", "deleted", "extra", "hidden"), "differs")

        def load(over: Event) -> None:
            """Of two values with one timestamp, the later one counts; a delete hides an older put that comes later."""
            rows = [b"row%03d" % n for n in range(LOADED)]
            for count, row in zip(count_up(), cycle([*rows, *map(str.encode, wrong)]), strict=False):
                write(at_source, table, row, b"%d" % count, 1_000 + count % 2, b"w")
                if count % 10 == 7:
                    at_source.mutate(table, [delete_column(row, FAMILY, b"w", 1_000)])
                    write(at_source, table, row, b"too old", 999, b"w")
                if over.is_set():
                    return

        for row in (b"deleted", b"hidden", b"tie"):
            write(at_source, table, row, b"old", 2_000)
            await_row(target, table, row)
        with beside(load, "load"):
            await_row(target, table, b"row%03d" % (LOADED - 1))
            unlogged(at_source, table, lost(b"missing"))
            unlogged(at_source, table, lost(b"tie", b"new", 2_000))
            unlogged(at_source, table, delete_column(b"deleted", FAMILY, b"q"))
            unlogged(pair.at_target, table, lost(b"extra"))
            unlogged(pair.at_target, table, delete_column(b"hidden", FAMILY, b"q"))
            assert {row: state for row, state in pair.differing().items() if state == "differs"} == wrong

            planned = ask(pair.run, None, dry_run=True)
            assert {row.row.decode() for row in planned.rows} >= wrong.keys()
            assert [way.copy_again for way in planned.ways] == [None]
            assert pair.differing().items() >= wrong.items(), "a dry run changes nothing"

            done = pair.repair()
            assert done.keys() == wrong.keys()
            assert {row.fault for row in done.values()} <= {"", WRITTEN}
            assert not {row for row, state in pair.differing().items() if state == "differs"}
        assert pair.one_pass()["differing_rows"] == 0
        assert (there := content(target, table)) == content(source, table)
        assert {"b'missing' b'd:q'", "b'tie' b'd:q'", "b'hidden' b'd:q'"} <= there.keys()
        assert not {"b'deleted' b'd:q'", "b'extra' b'd:q'"} & there.keys()
        assert pair.repair() == {}


def test_a_repair_that_is_killed_after_it_compacted_is_finished_by_the_next_one(
    source: MiniCluster, target: MiniCluster, at_source: HBaseClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The compaction drops the markers of other rows, which hide what may come yet."""
    with pair_of(source, target, at_source, tmp_path) as pair:
        write(at_source, pair.table, b"marked")
        at_source.mutate(pair.table, [delete_column(b"marked", FAMILY, b"q", 5_000)])
        write(at_source, pair.table, b"next")
        await_row(target, pair.table, b"next")
        assert len(markers := [c for c in raw(pair.at_target, pair.table, b"marked") if c[2] != CellType.PUT]) == 1
        unlogged(pair.at_target, pair.table, lost(b"extra"))
        assert pair.differing() == {"extra": "differs"}
        with monkeypatch.context() as killed:
            killed.setattr(repairing, "_send_owed", lambda work: 0)
            killed.setattr(pair_repair, "finish_repair", lambda *_: None)
            pair.repair()
        assert [c for c in raw(pair.at_target, pair.table, b"marked") if c[2] != CellType.PUT] == []
        assert pair.repair() == {}, "no row differs"
        assert [c for c in raw(pair.at_target, pair.table, b"marked") if c[2] != CellType.PUT] == markers


def until_it_waits(pair: Pair) -> bytes:
    """Have the target's queue get stuck; a row that waits in it.

    Of a batch that the server sends again and again, some rows may arrive. So the row is written once the server has
    read an earlier one that does not come back. A server that was idle reads its log less often.
    """
    write(pair.at_target, pair.table, b"reads on")
    assert pair.comes_back(b"reads on", 90)
    pair.at_source.disable_table(pair.beside)
    write(pair.at_target, pair.beside, b"stops")
    for number in range(20):
        write(pair.at_target, pair.table, row := b"waits%02d" % number)
        if not pair.comes_back(row, 10):
            write(pair.at_target, pair.table, b"behind")
            return b"behind"
    raise AssertionError("the queue never got stuck")


@pytest.mark.long
def test_where_both_clusters_have_clients_nothing_is_taken_back_that_the_source_does_not_have_yet(
    source: MiniCluster, target: MiniCluster, at_source: HBaseClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pair_of(source, target, at_source, tmp_path, both_ways=True) as pair:
        table = pair.table

        def load(over: Event) -> None:
            """A client of the target writes and deletes in rows that are repaired meanwhile."""
            for count in count_up():
                row = (b"busy", b"extra")[count % 2]
                write(pair.at_target, table, row, b"%d" % count, None, b"w%d" % (count % 7))
                if count % 10 == 7:
                    pair.at_target.mutate(table, [delete_column(row, FAMILY, b"w3")])
                if over.is_set():
                    return

        write(at_source, table, b"hidden")
        write(pair.at_target, table, b"theirs")
        assert pair.comes_back(b"theirs", 90)
        await_row(target, table, b"hidden")
        unlogged(at_source, table, lost(b"missing"))
        unlogged(pair.at_target, table, lost(b"extra"))
        unlogged(pair.at_target, table, lost(b"busy"))
        unlogged(pair.at_target, table, delete_column(b"hidden", FAMILY, b"q"))
        wrong = dict.fromkeys(("missing", "extra", "busy", "hidden"), "differs")
        found = pair.one_pass()
        assert {one["row"]: one["state"] for one in found["differences"]} == wrong
        assert found["shipped"]["back"]["peer"] == pair.run.record.spec["peer_back"]
        assert f", and peer {found['shipped']['back']['peer']} back before 20" in pass_line(found)

        behind = until_it_waits(pair).decode()
        with monkeypatch.context() as shorter:
            shorter.setattr(pair_shipping, "LEAST_SECONDS", 20)
            done = pair.repair(["missing", behind])
            assert ["back to the source: not shipped in 20 s" in row.fault for row in done.values()] == [True, True]
            assert pair.differing()[behind] == "under way"

        at_source.enable_table(pair.beside)
        assert pair.comes_back(behind.encode(), 90), "it was left at the target"
        with beside(load, "load"):
            pair.one_pass()
            print(pair.repair(list(wrong)))
        pair.one_pass()
        done = pair.repair(list(wrong))
        assert not any(row.fault for name, row in done.items() if name != "hidden")
        assert "compaction" not in "".join(row.action for row in done.values())
        assert "a delete that only the target has hides what the source shows" in done["hidden"].fault
        planned = ask(pair.run, table, ["hidden"], dry_run=True)
        assert [row.fault for row in planned.rows] == [done["hidden"].fault]
        write(at_source, table, b"hidden", b"again")
        assert pair.differing() == {}
        assert (there := content(target, table)) == content(source, table)
        assert not {"b'extra' b'd:q'", "b'busy' b'd:q'"} & there.keys()
        assert {f"b'extra' b'd:w{n}'" for n in (0, 1, 5)} <= there.keys()
        assert not [c for c in raw(at_source, table, b"extra") if c[0] == b"q"], "a repair does not come back"


@pytest.mark.long
def test_hbase_s_own_program_finds_as_many_rows_different_as_a_pass_and_none_after_the_repair(
    source: MiniCluster, target: MiniCluster, at_source: HBaseClient, tmp_path: Path
) -> None:
    with pair_of(source, target, at_source, tmp_path) as pair:
        at_source.put(pair.table, [Cell(b"row%03d" % n, FAMILY, b"q", b"v") for n in range(200)])
        await_row(target, pair.table, b"row199")
        for n in range(7):
            unlogged(at_source, pair.table, lost(b"row%03d" % n, b"another", 1))  # hidden by a newer version
            unlogged(at_source, pair.table, lost(b"row%03d" % (n + 50), b"another"))
            unlogged(at_source, pair.table, lost(b"missing%d" % n))
            # It does not see those before the source's first row: it scans the sink from there (Verifier.map).
            unlogged(pair.at_target, pair.table, lost(b"row%03d extra" % (n + 90)))
        assert pair.one_pass()["differing_rows"] == 21
        assert verify_replication(source, pair.peer, pair.table, tmp_path) == (193, 21)
        assert len(pair.repair()) == 21
        assert pair.one_pass()["differing_rows"] == 0
        assert verify_replication(source, pair.peer, pair.table, tmp_path) == (207, 0)
