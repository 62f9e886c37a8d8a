"""The view `gaps` forgets no byte between the fences."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from unit.ledger.entries import SPEC, TABLE, apply, opened, sealed, span
from walferry.errors import UsageError, WalferryError
from walferry.ledger import Gap, Hold, Ledger, LogPosition, QuarantineItem, RunRecord
from walferry.refusals import GapKind


class TestGaps:
    def test_everything_between_the_fences_applied_leaves_no_gap(self, ledger: Ledger, run: RunRecord) -> None:
        ledger.of(run.run_id).log.set_fence("start", [LogPosition("rs1", "rs1.10", 10, 0)])
        ledger.of(run.run_id).log.set_fence("end", [LogPosition("rs1", "rs1.12", 12, 0)])
        ledger.of(run.run_id).log.see_files([sealed("rs1.9", 70), opened("rs1.12", 70), opened("rs1.13", 70)])
        apply(ledger, run, sealed("rs1.10", 80), sealed("rs1.11", 90))
        assert ledger.of(run.run_id).log.gaps() == []

    def test_a_file_that_was_not_read_is_a_gap_by_file_and_range(self, ledger: Ledger, run: RunRecord) -> None:
        ledger.of(run.run_id).log.see_files([sealed("rs1.11", 90)])
        apply(ledger, run, sealed("rs1.10", 80))
        assert ledger.of(run.run_id).log.gaps() == [Gap("rs1.11", 0, 90, TABLE, GapKind.NOT_READ, "not read")]

    def test_a_range_read_but_not_applied_is_a_gap(self, ledger: Ledger, run: RunRecord) -> None:
        ledger.of(run.run_id).log.see_files([sealed("rs1.10", 80)])
        ledger.of(run.run_id).log.set_ranges([span("rs1.10", 0, 30, "applied"), span("rs1.10", 30, 80, "sealed")])
        assert ledger.of(run.run_id).log.gaps() == [Gap("rs1.10", 30, 80, TABLE, GapKind.NOT_APPLIED, "not applied")]

    def test_a_closed_file_without_a_byte_needs_a_range_of_every_table_too(self, ledger: Ledger) -> None:
        run = ledger.open_run("both", "me", {"tables": ["shop:orders", "users"]}, "me")
        log = ledger.of(run.run_id).log
        log.set_fence("end", [LogPosition("rs1", "rs1.11", 11, 0)])
        log.see_files([sealed("rs1.10", 0), sealed("rs1.11", 0)])
        assert log.gaps() == [Gap("rs1.10", 0, 0, table, GapKind.NOT_READ, "not read") for table in (TABLE, "users")]
        log.set_ranges([span("rs1.10", 0, 0, "applied"), span("rs1.10", 0, 0, "sealed", "users")])
        assert log.gaps() == [Gap("rs1.10", 0, 0, "users", GapKind.NOT_READ, "not read")]
        log.mark_applied(["rs1.10"])
        assert log.gaps() == []

    def test_each_table_of_the_spec_is_asked_for(self, ledger: Ledger) -> None:
        tables = [{"source": "default:users", "target": "new:users"}, "shop:orders"]
        run = ledger.open_run("both", "me", {"tables": tables}, "me")
        apply(ledger, run, sealed("rs1.10", 80))
        assert ledger.of(run.run_id).log.gaps() == [Gap("rs1.10", 0, 80, "users", GapKind.NOT_READ, "not read")]

    def test_a_run_without_tables_has_no_answer(self, ledger: Ledger) -> None:
        run = ledger.open_run("watch", "me", {}, "me")
        with pytest.raises(UsageError, match="names no table"):
            ledger.of(run.run_id).log.gaps()

    def test_a_group_that_no_fence_names_counts_in_full(self, ledger: Ledger, run: RunRecord) -> None:
        ledger.of(run.run_id).log.set_fence("start", [LogPosition("rs1", "rs1.10", 10, 0)])
        ledger.of(run.run_id).log.set_fence("end", [LogPosition("rs1", "rs1.11", 11, 0)])
        apply(ledger, run, sealed("rs1.10", 80))
        ledger.of(run.run_id).log.see_files([sealed("rs9.3", 40, group="rs9"), opened("rs9.4", 6, group="rs9")])
        assert [(g.file, g.start, g.end, g.kind) for g in ledger.of(run.run_id).log.gaps()] == [
            ("rs9.3", 0, 40, GapKind.NOT_READ),
            ("rs9.4", 0, 6, GapKind.NOT_READ),
            ("rs9.4", 6, 6, GapKind.NOT_SEALED),
        ]

    def test_a_missing_file_is_a_gap_unless_it_was_applied_before(self, ledger: Ledger, run: RunRecord) -> None:
        ledger.of(run.run_id).log.see_files([sealed("rs1.11", 90), opened("rs1.12", 5)])
        apply(ledger, run, sealed("rs1.10", 80))
        for name in ("rs1.10", "rs1.11", "rs1.12"):
            ledger.of(run.run_id).log.mark_missing(name)
        assert [(g.file, g.start, g.end) for g in ledger.of(run.run_id).log.gaps()] == [
            ("rs1.11", 0, 90),
            ("rs1.12", 0, 5),
            ("rs1.12", 5, 5),
        ]
        assert {gap.kind for gap in ledger.of(run.run_id).log.gaps()} == {GapKind.MISSING}

    @pytest.mark.parametrize("kind", ["start", "end"])
    def test_a_fence_in_a_file_that_no_listing_showed_is_a_gap(self, ledger: Ledger, run: RunRecord, kind: str) -> None:
        ledger.of(run.run_id).log.set_fence(kind, [LogPosition("rs1", "rs1.10", 10, 7)])  # type: ignore[arg-type]
        assert ledger.of(run.run_id).log.gaps() == [
            Gap("rs1.10", 7, 7, TABLE, GapKind.FENCE, f"the {kind} fence stands in a file never seen")
        ]

    def test_a_quarantined_item_and_the_regions_behind_it_are_gaps_until_released(
        self, ledger: Ledger, run: RunRecord
    ) -> None:
        apply(ledger, run, sealed("rs1.10", 80))
        (item,) = ledger.of(run.run_id).quarantine.put(
            [QuarantineItem("rs1.10", 20, 30, TABLE, "r1", 4, "damaged", b"\x00")]
        )
        ledger.of(run.run_id).quarantine.hold([Hold("rs1.10", TABLE, "r1", 20, item)])
        assert [(g.start, g.end, g.kind) for g in ledger.of(run.run_id).log.gaps()] == [
            (20, 30, GapKind.HELD),
            (20, 80, GapKind.HELD),
        ]
        with pytest.raises(WalferryError, match="not released"):
            ledger.of(run.run_id).quarantine.drop_holds(item)
        ledger.of(run.run_id).quarantine.release(item, "reread", "rows read from the source again", "alice")
        assert [(g.start, g.end) for g in ledger.of(run.run_id).log.gaps()] == [(20, 80)]
        ledger.of(run.run_id).quarantine.drop_holds(item)
        assert ledger.of(run.run_id).log.gaps() == []

    @settings(
        max_examples=60,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    )
    @given(
        lengths=st.lists(st.integers(0, 12), min_size=1, max_size=4),
        spans=st.lists(
            st.tuples(
                st.integers(0, 3), st.integers(0, 12), st.integers(0, 12), st.sampled_from(["sealed", "applied"])
            ),
            max_size=8,
        ),
        start=st.tuples(st.integers(0, 3), st.integers(0, 12)),
        end=st.none() | st.tuples(st.integers(0, 3), st.integers(0, 12)),
    )
    def test_gaps_are_exactly_the_required_bytes_that_no_applied_range_covers(
        self,
        ledger: Ledger,
        lengths: list[int],
        spans: list[tuple[int, int, int, str]],
        start: tuple[int, int],
        end: tuple[int, int] | None,
    ) -> None:
        name = f"random{len(ledger.runs())}"
        run = ledger.open_run(name, "me", SPEC, "me")
        ledger.of(run.run_id).log.see_files([sealed(f"rs1.{n}", length) for n, length in enumerate(lengths)])
        ledger.of(run.run_id).log.set_fence("start", [LogPosition("rs1", f"rs1.{start[0]}", start[0], start[1])])
        if end is not None:
            ledger.of(run.run_id).log.set_fence("end", [LogPosition("rs1", f"rs1.{end[0]}", end[0], end[1])])
        ranges = {}
        for n, a, b, state in spans:
            if n < len(lengths) and a <= b:
                ranges[n, a] = (a, b, state)
        ledger.of(run.run_id).log.set_ranges(
            [span(f"rs1.{n}", a, b, state) for (n, _), (a, b, state) in ranges.items()]
        )

        expected = set()
        for n, length in enumerate(lengths):
            first = {n > start[0]: 0, n == start[0]: start[1]}.get(True, 1 << 30)
            last = length if end is None else {n < end[0]: length, n == end[0]: end[1]}.get(True, 0)
            covered = {
                byte
                for (m, _), (a, b, state) in ranges.items()
                if m == n and state == "applied"
                for byte in range(a, b)
            }
            expected |= {(f"rs1.{n}", byte) for byte in range(first, last) if byte not in covered}
        found = [
            (gap.file, byte)
            for gap in ledger.of(run.run_id).log.gaps()
            for byte in range(gap.start, gap.end)
            if gap.kind in (GapKind.NOT_READ, GapKind.NOT_APPLIED)
        ]
        assert sorted(found) == sorted(expected)
