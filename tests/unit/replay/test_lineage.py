"""What shows that a table began a new history, and what does not; the events are those that HBase 2.6.3 wrote."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from unit.migration.filled_ledger import SPEC
from walferry.apply.index import RegionEvent
from walferry.formats.markers import Marker
from walferry.hbase.descriptors import Region
from walferry.hbase.zookeeper import Server
from walferry.ledger import Ledger
from walferry.refusals import ANY_REGION, RefusalKind
from walferry.replay import lineage
from walferry.replay.lineage import closed_regions, find_breaks, keep_closed_regions
from walferry.run.run import Run

TABLE = "shop:orders"
HOME = Server("rs", 1, 2)
A, B, C = "a" * 32, "b" * 32, "c" * 32


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lineage, "CONFIRM_SECONDS", 0)


def event(kind: Marker, region: str, number: int, *files: str, replaced: Sequence[str] = ()) -> RegionEvent:
    return RegionEvent(kind, "file", number, TABLE, region, number, number, frozenset(files), frozenset(replaced))


def opened(region: str, number: int, *files: str) -> RegionEvent:
    return event(Marker.REGION_OPEN, region, number, *files)


def flushed(region: str, number: int, *files: str) -> RegionEvent:
    return event(Marker.FLUSH, region, number, *files)


def compacted(region: str, number: int, into: str, *files: str) -> RegionEvent:
    return event(Marker.COMPACTION, region, number, into, replaced=files)


def closed(region: str, number: int) -> RegionEvent:
    return event(Marker.REGION_CLOSE, region, number)


def now(**open_sequences: int) -> list[Region]:
    """The table's regions in hbase:meta, by what they opened with; 0: closed."""
    return [
        Region(b"", region * 32, TABLE, b"", b"", HOME if number else None, 1, number)
        for region, number in open_sequences.items()
    ]


def broken(events: Sequence[RegionEvent], regions: Sequence[Region] = ()) -> bool:
    found = find_breaks(events, lambda table: regions)
    assert all((f.table, f.region, f.kind) == (TABLE, ANY_REGION, RefusalKind.LINEAGE) for f in found)
    return bool(found)


def test_a_region_without_a_history_was_created_anew() -> None:
    assert broken([flushed(A, 11, "f1"), closed(A, 12), opened(B, 3)], now(b=2))


def test_a_region_that_opens_without_a_file_that_it_had_was_restored() -> None:
    before = [flushed(A, 11, "f1"), flushed(A, 19, "f2"), closed(A, 20)]
    assert broken([*before, opened(A, 22, "f1")], now(a=21))
    assert not broken([*before, opened(A, 22, "f1", "f2")], now(a=21))
    assert not broken([*before, opened(A, 22, "f0", "f1", "f2")], now(a=21)), "one file may be older than the log"


def test_what_was_compacted_away_is_not_missed() -> None:
    before = [flushed(A, 11, "f1"), flushed(A, 19, "f2"), compacted(A, 20, "f3", "f1", "f2"), closed(A, 21)]
    assert not broken([*before, opened(A, 23, "f3")], now(a=22))
    assert broken([*before, opened(A, 23, "shop=orders=aaaa-f1")], now(a=22)), "a snapshot's files come back as links"


def test_the_order_is_that_of_the_sequence_numbers_for_servers_have_other_clocks() -> None:
    events = [opened(A, 23, "f3"), compacted(A, 20, "f3", "f1"), closed(A, 21), flushed(A, 11, "f1")]
    assert not broken(events, now(a=22))


def test_a_server_that_died_leaves_no_closing_and_opens_with_more_than_the_log_tells() -> None:
    assert not broken([flushed(A, 11, "f1"), opened(A, 40, "f1", "recovered")], now(a=39))


def test_a_region_that_opened_below_its_closing_is_of_a_clone_under_the_same_name() -> None:
    events = [flushed(A, 19, "f2"), closed(A, 20), opened(A, 11, f"orders={A}-f1")]
    assert broken(events, now(a=10))
    assert not broken([closed(A, 20), opened(A, 22)], now(a=21))


def test_a_region_that_is_still_closed_tells_nothing_yet() -> None:
    assert not broken([flushed(A, 19, "f2"), closed(A, 20)], now(a=0))
    assert not broken([flushed(A, 19, "f2"), closed(A, 20)]), "a table that was dropped is the gate's"


def test_the_heirs_of_a_split_and_of_a_merge_have_the_files_of_their_parents() -> None:
    split = [flushed(A, 11, "f1", "f2"), closed(A, 12)]
    heirs = [opened(B, 14, f"f1.{A}"), opened(C, 14, f"f1.{A}", f"orders={A}-f2")]
    assert not broken([*split, *heirs], now(b=13, c=13))
    merge = [flushed(B, 21, "f3"), closed(B, 22), closed(C, 15)]
    assert not broken([*merge, opened(A, 25, f"f3.{B}")], now(a=24))
    assert not broken([closed(B, 15), opened(A, 25)], now(a=24)), "an empty one leaves nothing"


def test_a_region_that_is_gone_without_an_heir_of_its_files_was_replaced() -> None:
    assert broken([flushed(B, 22, "f3"), closed(B, 23), opened(A, 14, "f1")], now(a=13))
    assert broken([flushed(B, 22, "f3", "f4"), closed(B, 23), opened(A, 25, f"f3.{B}")], now(a=24))


def test_a_table_that_is_disabled_for_longer_than_a_batch_is_remembered(tmp_path: Path) -> None:
    with Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}", actor="test") as ledger:
        run = Run(ledger, ledger.open_run("move", "test", SPEC, "test").run_id)

        def batch(events: Sequence[RegionEvent], regions: Sequence[Region]) -> bool:
            known = [*closed_regions(run, [TABLE]), *events]
            found = broken(known, regions)
            keep_closed_regions(run, [TABLE], known, lambda table: regions)
            return found

        assert not batch([flushed(A, 19, "f2"), closed(A, 20)], now(a=0, b=2))
        assert not batch([], now(a=0, b=2))
        assert batch([opened(A, 22, "f1")], now(a=21, b=2)), "it was restored meanwhile"
        assert not batch([flushed(A, 30, "f2"), closed(A, 31)], now(a=0, b=2))
        assert not batch([opened(A, 33, "f2")], now(a=32, b=2))
        assert closed_regions(run, [TABLE]) == []
        assert not batch([closed(A, 40), opened(C, 42)], now(c=41, b=2))
        assert closed_regions(run, [TABLE]) == [], "a parent that is gone is not kept for ever"
