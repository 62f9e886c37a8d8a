from __future__ import annotations

from collections.abc import Sequence

import pytest

from unit.streams.message.naive_messages import Cell, Entry
from unit.streams.test_sending import Recorder, bulk_load, put, sent, taken
from walferry.apply.region_events import Origin
from walferry.streams.ordering.stays import Opened, Taken
from walferry.streams.snapshot.covered import Covered, UnknownRegionError
from walferry.streams.snapshot.records import RegionRows


def region(start: bytes, made: int, numbers: dict[bytes, int], *loaded: str) -> RegionRows:
    return RegionRows("t1", start, made, numbers, frozenset(loaded), 0, None)


def covered(regions: dict[str, RegionRows], **origins: Origin) -> Covered:
    return Covered(regions, origins.get)


def numbers(passed: Sequence[Taken | Opened], known: Covered) -> list[tuple[str, int]]:
    sink = Recorder()
    sent(sink, passed, covered=known)
    return sink.numbers


def test_of_a_region_of_the_snapshot_only_what_came_after_it_is_sent() -> None:
    known = covered({"a": region(b"", 1, {b"f": 5}), "b": region(b"m", 1, {b"f": 9})})
    passed = [taken([put(n, name) for n in (4, 5, 6, 9, 10) for name in ("a", "b")])]
    assert sorted(numbers(passed, known)) == [("a", 6), ("a", 9), ("a", 10), ("b", 10)]


def test_an_entry_of_two_families_is_sent_without_the_cells_that_the_snapshot_has() -> None:
    known = covered({"a": region(b"", 1, {b"f": 5, b"g": 2, b"h": 0})})
    entries = [Entry([Cell(family=one) for one in (b"f", b"g", b"h", b"new")], n, region="a") for n in (2, 3, 6)]
    sink = Recorder()
    found = sent(sink, [taken(entries)], covered=known)
    families = [(value["sequence_number"], [cell["family"] for cell in value["cells"]]) for value in sink.values]
    assert families == [(2, ["h", "new"]), (3, ["g", "h", "new"]), (6, ["f", "g", "h", "new"])]
    assert found.last == {"a": 6}


def test_what_is_left_out_counts_as_sent() -> None:
    found = sent(Recorder(), [taken([put(4), put(5)])], covered=covered({"a": region(b"", 1, {b"f": 9})}))
    assert (found.messages, found.last) == (0, {"a": 5})


def test_an_older_region_is_left_out_whole_and_a_newer_one_is_sent_whole() -> None:
    known = covered(
        {"d1": region(b"", 5, {b"f": 7}), "d2": region(b"m", 5, {b"f": 9})},
        parent=Origin(b"", 4), daughter=Origin(b"p", 6), other=Origin(b"a", 4),
    )  # fmt: skip
    passed = [taken([put(n, name) for n in (3, 99) for name in ("parent", "daughter", "other")])]
    assert numbers(passed, known) == [("daughter", 3), ("daughter", 99)]


def test_a_region_of_which_nobody_knows_when_it_was_made_stops_the_stream() -> None:
    with pytest.raises(UnknownRegionError, match="region lost of t1 came and went"):
        numbers([taken([put(3, "lost")])], covered({"a": region(b"", 1, {b"f": 5})}))


def test_other_tables_are_not_asked_about() -> None:
    other = [taken([Entry([Cell()], 3, table="t1", region="lost")])]
    known = Covered({"a": RegionRows("t2", b"", 1, {b"f": 5}, frozenset(), 0, None)}, lambda name: None)
    assert numbers(other, known) == [("lost", 3)]


@pytest.mark.parametrize(
    ("number", "loaded", "told"), [(2, (), False), (9, (), True), (9, ("one",), False), (9, ("another",), True)]
)
def test_a_bulk_load_is_told_unless_the_snapshot_has_its_files(number: int, loaded: tuple[str], told: bool) -> None:
    sink = Recorder()
    found = sent(
        sink, [taken([bulk_load(number)])], partitions=1, covered=covered({"a": region(b"", 1, {b"f": 5}, *loaded)})
    )
    assert bool(sink.events) == told
    assert found.last == {"a": number}


def test_a_truncation_before_the_snapshot_is_not_told_and_one_after_it_is() -> None:
    known = covered({"a": region(b"", 5, {b"f": 5})}, later=Origin(b"", 6), earlier=Origin(b"", 4))
    for name, told in (("a", []), ("earlier", []), ("later", [{"kind": "truncate"}])):
        sink = Recorder()
        sent(sink, [Opened("t1", name, 3, 1, begins=True)], partitions=1, covered=known)
        assert sink.events == told, name


def test_an_entry_that_cannot_be_sent_holds_its_region_behind_what_was_left_out() -> None:
    sink = Recorder()
    one = taken([put(4), put(6), put(7, size=3000), put(8)])
    found = sent(sink, [one], covered=covered({"a": region(b"", 1, {b"f": 5})}))
    assert (sink.numbers, found.last) == ([("a", 6)], {"a": 6})
    assert found.held.keys() == {"a"}


def test_the_position_of_a_row_is_below_that_of_every_change_sent_after_it() -> None:
    rows = region(b"", 1, {b"f": 5, b"g": 2})
    entries = [Entry([Cell(family=b"f"), Cell(family=b"g")], n, region="a") for n in range(1, 8)]
    sink = Recorder()
    sent(sink, [taken(entries)], covered=covered({"a": rows}))
    assert [value["sequence_number"] for value in sink.values] == [3, 4, 5, 6, 7]
    assert rows.number == 2
