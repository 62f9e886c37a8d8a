"""Repairs of rows, against a slow model of HBase's rules and of what a major compaction drops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unit.formats.test_resolve import NOW, PUTS_AND_MARKERS, RULES, C, in_hbase_order, slow_fates
from walferry.formats.resolve import FamilyRules, Fate
from walferry.migration.repairing import row_plan
from walferry.migration.repairing.row_plan import RowRepair, TooLargeError, plan_row, raw_cells

ROW = b"a"
ONE = {b"f": FamilyRules(1, 0, None)}
CELLS = st.lists(PUTS_AND_MARKERS.map(lambda cell: replace(cell, row=ROW)), max_size=12)


def raw(cells: Sequence[C]) -> list[row_plan.RawCell]:
    return raw_cells(b"".join(cell.encode() for cell in in_hbase_order(list(cells))))


def shown(cells: Sequence[C], rules: Mapping[bytes, FamilyRules]) -> list[C]:
    ordered = in_hbase_order(list(cells))
    fates = slow_fates(ordered, dict(rules), NOW)
    return [cell for cell, fate in zip(ordered, fates, strict=True) if fate is Fate.VISIBLE]


def compacted(cells: Sequence[C], rules: Mapping[bytes, FamilyRules]) -> list[C]:
    return shown(cells, rules)


def after(target: Sequence[C], source: Sequence[C], plan: RowRepair) -> list[C]:
    """What is sent is newer than what was there: of equal keys a scan gives it first."""
    by_bytes = {cell.encode(): cell for cell in source}
    sent = [by_bytes[cell.data] for cell in plan.sent]
    deletes = [C(ROW, put.family, put.qualifier, put.timestamp, 8) for put in plan.deleted]
    return [*sent, *deletes, *target]


def plan_of(source: Sequence[C], target: Sequence[C], rules: Mapping[bytes, FamilyRules] = ONE) -> RowRepair | None:
    return plan_row(ROW, raw(source), raw(target), rules, NOW)


def put(timestamp: int, value: bytes = b"v", qualifier: bytes = b"q") -> C:
    return C(ROW, b"f", qualifier, timestamp, 4, value)


def marker(timestamp: int, kind: int, qualifier: bytes = b"q") -> C:
    return C(ROW, b"f", qualifier if kind in (8, 12) else b"", timestamp, kind)


@settings(max_examples=400)
@given(CELLS, CELLS, RULES, RULES, RULES)
def test_after_a_repair_readers_see_the_same_also_after_the_deletes_were_purged(
    source: list[C], target: list[C], f: FamilyRules, ff: FamilyRules, g: FamilyRules
) -> None:
    rules = {b"f": f, b"ff": ff, b"g": g}
    wanted = shown(source, rules)
    plan = plan_of(source, target, rules)
    if plan is None:
        assert shown(target, rules) == wanted
        return
    if plan.purge:
        assert not plan.sent
        assert not plan.deleted
        target = compacted(target, rules)
        plan = plan_of(source, target, rules)
        if plan is None:
            assert shown(target, rules) == wanted
            return
        assert not plan.purge, "a compaction drops all markers"
    target = after(target, source, plan)
    assert shown(target, rules) == wanted
    markers = [cell for cell in source if cell.type != 4]
    purged = [*markers, *compacted(target, rules)]
    assert shown(purged, rules) == wanted, "the source's markers are sent again after a compaction"
    assert plan_of(source, purged, rules) is None


@settings(max_examples=150)
@given(CELLS, CELLS)
def test_what_the_target_holds_already_is_not_sent(source: list[C], target: list[C]) -> None:
    rules = {name: FamilyRules(3, 0, None) for name in (b"f", b"ff", b"g")}
    source, target = ([cell for cell in cells if cell.ttl is None] for cells in (source, target))  # nothing expires
    plan = plan_of(source, target, rules)
    held = {cell.key: cell.data for cell in reversed(raw(target))}
    assert plan is None or all(held.get(cell.key) != cell.data for cell in plan.sent)


def test_a_row_that_is_hidden_by_a_marker_of_the_source_too_needs_no_repair() -> None:
    assert plan_of([marker(9, 12)], [put(5), marker(9, 12)]) is None


def test_a_marker_that_the_source_has_purged_is_purged_before_the_row_is_sent() -> None:
    plan = plan_of([put(5)], [marker(9, 12)])
    assert plan is not None
    assert [cell.timestamp for cell in plan.purge] == [9]
    assert not plan.sent
    assert plan.compacts


def test_a_marker_that_hides_nothing_which_the_source_shows_stays() -> None:
    plan = plan_of([put(20)], [marker(9, 12)])
    assert plan is not None
    assert not plan.purge
    assert [cell.timestamp for cell in plan.sent] == [20]


def test_a_version_that_only_the_target_shows_is_deleted_exactly_and_so_is_what_comes_to_light_then() -> None:
    plan = plan_of([], [put(5, b"old"), put(7, b"new")])
    assert plan is not None
    assert [cell.timestamp for cell in plan.deleted] == [7, 5]
    assert plan.compacts
    assert not plan.purge


def test_a_version_that_a_marker_of_the_source_hides_needs_no_delete_of_ours() -> None:
    plan = plan_of([marker(9, 14)], [put(5)])
    assert plan is not None
    assert not plan.deleted
    assert [cell.type for cell in plan.sent] == [14]


def test_of_two_puts_with_one_key_the_sources_newest_replaces_the_targets() -> None:
    plan = plan_of([put(5, b"newest"), put(5, b"older")], [put(5, b"older")])
    assert plan is not None
    assert [cell.value for cell in plan.sent] == [b"newest"]


def test_a_row_with_more_cells_than_are_looked_at_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_plan, "MOST_CELLS", 2)
    with pytest.raises(TooLargeError, match="3 raw cells"):
        raw([put(1), put(2), put(3)])


@pytest.mark.parametrize(
    ("source", "target", "said"),
    [
        ([put(5)], [marker(9, 12)], "1 marker that the source does not have hide cells that it shows: purge"),
        ([put(5)], [], "send 1 cell of the source that the target lacks"),
        ([], [put(5)], "delete exactly 1 version that the source does not show, then purge that delete"),
    ],
)
def test_a_plan_says_what_is_done_and_why(source: list[C], target: list[C], said: str) -> None:
    plan = plan_of(source, target)
    assert plan is not None
    assert said in plan.describe()
