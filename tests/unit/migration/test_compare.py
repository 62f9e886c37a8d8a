"""Why a row differs: every class with hand-made cells, and that no class hides a loss."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from walferry.formats.cells import CellType, encode_cell
from walferry.formats.resolve import FamilyRules
from walferry.ledger import Difference
from walferry.migration.compare import (
    ACCEPTED,
    HISTORY,
    IN_FLIGHT,
    NOT_IN_LOG,
    UNEXPLAINED,
    Cell,
    RowLog,
    TableComparison,
    classify,
)

SINCE = 1_000
"""the start fence; smaller timestamps came with the snapshot"""
UNTIL = 900_000
"""when the comparison began"""
NOW = 1_000_000


def put(timestamp: int, value: bytes = b"v", qualifier: bytes = b"q") -> Cell:
    return (b"f", qualifier, timestamp, CellType.PUT, value, b"")


def marker(timestamp: int, kind: CellType = CellType.DELETE_COLUMN) -> Cell:
    whole_family = kind in (CellType.DELETE_FAMILY, CellType.DELETE_FAMILY_VERSION)
    return (b"f", b"" if whole_family else b"q", timestamp, kind, b"", b"")


def why(
    source: list[Cell],
    target: list[Cell],
    applied: Mapping[Cell, int] | None = None,
    pending: set[Cell] | None = None,
    versions: int = 1,
    accepted: set[Cell] | None = None,
) -> str | None:
    """The class of a row with these raw cells on both sides; `applied` are the log's, with sequence numbers."""
    log = RowLog(SINCE, UNTIL, dict(applied or {}), pending or set(), accepted or set())
    rules = {b"f": FamilyRules(versions, 0, None)}
    return classify(block(source), block(target), log, rules, NOW)[0]


def block(cells: list[Cell]) -> bytes:
    # HBase's order within a row: column, newest first, then the higher type first.
    ordered = sorted(cells, key=lambda cell: (cell[1], -cell[2], -cell[3]))
    return b"".join(encode_cell(b"row", *cell[:5]) for cell in ordered)


def test_equal_sides_have_no_class() -> None:
    assert why([put(5)], [put(5)]) is None
    assert why([], []) is None


def test_what_a_compaction_dropped_on_one_side_is_no_difference() -> None:
    assert why([put(5), marker(5)], [marker(5)], versions=9) is None
    assert why([put(5), marker(5)], []) is None
    assert why([put(6), put(5)], [put(6)]) is None


# ---- losses and strangers: each must shut the gate


def test_a_lost_cell_with_a_timestamp_in_the_future_is_unexplained() -> None:
    # An application that stamps in microseconds: the timestamp does not tell that the log should hold the cell.
    assert why([put(SINCE * 1000 + UNTIL)], []) == UNEXPLAINED
    assert why([put(5), marker(UNTIL + 1)], [put(5)], versions=9) == UNEXPLAINED


def test_a_logged_edit_that_is_not_at_the_target_is_unexplained() -> None:
    assert why([put(2_000)], [], {put(2_000): 7}) == UNEXPLAINED


def test_a_cell_of_the_snapshot_that_is_not_at_the_target_is_unexplained() -> None:
    assert why([put(5)], []) == UNEXPLAINED


def test_another_value_at_the_target_is_unexplained() -> None:
    assert why([put(2_000, b"a")], [put(2_000, b"b")], {put(2_000, b"a"): 7}) == UNEXPLAINED


def test_a_cell_that_only_the_target_has_is_unexplained() -> None:
    assert why([], [put(5)]) == UNEXPLAINED
    assert why([], [put(2_000)]) == UNEXPLAINED


@pytest.mark.parametrize("kind", [kind for kind in CellType if kind is not CellType.PUT])
def test_a_delete_that_only_the_target_got_is_unexplained(kind: CellType) -> None:
    assert why([put(2_000)], [put(2_000), marker(2_000, kind)], {put(2_000): 7}) == UNEXPLAINED
    assert why([put(2_000)], [marker(2_000, kind)], {put(2_000): 7}) == UNEXPLAINED
    assert why([put(2_000)], [marker(2_000, kind)]) == UNEXPLAINED


@pytest.mark.parametrize("kind", [kind for kind in CellType if kind is not CellType.PUT])
def test_a_logged_delete_that_the_target_never_got_is_unexplained(kind: CellType) -> None:
    deleted = {put(2_000): 7, marker(2_000, kind): 8}
    assert why([put(2_000), marker(2_000, kind)], [put(2_000)], deleted) == UNEXPLAINED
    assert why([], [put(2_000)], deleted) == UNEXPLAINED


def test_a_delete_of_the_snapshot_that_the_target_lacks_is_unexplained() -> None:
    assert why([put(5), marker(6)], [put(5)]) == UNEXPLAINED


def test_a_newer_version_that_only_the_target_got_is_unexplained() -> None:
    assert why([put(2_000)], [put(3_000), put(2_000)], {put(2_000): 7}) == UNEXPLAINED


def test_two_puts_of_one_timestamp_in_the_wrong_order_are_unexplained() -> None:
    first, second = put(2_000, b"first"), put(2_000, b"second")
    # The newer of two equal keys stands first in a scan.
    log = RowLog(SINCE, UNTIL, {first: 7, second: 8})
    rules = {b"f": FamilyRules(1, 0, None)}
    assert classify(block([second, first]), block([first, second]), log, rules, NOW)[0] == UNEXPLAINED


# ---- the named classes


def test_an_edit_that_was_never_logged_is_not_in_the_log() -> None:
    assert why([put(2_000)], []) == NOT_IN_LOG
    assert why([put(2_000), put(5)], [put(5)]) == NOT_IN_LOG


def test_a_delete_that_was_never_logged_is_not_in_the_log() -> None:
    assert why([put(5), marker(2_000)], [put(5)]) == NOT_IN_LOG


def test_an_edit_of_a_file_that_is_not_applied_yet_is_in_flight() -> None:
    assert why([put(2_000)], [], pending={put(2_000)}) == IN_FLIGHT
    assert why([put(5), marker(2_000)], [put(5)], pending={marker(2_000)}) == IN_FLIGHT
    assert why([put(2_000)], [put(5)], pending={put(2_000)}) == IN_FLIGHT


def test_a_version_that_a_flush_dropped_before_the_newer_one_was_deleted_depends_on_history() -> None:
    one, two, gone = put(2_000), put(3_000), marker(3_000, CellType.DELETE)
    assert why([gone], [gone, two, one], {one: 7, two: 8, gone: 9}) == HISTORY
    assert why([], [one], {one: 7, two: 8, gone: 9}) == HISTORY


def test_a_version_that_the_family_had_room_for_was_not_displaced() -> None:
    one, two, gone = put(2_000), put(3_000), marker(3_000, CellType.DELETE)
    assert why([gone], [gone, two, one], {one: 7, two: 8, gone: 9}, versions=2) == UNEXPLAINED


def test_a_cell_put_again_behind_a_marker_that_one_side_compacted_away_depends_on_history() -> None:
    cell, gone = put(2_000), marker(2_500)
    edits = {cell: 9, gone: 8}
    assert why([cell], [gone, cell], edits) == HISTORY
    assert why([gone, cell], [cell], edits) == HISTORY


# ---- an explanation covers its own cell only


@pytest.mark.parametrize(
    ("source", "target", "applied", "pending"),
    [
        ([put(2_000)], [], {}, set()),  # not in the log
        ([put(2_000)], [], {}, {put(2_000)}),  # in flight
        (
            [],
            [put(2_000)],
            {put(2_000): 7, put(3_000): 8, marker(3_000, CellType.DELETE): 9},
            set(),
        ),  # history-dependent
    ],
)
def test_an_unexplained_cell_is_never_hidden_by_an_explained_one_of_its_row(
    source: list[Cell], target: list[Cell], applied: dict[Cell, int], pending: set[Cell]
) -> None:
    assert why(source, target, applied, pending) not in (None, UNEXPLAINED)
    lost = put(2_000, qualifier=b"lost")
    assert why([*source, lost], target, {**applied, lost: 10}, pending) == UNEXPLAINED


def test_rows_beyond_those_shown_count_as_unexplained() -> None:
    differences = [Difference("t", b"a", HISTORY, ""), Difference("t", b"b", UNEXPLAINED, "")]
    assert TableComparison("t", [], differences, 2).unexplained == 1
    assert TableComparison("t", [], differences, 9).unexplained == 8


def test_the_detail_names_side_column_and_timestamp_and_no_value() -> None:
    rules = {b"f": FamilyRules(1, 0, None)}
    _, detail = classify(block([put(5, b"s3cr3t")]), b"", RowLog(SINCE, UNTIL), rules, NOW)
    assert detail == "only the source shows f:71 at 5, type PUT: no explanation"


# ---- decisions


def test_what_an_operator_left_out_is_named_so_on_either_side() -> None:
    late = SINCE + 5
    assert why([put(late)], [], accepted={put(late)}) == ACCEPTED
    assert why([marker(late)], [put(late)], applied={put(late): 1}, accepted={marker(late)}) == ACCEPTED


def test_a_decision_about_one_entry_explains_no_other_loss() -> None:
    late, other = SINCE + 5, SINCE + 6
    assert why([put(late), put(other)], [], versions=9, accepted={put(late)}, applied={put(other): 1}) == UNEXPLAINED
    # The same cell once more in an entry that was not left out: the target must have it.
    assert why([put(late)], [], accepted={put(late)}, applied={put(late): 2}) == UNEXPLAINED
