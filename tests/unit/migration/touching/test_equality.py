"""The equality of a table lasts until something that touched it cannot be named."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from unit.migration.filled_ledger import SPEC, compared
from walferry.clock import duration, now_ms
from walferry.ledger import ComparedTable, Ledger, RangeComparison, RunLedger
from walferry.migration.sides.fragile_rows import NONE, RowSpan, RowSpans
from walferry.migration.sides.store_files import Changed, RegionFiles, Stores
from walferry.migration.touching import equality, touched
from walferry.migration.touching.equality import Begun, Equality, ToRead, standing_comparison
from walferry.migration.touching.touched import Seen
from walferry.migration.touching.verified import verified
from walferry.run.notes.looks import note_look

TABLE = "shop:orders"
ROWS = RowSpans.of_rows([b"a", b"b"])


def region_files(name: str, start: bytes, stop: bytes, *files: str) -> RegionFiles:
    """A region of one family with these files; none: they are not known."""
    return RegionFiles((start, stop), name, {"f": frozenset(files)} if files else None)


FILES = [
    region_files("low", b"", b"m", "first"), region_files("high", b"m", b"", "second"),
    region_files("high there", b"m", b"", "third"), region_files("all there", b"", b""),
]  # fmt: skip


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[RunLedger]:
    with Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}", actor="test") as book:
        yield book.of(book.open_run("move", "cli kim", SPEC, "kim").run_id)


def begun(ledger: RunLedger) -> Begun:
    """A comparison that begins now."""
    return Begun(Seen.of(ledger).known(TABLE), FILES, "rules", equality._claimed(ledger, TABLE))


def clean(ledger: RunLedger, fragile: RowSpans = NONE, since: Begun | None = None) -> ComparedTable:
    """A clean comparison of the table, with its equality."""
    side = RangeComparison(TABLE, "r1", b"", b"", 5, 9, "01", 5, 9, "01", {})
    made = ledger.comparisons.record(compared(TABLE), [side], [])
    run: Any = SimpleNamespace(ledger=ledger)
    equality.keep_whole(run, since or begun(ledger), made, fragile)
    return made


def test_a_claim_is_that_of_the_newest_comparison_only(ledger: RunLedger) -> None:
    first = clean(ledger, RowSpans((RowSpan(b"a", b"b", True), RowSpan(b"n", b"o", due_ms=5))))
    equal = Equality.find(ledger, first)
    assert equal is not None
    assert equal.files.of.keys() == {"low"}, "only regions with markers matter, and unknown ones count as changed"
    assert standing_comparison(ledger, TABLE) == first
    side = RangeComparison(TABLE, "r1", b"", b"", 5, 9, "01", 5, 9, "01", {})
    ledger.comparisons.record(compared(TABLE), [side], [])
    assert standing_comparison(ledger, TABLE) is None, "what touched the table since that one was not recorded"


def test_a_comparison_that_began_before_the_claim_ended_does_not_bring_it_back(ledger: RunLedger) -> None:
    run: Any = SimpleNamespace(ledger=ledger)
    clean(ledger)
    before = begun(ledger)
    touched.end_equality(run, TABLE, "the target's log is gone")
    assert standing_comparison(ledger, TABLE) is None
    clean(ledger, since=before)
    assert standing_comparison(ledger, TABLE) is None
    clean(ledger)
    assert standing_comparison(ledger, TABLE) is not None


def test_a_comparison_during_which_another_one_ended_claims_nothing(ledger: RunLedger) -> None:
    """The other one has named rows that differ, and counts the logs that wrote them as verified."""
    run: Any = SimpleNamespace(ledger=ledger)
    before = begun(ledger)
    clean(ledger)
    made = ledger.comparisons.record(compared(TABLE), [], [])
    assert not equality.keep_whole(run, before, made, NONE)
    assert standing_comparison(ledger, TABLE) is None
    assert clean(ledger) == standing_comparison(ledger, TABLE)


def test_rows_that_looks_found_fragile_during_a_comparison_stay_so(ledger: RunLedger) -> None:
    """Hole: their logs count as verified, so nobody read them again."""
    first = clean(ledger)
    before, equal = begun(ledger), Equality.find(ledger, first)
    assert equal is not None
    marked = RowSpan(b"k", b"k\0", marked=True)
    run: Any = SimpleNamespace(ledger=ledger)
    as_read = ToRead(equal, Seen.of(ledger).known(TABLE), NONE, ())
    equality.keep_read(run, as_read, replace(equal, fragile=RowSpans((marked,))))
    second = clean(ledger, RowSpans((RowSpan(b"a", b"a\0", True),)), since=before)
    now = Equality.find(ledger, second)
    assert now is not None
    assert now.fragile.rows == [b"a", b"k"]


def test_after_a_clean_look_rows_that_were_not_read_stay_fragile(ledger: RunLedger) -> None:
    made = clean(ledger, RowSpans((RowSpan(b"a", b"a\0", True), RowSpan(b"x", b"x\0", True))))
    equal = Equality.find(ledger, made)
    assert equal is not None
    run: Any = SimpleNamespace(ledger=ledger)
    Seen.change(ledger, lambda seen: seen.touching(TABLE, ROWS))
    files = [region_files("low", b"", b"m", "changed"), region_files("high", b"m", b"", "second")]
    due = equal.fragile.due(Changed.between(equal.files, files).may_show, 0)
    checked = ToRead(equal, Seen.of(ledger).known(TABLE), due, files)
    assert checked.rows == [b"a", b"b", b"a"]
    assert checked.has(b"b")
    assert not checked.has(b"x")
    new = checked.after([b"a", b"b"], RowSpans((RowSpan(b"b", b"b\0", True),)))
    assert new.fragile.rows == [b"b", b"x"]
    assert new.files == Stores({one.region: one.stores for one in files if one.stores is not None})
    equality.keep_read(run, checked, new)
    assert Equality.find(ledger, made) == new
    assert not Seen.of(ledger).pending.get(TABLE)
    Seen.change(ledger, lambda seen: seen.touching(TABLE, RowSpans.of_rows([b"a"])))
    equality.keep_read(run, checked, new)
    assert Seen.of(ledger).pending[TABLE].rows == [b"a"], "what has come since is still to be read"
    later = clean(ledger)
    equality.keep_read(run, checked, new)
    assert Equality.find(ledger, later) != new, "the table was compared as a whole meanwhile"


# ------------------------------------------------------------------ the answer


def look(ledger: RunLedger, differ: dict[bytes, str], unexamined: int = 0) -> list[tuple[str, str]]:
    note_look(ledger, TABLE, now_ms() + 1, 7, 3_000, differ, unexamined=unexamined)
    return verified(ledger)[1]


def test_a_row_that_differs_speaks_against_a_cutover_unless_it_may_be_under_way(ledger: RunLedger) -> None:
    clean(ledger)
    assert look(ledger, {}) == []
    assert look(ledger, {b"a": ""}) == []
    assert "1 of them are under way" in verified(ledger)[0]
    assert look(ledger, {b"a": "the target refuses its cells", b"b": ""}) == [
        (
            "shop:orders: 1 row differs, such as row a: the target refuses its cells",
            "`walferry repair move --dry-run` shows what can be done, `walferry accept move --table shop:orders --row "
            "ROW --reason …` leaves a row as it is",
        )
    ]
    assert look(ledger, {b"a": ""}, unexamined=1) == [
        ("shop:orders: 1 row differs, and the reason has not been looked for yet", "wait for the next looks")
    ]
    assert look(ledger, {}) == []


def test_the_answer_says_what_was_read_what_waits_and_what_is_not_seen(ledger: RunLedger) -> None:
    assert verified(ledger) == (f"{TABLE} has no whole comparison yet that names all rows which differ", [])
    clean(ledger, RowSpans((RowSpan(b"a", b"a\0", True), RowSpan(b"c", b"g", True))))
    look(ledger, {})
    seen = Seen(
        unread="no right", uncounted={"source": ["s1", "s2"]}, skipped=True, pending={TABLE: RowSpans.of_rows([b"p"])}
    )
    assert Seen.change(ledger, lambda _: seen)
    text, reasons = verified(ledger)
    assert not reasons
    for part in (
        "7 rows, 3 kB of both sides", "still to be read again: 1 row and 0 ranges",
        "would touch 1 row and 1 range", "the write stop takes 20 s",
        "what others write at the target cannot be seen: no right",
        "2 servers of the source do not report writes that skip the log (SKIP_WAL)",
        "`max_comparison_age` makes walferry compare tables as a whole again",
    ):  # fmt: skip
        assert part in text


def test_what_only_a_whole_comparison_sees_under_recent_is_told_with_the_age_of_the_last_one(ledger: RunLedger) -> None:
    made = clean(ledger)
    recent = {TABLE: made.began_ms - 1, "shop:lines": 5}
    Seen.change(ledger, lambda seen: replace(seen, recent_ms=recent))
    text, reasons = verified(ledger)
    assert not reasons
    assert "the last of which began: shop:lines never; `max_comparison_age`" in text
    Seen.change(ledger, lambda seen: replace(seen, recent_ms={TABLE: now_ms()}))
    age = duration((now_ms() - made.began_ms) / 1000)
    assert (
        "servers have counted writes that skip the log (SKIP_WAL); only those with a timestamp of their own "
        "moment are looked for (`unlogged_writes: recent`), and older timestamps are seen only by whole comparisons, "
        f"the last of which began: {TABLE} {age} ago" in verified(ledger)[0]
    )


def test_a_claim_that_has_ended_says_why_and_what_it_takes(ledger: RunLedger) -> None:
    clean(ledger)
    run: Any = SimpleNamespace(ledger=ledger)
    touched.end_equality(run, TABLE, "the target's log is gone")
    assert verified(ledger)[1] == [
        (
            f"{TABLE} is to be compared as a whole again: the target's log is gone",
            "wait for it; the last comparison took 0 s",
        )
    ]
