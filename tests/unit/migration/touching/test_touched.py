"""What may not be equal any more since a comparison is remembered, and ends its equality where it cannot be named."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unit.migration.filled_ledger import SPEC
from walferry.errors import TransientError
from walferry.ledger import Ledger, RunLedger
from walferry.migration.sides.fragile_rows import RowSpan, RowSpans
from walferry.migration.touching import touched
from walferry.migration.touching.touched import Seen, after_others, risen
from walferry.wal.offsets import GroupPosition, Offset
from walferry.wal.others import WrittenByOthers

TABLE = "shop:orders"
ROWS = RowSpans.of_rows([b"a", b"b"])


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[RunLedger]:
    with Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}", actor="test") as book:
        yield book.of(book.open_run("move", "cli kim", SPEC, "kim").run_id)


# ------------------------------------------------------------------ writes that skip the log


COUNTS = st.dictionaries(st.sampled_from(["s1", "s2", "s3"]), st.integers(0, 3))


@given(COUNTS, COUNTS)
def test_a_server_that_counts_more_is_named_and_one_that_counts_less_leaves_all_in_doubt(
    before: dict[str, int], now: dict[str, int]
) -> None:
    found = risen(before, now)
    if any(now.get(server, 0) < count for server, count in before.items()):
        assert found is None
    else:
        assert found == {server for server in now if now[server] > before.get(server, 0)}
    assert risen(None, now) == set(), "nobody knows since when"
    assert risen(now, now) == set()


class Counting:
    """A cluster whose two servers count, with a region of the table on each."""

    def __init__(self) -> None:
        self.counts: dict[str, int | None] = {"s1": 5, "s2": 7}
        self.changed_ms = 0
        """when its regions were opened"""

    def servers(self) -> list[Any]:
        return [SimpleNamespace(name=name) for name in self.counts]

    def unlogged_writes(self, server: Any) -> int | None:
        return self.counts[server.name]

    def regions(self, name: str) -> list[Any]:
        names, borders = list(self.counts), pairwise([b"", b"m", b""])
        return [
            SimpleNamespace(start=start, end=end, server=SimpleNamespace(name=name), changed_ms=self.changed_ms)
            for name, (start, end) in zip(names, borders, strict=True)
        ]


def test_under_recent_the_rows_of_the_servers_that_count_more_are_those_since_they_were_asked(
    ledger: RunLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[list[bytes], int]] = []

    def recent_rows(run: Any, pair: Any, regions: Any, since_ms: int) -> RowSpans:
        asked.append(([region.start for region in regions], since_ms))
        return ROWS

    source, target = Counting(), Counting()
    pair = SimpleNamespace(source=TABLE, target="there")
    run: Any = SimpleNamespace(
        ledger=ledger, source=source, target=target, tables=[pair], pair=lambda table: pair,
        spec=SimpleNamespace(unlogged_writes="recent"),
    )  # fmt: skip

    def look_at(moment: int) -> Seen:
        monkeypatch.setattr(touched, "now_ms", lambda: moment)
        seen = touched._counted(run, Seen.of(ledger))
        assert Seen.change(ledger, lambda _: seen)
        return seen

    monkeypatch.setattr(touched, "recent_rows", recent_rows)
    look_at(100_000)
    source.counts = {"s1": None, "s2": 7}
    look_at(200_000)
    assert asked == []
    source.counts = {"s1": 5, "s2": 8}
    seen = look_at(300_000)
    assert asked == [([b"m"], 150_000)]
    assert (seen.pending, seen.recent_ms, seen.skipped) == ({TABLE: ROWS}, {TABLE: 300_000}, True)
    source.counts = {"s1": None, "s2": 8}
    look_at(400_000)
    source.counts = {"s1": 6, "s2": 9}
    look_at(500_000)
    assert asked[1:] == [([b"", b"m"], 250_000)], "a silent server keeps its last count, and the moment of that"
    target.counts = {"s1": 4, "s2": 9}
    assert look_at(600_000).pending == {TABLE: ROWS}
    assert asked[2:] == [([b"", b"m"], 450_000)], "a region has left a server of the target"
    Seen.change(ledger, lambda seen: replace(seen, counted_ms={}))
    source.counts = {"s1": 6, "s2": 10}
    assert look_at(700_000).pending[TABLE].ranges == [(b"m", b"")], "after an older release nobody knows since when"
    source.counts = {"s1": 6, "s2": 11}
    run.spec.unlogged_writes = "compare"
    assert look_at(800_000).pending[TABLE].ranges == [(b"m", b"")]
    assert len(asked) == 3
    source.counts, source.changed_ms = {"s1": 6, "s2": 12}, 790_000
    assert look_at(900_000).pending[TABLE].ranges == [(b"", b"m"), (b"m", b"")], "one may have been on that server"


# ------------------------------------------------------------------ what the ledger keeps


def test_all_that_was_seen_is_kept(ledger: RunLedger) -> None:
    seen = Seen(
        Offset(3, {"g": GroupPosition(7, 120, ahead=(8,))}), 5, "no right", {"source": {"s1": 2}}, {"target": ["s9"]},
        True,
        {TABLE: RowSpans((RowSpan(b"a", b"c", True, 9),))}, {"t2": "gone"}, {TABLE: 3}, {"t2": 1},
        {"source": {"s1": 7}}, {TABLE: 8},
    )  # fmt: skip
    assert seen.replaces(Seen(), ledger)
    assert Seen.of(ledger) == seen
    older = ledger.notes.get("touched")
    assert older is not None
    del older["counted_ms"], older["recent_ms"]
    ledger.notes.keep("touched", older)
    assert Seen.of(ledger) == replace(seen, counted_ms={}, recent_ms={}), "the note of an older release"


def test_what_others_wrote_waits_until_it_was_found_equal(ledger: RunLedger) -> None:
    end = Offset(2, {"g": GroupPosition(7, 120)})
    sources = {"there": TABLE}
    seen = after_others(Seen(), WrittenByOthers(end, {"there": {b"a", b"b"}}), sources)
    assert (seen.offset, seen.pending[TABLE]) == (end, ROWS)
    assert not seen.without(TABLE, seen.known(TABLE)).pending[TABLE]
    void = after_others(seen, WrittenByOthers(end, {}, {"there": "loaded"}), sources)
    assert void.void == {TABLE: "loaded"}
    assert void.without(TABLE, void.known(TABLE)).void == {TABLE: "loaded"}, "only the whole table says more"
    assert void.without(TABLE, void.known(TABLE), whole=True).void == {}


@pytest.mark.parametrize("again", [b"a", b"c"], ids=["the same row", "another row"])
def test_what_others_write_while_a_table_is_read_is_read_again(again: bytes, ledger: RunLedger) -> None:
    """Hole: the same row, or region, counted as read, though it was written again after that."""
    end, sources = Offset(2, {"g": GroupPosition(7, 120)}), {"there": TABLE}
    seen = after_others(Seen(), WrittenByOthers(end, {"there": {b"a"}}, {"there": "loaded"}), sources)
    known = seen.known(TABLE)
    more = after_others(seen, WrittenByOthers(end, {"there": {again}}), sources)
    assert more.without(TABLE, known, whole=True).pending[TABLE].rows == sorted({b"a", again})
    loaded = after_others(seen, WrittenByOthers(end, {}, {"there": "loaded"}), sources)
    left = loaded.without(TABLE, known, whole=True)
    assert left.void == {TABLE: "loaded"}, "it was loaded twice"
    assert not left.pending[TABLE]


def test_what_another_process_notes_during_a_look_is_not_lost(
    ledger: RunLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hole: `walferry verify` beside a follower brought back what the follower had ended meanwhile."""
    run: Any = SimpleNamespace(ledger=ledger, run_id="move-1")
    looks: list[Seen] = []

    def log_read(run: Any, seen: Seen) -> Seen:
        looks.append(seen)
        if len(looks) == 1:  # another process, while the target's log is read
            touched.end_equality(run, TABLE, "2 GB of log")
        return replace(seen.touching(TABLE, ROWS), read_ms=len(looks))

    monkeypatch.setattr(touched, "_read_target_log", log_read)
    monkeypatch.setattr(touched, "_counted", lambda run, seen: seen)
    touched.look(run)
    seen = Seen.of(ledger)
    assert (seen.void, seen.pending[TABLE], seen.read_ms) == ({TABLE: "2 GB of log"}, ROWS, 2)

    def counted(run: Any, seen: Seen) -> Seen:
        touched.end_equality(run, TABLE, "again")
        return seen

    monkeypatch.setattr(touched, "_counted", counted)
    with pytest.raises(TransientError, match="changed at each of 5 looks"):
        touched.look(run)
