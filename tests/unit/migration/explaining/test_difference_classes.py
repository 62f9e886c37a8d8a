"""Why a row differs: every class with hand-made cells."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from unit.migration.explaining.explained_rows import NOW, SINCE, UNTIL, WIDE, block, explained, marker, put, why
from walferry.formats.cells import CellType
from walferry.formats.resolve import FamilyRules
from walferry.migration.explaining.difference_classes import (
    CHANGED_SINCE,
    EXPIRED_OVERWRITE,
    HISTORY,
    IN_FLIGHT,
    LEFT_OUT,
    NOT_IN_LOG,
    SNAPSHOT_MARKER,
    UNEXPLAINED,
    Explanation,
    RowLog,
    classify,
)
from walferry.migration.sides.row_sides import Bounds, Cell, row_sides


def test_equal_sides_have_no_class() -> None:
    assert why([put(5)], [put(5)]) is None
    assert why([], []) is None


def test_what_a_compaction_dropped_on_one_side_is_no_difference() -> None:
    assert why([put(5), marker(5)], [marker(5)], versions=9) is None
    assert why([put(5), marker(5)], []) is None
    assert why([put(6), put(5)], [put(6)]) is None


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


def test_an_edit_that_the_target_has_before_its_file_counts_as_applied_is_no_stranger() -> None:
    """The source, to which the next edit has come, has dropped it; what hides it there is on its way."""
    early, later = put(2_000, b"early"), put(3_000, b"later")
    assert why([later], [early], pending={early, later}) == IN_FLIGHT
    assert why([marker(2_500)], [early], pending={early, marker(2_500)}) == IN_FLIGHT
    assert why([later], [early], pending={later}) == UNEXPLAINED, "no log has it"
    assert why([], [early], pending={early}) == UNEXPLAINED, "nothing hides it at the source"
    assert why([later], [early], {later: 8}, pending={early}) == UNEXPLAINED, "what hides it is lost"


def test_a_version_that_a_flush_dropped_before_the_newer_one_was_deleted_depends_on_history() -> None:
    one, two, gone = put(2_000), put(3_000), marker(3_000, CellType.DELETE)
    assert why([gone], [gone, two, one], {one: 7, two: 8, gone: 9}) == HISTORY
    assert why([], [one], {one: 7, two: 8, gone: 9}) == HISTORY


def test_a_version_that_the_family_had_room_for_was_not_displaced() -> None:
    one, two, gone = put(2_000), put(3_000), marker(3_000, CellType.DELETE)
    assert why([gone], [gone, two, one], {one: 7, two: 8, gone: 9}, versions=2) == UNEXPLAINED


def test_a_put_behind_a_marker_of_the_snapshot_that_the_target_compacted_away_depends_on_history() -> None:
    """Hole: a compaction of the copy made such rows unexplained, and their number kept the gate shut."""
    later = {put(5): 7}
    assert why([put(5), marker(6)], [put(5)], later) == HISTORY
    assert why([put(5), marker(6)], [put(5), put(7)], later) == UNEXPLAINED, "the newer put is a stranger"
    for log in (RowLog(SINCE, UNTIL, later, let_go=True), RowLog(SINCE, UNTIL, later, unread=["a file is gone"])):
        found = explained([put(5), marker(6)], [put(5)], log)
        assert found is not None
        assert found.kind == UNEXPLAINED, "the marker may have been in what is not known"


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


def test_the_detail_names_side_column_and_timestamp_and_no_value() -> None:
    found = explained([put(5, b"s3cr3t")], [], RowLog(SINCE, UNTIL))
    assert found
    assert found.detail == "only the source shows f:71 at 5, type PUT: no explanation"


def test_a_row_with_more_edits_in_the_log_than_are_kept_is_unexplained() -> None:
    found = explained([put(2_000)], [], RowLog(SINCE, UNTIL, too_many=True))
    assert found
    assert found.kind == UNEXPLAINED


def test_a_log_that_could_not_be_looked_at_is_named() -> None:
    found = explained([put(2_000)], [], RowLog(SINCE, UNTIL, unread=["WAL file rs.7 is gone from the source"]))
    assert found
    assert found.kind == NOT_IN_LOG
    assert "not all of the log could be read: WAL file rs.7 is gone from the source" in found.detail


# ---- what has changed since the target was opened


def since_opening(source: list[Cell], target: list[Cell], applied: Mapping[Cell, int]) -> Explanation:
    sides = row_sides(block(source), block(target), {b"f": FamilyRules(1, 0, None)}, NOW, WIDE)
    assert sides
    log = RowLog(SINCE, UNTIL, dict(applied))
    dropped = dict.fromkeys((HISTORY, SNAPSHOT_MARKER), "compacted since")
    return classify(sides, log, {b"f": FamilyRules(1, 0, None)}, since=dropped)  # type: ignore[arg-type]


def test_what_a_marker_that_was_dropped_since_the_opening_shows_is_told_and_nothing_else_is_excused_by_it() -> None:
    cell, gone, lost = put(2_000), marker(2_500), put(2_000, qualifier=b"lost")
    found = since_opening([cell], [gone, cell], {cell: 9, gone: 8})
    assert (found.kind, found.detail.endswith("; compacted since")) == (CHANGED_SINCE, True)
    assert since_opening([cell], [marker(5_000), cell], {cell: 9}).kind == UNEXPLAINED
    assert since_opening([put(5)], [put(5), marker(500)], {}).kind == CHANGED_SINCE
    assert since_opening([cell, lost], [gone, cell], {cell: 9, gone: 8, lost: 10}).kind == UNEXPLAINED
    assert since_opening([put(2_000)], [], {}).kind == NOT_IN_LOG


# ---- rows of which more differs than is examined


@pytest.mark.parametrize("bounds", [Bounds(3, 100_000), Bounds(100, 3 * 20)], ids=["cells", "bytes"])
def test_a_row_with_more_differing_cells_than_are_examined_says_so_and_shuts_the_gate(bounds: Bounds) -> None:
    """Hole: all cells of such a row were collected. The first three would be in flight, and the last one is lost."""
    cells = [put(2_000, qualifier=b"%02d" % number) for number in range(10)]
    found = explained(cells, [], RowLog(SINCE, UNTIL, {cells[9]: 7}, set(cells[:9])), bounds=bounds)
    assert found
    assert found.kind == UNEXPLAINED
    assert found.detail.startswith(
        "10 cells differ, too many to examine each: only the first 3 were examined: only the"
    )
    assert found.fingerprint == "", "nobody can accept cells that are not known"


def test_a_row_of_which_not_even_one_cell_is_examined_is_unexplained() -> None:
    found = explained([put(2_000, qualifier=b"q" * 300)], [], RowLog(SINCE, UNTIL), bounds=Bounds(100, 200))
    assert found
    assert (found.kind, found.fingerprint) == (UNEXPLAINED, "")
    assert found.detail == "1 cells differ, too many to examine each: only the first 0 were examined"


@pytest.mark.parametrize("at_source", [True, False])
def test_a_row_with_more_versions_than_are_kept_is_unexplained(at_source: bool) -> None:
    versions = [put(3_000 + number) for number in range(5)]
    sides = ([put(2_000), *versions], versions) if at_source else (versions, [put(2_000), *versions])
    applied = {} if at_source else {put(2_000): 7}
    log = RowLog(SINCE, UNTIL, applied, pending={put(2_000), marker(2_000)})
    found = explained(*sides, log, versions=9)
    assert found
    assert found.kind == IN_FLIGHT
    cut = explained(*sides, log, versions=9, bounds=Bounds(4, 100_000))
    assert cut
    assert cut.kind == UNEXPLAINED
    assert "too many versions and markers" in cut.detail
    assert cut.fingerprint != "", "which cells differ is known"


def test_cells_of_other_columns_need_no_room() -> None:
    others = [put(3_000, qualifier=b"%02d" % number) for number in range(50)]
    found = explained([put(2_000), *others], others, RowLog(SINCE, UNTIL), bounds=Bounds(2, 100_000))
    assert found
    assert found.kind == NOT_IN_LOG


def test_a_marker_of_the_whole_family_explains_cells_of_any_column() -> None:
    gone = marker(5_000, CellType.DELETE_FAMILY)
    cells = [put(2_000, qualifier=b"%02d" % number) for number in range(9)]
    assert why([gone, *cells], cells, pending={gone}) == IN_FLIGHT
    assert why(cells, [gone, *cells], dict.fromkeys(cells, 8) | {gone: 7}) == HISTORY


def test_a_long_qualifier_is_cut_where_it_is_shown() -> None:
    found = explained([put(5, qualifier=b"q" * 30_000)], [], RowLog(SINCE, UNTIL))
    assert found
    assert len(found.detail) < 300


# ---- overwritten at the same timestamp by a put that has expired


@pytest.mark.parametrize("logged", [True, False], ids=["in the log", "of the snapshot"])
def test_a_cell_that_shows_up_again_once_what_overwrote_it_has_expired_has_a_class_of_its_own(logged: bool) -> None:
    timestamp = 2_000 if logged else 5
    older, over = put(timestamp, b"older"), put(timestamp, b"newer", ttl=10)
    edits = {over: 8} | ({older: 7} if logged else {})
    assert why([older], [], edits) == EXPIRED_OVERWRITE  # the target was flushed while the newer one stood over it
    assert why([], [older], edits) == EXPIRED_OVERWRITE  # or the source was
    found = explained([older], [], RowLog(SINCE, UNTIL, dict(edits)))
    assert found
    assert "a put with a TTL of 10 ms (sequence number 8 in the log, expired)" in found.detail


@pytest.mark.parametrize(
    "over",
    [put(2_000, b"newer"), put(2_000, b"newer", ttl=NOW), put(2_001, b"newer", ttl=10), put(2_000, b"n", b"x", 10)],
    ids=["no TTL", "not over yet", "another timestamp", "another column"],
)
def test_another_put_explains_no_loss(over: Cell) -> None:
    older = put(2_000, b"older")
    assert why([older], [], {older: 7, over: 8}, versions=9) == UNEXPLAINED


def test_a_put_that_was_overwritten_before_the_expired_one_was_written_is_lost() -> None:
    older, expired = put(2_000, b"older"), put(2_000, b"newer", ttl=10)
    assert why([older], [], {expired: 7, older: 8}) == UNEXPLAINED


def test_an_unlogged_put_under_an_expired_one_is_not_in_the_log() -> None:
    older, expired = put(2_000, b"older"), put(2_000, b"newer", ttl=10)
    assert why([older], [], {expired: 8}) == NOT_IN_LOG


def test_what_a_pending_put_of_the_same_timestamp_overwrites_is_in_flight() -> None:
    older, newer = put(2_000, b"older"), put(2_000, b"newer")
    assert why([newer], [older], {older: 7}, pending={newer}) == IN_FLIGHT


# ---- fingerprints: what a decision goes by


def test_a_fingerprint_is_of_exactly_the_cells_that_differ() -> None:
    log = RowLog(SINCE, UNTIL)

    def fingerprint(*missing: Cell, alike: tuple[Cell, ...] = ()) -> str:
        found = explained([*missing, *alike], list(alike), log, versions=9)
        assert found
        return found.fingerprint

    assert fingerprint(put(2_000)) == fingerprint(put(2_000), alike=(put(4_000),))
    others = [put(2_001), put(2_000, b"other"), put(2_000, b"v", b"x"), put(2_000, b"v" * 50), put(2_000, b"w" * 50)]
    assert len({fingerprint(put(2_000)), fingerprint(put(2_000), put(2_001)), *map(fingerprint, others)}) == 7


# ---- decisions


def test_what_an_operator_left_out_is_named_so_on_either_side() -> None:
    late = SINCE + 5
    assert why([put(late)], [], left_out={put(late)}) == LEFT_OUT
    assert why([marker(late)], [put(late)], applied={put(late): 1}, left_out={marker(late)}) == LEFT_OUT


def test_a_decision_about_one_entry_explains_no_other_loss() -> None:
    late, other = SINCE + 5, SINCE + 6
    assert why([put(late), put(other)], [], versions=9, left_out={put(late)}, applied={put(other): 1}) == UNEXPLAINED
    # The same cell once more in an entry that was not left out: the target must have it.
    assert why([put(late)], [], left_out={put(late)}, applied={put(late): 2}) == UNEXPLAINED


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ([put(5)], []),  # deleted at the source and written again; the target has dropped the marker
        ([], [put(SINCE + 5)]),  # its put is in a file that was let go, as is what deleted it
        ([put(5)], [put(5), marker(SINCE + 9)]),  # the marker's edit was let go, and the source has dropped it
        ([put(5), marker(6)], [put(5)]),  # the marker's edit was let go, and the target has dropped it
    ],
)
def test_what_nothing_explains_stays_unexplained_if_files_that_may_show_why_were_let_go(
    source: list[Cell], target: list[Cell]
) -> None:
    kept = explained(source, target, RowLog(SINCE, UNTIL))
    let_go = explained(source, target, RowLog(SINCE, UNTIL, let_go=True))
    assert kept is not None
    assert let_go is not None
    assert (kept.kind, let_go.kind) == (UNEXPLAINED, UNEXPLAINED)
    assert "were deleted after they were applied" in let_go.detail
    assert kept.fingerprint == let_go.fingerprint


@pytest.mark.parametrize(
    ("source", "target"),
    [([put(2_000)], []), ([put(2_000), marker(2_500)], [put(2_000)]), ([put(2_000)], [marker(2_500)])],
)
def test_an_edit_that_no_log_has_may_have_been_lost_with_a_log_that_was_let_go(
    source: list[Cell], target: list[Cell]
) -> None:
    applied = {marker(2_500): 9} if marker(2_500) in target else {}
    kept = explained(source, target, RowLog(SINCE, UNTIL, applied, let_go=False))
    let_go = explained(source, target, RowLog(SINCE, UNTIL, applied, let_go=True))
    assert (kept and kept.kind, let_go and let_go.kind) == (NOT_IN_LOG, UNEXPLAINED)


def test_an_unlogged_put_under_a_marker_that_the_source_has_purged_is_not_in_the_log() -> None:
    logged = {marker(2_500): 9}
    assert why([put(2_000)], [marker(2_500)], logged) == NOT_IN_LOG
    assert why([put(5)], [marker(2_500)], logged) == NOT_IN_LOG, "an old timestamp tells nothing of when it was written"
    assert why([put(5)], [marker(6)]) == NOT_IN_LOG, "under a marker that came with the snapshot"
    assert why([put(2_000)], [put(2_000), marker(2_500)], logged | {put(2_000): 10}) == HISTORY


def test_what_a_rejected_late_bulk_load_may_have_brought_is_not_in_the_log_whatever_its_timestamp() -> None:
    loaded = explained([put(5)], [], RowLog(SINCE, UNTIL, late_load=True))
    hidden = explained([put(5), marker(6)], [put(5)], RowLog(SINCE, UNTIL, late_load=True))
    assert (loaded and loaded.kind, hidden and hidden.kind) == (NOT_IN_LOG, NOT_IN_LOG)
    assert loaded is not None
    assert "a late bulk load that was rejected may have brought it" in loaded.detail
    lost = explained([put(2_000)], [], RowLog(SINCE, UNTIL, {put(2_000): 7}, late_load=True))
    assert lost is not None
    assert lost.kind == UNEXPLAINED


def test_what_a_marker_of_the_snapshot_hides_has_a_class_of_its_own() -> None:
    assert why([put(5)], [put(5), marker(6)], {put(5): 7}) == SNAPSHOT_MARKER
    assert why([put(5)], [marker(6)], {put(5): 7}) == SNAPSHOT_MARKER, "a flush has dropped the put"
    assert why([put(5)], [put(5), marker(SINCE + 1)], {put(5): 7}) == UNEXPLAINED


def test_an_edit_that_is_in_the_log_and_not_at_the_target_is_unexplained_whatever_was_let_go() -> None:
    old, new = put(5), put(7)
    log = RowLog(SINCE, UNTIL, {old: 1, new: 2}, let_go=True)
    found = [explained([new], [old], log), explained([new], [], RowLog(SINCE, UNTIL, {new: 2}, let_go=True))]
    assert [one and one.kind for one in found] == [UNEXPLAINED, UNEXPLAINED]
