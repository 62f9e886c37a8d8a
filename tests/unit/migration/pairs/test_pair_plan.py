"""Which regions of a pair are read whole, and which rows of the others."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unit.migration.pair_ledger import REGION
from walferry.hbase.descriptors import Region
from walferry.hbase.zookeeper import Server
from walferry.ledger import PassRegion
from walferry.migration.pairs.pair_log import COMPACTED, LOADED, MANY
from walferry.migration.pairs.pair_plan import (
    DAY_MS,
    MOVED,
    NEW,
    OVERFLOWN,
    NamedRows,
    SideNews,
    Sight,
    became_fragile,
    crowded,
    sights,
    why_whole,
)

A, B = Server("a", 1, 5), Server("b", 1, 5)
QUIET = SideNews()
WEEK = 7.0 * DAY_MS


def region(name: str, start: bytes, end: bytes, server: Server | None = A, sequence: int = 2) -> Region:
    return Region(name.encode(), name, "t", start, end, server, 1, sequence)


SOURCE = [region("s1", b"", b"m"), region("s2", b"m", b"", B)]
TARGET = [region("t1", b"", b"g", B), region("t2", b"g", b"p", A), region("t3", b"p", b"", B)]


def seen(source: list[Region] = SOURCE, target: list[Region] = TARGET) -> list[Sight]:
    return sights("t", "copy", source, target)


def known_of(sight: Sight) -> PassRegion:
    return replace(REGION, region=sight.region.encoded, target_table="copy", lines=sight.lines, whole_ms=0)


def why(sight: Sight, known: PassRegion | None, source: SideNews = QUIET, target: SideNews = QUIET) -> str:
    return why_whole(sight, known, source, target, 1_000, WEEK)


def test_a_region_goes_with_the_targets_regions_that_have_its_rows() -> None:
    assert [[other.encoded for other in sight.target] for sight in seen()] == [["t1", "t2"], ["t2", "t3"]]


ROWS = st.sets(st.sampled_from([b"%c" % row for row in b"abcdefghij"]))


def borders(rows: set[bytes]) -> list[Region]:
    ends = [b"", *sorted(rows), b""]
    return [region(f"{start!r}", start, end) for start, end in pairwise(ends)]


@given(ROWS, ROWS)
def test_regions_go_together_whose_rows_overlap(here: set[bytes], there: set[bytes]) -> None:
    source, target = borders(here), borders(there)
    for sight in seen(source, target):
        mine = [b"", *(b"%c" % row for row in b"abcdefghijk")]
        together = [other for other in target if any(sight.region.holds(r) and other.holds(r) for r in mine)]
        assert list(sight.target) == together


def test_what_stayed_where_it_was_needs_no_more_than_its_written_rows() -> None:
    assert [why(sight, known_of(sight)) for sight in seen()] == ["", ""]


def test_what_was_never_read_is_read_whole_also_under_another_name_at_the_target() -> None:
    first, _ = seen()
    assert why(first, None) == NEW
    assert why(first, replace(known_of(first), target_table="other")) == NEW


OPENED_AGAIN = [
    ([region("s1", b"", b"m", A, 3), SOURCE[1]], TARGET),
    ([region("s1", b"", b"m", B), SOURCE[1]], TARGET),
    ([region("s1", b"", b"m", None), SOURCE[1]], TARGET),
    (SOURCE, [region("t1", b"", b"g", B, 3), *TARGET[1:]]),
    (SOURCE, [region("t1", b"", b"g", A), *TARGET[1:]]),
    (SOURCE, [region("t4", b"", b"c", B), region("t5", b"c", b"g", B), *TARGET[1:]]),
]


@pytest.mark.parametrize(("source", "target"), OPENED_AGAIN)
def test_a_region_that_was_opened_again_on_either_side_is_read_whole_and_no_other_one(
    source: list[Region], target: list[Region]
) -> None:
    known = [known_of(sight) for sight in seen()]
    assert [why(sight, one) for sight, one in zip(seen(source, target), known, strict=True)] == [MOVED, ""]


def test_a_region_whose_place_was_uncertain_is_not_taken_for_known() -> None:
    first, _ = seen([region("s1", b"", b"m", None), SOURCE[1]])
    assert first.lines == ""
    assert why(first, known_of(first)) == MOVED


def test_a_region_is_read_whole_once_its_last_whole_reading_is_too_old() -> None:
    first, _ = seen()
    assert why_whole(first, known_of(first), QUIET, QUIET, int(WEEK) - 1, WEEK) == ""
    assert why_whole(first, known_of(first), QUIET, QUIET, int(WEEK), WEEK) == "last read whole 7.0 days ago"


def test_a_region_with_more_rows_that_differ_than_are_kept_is_read_whole() -> None:
    first, _ = seen()
    assert why(first, replace(known_of(first), unnamed=1)) == OVERFLOWN


def test_a_log_that_is_missing_concerns_the_regions_of_its_server() -> None:
    lost = SideNews({A.name: "file 1 is gone"})
    known = [known_of(sight) for sight in seen()]
    assert [why(sight, one, source=lost) for sight, one in zip(seen(), known, strict=True)] == [
        "source: file 1 is gone", "",
    ]  # fmt: skip
    # At the target the server has a region with rows of both.
    assert [why(sight, one, target=lost) for sight, one in zip(seen(), known, strict=True)] == [
        "target: file 1 is gone", "target: file 1 is gone",
    ]  # fmt: skip
    other = SideNews({"c,1,5": "file 1 is gone"})
    assert [why(sight, one, other, other) for sight, one in zip(seen(), known, strict=True)] == ["", ""]


@pytest.mark.parametrize("mark", [LOADED, MANY])
def test_a_mark_concerns_its_region_and_those_whose_rows_it_has(mark: str) -> None:
    known = [known_of(sight) for sight in seen()]
    at_source, at_target = SideNews(marks={("t", "s2"): mark}), SideNews(marks={("copy", "t2"): mark})
    assert [why(sight, one, source=at_source) for sight, one in zip(seen(), known, strict=True)] == [
        "", f"source: {mark}",
    ]  # fmt: skip
    assert [why(sight, one, target=at_target) for sight, one in zip(seen(), known, strict=True)] == [
        f"target: {mark}", f"target: {mark}",
    ]  # fmt: skip


def test_a_compaction_concerns_a_region_that_holds_what_may_reveal_older_versions_or_got_it_since() -> None:
    first, second = seen()
    at_source, at_target = SideNews(compacted={("t", "s1")}), SideNews(compacted={("copy", "t1")})
    for source, target, side in ((at_source, QUIET, "source"), (QUIET, at_target, "target")):
        assert why(first, known_of(first), source, target) == ""
        assert why(first, replace(known_of(first), fragile=True), source, target) == f"{side}: {COMPACTED}"
        assert why(second, replace(known_of(second), fragile=True), source, target) == ""
        for name, of in ((("t", "s1"), 0), (("copy", "t2"), 1)):
            news = [source, target]
            news[of] = replace(news[of], fragile={name})
            assert became_fragile(first, *news)
            assert why(first, known_of(first), *news) == f"{side}: {COMPACTED}"


def test_a_row_belongs_to_the_region_that_holds_it_now() -> None:
    written = NamedRows(seen())
    written.add("t", [b"", b"l\xff", b"m", b"z", b"m"])
    assert (written.rows, written.count) == ({("t", "s1"): {b"", b"l\xff"}, ("t", "s2"): {b"m", b"z"}}, 4)


def test_of_too_many_rows_the_fullest_regions_are_read_whole() -> None:
    written = NamedRows(seen(), most=3)
    written.add("t", [b"a", b"z"])
    written.add("t", [b"b", b"c"])
    assert written.let_go == {("t", "s1")}
    written.add("t", [b"d", b"y"])
    assert (written.rows, written.count) == ({("t", "s2"): {b"y", b"z"}}, 5)
    rows = {("t", "a"): 5, ("t", "b"): 9, ("t", "c"): 2}
    assert crowded(rows, 16) == set()
    assert crowded(rows, 15) == {("t", "b")}
    assert crowded(rows, 6) == {("t", "b"), ("t", "a")}
