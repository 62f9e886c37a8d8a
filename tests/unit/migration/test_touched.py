"""What may not be equal any more since a comparison is remembered, and ends its claim where it cannot be named."""

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

from unit.migration.filled_ledger import SPEC, compared
from walferry.clock import now_ms
from walferry.ledger import ComparedTable, Ledger, RangeComparison, RunLedger
from walferry.migration import touched
from walferry.migration.fragile_rows import NONE, Span, Spans
from walferry.migration.touched import Begun, Claim, Seen, Touched, after_others, risen, standing_comparison
from walferry.migration.verified import verified
from walferry.run.looks import note_look
from walferry.wal.others import Others
from walferry.wal.tail import Offset, Position

TABLE = "shop:orders"
ROWS = Spans.of_rows([b"a", b"b"])


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[RunLedger]:
    with Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}", actor="test") as book:
        yield book.of(book.open_run("move", "cli kim", SPEC, "kim").run_id)


def begun(ledger: RunLedger) -> Begun:
    """A comparison that begins now."""
    files = [((b"", b"m"), "first"), ((b"m", b""), "second"), ((b"m", b""), "third"), ((b"", b""), "")]
    return Begun(Seen.of(ledger).known(TABLE), files, "rules", touched._claimed(ledger, TABLE))


def clean(ledger: RunLedger, fragile: Spans = NONE, since: Begun | None = None) -> ComparedTable:
    """A clean comparison of the table, with its claim."""
    side = RangeComparison(TABLE, "r1", b"", b"", 5, 9, "01", 5, 9, "01", {})
    made = ledger.comparisons.record(compared(TABLE), [side], [])
    run: Any = SimpleNamespace(ledger=ledger)
    touched.keep_whole(run, since or begun(ledger), made, fragile)
    return made


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


# ------------------------------------------------------------------ what the ledger keeps


def test_all_that_was_seen_is_kept(ledger: RunLedger) -> None:
    seen = Seen(
        Offset(3, {"g": Position(7, 120, ahead=(8,))}), 5, "no right", {"source": {"s1": 2}}, {"target": ["s9"]}, True,
        {TABLE: Spans((Span(b"a", b"c", True, 9),))}, {"t2": "gone"}, {TABLE: 3}, {"t2": 1},
    )  # fmt: skip
    seen.keep(ledger)
    assert Seen.of(ledger) == seen


def test_what_others_wrote_waits_until_it_was_found_equal(ledger: RunLedger) -> None:
    end = Offset(2, {"g": Position(7, 120)})
    sources = {"there": TABLE}
    seen = after_others(Seen(), Others(end, {"there": {b"a", b"b"}}), sources)
    assert (seen.offset, seen.pending[TABLE]) == (end, ROWS)
    assert not seen.without(TABLE, seen.known(TABLE)).pending[TABLE]
    void = after_others(seen, Others(end, {}, {"there": "loaded"}), sources)
    assert void.void == {TABLE: "loaded"}
    assert void.without(TABLE, void.known(TABLE)).void == {TABLE: "loaded"}, "only the whole table says more"
    assert void.without(TABLE, void.known(TABLE), whole=True).void == {}


@pytest.mark.parametrize("again", [b"a", b"c"], ids=["the same row", "another row"])
def test_what_others_write_while_a_table_is_read_is_read_again(again: bytes, ledger: RunLedger) -> None:
    """Hole: the same row, or region, counted as read, though it was written again after that."""
    end, sources = Offset(2, {"g": Position(7, 120)}), {"there": TABLE}
    seen = after_others(Seen(), Others(end, {"there": {b"a"}}, {"there": "loaded"}), sources)
    known = seen.known(TABLE)
    more = after_others(seen, Others(end, {"there": {again}}), sources)
    assert more.without(TABLE, known, whole=True).pending[TABLE].rows == sorted({b"a", again})
    loaded = after_others(seen, Others(end, {}, {"there": "loaded"}), sources)
    left = loaded.without(TABLE, known, whole=True)
    assert left.void == {TABLE: "loaded"}, "it was loaded twice"
    assert not left.pending[TABLE]


def test_a_claim_is_that_of_the_newest_comparison_only(ledger: RunLedger) -> None:
    first = clean(ledger, Spans((Span(b"a", b"b", True), Span(b"n", b"o", due_ms=5))))
    claim = Claim.find(ledger, first)
    assert claim is not None
    assert claim.files == {"first"}, "only files of regions with markers matter, and unknown ones count as changed"
    assert standing_comparison(ledger, TABLE) == first
    side = RangeComparison(TABLE, "r1", b"", b"", 5, 9, "01", 5, 9, "01", {})
    ledger.comparisons.record(compared(TABLE), [side], [])
    assert standing_comparison(ledger, TABLE) is None, "what touched the table since that one was not recorded"


def test_a_comparison_that_began_before_the_claim_ended_does_not_bring_it_back(ledger: RunLedger) -> None:
    run: Any = SimpleNamespace(ledger=ledger)
    clean(ledger)
    before = begun(ledger)
    touched.end_claim(run, TABLE, "the target's log is gone")
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
    assert not touched.keep_whole(run, before, made, NONE)
    assert standing_comparison(ledger, TABLE) is None
    assert clean(ledger) == standing_comparison(ledger, TABLE)


def test_rows_that_looks_found_fragile_during_a_comparison_stay_so(ledger: RunLedger) -> None:
    """Hole: their logs count as verified, so nobody read them again."""
    first = clean(ledger)
    before, claim = begun(ledger), Claim.find(ledger, first)
    assert claim is not None
    marked = Span(b"k", b"k\0", marked=True)
    replace(claim, fragile=Spans((marked,))).keep(ledger)
    second = clean(ledger, Spans((Span(b"a", b"a\0", True),)), since=before)
    now = Claim.find(ledger, second)
    assert now is not None
    assert now.fragile.rows == [b"a", b"k"]


def test_after_a_clean_look_rows_that_were_not_read_stay_fragile(ledger: RunLedger) -> None:
    made = clean(ledger, Spans((Span(b"a", b"a\0", True), Span(b"x", b"x\0", True))))
    claim = Claim.find(ledger, made)
    assert claim is not None
    run: Any = SimpleNamespace(ledger=ledger)
    Seen(pending={TABLE: ROWS}).keep(ledger)
    files = [((b"", b"m"), "changed"), ((b"m", b""), "second")]
    checked = Touched(claim, Seen.of(ledger).known(TABLE), claim.fragile.due([(b"", b"m")], 0), files)
    assert checked.rows == [b"a", b"b", b"a"]
    assert checked.has(b"b")
    assert not checked.has(b"x")
    new = checked.after([b"a", b"b"], Spans((Span(b"b", b"b\0", True),)))
    assert new.fragile.rows == [b"b", b"x"]
    assert new.files == {"changed", "second"}
    touched.keep(run, checked, new)
    assert Claim.find(ledger, made) == new
    assert not Seen.of(ledger).pending.get(TABLE)
    Seen.of(ledger).touching(TABLE, Spans.of_rows([b"a"])).keep(ledger)
    touched.keep(run, checked, new)
    assert Seen.of(ledger).pending[TABLE].rows == [b"a"], "what has come since is still to be read"
    later = clean(ledger)
    touched.keep(run, checked, new)
    assert Claim.find(ledger, later) != new, "the table was compared as a whole meanwhile"


# ------------------------------------------------------------------ the answer


def look(ledger: RunLedger, differ: dict[bytes, str], unexamined: int = 0) -> list[str]:
    note_look(ledger, TABLE, now_ms() + 1, 7, 3_000, differ, unexamined=unexamined)
    return verified(ledger)[1]


def test_a_row_that_differs_speaks_against_a_cutover_unless_it_may_be_under_way(ledger: RunLedger) -> None:
    clean(ledger)
    assert look(ledger, {}) == []
    assert look(ledger, {b"a": ""}) == []
    assert "1 of them are under way" in verified(ledger)[0]
    assert look(ledger, {b"a": "the target refuses its cells", b"b": ""}) == [
        "shop:orders: 1 row differs, such as row a: the target refuses its cells; "
        "`walferry repair move --dry-run` shows what can be done, `walferry accept move --table shop:orders --row ROW "
        "--reason …` leaves a row as it is"
    ]
    assert look(ledger, {b"a": ""}, unexamined=1) == [
        "shop:orders: 1 row differs, and nobody has looked for the reason yet: wait for the next looks"
    ]
    assert look(ledger, {}) == []


def test_the_answer_says_what_was_read_what_waits_and_what_is_not_seen(ledger: RunLedger) -> None:
    assert verified(ledger) == (f"{TABLE} has no whole comparison yet that names all rows which differ", [])
    clean(ledger, Spans((Span(b"a", b"a\0", True), Span(b"c", b"g", True))))
    look(ledger, {})
    Seen(
        unread="no right", uncounted={"source": ["s1", "s2"]}, skipped=True, pending={TABLE: Spans.of_rows([b"p"])}
    ).keep(ledger)
    text, reasons = verified(ledger)
    assert not reasons
    for part in (
        "7 rows, 3 kB of both sides", "1 rows and 0 ranges are still to be read again",
        "would touch 1 rows and 1 ranges", "the write stop takes 20 s",
        "what others write at the target is not seen: no right",
        "2 servers of the source do not tell of writes that skip the log (SKIP_WAL)",
        "`max_comparison_age` has tables compared as a whole again",
    ):  # fmt: skip
        assert part in text


def test_a_claim_that_has_ended_says_why_and_what_it_takes(ledger: RunLedger) -> None:
    clean(ledger)
    run: Any = SimpleNamespace(ledger=ledger)
    touched.end_claim(run, TABLE, "the target's log is gone")
    assert verified(ledger)[1] == [
        f"{TABLE} is to be compared as a whole again: the target's log is gone; wait for it, 0 s by the last time"
    ]


def test_only_the_regions_that_have_some_of_the_rows_are_asked_for_their_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hole: in the write stop, each of thousands of regions was asked twice for each reading."""
    asked: list[bytes] = []
    borders = [b"", *(b"%02d" % number for number in range(1, 50)), b""]
    regions = [SimpleNamespace(start=start, end=end, encoded=start.hex()) for start, end in pairwise(borders)]

    def store_files(region: Any, *families: bytes) -> list[str]:
        asked.append(region.start)
        return ["f1"]

    client = SimpleNamespace(
        describe=lambda name: SimpleNamespace(families=["f"]), regions=lambda name: regions, store_files=store_files
    )
    run: Any = SimpleNamespace(source=client, target=client, pair=lambda table: SimpleNamespace(source="t", target="t"))
    found = touched.store_files(run, "t", Spans((Span(b"071", b"072"), Span(b"42", b"431", marked=True))))
    assert sorted(asked) == [b"07", b"07", b"42", b"42", b"43", b"43"]
    assert [region for region, _ in found] == [(b"07", b"08"), (b"42", b"43"), (b"43", b"44")] * 2
    asked.clear()
    assert touched.store_files(run, "t", NONE) == []
    assert len(touched.store_files(run, "t")) == len(asked) == 100


def test_a_compaction_between_what_is_due_and_the_reading_is_no_standstill() -> None:
    """Hole: the files were asked for twice before the rows were read, and only the second answer counted."""
    region, marked = (b"", b"m"), Spans((Span(b"k", b"k\0", marked=True),))
    assert touched.stood_still([(region, "f1"), (region, "f1")], [(region, "f1")], marked)
    assert not touched.stood_still([(region, "f0"), (region, "f1")], [(region, "f1")], marked)
