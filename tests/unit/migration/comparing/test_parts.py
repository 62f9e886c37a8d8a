"""A whole comparison goes on where it was stopped, and claims no more than it read."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unit.migration.filled_ledger import FILE, GROUP, SPEC
from unit.replay.memory_zookeeper import MemoryZooKeeper
from walferry.errors import GapError, TransientError
from walferry.formats.resolve import Digest, Fate
from walferry.hbase.address import ClusterAddress
from walferry.ledger import Ledger, RunLedger, SeenFile, WalRange
from walferry.migration.comparing import parts
from walferry.migration.comparing.parts import ComparisonStoppedError, Parts, Start
from walferry.migration.comparing.written_rows import Shown
from walferry.migration.sides.digest import NOTHING, Outcome, RangePair
from walferry.migration.sides.fragile_rows import NONE, RowSpan, RowSpans
from walferry.migration.sides.store_files import RegionFiles
from walferry.migration.touching import equality
from walferry.migration.touching.equality import Begun
from walferry.migration.touching.touched import Seen
from walferry.replay.rights import dirty
from walferry.replay.rights.dirty import DirtyRows
from walferry.run.progress.comparing_ahead import compared_so_far, note_comparing_ahead, waits_for_comparing

HERE = ClusterAddress("127.0.0.1:1", rootdir="hdfs://127.0.0.1:1/hbase")
TABLE = "shop:orders"
REGIONS = 7


@pytest.fixture
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunLedger]:
    monkeypatch.setattr(parts, "AT_ONCE", 2)
    monkeypatch.setattr(parts, "UNDER_WAY_SECONDS", 0.0)
    monkeypatch.setattr(parts, "begin_whole", begin)
    monkeypatch.setattr(equality, "_rules", lambda run, table: "rules")
    with Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}", actor="test") as book:
        yield book.of(book.open_run("move", "cli kim", SPEC, "kim").run_id)


def begin(run: Any, table: str) -> Begun:
    seen = Seen.of(run.ledger)
    return Begun(
        seen.known(table),
        [RegionFiles((b"", b"m"), "low", {"f": frozenset(["first"])})],
        "rules",
        equality._claimed(run.ledger, table),
    )


class Reader:
    """In place of the regions: what was asked for, in order; it stops when told to."""

    def __init__(self, ledger: RunLedger) -> None:
        zk = MemoryZooKeeper().session()
        pair = SimpleNamespace(source=TABLE, target=TABLE)
        self.run: Any = SimpleNamespace(
            ledger=ledger, pair=lambda table: pair, tables=[pair], target=SimpleNamespace(zk=zk), run_id=ledger.run_id
        )
        self.asked: list[str] = []
        self.keeps_equality = True
        self.stops_after = REGIONS
        self.uncompared: set[str] = set()
        self.fragile = NONE
        self.meanwhile: Callable[[], object] = lambda: None

    def parts(self, oldest_ms: float = 0) -> Parts:
        return Parts(self.run, TABLE, self.goes_on, oldest_ms, keeps_equality=self.keeps_equality)

    def goes_on(self) -> bool:
        self.meanwhile()
        return len(self.asked) < self.stops_after

    def read(self, pairs: Sequence[RangePair]) -> list[Outcome]:
        self.asked += [pair.region for pair in pairs]
        return [
            replace(outcome(one.region), uncompared=int(one.region in self.uncompared), fragile=self.fragile)
            for one in pairs
        ]


def ranges(count: int = REGIONS) -> list[RangePair]:
    borders = [b"", *(b"%d" % number for number in range(1, count)), b""]
    return [
        RangePair(HERE, HERE, TABLE, TABLE, f"r{number}", borders[number], borders[number + 1], {})
        for number in range(count)
    ]


def outcome(region: str) -> Outcome:
    number = int(region[1:])
    return replace(
        NOTHING, source=Digest(number, 5, 1 << 127), differing=number % 2, rows=(b"\xff%d" % number,) * (number % 2),
        newest=number,
    )  # fmt: skip


def same(found: Sequence[Outcome], count: int = REGIONS) -> bool:
    return repr(found) == repr([outcome(f"r{number}") for number in range(count)])


def stopped(reader: Reader, after: int = 4) -> Start:
    """A comparison that was stopped after some regions; where it began."""
    reader.stops_after = after
    begun = reader.parts()
    with pytest.raises(ComparisonStoppedError):
        begun.compared(ranges(), reader.read)
    reader.stops_after = 1_000
    reader.asked.clear()
    return begun.start


def test_the_next_process_compares_the_regions_that_are_left(ledger: RunLedger) -> None:
    reader = Reader(ledger)
    start = stopped(reader)
    note_comparing_ahead(ledger, [TABLE])
    assert "(4 of 7 regions of shop:orders are compared as a whole since " in waits_for_comparing(ledger)
    again = reader.parts()
    assert same(again.compared(ranges(), reader.read))
    assert reader.asked == ["r4", "r5", "r6"]
    assert again.start == start, "the equality counts from where the first process began to read"
    parts.drop_parts(ledger, TABLE)
    assert compared_so_far(ledger, TABLE) == ""
    assert same(reader.parts().compared(ranges(), reader.read))
    assert reader.asked == ["r4", "r5", "r6", *(f"r{number}" for number in range(REGIONS))]


def test_a_region_that_was_split_or_merged_is_compared_again(ledger: RunLedger) -> None:
    reader = Reader(ledger)
    stopped(reader)
    now = [*ranges()[:3], replace(ranges()[3], region="r9", stop=b"33"), replace(ranges()[3], region="r8", start=b"33")]
    reader.parts().compared(now, lambda some: reader.read(some))
    assert reader.asked == ["r9", "r8"]


def test_parts_of_another_comparison_are_not_taken_for_ones_of_this(ledger: RunLedger) -> None:
    """A part that an older process recorded late was read before this comparison began."""
    reader = Reader(ledger)
    older = reader.parts()
    parts.drop_parts(ledger, TABLE)
    newer = reader.parts()
    older.compared(ranges(), reader.read)
    reader.asked.clear()
    reader.stops_after = 2
    with pytest.raises(ComparisonStoppedError):
        newer.compared(ranges(), reader.read)
    reader.stops_after = 1_000
    again = reader.parts()
    assert again.start == newer.start
    again.compared(ranges(), reader.read)
    assert reader.asked == [f"r{number}" for number in range(REGIONS)]


@pytest.mark.parametrize("why", ["the families", "others wrote", "long ago", "much log"])
def test_what_was_compared_is_compared_again_when_it_no_longer_counts(
    why: str, ledger: RunLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = Reader(ledger)
    start = stopped(reader)
    if why == "the families":
        monkeypatch.setattr(equality, "_rules", lambda run, table: "others")
    elif why == "others wrote":
        Seen.change(ledger, lambda seen: seen.voiding({TABLE: why}))
    elif why == "much log":
        applied(ledger, f"{FILE}1")
        monkeypatch.setattr(parts, "read_written", lambda *_: why)
    again = reader.parts(start.at_ms + 1 if why == "long ago" else 0)
    assert again.start.key != start.key
    monkeypatch.setattr(equality, "_rules", lambda run, table: "rules")
    again.compared(ranges(), reader.read)
    assert len(reader.asked) == REGIONS


def test_a_comparison_that_no_longer_counts_ends_at_once(ledger: RunLedger) -> None:
    reader = Reader(ledger)
    reader.meanwhile = lambda: Seen.change(ledger, lambda seen: seen.voiding({TABLE: "copied again"}))
    with pytest.raises(TransientError, match="no longer count: copied again"):
        reader.parts().compared(ranges(), reader.read)
    assert reader.asked == ["r0", "r1"]
    assert ledger.notes.named("compared part of " + TABLE) == {}


def drained(ledger: RunLedger) -> None:
    ledger.phases.start("drain")
    ledger.phases.finish("drain", {})


def test_after_the_drain_the_regions_that_are_left_are_compared_until_it_is_done_again(ledger: RunLedger) -> None:
    reader = Reader(ledger)
    ahead = stopped(reader)
    reader.keeps_equality = False
    drained(ledger)
    start = stopped(reader)
    assert start.key != ahead.key, "what was compared while the log was followed does not count"
    again = reader.parts()
    assert again.start == start
    assert same(again.compared(ranges(), reader.read))
    assert reader.asked == ["r4", "r5", "r6"]
    drained(ledger)  # after a withdrawal, or with edits that came late
    assert reader.parts().start.key != start.key


def test_cells_that_could_not_be_compared_are_not_left_so(ledger: RunLedger) -> None:
    reader = Reader(ledger)
    reader.keeps_equality = False
    reader.uncompared = {"r1"}
    stopped(reader)
    reader.parts().compared(ranges(), reader.read)
    assert reader.asked == ["r1", "r4", "r5", "r6"]


# ------------------------------------------------------------------ what is written meanwhile


def applied(ledger: RunLedger, name: str) -> None:
    ledger.log.see_files([SeenFile(name, GROUP, "rs,1,2", int(name[-2:]), f"/hbase/WALs/{name}", 1_000, sealed=True)])
    ledger.log.set_ranges([WalRange(name, 0, 1_000, TABLE, 3, 7, 1, 2, "applied")])


FRAGILE = RowSpans((RowSpan(b"k", b"k\0", marked=True),))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[set[str]]:
    """The logs that were read between parts: two rows of the first of them differ, one of these when read again."""
    found: list[set[str]] = []

    def read_written(run: Any, table: str, names: set[str]) -> tuple[Shown, dict[str, pa.Array]]:
        found.append(names)
        rows = {name: pa.array([b"b", b"c"] if number == 0 else [b"c"]) for number, name in enumerate(sorted(names))}
        return Shown({b"b": "digest", b"c": "digest"}, FRAGILE, 2, 10, 5), rows

    monkeypatch.setattr(parts, "BETWEEN_SECONDS", 0.0)
    monkeypatch.setattr(parts, "read_written", read_written)
    monkeypatch.setattr(parts, "differing", lambda run, table, rows: {b"b": "digest"})
    return found


def test_what_is_written_meanwhile_is_read_between_two_parts_and_again_only_if_it_differs(
    ledger: RunLedger, asked: list[set[str]]
) -> None:
    first, second, third = (f"{FILE}{number}" for number in (1, 2, 3))
    applied(ledger, first)
    reader = Reader(ledger)
    begun = reader.parts()
    assert begun.start.applied == {first}

    def write() -> None:
        if len(reader.asked) == 2:
            applied(ledger, second)
            applied(ledger, third)

    reader.meanwhile = write
    begun.compared(ranges(), reader.read)
    assert asked == [{second, third}, {second}, {second}], "what was applied before the first part is in all of them"
    start = begun.start
    assert start.applied == {first, third}, "rows of the second log are read again once more"
    assert start.fragile == FRAGILE
    assert reader.parts().start == start


def test_a_log_that_cannot_be_read_any_more_ends_no_comparison_that_is_under_way(
    ledger: RunLedger, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Hole: each attempt met it, and the table was never compared ahead again."""

    def gone(*_: object) -> None:
        raise GapError("log 7 is gone", file="7")

    monkeypatch.setattr(parts, "BETWEEN_SECONDS", 0.0)
    monkeypatch.setattr(parts, "read_written", gone)
    reader = Reader(ledger)
    begun = reader.parts()
    applied(ledger, f"{FILE}1")
    assert same(begun.compared(ranges(), reader.read))
    assert "log 7 is gone" in caplog.text
    reader.asked.clear()
    again = reader.parts()
    assert again.start.key != begun.start.key
    assert again.start.applied == {f"{FILE}1"}
    assert same(again.compared(ranges(), reader.read))


def test_rows_that_may_change_by_themselves_are_kept_once_for_all_parts(ledger: RunLedger) -> None:
    reader = Reader(ledger)
    reader.fragile = FRAGILE
    found = reader.parts().compared(ranges(), reader.read)
    assert not any(outcome.fragile for outcome in found)
    assert reader.parts().start.fragile == FRAGILE


def test_what_became_dirty_after_the_first_part_was_read_has_all_of_them_read_again(ledger: RunLedger) -> None:
    reader = Reader(ledger)
    before = DirtyRows.of(TABLE, b"a", b"b", "run", 1, 5)
    dirty._create(reader.run.target.zk, before, closed=False)
    start = stopped(reader)
    assert start.marks == {before.name}
    assert reader.parts().start == start
    dirty._create(reader.run.target.zk, DirtyRows.of(TABLE, b"c", b"d", "run", 1, 6), closed=False)
    again = reader.parts().start
    assert again.key != start.key
    assert len(again.marks) == 2


def test_parts_of_the_last_comparison_are_too_old_when_nobody_went_on_for_long(
    ledger: RunLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody looks any more what others write at the target."""
    reader = Reader(ledger)
    reader.keeps_equality = False
    start = stopped(reader)
    assert reader.parts().start == start
    monkeypatch.setattr(parts, "REST_SECONDS", -1.0)
    assert reader.parts().start.key != start.key


OUTCOMES = st.builds(
    Outcome,
    *[st.builds(Digest, st.integers(0, 2**40), st.integers(0, 2**40), st.integers(0, 2**128 - 1))] * 2,
    st.lists(st.integers(0, 2**40), min_size=2 * len(Fate), max_size=2 * len(Fate)).map(
        lambda counts: np.array(counts, np.int64).reshape(2, len(Fate))
    ),
    st.integers(0, 9), st.integers(0, 9), st.none() | st.integers(0, 2**41), st.none() | st.integers(0, 2**41),
    st.integers(0, 9), st.lists(st.binary(max_size=9)).map(tuple),
    st.just(NONE), st.integers(-1, 2**62),
    st.lists(st.tuples(st.floats(0, 1), st.binary(max_size=9))).map(tuple),
)  # fmt: skip


@given(OUTCOMES)
def test_an_outcome_is_kept_as_it_is(found: Outcome) -> None:
    kept = parts._outcome(parts._facts(found))
    assert repr(kept) == repr(found)
    assert kept.dropped.dtype == found.dropped.dtype
    assert not (kept + found).dropped.sum() % 2


def test_progress_tells_how_long_the_rest_takes(ledger: RunLedger, caplog: pytest.LogCaptureFixture) -> None:
    reader = Reader(ledger)

    def slow(some: Sequence[RangePair]) -> list[Outcome]:
        time.sleep(0.01)
        return reader.read(some)

    with caplog.at_level("INFO"):
        reader.parts().compared(ranges(), slow)
    assert [record.getMessage() for record in caplog.records][:1] == [
        "shop:orders: 2 of 7 regions are compared, about 0 s are left"
    ]
