"""What shows a new history in HBase 1.x, where a region may open below a closing; the events are those of 1.7.2."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import count

import pytest

from unit.replay.log.test_lineage import TABLE, A, B, C, closed, compacted, flushed, known, now, of_two, opened, stores
from walferry.apply.region_events import RegionEvent
from walferry.hbase.descriptors import Region
from walferry.ledger import KnownRegion
from walferry.ledger.regions import RegionKey
from walferry.refusals import RefusalKind
from walferry.replay.log.lineage import changes, created, find_breaks, trace

OFFSETS = count(1)
ROWS = {A: b"\0", B: b"\0", C: b"m"}


def on(server: int, *events: RegionEvent) -> list[RegionEvent]:
    """These events in the log of a server, one after the other, and after those that were made before."""
    name = f"rs%2C{server}%2C1700000000000.1700000000001"
    return [replace(event, file=name, offset=next(OFFSETS), row=ROWS.get(event.region, b"")) for event in events]


def broken(
    events: Sequence[RegionEvent], regions: Sequence[Region] = (), before: Mapping[RegionKey, KnownRegion] = {}
) -> bool:
    regions = [replace(region, may_lag=True) for region in regions]
    told = trace(before, events, of_two, opens_past_closing=False)
    found = find_breaks(told, {TABLE: regions}, lambda table: regions)
    assert all(one.kind is RefusalKind.LINEAGE for one in found)
    return bool(found)


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("walferry.replay.log.lineage.CONFIRM_SECONDS", 0)


def test_a_move_opens_past_the_closing_with_data_in_memory_and_without() -> None:
    moved = [*on(1, flushed(A, 9, "f1"), closed(A, 10)), *on(2, opened(A, 12, "f1"), closed(A, 13))]
    assert not broken([*moved, *on(1, opened(A, 15, "f1"))], now(a=14))


def test_a_read_only_region_opens_below_its_closing_and_logs_nothing() -> None:
    closing = on(1, opened(A, 35, "f0"), flushed(A, 40, "f1"), closed(A, 41))
    assert not broken(closing, now(a=39))
    told = trace({}, closing, of_two, opens_past_closing=False)
    disabled = changes({}, told, [TABLE], {TABLE: now(a=39)})
    before = {key: region for key, region in disabled.items() if region is not None}
    assert before[TABLE, A].closed_sequence == 41
    assert not broken([], now(a=39), before), "still so in the next round"
    assert not broken(on(1, opened(A, 43, "f0", "f1")), now(a=42), before), "not READONLY any more"
    assert broken(on(1, opened(A, 43, "f0")), now(a=42), before), "it was restored meanwhile"


def test_a_region_that_turns_read_only_right_after_it_opened_may_open_at_the_same_number_again() -> None:
    assert not broken(on(1, opened(B, 71, f"f1.{A}"), closed(B, 72)), now(b=70))


def test_a_clone_under_the_same_name_logs_its_opening_wherever_it_opens() -> None:
    old, clone = [flushed(A, 133, "f2"), closed(A, 134)], opened(A, 111, f"t1={A}-f1")
    before = known(a="f1")
    assert broken(on(1, *old, clone), now(a=110), before)
    assert broken([*on(1, *old), *on(2, clone)], now(a=110), before)
    moved = [clone, flushed(A, 116, "f3"), closed(A, 117)]
    again = opened(A, 119, f"t1={A}-f1", "f3")
    assert broken([*on(1, *old, *moved), *on(2, again)], now(a=118), before)
    in_parts = {(TABLE, A): KnownRegion(TABLE, A, stores("f1", "f2"), 134, "file", 1, 134)}
    assert broken(on(2, clone), now(a=110), in_parts), "the closing was in an earlier part"


def test_a_table_that_is_restored_in_place_opens_past_its_closing_without_a_file() -> None:
    restored = [*on(1, flushed(A, 116, "f2"), closed(A, 117)), *on(2, opened(A, 119, "f1"))]
    assert broken(restored, now(a=118), known(a="f1"))


def test_daughters_open_below_the_closing_of_their_parent() -> None:
    parent = [flushed(A, 71, "f2"), closed(A, 72)]
    references = [f"f1.{A}", f"f2.{A}"]
    lower = [opened(B, 71, *references), compacted(B, 72, "f3", *references)]
    split = on(1, *parent, *lower, opened(C, 72, *references))
    assert not broken(split, now(b=70, c=71), known(a="f1"))
    told = trace(known(a="f1"), split, of_two, opens_past_closing=False)
    assert changes({}, told, [TABLE], {})[TABLE, A] is None, "a parent that is gone is not kept for ever"
    moved = [*on(1, closed(B, 73)), *on(2, opened(B, 75, "f3"))]
    assert not broken([*split, *moved], now(b=74, c=71), known(a="f1"))
    assert broken([*split, *on(1, closed(B, 73), closed(C, 74)), *on(2, opened(A, 66, "f1"))], now(a=65), known(a="f1"))


def test_a_daughter_without_any_file_begins_at_the_first_number() -> None:
    parent = on(1, flushed(A, 71, "f1"), closed(A, 72))
    daughters = on(1, opened(B, 71, f"f1.{A}"), opened(C, 3))
    assert not broken([*parent, *daughters], now(b=70, c=2))
    assert created([*parent, *daughters], opens_past_closing=False) == {}
    before = {(TABLE, A): KnownRegion(TABLE, A, stores("f1"), 72, "file", 1, 72)}
    assert not broken(daughters, now(b=70, c=2), before), "the parent closed in an earlier part"
    assert broken([*parent, *on(1, opened(C, 3))], now(c=2)), "truncated"
    assert created([*parent, *on(1, opened(C, 3))], opens_past_closing=False)
    assert broken(on(1, closed(A, 10), opened(C, 3)), now(c=2)), "a drain knows no files of a calm region"


def test_a_truncated_table_is_noticed_right_after_a_split_too() -> None:
    split = on(1, flushed(A, 71, "f1"), closed(A, 72), opened(B, 71, f"f1.{A}"), opened(C, 3))
    closings = on(1, closed(B, 74), closed(C, 6))
    truncated = [replace(event, region="d" * 32) for event in on(2, opened(A, 3))]
    assert broken([*split, *closings, *truncated], now(d=2))


def test_a_merged_region_may_open_below_a_closing_of_its_parents() -> None:
    merge = on(1, flushed(B, 82, "f1"), closed(B, 83), closed(C, 60), opened(A, 82, f"f1.{B}", f"f2.{C}"))
    assert not broken(merge, now(a=81), known(c="f2"))
    assert broken([*merge[:3], *on(1, opened(A, 82, "f0"))], now(a=81), known(c="f2")), "another region's files"


def test_a_killed_server_leaves_no_closing_and_its_opening_proves_nothing() -> None:
    killed = [*on(1, opened(A, 93, "f1"), compacted(A, 94, "f2", "f1")), *on(2, opened(A, 97, "f2", "recovered"))]
    assert not broken(killed, now(a=96))
    assert not broken([*killed, *on(2, closed(A, 98))], now(a=95)), "READONLY afterwards"
