"""Rows of regions that moved are cut into ranges of bounded size."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from walferry.apply.outcomes import SAMPLE_BYTES, MovedEdits
from walferry.replay.pieces.row_ranges import WRITERS, RowRange, as_pieces, cut_rows, ranges_of, unfinished

PIECE = 8 * SAMPLE_BYTES
TABLES = frozenset({"t", "u"})


def cut(*edits: MovedEdits) -> list[RowRange]:
    return cut_rows(edits, TABLES, frozenset({"held"}), PIECE)


def edits(table: str, region: str, rows: list[bytes]) -> MovedEdits:
    return MovedEdits(table, region, len(rows) * SAMPLE_BYTES, tuple(rows))


def test_no_edits_are_no_range_and_few_are_one() -> None:
    assert cut() == []
    (only,) = cut(MovedEdits("t", "r", 1, ()))
    assert (only.start, only.size, only.tables, only.held) == (None, 1, TABLES, frozenset({"held"}))


def test_even_a_small_amount_is_sent_by_several_writers() -> None:
    made = cut(edits("t", "r", [b"%02d" % number for number in range(8)]))
    assert [part.start for part in made] == [None, ("t", b"02"), ("t", b"04"), ("t", b"06")]
    assert len(made) == WRITERS


@given(st.lists(st.tuples(st.sampled_from("tu"), st.integers(0, 40)), min_size=1, max_size=200))
def test_no_range_holds_more_than_a_piece_but_for_a_row_that_is_larger(rows: list[tuple[str, int]]) -> None:
    made = cut(*(edits(table, f"r{row % 3}", [b"%03d" % row]) for table, row in rows))
    starts = [part.start for part in made[1:] if part.start is not None]
    assert made[0].start is None
    assert starts == sorted(set(starts))
    assert [part.number for part in made] == list(range(len(made)))
    of_range: dict[int, list[tuple[str, bytes]]] = {}
    for table, number in rows:
        row = (table, b"%03d" % number)
        of_range.setdefault(sum(1 for start in starts if start <= row), []).append(row)
    most = max(rows.count(row) for row in rows)
    assert all(len(held) * SAMPLE_BYTES < PIECE + (most + 1) * SAMPLE_BYTES for held in of_range.values())


def test_ranges_come_back_from_their_pieces() -> None:
    ranges = cut(edits("t", "r", [b"%02d" % number for number in range(8)]))
    assert len(ranges) > 1
    assert ranges_of(as_pieces(ranges, 7)) == ranges


def test_unfinished_ranges_are_named_by_their_own_numbers_not_by_those_of_pieces() -> None:
    """In a batch, pieces of groups come before them."""
    first, *others = as_pieces(cut(edits("t", "r", [b"%02d" % number for number in range(8)])), 7)
    assert first.number == 7
    assert unfinished([replace(first, state="done"), *others]) == set(range(1, 1 + len(others)))
