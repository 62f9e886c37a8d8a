"""Both sides of a row range, read side by side: hand-made cells, and a clock that only moves while a side is read."""

from __future__ import annotations

import random
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import cast

import pytest

from walferry.clock import CLOCKS_APART_MS
from walferry.formats.cells import CellType, encode_cell
from walferry.formats.resolve import FamilyRules, Fate
from walferry.hbase.address import ClusterAddress
from walferry.migration.sides import digest
from walferry.migration.sides.digest import Outcome, RangePair, compare_pair

DAY = 86_400_000
START = 10 * DAY
ADDRESS = ClusterAddress("127.0.0.1:1")
TTL_TAG = 8


class Time:
    """The clock of these tests, in ms."""

    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> int:
        return self.now


class Copy:
    """One side: rows of cells (timestamp, value, TTL), and what reading a block of it costs."""

    def __init__(self, time: Time, block_ms: int = 0, rows_a_block: int = 2) -> None:
        self.time = time
        self.block_ms = block_ms
        self.rows_a_block = rows_a_block
        self.rows: dict[bytes, list[tuple[int, bytes, int | None]]] = {}
        self.drops_expired_at: Callable[[], int] | None = None
        """a server that has dropped what is beyond its own TTL by now, and what is beyond the family's"""
        self.family_ttl: int | None = None

    def put(self, row: bytes, timestamp: int, value: bytes = b"v", ttl: int | None = None) -> None:
        self.rows.setdefault(row, []).append((timestamp, value, ttl))

    def scan(self, start: bytes, stop: bytes) -> Iterator[bytes]:
        keys = sorted(row for row in self.rows if start <= row and (not stop or row < stop))
        for _, group in groupby(enumerate(keys), lambda pair: pair[0] // self.rows_a_block):
            self.time.now += self.block_ms
            block = b"".join(self.encoded(row) for _, row in group)
            if block:
                yield block

    def encoded(self, row: bytes) -> bytes:
        cells = sorted(self.rows[row], key=lambda cell: -cell[0])
        dropped_at = self.drops_expired_at() if self.drops_expired_at else 0
        kept = [c for c in cells if not any(t is not None and c[0] + t < dropped_at for t in (c[2], self.family_ttl))]
        return b"".join(
            encode_cell(row, b"f", b"q", timestamp, CellType.PUT, value,
                        [(TTL_TAG, ttl.to_bytes(8, "big"))] if ttl is not None else [])
            for timestamp, value, ttl in kept
        )  # fmt: skip


def compare(
    source: Copy, target: Copy, ttl: int | None = None, versions: int = 1, named: int = 200, sampled: int = 0
) -> Outcome:
    rules = {b"f": FamilyRules(versions, 0, ttl)}
    source.family_ttl = target.family_ttl = ttl
    pair = RangePair(ADDRESS, ADDRESS, "t", "t", "region", b"", b"", rules, named, sampled=sampled)
    return compare_pair(pair, source.scan, target.scan, source.time)


def sides(**source: int) -> tuple[Copy, Copy, Time]:
    time = Time()
    return Copy(time, **source), Copy(time), time


@pytest.mark.parametrize(("here", "there"), [(2, 2), (1, 7), (7, 1), (3, 2)])
def test_equal_sides_are_equal_however_their_blocks_fall(here: int, there: int) -> None:
    time = Time()
    source, target = Copy(time, rows_a_block=here), Copy(time, rows_a_block=there)
    for number in range(23):
        for side in (source, target):
            side.put(b"r%02d" % number, 5)
    outcome = compare(source, target)
    assert (outcome.source, outcome.differing, outcome.uncompared) == (outcome.target, 0, 0)
    assert (outcome.source.rows, outcome.source.cells) == (23, 23)


@pytest.mark.parametrize(("here", "there"), [(2, 2), (1, 7), (7, 1), (3, 2)])
def test_every_row_that_differs_is_named(here: int, there: int) -> None:
    time = Time()
    source, target = Copy(time, rows_a_block=here), Copy(time, rows_a_block=there)
    for number in range(23):
        source.put(b"r%02d" % number, 5)
        if number not in (0, 7, 22):
            target.put(b"r%02d" % number, 5, b"other" if number == 11 else b"v")
    target.put(b"stranger", 5)
    outcome = compare(source, target)
    assert outcome.source != outcome.target
    assert outcome.rows == (b"r00", b"r07", b"r11", b"r22", b"stranger")
    assert outcome.differing == 5


@pytest.mark.parametrize("missing", [0, 3], ids=["the same rows", "rows on one side only"])
def test_rows_that_differ_are_the_same_whether_both_sides_have_the_same_rows_or_not(missing: int) -> None:
    drawn = random.Random(missing)
    source, target, _ = sides(rows_a_block=20)
    target.rows_a_block = 20
    for number in range(200):
        for side in (source, target):
            if drawn.random() >= missing / 100:
                for timestamp in range(1, drawn.choice([2, 2, 2, 2, 3])):
                    side.put(b"r%03d" % number, timestamp, drawn.choice([b"v", b"v", b"v", b"other"]))
    assert (source.rows.keys() == target.rows.keys()) is not bool(missing)
    expected = [row for row in sorted({*source.rows, *target.rows}) if source.rows.get(row) != target.rows.get(row)]
    outcome = compare(source, target, versions=9)
    assert (list(outcome.rows), outcome.differing) == (expected, len(expected))
    assert 50 < len(expected) < 150


def test_rows_of_one_side_only_are_named_also_if_both_sides_have_equally_many() -> None:
    source, target, _ = sides(rows_a_block=20)
    for side, alone in ((source, b"b"), (target, b"c")):
        for row in (b"a", alone, b"d"):
            side.put(row, 5)
    assert compare(source, target).rows == (b"b", b"c")


def test_an_empty_side_differs_in_every_row_and_the_first_ones_are_named() -> None:
    source, target, _ = sides()
    for number in range(23):
        source.put(b"r%02d" % number, 5)
    for outcome in (compare(source, target, named=5), compare(target, source, named=5)):
        assert (outcome.differing, len(outcome.rows)) == (23, 5)
    assert compare(target, target).first_ms is None


def test_a_long_comparison_of_a_table_with_a_ttl_compares_what_has_not_expired() -> None:
    """Hole: the moment lay up to 42 hours ahead, so that nothing of a table with a TTL of a day was compared."""
    source, target, time = sides(block_ms=3_600_000)  # 10 blocks, 10 hours
    for number in range(20):
        for side in (source, target):
            side.put(b"r%02d" % number, START - 1_000)
    target.rows[b"r19"] = [(START - 1_000, b"lost", None)]
    outcome = compare(source, target, ttl=DAY)
    assert time.now == START + 10 * 3_600_000
    assert (outcome.source.cells, outcome.rows, outcome.uncompared) == (20, (b"r19",), 0)


def test_what_expires_meanwhile_is_compared_where_both_sides_hold_it() -> None:
    source, target, _ = sides(block_ms=10)
    for number in range(4):
        for side in (source, target):
            side.put(b"r%02d" % number, START - DAY + 5)  # beyond the TTL 5 ms after the first block is asked for
    target.rows[b"r01"] = [(START - DAY + 5, b"other", None)]
    outcome = compare(source, target, ttl=DAY)
    assert outcome.expiring >= 2
    assert (outcome.uncompared, outcome.rows) == (0, (b"r01",))


def test_what_one_side_only_held_while_it_expired_is_counted() -> None:
    source, target, _ = sides()
    for number in range(4):
        source.put(b"r%02d" % number, START - DAY + CLOCKS_APART_MS // 2)
        target.put(b"r%02d" % number, START - DAY + CLOCKS_APART_MS // 2)
    del target.rows[b"r02"]
    outcome = compare(source, target, ttl=DAY)
    assert (outcome.expiring, outcome.uncompared, outcome.differing) == (3, 1, 0)
    assert outcome.dropped[0][Fate.EXPIRED] == 1


def test_what_has_expired_when_it_is_read_again_is_no_longer_missed() -> None:
    time = Time()
    source, target = Copy(time), Copy(time, block_ms=CLOCKS_APART_MS)
    for number in range(2):
        for side in (source, target):
            side.put(b"r%02d" % number, START - DAY + 5)
    target.drops_expired_at = time  # a compaction, say, or the server's look at cells with a TTL of their own
    outcome = compare(source, target, ttl=DAY)
    assert (outcome.uncompared, outcome.differing, outcome.source.cells) == (0, 0, 0)


@pytest.mark.parametrize("flushed", [False, True])
def test_what_shows_up_under_an_expiring_cell_is_compared_as_it_is_afterwards(flushed: bool) -> None:
    source, target, time = sides()
    for side in (source, target):
        side.put(b"row", 5, b"newer", START - 5 + 7)
        side.put(b"row", 5, b"older")
    target.drops_expired_at = (lambda: time.now + CLOCKS_APART_MS) if flushed else None
    outcome = compare(source, target)
    assert (outcome.differing, outcome.source.cells - outcome.expiring) == (0, 1)
    assert outcome.uncompared == (1 if flushed else 0)


def test_of_an_open_target_only_what_clients_alone_can_have_written_is_left_out() -> None:
    time = Time()
    source, target = Copy(time), Copy(time)
    opened = START - 1_000
    for side in (source, target):
        side.put(b"a", 5)
        side.put(b"b", START + DAY, b"of tomorrow")
    source.put(b"lost", START + DAY, b"of tomorrow")
    target.put(b"a", opened, b"a client's")
    target.put(b"b", START, b"a client's")
    target.put(b"new", opened, b"a client's")
    target.put(b"stray", opened - 1)
    pair = RangePair(
        ADDRESS, ADDRESS, "t", "t", "", b"", b"", {b"f": FamilyRules(3, 0, None)}, clients_from=opened
    )  # fmt: skip
    outcome = compare_pair(pair, source.scan, target.scan, time)
    assert outcome.rows == (b"lost", b"stray")
    assert outcome.target.cells == 3


def test_the_newest_timestamp_of_either_side_is_told_whether_readers_see_it_or_not() -> None:
    source, target, _ = sides()
    source.put(b"r1", 5)
    source.put(b"r1", 4)
    assert compare(source, target).newest == 5
    target.put(b"r2", 9, ttl=1)
    assert compare(source, target).newest == 9
    assert compare(Copy(source.time), Copy(source.time)).newest == -1


def test_outcomes_of_neighbours_add_up() -> None:
    source, target, _ = sides()
    for number in range(6):
        source.put(b"r%02d" % number, 5)
    rules = {b"f": FamilyRules(1, 0, None)}
    borders: Sequence[tuple[bytes, bytes]] = ((b"", b"r03"), (b"r03", b""))
    parts = [
        compare_pair(RangePair(ADDRESS, ADDRESS, "t", "t", "r", start, stop, rules), source.scan, target.scan)
        for start, stop in borders
    ]
    whole = compare(source, target)
    assert (parts[0] + parts[1]).source == whole.source
    assert (parts[0] + parts[1]).rows == whole.rows


def test_a_side_that_cannot_be_read_fails_the_comparison() -> None:
    source, _target, _ = sides()
    source.put(b"r", 5)

    def broken(start: bytes, stop: bytes) -> Iterator[bytes]:
        raise OSError("gone")
        yield b""

    pair = RangePair(ADDRESS, ADDRESS, "t", "t", "region", b"", b"", {b"f": FamilyRules(1, 0, None)})
    for here, there in ((source.scan, broken), (broken, source.scan)):
        with pytest.raises(OSError, match="gone"):
            compare_pair(pair, here, there)


@pytest.mark.parametrize(("ahead_bytes", "most"), [(1 << 20, 2), (10, 1)], ids=["ordinary rows", "large rows"])
def test_one_block_is_read_ahead_unless_it_is_large(
    ahead_bytes: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """How many blocks of a side there are at a time, the one that is being read included."""
    monkeypatch.setattr(digest, "AHEAD_BYTES", ahead_bytes)
    held = []

    class Block(bytearray):
        """With a weak reference, which bytes cannot have."""

    def scan(start: bytes, stop: bytes) -> Iterator[bytes]:
        blocks: list[weakref.ref[Block]] = []
        for number in range(20):
            row = b"%03d" % number
            block = Block(encode_cell(row, b"f", b"q", START, CellType.PUT, bytes(100)))
            blocks.append(weakref.ref(block))
            held.append(sum(known() is not None for known in blocks))
            yield cast(bytes, block)
            del block

    pair = RangePair(ADDRESS, ADDRESS, "t", "t", "region", b"", b"", {b"f": FamilyRules(1, 0, None)})
    outcome = compare_pair(pair, scan, scan)
    assert outcome.source == outcome.target
    assert outcome.source.rows == 20
    assert max(held) == most


def test_a_sample_draws_cells_of_every_block_alike() -> None:
    source, target, _ = sides(rows_a_block=7)
    for number in range(100):
        source.put(b"%03d" % number, START)
    target.rows = dict(source.rows)
    target.put(b"0995", START)  # the last block has more rows there
    counts = Counter(row for _ in range(100) for _, row in compare(source, target, sampled=20).sample)
    assert counts.total() == 2_000
    assert len(counts) == 101, "the target's rows, which are more"
    assert max(counts.values()) < 50, "20 are expected of each"
    assert compare(source, target).sample == ()
    assert len(compare(source, target, sampled=500).sample) == 101
