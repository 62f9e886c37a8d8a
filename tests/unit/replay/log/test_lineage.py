"""What shows that a table began a new history, and what does not; the events are those that HBase 2.6.3 wrote."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy.event import listen

from unit.migration.filled_ledger import SPEC
from walferry.apply.region_events import RegionEvent
from walferry.errors import WalferryError
from walferry.formats.markers import Marker
from walferry.hbase.descriptors import Region
from walferry.hbase.zookeeper import Server
from walferry.ledger import KnownRegion, Ledger, WalRange
from walferry.ledger.regions import RegionKey
from walferry.refusals import ANY_REGION, RefusalKind
from walferry.replay.log import lineage
from walferry.replay.log.lineage import FamiliesOf, changes, find_breaks, know_snapshot, trace
from walferry.run.run import Run

TABLE = "shop:orders"
HOME = Server("rs", 1, 2)
A, B, C = "a" * 32, "b" * 32, "c" * 32


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lineage, "CONFIRM_SECONDS", 0)


def stores(*names: str) -> frozenset[str]:
    """Store files, of the family f where none is named."""
    return frozenset(name if "/" in name else f"f/{name}" for name in names)


def event(
    kind: Marker, region: str, number: int, *files: str, replaced: Sequence[str] = (), row: bytes = b""
) -> RegionEvent:
    """`row`: the region's first one, another for each region unless it is named."""
    begin = row or region[:1].encode()
    return RegionEvent(kind, "file", number, TABLE, region, number, number, stores(*files), stores(*replaced), begin)


def opened(region: str, number: int, *files: str, row: bytes = b"") -> RegionEvent:
    return event(Marker.REGION_OPEN, region, number, *files, row=row)


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


def known(**files: str) -> dict[RegionKey, KnownRegion]:
    """What earlier batches told of open regions; their files with blanks in between."""
    return {(TABLE, r * 32): KnownRegion(TABLE, r * 32, stores(*names.split())) for r, names in files.items()}


def of_two(table: str) -> list[str]:
    """The table's column families now."""
    return ["f", "g"]


def broken(
    events: Sequence[RegionEvent],
    regions: Sequence[Region] = (),
    before: Mapping[RegionKey, KnownRegion] = {},
    families: FamiliesOf = of_two,
) -> bool:
    found = find_breaks(trace(before, events, families), {TABLE: regions}, lambda table: regions)
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


@pytest.mark.parametrize(
    "later",
    [
        [flushed(A, 25, "f9")],
        [compacted(A, 25, "f9", f"orders={A}-f1")],
        [event(Marker.BULK_LOAD, A, 25, "b_SeqId_25_")],
        [closed(A, 31), opened(A, 33, f"orders={A}-f1")],
        [flushed(A, 25, "f9"), closed(A, 31), opened(A, 33, f"orders={A}-f1", "f9")],
    ],
    ids=["flushed", "compacted", "loaded", "moved", "flushed and moved"],
)
def test_what_a_clone_logs_above_the_old_closing_shows_that_it_opened_below_it(later: Sequence[RegionEvent]) -> None:
    events = [closed(A, 20), opened(A, 11, f"orders={A}-f1"), *later]
    assert broken(events, now(a=10), known(a="f1 f2"))
    assert trace(known(a="f1 f2"), events, of_two, has_holes=True).breaks == {}, "the opening may have been elsewhere"


def test_a_clone_that_opens_in_the_batch_after_the_closing_opens_below_it_whatever_files_it_has() -> None:
    before = {(TABLE, A): KnownRegion(TABLE, A, stores("f1"), 20, "file", 20, 20)}
    assert broken([opened(A, 11, "f1")], now(a=10), before)
    assert not broken([opened(A, 22, "f1")], now(a=21), before)


def test_what_is_logged_twice_or_was_left_by_a_dead_server_needs_no_opening() -> None:
    twice = [flushed(A, 19, "f2"), closed(A, 20), closed(A, 20), opened(A, 22, "f1", "f2")]
    assert not broken(twice, now(a=21), known(a="f1"))
    left = [opened(A, 32, "f3"), closed(A, 33), compacted(A, 34, "f3", "f1", "f2"), opened(A, 36, "f3")]
    assert not broken(left, now(a=35), known(a="f1 f2"))


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
    assert broken([flushed(B, 22, "f3", "f4"), closed(B, 23), opened(A, 25, "t=bbbb-f3")], now(a=24))


def test_a_file_of_the_snapshot_or_of_an_earlier_batch_is_missed_when_a_region_opens_again() -> None:
    again = [closed(A, 30), opened(A, 32, "f1")]
    assert broken(again, now(a=31), known(a="f1 f2"))
    assert broken([closed(A, 30), opened(A, 32)], now(a=31), known(a="f1"))
    assert not broken(again, now(a=31), known(a="f1"))
    assert not broken([flushed(A, 25, "f3"), closed(A, 30), opened(A, 32, "f2", "f3")], now(a=31), known(a="f2"))
    assert broken([opened(A, 20, "f1", "f2"), *again], now(a=31)), "an opening tells all that there was, too"


def test_compactions_of_what_was_known_before_leave_nothing_to_miss() -> None:
    merged = compacted(A, 20, "f3", "f1", "f2")
    expired = event(Marker.COMPACTION, A, 22, replaced=["f0"])
    again = [merged, expired, closed(A, 30), opened(A, 32, "f3")]
    assert not broken(again, now(a=31), known(a="f0 f1 f2"))
    assert broken(again, now(a=31), known(a="f0 f1 f2 f4"))


def test_what_came_between_the_start_fence_and_the_snapshot_is_not_missed_before_it_came() -> None:
    moved = [closed(A, 10), opened(A, 12, "f1"), flushed(A, 15, "f2"), closed(A, 20), opened(A, 22, "f1", "f2")]
    assert not broken(moved, now(a=21), known(a="f1 f2")), "the snapshot has f2, and the log begins before it"
    recovered = [closed(A, 10), opened(A, 12, "f1"), opened(A, 30, "f1", "r")]
    assert not broken(recovered, now(a=29), known(a="f1 r")), (
        "the edits of a dead server became a file without a marker"
    )


def test_a_bulk_load_brings_files_and_a_restore_takes_them_again() -> None:
    loaded = event(Marker.BULK_LOAD, A, 15, "b_SeqId_15_")
    assert broken([loaded, closed(A, 20), opened(A, 22, "f1")], now(a=21), known(a="f1"))
    assert not broken([loaded, closed(A, 20), opened(A, 22, "f1", "b_SeqId_15_")], now(a=21), known(a="f1"))


def test_a_server_that_died_may_have_compacted_without_a_marker() -> None:
    assert not broken([opened(A, 32, "f3")], now(a=31), known(a="f1 f2"))
    assert broken([opened(A, 32, "f3"), closed(A, 40), opened(A, 42)], now(a=41), known(a="f1 f2"))


def test_restored_with_other_borders_what_earlier_batches_told_of_is_without_an_heir() -> None:
    assert broken([closed(A, 30), opened(B, 14, "f0")], now(b=13), known(a="f1 f2"))
    assert not broken([closed(A, 30), opened(B, 34, f"f1.{A}")], now(b=33), known(a="f1 empty"))
    assert not broken([closed(A, 30), opened(B, 34, "orders=x-f1")], now(b=33), known(a="orders=x-f1")), "a link's link"


@pytest.mark.parametrize("link", [f"orders={A}-f1", "orders=x-f1"], ids=["to its own file", "of a clone"])
def test_a_region_that_is_restored_to_before_its_split_is_no_successor_of_a_daughter_with_the_same_link(
    link: str,
) -> None:
    before = known(b=f"{link} f2", c="")
    merged = [closed(B, 20), closed(C, 15)]
    assert broken([*merged, opened(A, 14, link)], now(a=13), before)
    assert broken([opened(B, 17, link, "f2"), *merged, opened(A, 14, link)], now(a=13)), "its own opening is none"
    moved = [opened(A, 14, link), closed(A, 30), opened(A, 32, link)]
    assert broken([*merged, *moved], now(a=31), before), "nor is where a restored one moved to"
    assert not broken([closed(B, 20), opened(A, 22, link)], now(a=21, c=13), before), "what opens above it is"


def test_what_a_dropped_column_family_had_is_not_missed() -> None:
    again = [closed(A, 30), opened(A, 32, "f/f1")]
    before = known(a="f/f1 my%20family/f2")
    assert not broken(again, now(a=31), before, lambda table: ["f"])
    assert broken(again, now(a=31), before, lambda table: ["f", "my family"]), "dropped and added again"
    assert broken([closed(A, 30), opened(A, 32)], now(a=31), before, lambda table: ["f"]), "f lost its file too"
    assert broken(again, now(a=31), before, lambda table: None), "the whole table was dropped"
    whole = [closed(A, 30), opened(A, 32, "f/f1", "my%20family/f2")]
    assert not broken(whole, now(a=31), before, lambda table: pytest.fail("asked though nothing is missed"))


def test_what_a_dropped_column_family_had_is_missed_once_it_is_added_again() -> None:
    dropped = trace(known(a="f/f1 g/f2"), [closed(A, 30), opened(A, 32, "f/f1")], lambda table: ["f"])
    assert dropped.breaks == {}
    added = [closed(A, 40), opened(A, 42, "f/f1")]
    assert broken(added, now(a=41), dropped.known)
    assert not broken(added, now(a=41), dropped.known, lambda table: ["f"]), "another move"


def test_a_region_that_had_nothing_but_a_dropped_family_needs_no_heir() -> None:
    before = known(a="g/f2")
    merged = [closed(A, 30), opened(B, 34, "f/f1")]
    assert not broken(merged, now(b=33), before, lambda table: ["f"])
    assert broken(merged, now(b=33), before)


def test_a_region_that_opened_below_its_closing_may_be_anywhere_when_it_is_asked_for_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lineage, "CONFIRM_SECONDS", 60)
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    told = trace(known(a="f1"), [closed(A, 20)], of_two)
    at_cut = now(a=10)
    assert find_breaks(told, {TABLE: at_cut}, lambda table: now(a=32)), "the clone was moved since"
    of_old = [replace(region, may_lag=True) for region in at_cut]
    assert find_breaks(told, {TABLE: of_old}, lambda table: now(a=21)) == [], "1.x showed the opening before"


def test_a_region_that_was_closed_at_the_cut_may_have_been_split_since() -> None:
    disabled = trace(known(a="f1"), [closed(A, 30)], of_two)
    split, cut = now(b=34, c=34), {TABLE: now(a=0)}
    assert find_breaks(disabled, cut, lambda table: split) == []
    assert changes({}, disabled, [TABLE], cut)[TABLE, A] is not None, "the next round follows it"
    assert find_breaks(disabled, {TABLE: split}, lambda table: split), "none of them had opened by the cut"


def test_a_region_whose_files_are_all_without_a_cell_is_followed_by_the_one_that_begins_at_its_first_row() -> None:
    before = known(a="f1")
    split = [event(Marker.REGION_CLOSE, A, 20, row=b"k"), opened(C, 22, row=b"m")]
    assert not broken([*split, opened(B, 22, row=b"k")], now(b=21, c=21), before)
    assert broken([*split, opened(B, 14, row=b"k")], now(b=13, c=21), before), "a parent that was restored"
    assert broken([*split, opened(B, 22, "f0", row=b"k")], now(b=21, c=21), before), "it has a history of its own"
    assert broken([*split, opened(B, 22, row=b"j")], now(b=21, c=21), before), "another empty region that moved"


def batch(run: Run, events: Sequence[RegionEvent], regions: Sequence[Region]) -> bool:
    """Whether a batch of events shows a break; if not, it is recorded as batches are."""
    before = run.ledger.regions.known([TABLE], [one.region for one in events])
    found = broken(events, regions, before)
    if not found:
        run.ledger.log.set_ranges([], changes(before, trace(before, events, of_two), [TABLE], {TABLE: regions}))
    return found


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    with Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}", actor="test") as ledger:
        yield Run(ledger, ledger.open_run("move", "test", SPEC, "test").run_id)


def test_what_was_flushed_in_calm_batches_is_missed_when_a_restored_table_opens(run: Run) -> None:
    know_snapshot(run.ledger, TABLE, {A: stores("f1"), B: stores("f1")})
    assert not batch(run, [flushed(A, 11, "f2")], now(a=1, b=1))
    assert not batch(run, [flushed(A, 19, "f3")], now(a=1, b=1))
    assert not batch(run, [compacted(A, 21, "f4", "f1", "f2")], now(a=1, b=1))
    assert not batch(run, [closed(B, 30), opened(B, 32, "f1")], now(a=1, b=31)), "a move"
    assert not batch(run, [closed(A, 30), opened(A, 32, "f3", "f4")], now(a=31, b=31)), "another one"
    assert batch(run, [closed(A, 40), opened(A, 42, "t=x-f1")], now(a=41, b=31))


@pytest.mark.parametrize("adds", [Marker.FLUSH, Marker.BULK_LOAD])
def test_a_compaction_may_be_logged_before_the_flush_or_bulk_load_that_made_its_file(run: Run, adds: Marker) -> None:
    know_snapshot(run.ledger, TABLE, {A: stores("f1")})
    assert not batch(run, [compacted(A, 20, "f3", "f1", "f2")], now(a=1))
    assert not batch(run, [event(adds, A, 21, "f2")], now(a=1))
    assert run.ledger.regions.known([TABLE], [A])[TABLE, A] == KnownRegion(TABLE, A, stores("f3"))
    assert not batch(run, [closed(A, 30), opened(A, 32, "f3")], now(a=31))
    both = [compacted(A, 40, "f5", "f3", "f4"), event(adds, A, 41, "f4")]
    assert not batch(run, [*both, closed(A, 50), opened(A, 52, "f5")], now(a=51))
    assert batch(run, [event(adds, A, 60, "f6"), closed(A, 61), opened(A, 63, "f5")], now(a=62))


def test_all_closed_regions_are_read_once_however_many_others_are_asked_for(run: Run) -> None:
    known_now = [KnownRegion(TABLE, f"{number:032x}", stores("f1")) for number in range(1_200)]
    run.ledger.regions.begin([*known_now, KnownRegion(TABLE, A, stores("f2"), 7, "file", 1, 2)])
    statements: list[str] = []
    engine = run.ledger._store.database._engine
    listen(engine, "before_cursor_execute", lambda *args: statements.append(args[2]))
    found = run.ledger.regions.known([TABLE], [region.region for region in known_now])
    assert len(found) == 1_201
    assert len([one for one in statements if "closed_sequence IS NOT NULL" in one]) == 1


def test_a_table_that_is_restored_right_after_the_copy_lacks_files_of_the_runs_snapshot(run: Run) -> None:
    know_snapshot(run.ledger, TABLE, {A: stores("f1", "f2")})
    assert batch(run, [closed(A, 30), opened(A, 32, "f1")], now(a=31))


def test_what_a_batch_tells_of_regions_is_kept_with_its_ranges_or_not_at_all(run: Run) -> None:
    told = trace({}, [flushed(A, 11, "f1"), closed(A, 12)], of_two)
    seen = WalRange("never seen", 0, 1, TABLE, 1, 1, 1, 1, "applied")
    with pytest.raises(WalferryError, match="never saw"):
        run.ledger.log.set_ranges([seen], changes({}, told, [TABLE], {}))
    assert run.ledger.regions.known([TABLE], [A]) == {}
    run.ledger.log.set_ranges([], changes({}, told, [TABLE], {}))
    assert run.ledger.regions.known([TABLE]) == {(TABLE, A): KnownRegion(TABLE, A, stores("f1"), 12, "file", 12, 12)}
    run.ledger.regions.forget(TABLE)
    assert run.ledger.regions.known([TABLE], [A]) == {}


def test_a_table_that_is_disabled_for_longer_than_a_batch_is_remembered(run: Run) -> None:
    assert not batch(run, [flushed(A, 19, "f2"), closed(A, 20)], now(a=0, b=2))
    assert not batch(run, [], now(a=0, b=2))
    assert batch(run, [opened(A, 22, "f1")], now(a=21, b=2)), "it was restored meanwhile"
    assert batch(run, [], now(c=21, b=2)), "restored with other borders, and no batch saw it open"
    assert not batch(run, [opened(A, 22, "f2")], now(a=21, b=2))
    assert not batch(run, [flushed(A, 30, "f3"), closed(A, 31)], now(a=0, b=2))
    assert not batch(run, [opened(A, 33, "f2", "f3")], now(a=32, b=2))
    assert run.ledger.regions.known([TABLE]) == {}
    assert not batch(run, [closed(A, 40), opened(C, 42, f"f3.{A}")], now(c=41, b=2))
    assert run.ledger.regions.known([TABLE], [A]) == {}, "a parent that is gone is not kept for ever"
