"""What the ledger promises. tests/integration/ledger runs every one of these on PostgreSQL too."""

from __future__ import annotations

import hashlib
import json
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import create_engine, text
from sqlalchemy.exc import DBAPIError

from unit.migration.filled_ledger import compared
from walferry.errors import UsageError, WalferryError
from walferry.ledger import (
    AuditHead,
    Coverage,
    Difference,
    Gap,
    Hold,
    Ledger,
    Position,
    QuarantineItem,
    RangeComparison,
    Round,
    RunRecord,
    SeenFile,
    WalRange,
)
from walferry.ledger.comparisons import decision
from walferry.ledger.database import sql_directory

SPEC = {"name": "move", "tables": ["shop:orders"]}
TABLE = "shop:orders"


@pytest.fixture
def run(ledger: Ledger) -> RunRecord:
    return ledger.open_run("move", "dag-run-1", SPEC, "alice")


def sealed(name: str, length: int, group: str = "rs1") -> SeenFile:
    return SeenFile(name, group, "rs1,16020,1", int(name.split(".")[-1]), f"/hbase/oldWALs/{name}", length, True)


def opened(name: str, length: int, group: str = "rs1") -> SeenFile:
    return SeenFile(name, group, "rs1,16020,1", int(name.split(".")[-1]), f"/hbase/WALs/rs1/{name}", length, False)


def span(file: str, start: int, end: int, state: str = "sealed", table: str = TABLE) -> WalRange:
    return WalRange(file, start, end, table, 2, 5, 1_000, 2_000, state)  # type: ignore[arg-type]


def apply(ledger: Ledger, run: RunRecord, *files: SeenFile) -> None:
    """Every byte of the files is applied."""
    ledger.of(run.run_id).log.see_files(files)
    ledger.of(run.run_id).log.set_ranges([span(file.name, 0, file.length, "applied") for file in files])


def behind_the_triggers(url: str, *statements: str) -> None:
    """Change the audit table as somebody with the database's password could."""
    engine = create_engine(url)
    with engine.begin() as connection:
        if engine.dialect.name == "postgresql":
            connection.execute(text("ALTER TABLE audit DISABLE TRIGGER ALL"))
        else:
            for trigger in ("audit_no_update", "audit_no_delete", "audit_no_replace"):
                connection.execute(text(f"DROP TRIGGER {trigger}"))
        for statement in statements:
            connection.execute(text(statement))
    engine.dispose()


class TestOpening:
    def test_a_ledger_opened_again_knows_its_runs(self, ledger: Ledger, ledger_url: str, run: RunRecord) -> None:
        with Ledger.open(ledger_url) as again:
            assert again.runs() == [run]

    def test_a_schema_newer_than_this_walferry_is_refused_by_its_name(self, ledger: Ledger, ledger_url: str) -> None:
        engine = create_engine(ledger_url)
        with engine.begin() as connection:
            connection.execute(text("INSERT INTO schema_versions VALUES (9001, '9001_shards', 0)"))
        engine.dispose()
        with pytest.raises(UsageError, match="9001_shards"):
            Ledger.open(ledger_url)

    def test_the_password_of_the_url_is_never_shown(self) -> None:
        with pytest.raises(WalferryError) as caught:
            Ledger.open("postgresql+psycopg2://keeper:hunter2@127.0.0.1:1/ledger")
        assert "127.0.0.1" in str(caught.value)
        assert "hunter2" not in f"{caught.value} {caught.value.facts}"

    @pytest.mark.parametrize("url", ["sqlite://", "mysql://host/ledger", "no url"])
    def test_a_url_that_cannot_keep_a_ledger_is_a_usage_error(self, url: str) -> None:
        with pytest.raises(UsageError, match="ledger"):
            Ledger.open(url)


class TestRuns:
    def test_the_unfinished_run_goes_on_for_the_same_owner_and_spec(self, ledger: Ledger, run: RunRecord) -> None:
        assert ledger.open_run("move", "dag-run-1", dict(SPEC), "alice") == run
        assert run.run_id == "move-1"

    @pytest.mark.parametrize(("owner", "spec"), [("dag-run-2", SPEC), ("dag-run-1", {**SPEC, "apply": "bulk"})])
    def test_another_owner_or_spec_is_refused_and_told_what_to_do(
        self, ledger: Ledger, run: RunRecord, owner: str, spec: dict[str, object]
    ) -> None:
        with pytest.raises(UsageError, match=r"move-1.*dag-run-1.*walferry resume move.*walferry abort move"):
            ledger.open_run("move", owner, spec, "bob")
        assert ledger.runs() == [run]

    def test_after_its_end_a_name_gets_a_new_run(self, ledger: Ledger, run: RunRecord) -> None:
        ended = ledger.of(run.run_id).end("aborted", "alice", "wrong table")
        assert ledger.of(run.run_id).end("aborted", "alice", "wrong table") == ended
        newer = ledger.open_run("move", "dag-run-2", SPEC, "alice")
        assert newer.run_id == "move-2"
        assert ledger.find("move") == newer
        assert ledger.find("move-1") == ledger.run("move-1") == ended

    def test_a_run_that_ended_cannot_end_in_another_way_or_be_adopted(self, ledger: Ledger, run: RunRecord) -> None:
        ledger.of(run.run_id).end("done", "alice")
        with pytest.raises(UsageError, match="is done"):
            ledger.of(run.run_id).end("failed", "alice")
        with pytest.raises(UsageError, match="has ended"):
            ledger.adopt_run(run.run_id, "dag-run-2", "alice")

    def test_another_owner_adopts_a_run(self, ledger: Ledger, run: RunRecord) -> None:
        adopted = ledger.adopt_run(run.run_id, "cli bob", "bob")
        assert ledger.open_run("move", "cli bob", SPEC, "bob") == adopted

    def test_a_paused_run_says_so_until_it_goes_on(self, ledger: Ledger, run: RunRecord) -> None:
        assert ledger.set_paused(run.run_id, True, "alice", "source is busy") == ledger.run(run.run_id)
        assert ledger.run(run.run_id).paused
        ledger.set_paused(run.run_id, False, "alice")
        assert not ledger.run(run.run_id).paused

    def test_an_unknown_run_is_a_usage_error(self, ledger: Ledger) -> None:
        with pytest.raises(UsageError, match="nowhere"):
            ledger.find("nowhere")


class TestPhases:
    def test_facts_are_there_when_the_phase_is_done_and_not_before(self, ledger: Ledger, run: RunRecord) -> None:
        ledger.of(run.run_id).phases.start("copy", TABLE)
        assert ledger.of(run.run_id).phases.facts("copy", TABLE) is None
        ledger.of(run.run_id).phases.fail("copy", "no space", TABLE)
        ledger.of(run.run_id).phases.start("copy", TABLE)
        ledger.of(run.run_id).phases.finish("copy", {"files": 3}, TABLE)
        assert ledger.of(run.run_id).phases.facts("copy", TABLE) == {"files": 3}
        assert ledger.of(run.run_id).phases.facts("copy", "shop:other") is None
        (phase,) = ledger.of(run.run_id).phases.all()
        assert (phase.state, phase.attempts, phase.error) == ("done", 2, "")

    def test_a_reopened_phase_has_to_run_again(self, ledger: Ledger, run: RunRecord) -> None:
        ledger.of(run.run_id).phases.reopen("drain")
        assert ledger.of(run.run_id).phases.all() == []
        ledger.of(run.run_id).phases.finish("drain", {"files": 3})
        ledger.of(run.run_id).phases.reopen("drain", reason="late edits")
        assert ledger.of(run.run_id).phases.facts("drain") is None
        assert [(phase.state, phase.error) for phase in ledger.of(run.run_id).phases.all()] == [
            ("failed", "late edits")
        ]

    def test_each_step_of_a_phase_is_in_the_audit_trail(self, ledger: Ledger, run: RunRecord) -> None:
        ledger.of(run.run_id).phases.start("copy")
        ledger.of(run.run_id).phases.fail("copy", "no space")
        lines = ledger.of(run.run_id).audit_trail()
        assert [(line.action, line.outcome) for line in lines[1:]] == [("start phase", ""), ("fail phase", "no space")]


class TestObjects:
    def test_an_object_is_planned_before_it_is_made(self, ledger: Ledger, run: RunRecord) -> None:
        with pytest.raises(WalferryError, match="never planned"):
            ledger.of(run.run_id).objects.made("source", "peer", "walferry_move-1")
        ledger.of(run.run_id).objects.plan("source", "peer", "walferry_move-1")
        ledger.of(run.run_id).objects.made("source", "peer", "walferry_move-1")
        ledger.of(run.run_id).objects.plan("source", "peer", "walferry_move-1")
        assert [o.state for o in ledger.of(run.run_id).objects.all()] == ["made"]
        ledger.of(run.run_id).objects.removed("source", "peer", "walferry_move-1")
        assert [o.name for o in ledger.of(run.run_id).objects.all("removed")] == ["walferry_move-1"]
        assert ledger.of(run.run_id).objects.all("made") == []


class TestLeases:
    def test_a_lease_with_an_older_number_is_refused(self, ledger: Ledger, run: RunRecord) -> None:
        ledger.of(run.run_id).leases.take(TABLE, "worker a", 7)
        ledger.of(run.run_id).leases.take(TABLE, "worker a", 7)
        ledger.of(run.run_id).leases.take(TABLE, "worker b", 8)
        with pytest.raises(WalferryError, match="worker b"):
            ledger.of(run.run_id).leases.take(TABLE, "worker a", 7)
        with pytest.raises(WalferryError, match="stale"):
            ledger.of(run.run_id).leases.take(TABLE, "worker a", 8)
        ledger.of(run.run_id).leases.release(TABLE, 8)
        assert [(x.fencing_number, x.released_ms is None) for x in ledger.leases(TABLE)] == [(7, True), (8, False)]


class TestFences:
    def test_a_fence_is_set_once(self, ledger: Ledger, run: RunRecord) -> None:
        first = [Position("rs1", "rs1.10", 10, 0), Position("rs2", "rs2.11", 11, 5)]
        assert ledger.of(run.run_id).log.fence("start") is None
        assert ledger.of(run.run_id).log.set_fence("start", first) == first
        assert ledger.of(run.run_id).log.set_fence("start", [Position("rs1", "rs1.99", 99, 0)]) == first
        assert ledger.of(run.run_id).log.fence("start") == first
        assert ledger.of(run.run_id).log.fence("end") is None

    def test_an_end_fence_moves_forward_only_and_the_trail_keeps_each(self, ledger: Ledger, run: RunRecord) -> None:
        early, late = [Position("rs1", "rs1.10", 10, 0)], [Position("rs1", "rs1.12", 12, 0)]
        ledger.of(run.run_id).log.set_fence("start", [Position("rs1", "rs1.9", 9, 0)])
        ledger.of(run.run_id).log.set_fence("end", early)
        assert ledger.of(run.run_id).log.set_fence("end", late) == late
        with pytest.raises(WalferryError, match="cannot move back"):
            ledger.of(run.run_id).log.set_fence("end", early)
        assert ledger.of(run.run_id).log.fence("start") == [Position("rs1", "rs1.9", 9, 0)]
        told = [
            line.inputs["positions"] for line in ledger.of(run.run_id).audit_trail() if line.action == "set end fence"
        ]
        assert told == [{"rs1": "rs1.10@0"}, {"rs1": "rs1.12@0"}]

    def test_a_group_has_one_position(self, ledger: Ledger, run: RunRecord) -> None:
        with pytest.raises(WalferryError, match="two positions"):
            ledger.of(run.run_id).log.set_fence(
                "end", [Position("rs1", "rs1.10", 10, 0), Position("rs1", "rs1.11", 11, 0)]
            )
        with pytest.raises(WalferryError, match="no position"):
            ledger.of(run.run_id).log.set_fence("end", [])


class TestFiles:
    def test_a_file_moves_forward_only(self, ledger: Ledger, run: RunRecord) -> None:
        ledger.of(run.run_id).log.see_files([opened("rs1.10", 50)])
        ledger.of(run.run_id).log.see_files([sealed("rs1.10", 80), opened("rs1.11", 0)])
        ledger.of(run.run_id).log.see_files([opened("rs1.10", 60)])
        old, new = ledger.of(run.run_id).log.files()
        assert (old.state, old.length, old.path) == ("sealed", 80, "/hbase/oldWALs/rs1.10")
        assert (new.state, new.length, new.sealed_ms) == ("open", 0, None)

    def test_what_is_known_of_a_length_outlives_a_listing_that_tells_less(self, ledger: Ledger, run: RunRecord) -> None:
        log = ledger.of(run.run_id).log
        log.see_files([opened("rs1.10", 50)])
        log.see_files([sealed("rs1.10", 0)])
        (file,) = log.files()
        assert (file.state, file.length, file.path) == ("sealed", 50, "/hbase/oldWALs/rs1.10")
        log.read_to_end({"rs1.10": 40})  # the server died, and with it what it had not acknowledged
        log.set_ranges([span("rs1.10", 0, 40, "applied")])
        assert [file.length for file in log.files()] == [40]
        assert log.gaps() == []

    def test_new_and_sealed_files_are_in_the_audit_trail_once(self, ledger: Ledger, run: RunRecord) -> None:
        for _ in range(2):
            ledger.of(run.run_id).log.see_files([sealed("rs1.10", 80)])
        lines = [line for line in ledger.of(run.run_id).audit_trail() if line.action == "see WAL files"]
        assert [line.inputs for line in lines] == [{"new": ["/hbase/oldWALs/rs1.10"], "sealed": {"rs1.10": 80}}]

    def test_a_missing_file_that_is_found_again_is_no_longer_missing(self, ledger: Ledger, run: RunRecord) -> None:
        ledger.of(run.run_id).log.see_files([sealed("rs1.10", 80)])
        ledger.of(run.run_id).log.mark_missing("rs1.10")
        assert [file.state for file in ledger.of(run.run_id).log.files()] == ["missing"]
        ledger.of(run.run_id).log.see_files([sealed("rs1.10", 80)])
        assert [file.state for file in ledger.of(run.run_id).log.files()] == ["sealed"]


class TestRanges:
    @pytest.mark.parametrize(("before", "after"), [("sealed", "seen"), ("applied", "sealed"), ("verified", "applied")])
    def test_a_state_never_moves_backwards(self, ledger: Ledger, run: RunRecord, before: str, after: str) -> None:
        ledger.of(run.run_id).log.see_files([sealed("rs1.10", 80), sealed("rs1.11", 80)])
        ledger.of(run.run_id).log.set_ranges([span("rs1.10", 0, 80, before)])
        with pytest.raises(WalferryError, match=rf"\[0, 80\) of WAL file rs1.10 for table {TABLE} is {before}"):
            ledger.of(run.run_id).log.set_ranges([span("rs1.11", 0, 80), span("rs1.10", 0, 80, after)])
        assert [(r.file, r.state) for r in ledger.of(run.run_id).log.ranges()] == [("rs1.10", before)]

    def test_a_range_grows_until_it_is_applied(self, ledger: Ledger, run: RunRecord) -> None:
        ledger.of(run.run_id).log.see_files([opened("rs1.10", 50)])
        ledger.of(run.run_id).log.set_ranges([span("rs1.10", 0, 50, "seen")])
        ledger.of(run.run_id).log.set_ranges([span("rs1.10", 0, 80, "sealed")])
        with pytest.raises(WalferryError, match="cannot shrink"):
            ledger.of(run.run_id).log.set_ranges([span("rs1.10", 0, 70, "sealed")])
        ledger.of(run.run_id).log.mark_applied(["rs1.10"])
        with pytest.raises(WalferryError, match="cannot grow"):
            ledger.of(run.run_id).log.set_ranges([span("rs1.10", 0, 90, "applied")])
        assert [r.end for r in ledger.of(run.run_id).log.ranges(file="rs1.10", state="applied")] == [80]

    def test_a_range_of_a_file_nobody_saw_is_refused(self, ledger: Ledger, run: RunRecord) -> None:
        with pytest.raises(WalferryError, match=r"never saw WAL file rs1\.10"):
            ledger.of(run.run_id).log.set_ranges([span("rs1.10", 0, 50)])

    def test_files_are_applied_together_or_not_at_all(self, ledger: Ledger, run: RunRecord) -> None:
        ledger.of(run.run_id).log.see_files([sealed("rs1.10", 80), opened("rs1.11", 80), sealed("rs1.12", 9)])
        ledger.of(run.run_id).log.set_ranges([span("rs1.10", 0, 80), span("rs1.11", 0, 80, "seen")])
        with pytest.raises(WalferryError, match=r"rs1\.11 for table shop:orders is not sealed"):
            ledger.of(run.run_id).log.mark_applied(["rs1.10", "rs1.11"])
        with pytest.raises(WalferryError, match=r"no range of WAL file rs1\.12"):
            ledger.of(run.run_id).log.mark_applied(["rs1.10", "rs1.12"])
        assert ledger.of(run.run_id).log.ranges(state="applied") == []

    def test_only_applied_ranges_of_the_table_and_the_files_are_verified(self, ledger: Ledger, run: RunRecord) -> None:
        ledger.of(run.run_id).log.see_files([sealed("rs1.10", 80)])
        apply(ledger, run, sealed("rs1.11", 7))
        ledger.of(run.run_id).log.set_ranges(
            [span("rs1.10", 0, 50, "applied"), span("rs1.10", 50, 80), span("rs1.10", 0, 80, "applied", "t2")],
        )
        ledger.of(run.run_id).log.mark_verified(TABLE, {"rs1.10"})
        assert ledger.of(run.run_id).log.coverage() == [
            Coverage("rs1", TABLE, seen=0, sealed=30, applied=7, verified=50),
            Coverage("rs1", "t2", seen=0, sealed=0, applied=80, verified=0),
        ]


class TestGaps:
    def test_everything_between_the_fences_applied_leaves_no_gap(self, ledger: Ledger, run: RunRecord) -> None:
        ledger.of(run.run_id).log.set_fence("start", [Position("rs1", "rs1.10", 10, 0)])
        ledger.of(run.run_id).log.set_fence("end", [Position("rs1", "rs1.12", 12, 0)])
        ledger.of(run.run_id).log.see_files([sealed("rs1.9", 70), opened("rs1.12", 70), opened("rs1.13", 70)])
        apply(ledger, run, sealed("rs1.10", 80), sealed("rs1.11", 90))
        assert ledger.of(run.run_id).log.gaps() == []

    def test_a_file_that_was_not_read_is_a_gap_by_file_and_range(self, ledger: Ledger, run: RunRecord) -> None:
        ledger.of(run.run_id).log.see_files([sealed("rs1.11", 90)])
        apply(ledger, run, sealed("rs1.10", 80))
        assert ledger.of(run.run_id).log.gaps() == [Gap("rs1.11", 0, 90, TABLE, "not read")]

    def test_a_range_read_but_not_applied_is_a_gap(self, ledger: Ledger, run: RunRecord) -> None:
        ledger.of(run.run_id).log.see_files([sealed("rs1.10", 80)])
        ledger.of(run.run_id).log.set_ranges([span("rs1.10", 0, 30, "applied"), span("rs1.10", 30, 80, "sealed")])
        assert ledger.of(run.run_id).log.gaps() == [Gap("rs1.10", 30, 80, TABLE, "not applied")]

    def test_a_closed_file_without_a_byte_needs_a_range_of_every_table_too(self, ledger: Ledger) -> None:
        run = ledger.open_run("both", "me", {"tables": ["shop:orders", "users"]}, "me")
        log = ledger.of(run.run_id).log
        log.set_fence("end", [Position("rs1", "rs1.11", 11, 0)])
        log.see_files([sealed("rs1.10", 0), sealed("rs1.11", 0)])
        assert log.gaps() == [Gap("rs1.10", 0, 0, table, "not read") for table in (TABLE, "users")]
        log.set_ranges([span("rs1.10", 0, 0, "applied"), span("rs1.10", 0, 0, "sealed", "users")])
        assert log.gaps() == [Gap("rs1.10", 0, 0, "users", "not read")]
        log.mark_applied(["rs1.10"])
        assert log.gaps() == []

    def test_each_table_of_the_spec_is_asked_for(self, ledger: Ledger) -> None:
        tables = [{"source": "default:users", "target": "new:users"}, "shop:orders"]
        run = ledger.open_run("both", "me", {"tables": tables}, "me")
        apply(ledger, run, sealed("rs1.10", 80))
        assert ledger.of(run.run_id).log.gaps() == [Gap("rs1.10", 0, 80, "users", "not read")]

    def test_a_run_without_tables_has_no_answer(self, ledger: Ledger) -> None:
        run = ledger.open_run("watch", "me", {}, "me")
        with pytest.raises(UsageError, match="names no table"):
            ledger.of(run.run_id).log.gaps()

    def test_a_group_that_no_fence_names_counts_in_full(self, ledger: Ledger, run: RunRecord) -> None:
        ledger.of(run.run_id).log.set_fence("start", [Position("rs1", "rs1.10", 10, 0)])
        ledger.of(run.run_id).log.set_fence("end", [Position("rs1", "rs1.11", 11, 0)])
        apply(ledger, run, sealed("rs1.10", 80))
        ledger.of(run.run_id).log.see_files([sealed("rs9.3", 40, group="rs9"), opened("rs9.4", 6, group="rs9")])
        assert [(g.file, g.start, g.end, g.reason) for g in ledger.of(run.run_id).log.gaps()] == [
            ("rs9.3", 0, 40, "not read"),
            ("rs9.4", 0, 6, "not read"),
            ("rs9.4", 6, 6, "not sealed"),
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
        assert all("missing" in gap.reason for gap in ledger.of(run.run_id).log.gaps())

    @pytest.mark.parametrize("kind", ["start", "end"])
    def test_a_fence_in_a_file_that_no_listing_showed_is_a_gap(self, ledger: Ledger, run: RunRecord, kind: str) -> None:
        ledger.of(run.run_id).log.set_fence(kind, [Position("rs1", "rs1.10", 10, 7)])  # type: ignore[arg-type]
        assert ledger.of(run.run_id).log.gaps() == [
            Gap("rs1.10", 7, 7, TABLE, f"the {kind} fence stands in a file never seen")
        ]

    def test_a_quarantined_item_and_the_regions_behind_it_are_gaps_until_released(
        self, ledger: Ledger, run: RunRecord
    ) -> None:
        apply(ledger, run, sealed("rs1.10", 80))
        (item,) = ledger.of(run.run_id).quarantine.put(
            [QuarantineItem("rs1.10", 20, 30, TABLE, "r1", 4, "damaged", b"\x00")]
        )
        ledger.of(run.run_id).quarantine.hold([Hold("rs1.10", TABLE, "r1", 20, item)])
        assert [(g.start, g.end, "quarantine" in g.reason) for g in ledger.of(run.run_id).log.gaps()] == [
            (20, 30, True),
            (20, 80, True),
        ]
        with pytest.raises(WalferryError, match="not released"):
            ledger.of(run.run_id).quarantine.drop_holds(item)
        ledger.of(run.run_id).quarantine.release(item, "reread", "rows read from the source again", "alice")
        assert [(g.start, g.end) for g in ledger.of(run.run_id).log.gaps()] == [(20, 80)]
        ledger.of(run.run_id).quarantine.drop_holds(item)
        assert ledger.of(run.run_id).log.gaps() == []

    @settings(
        max_examples=60,
        deadline=None,
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
        ledger.of(run.run_id).log.set_fence("start", [Position("rs1", f"rs1.{start[0]}", start[0], start[1])])
        if end is not None:
            ledger.of(run.run_id).log.set_fence("end", [Position("rs1", f"rs1.{end[0]}", end[0], end[1])])
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
            if gap.reason.startswith("not ")
        ]
        assert sorted(found) == sorted(expected)


class TestQuarantine:
    ITEM = QuarantineItem("rs1.10", 20, 30, TABLE, "r1", 4, "unknown tag", b"\x00\xff")

    def test_the_bytes_come_back_and_the_same_item_keeps_its_id(self, ledger: Ledger, run: RunRecord) -> None:
        first = ledger.of(run.run_id).quarantine.put([self.ITEM])
        assert ledger.of(run.run_id).quarantine.put([self.ITEM]) == first
        (item,) = ledger.of(run.run_id).quarantine.items("held")
        assert (item.quarantine_id, item.data, item.reason) == (first[0], b"\x00\xff", "unknown tag")

    def test_a_release_needs_a_reason_and_is_signed(self, ledger: Ledger, run: RunRecord) -> None:
        (item,) = ledger.of(run.run_id).quarantine.put([self.ITEM])
        with pytest.raises(UsageError, match="reason"):
            ledger.of(run.run_id).quarantine.release(item, "accept", " ", "alice")
        with pytest.raises(UsageError, match="retry, rpc, reread, accept"):
            ledger.of(run.run_id).quarantine.release(item, "forget", "because", "alice")  # type: ignore[arg-type]
        released = ledger.of(run.run_id).quarantine.release(item, "accept", "test data", "alice")
        assert ledger.of(run.run_id).quarantine.items("released") == [released]
        assert ledger.of(run.run_id).quarantine.release(item, "accept", "again", "bob") == released
        with pytest.raises(UsageError, match="alice as accept"):
            ledger.of(run.run_id).quarantine.release(item, "retry", "no", "bob")
        assert ledger.of(run.run_id).audit_trail()[-1].actor == "alice"

    def test_a_hold_set_twice_is_one_hold(self, ledger: Ledger, run: RunRecord) -> None:
        (item,) = ledger.of(run.run_id).quarantine.put([self.ITEM])
        hold = Hold("rs1.10", TABLE, "r1", 20, item)
        ledger.of(run.run_id).quarantine.hold([hold, hold])
        ledger.of(run.run_id).quarantine.hold([hold])
        assert ledger.of(run.run_id).quarantine.holds() == [hold]


class TestComparisons:
    @staticmethod
    def side(table: str, digest: str, **more: int) -> RangeComparison:
        return RangeComparison(table, "r1", b"", b"\xff", 1, 2, "aa", 1, 2, digest, {"MASKED": 3}, **more)

    def test_the_newest_comparison_of_each_table_counts(self, ledger: Ledger, run: RunRecord) -> None:
        kept, side = ledger.of(run.run_id).comparisons, self.side
        difference = Difference("t1", b"\x00row", "in-flight", "seen later")
        first = kept.record(compared("t1", 1), [side("t1", "bb")], [difference])
        other = kept.record(compared("t2"), [side("t2", "aa")], [])
        newest = kept.record(compared("t1"), [side("t1", "aa")], [])
        assert [(made.table, made.attempt) for made in (first, other, newest)] == [("t1", 1), ("t2", 1), ("t1", 2)]
        assert kept.tables() == [first, newest, other]
        assert kept.ranges() == [side("t1", "aa"), side("t2", "aa")]
        assert kept.ranges([first]) == [side("t1", "bb")]
        assert kept.ranges([]) == []
        assert kept.differences() == []
        assert kept.differences([first, other]) == [difference]

    def test_a_range_is_equal_only_when_all_of_it_was_compared(self) -> None:
        assert self.side("t", "aa").equal
        assert not self.side("t", "bb").equal
        assert not self.side("t", "aa", uncompared=1).equal

    def test_a_decision_is_about_one_difference_and_is_signed(self, ledger: Ledger, run: RunRecord) -> None:
        kept = ledger.of(run.run_id).comparisons
        one, other = (Difference("t1", b"\x00row", "not-in-log", "d", print_) for print_ in ("aa", "bb"))
        kept.accept([one], "a counter that nobody needs", "alice")
        kept.accept([one], "again", "bob")
        assert list(kept.accepted()) == [decision(one)]
        made = kept.accepted()[decision(one)]
        assert (made.reason, made.accepted_by, made.detail) == ("a counter that nobody needs", "alice", "d")
        assert decision(other) not in kept.accepted()
        line = ledger.of(run.run_id).audit_trail()[-1]
        assert (line.actor, line.action) == ("alice", "accept differences")
        assert line.inputs["differences"][0]["row_key"] == b"\x00row".hex()
        with pytest.raises(UsageError, match="give a reason"):
            kept.accept([other], " ", "alice")
        with pytest.raises(UsageError, match="compare again"):
            kept.accept([Difference("t1", b"row", "not-in-log", "of an older ledger")], "because", "alice")

    def test_a_ledger_of_before_is_brought_up_to_date(self, tmp_path: Path) -> None:
        """Its comparisons stay the newest, its differences get the names of today."""
        with closing(sqlite3.connect(tmp_path / "old.db")) as old:
            for name in ("0001_ledger.sql", "0001_ledger.sqlite.sql", "0002_run_kinds.sql"):
                old.executescript((sql_directory() / name).read_text())
            for values in (
                "schema_versions VALUES (2, '0002_run_kinds', 0)",
                "runs VALUES ('m-1', 'm', 'o', '{\"tables\": [\"t1\"]}', 'running', 0, '', 1, NULL, 'migration')",
                "comparisons VALUES ('m-1', 4, 't1', 'r1', '', '', 1, 2, 'aa', 1, 2, 'aa', '{}')",
                "differences VALUES ('m-1', 4, 't1', '00', 'not in the log', 'd')",
            ):
                old.execute(f"INSERT INTO {values}")
            old.commit()
        with Ledger.open(f"sqlite:///{tmp_path / 'old.db'}") as ledger:
            kept = ledger.of("m-1").comparisons
            assert kept.ranges()[0].equal
            assert [item.kind for item in kept.differences()] == ["not-in-log"]
            assert kept.record(compared("t1"), [], []).attempt == 5

    def test_rounds_come_back_by_number(self, ledger: Ledger, run: RunRecord) -> None:
        rounds = [Round(n, 10, 20, 1, 2, 3, 4, 5, 6) for n in (1, 2)]
        for item in (rounds[1], rounds[0], rounds[0]):
            ledger.of(run.run_id).rounds.record(item)
        assert ledger.of(run.run_id).rounds.all() == rounds


class TestAudit:
    @pytest.fixture
    def head(self, ledger: Ledger) -> AuditHead:
        for number in range(5):
            ledger.audit("alice", "look", None, {"number": number}, "seen")
        return ledger.audit_head()

    def test_a_whole_trail_is_accepted(self, ledger: Ledger, head: AuditHead) -> None:
        ledger.verify_audit(head)
        newer = ledger.audit("alice", "look", None, {}, "again")
        ledger.verify_audit(head)
        assert ledger.audit_head() == AuditHead(6, newer)

    @pytest.mark.parametrize(
        "column", ["actor = 'mallory'", "outcome = 'ok'", "at_ms = 1", "inputs = '{}'", "run_id = 'x'", "action = 'y'"]
    )
    def test_a_changed_line_is_found(self, ledger: Ledger, ledger_url: str, head: AuditHead, column: str) -> None:
        behind_the_triggers(ledger_url, f"UPDATE audit SET {column} WHERE sequence = 3")
        with pytest.raises(WalferryError, match="line 3 "):
            ledger.verify_audit()

    def test_a_changed_line_whose_hash_was_made_to_fit_is_found_by_the_line_behind_it(
        self, ledger: Ledger, ledger_url: str, head: AuditHead
    ) -> None:
        before, line = ledger.audit_trail()[1:3]
        body = {
            "action": line.action,
            "actor": "mallory",
            "at_ms": line.at_ms,
            "inputs": json.dumps(line.inputs, separators=(",", ":")),
            "outcome": line.outcome,
            "run_id": line.run_id,
            "sequence": 3,
        }
        text_of_line = f"{before.hash}\n{json.dumps(body, separators=(',', ':'))}"
        forged = hashlib.sha256(text_of_line.encode()).hexdigest()
        behind_the_triggers(ledger_url, f"UPDATE audit SET actor = 'mallory', hash = '{forged}' WHERE sequence = 3")
        with pytest.raises(WalferryError, match="line 4 "):
            ledger.verify_audit()

    def test_a_removed_line_is_found(self, ledger: Ledger, ledger_url: str, head: AuditHead) -> None:
        behind_the_triggers(ledger_url, "DELETE FROM audit WHERE sequence = 3")
        with pytest.raises(WalferryError, match="line 3 is not there"):
            ledger.verify_audit()

    def test_a_removed_line_is_found_though_the_others_were_numbered_anew(
        self, ledger: Ledger, ledger_url: str, head: AuditHead
    ) -> None:
        behind_the_triggers(
            ledger_url,
            "DELETE FROM audit WHERE sequence = 3",
            "UPDATE audit SET sequence = 3 WHERE sequence = 4",
            "UPDATE audit SET sequence = 4 WHERE sequence = 5",
        )
        with pytest.raises(WalferryError, match="line 3 "):
            ledger.verify_audit()

    @pytest.mark.parametrize("kept", [0, 3])
    def test_lines_cut_off_the_end_are_found_by_the_head_kept_elsewhere(
        self, ledger: Ledger, ledger_url: str, head: AuditHead, kept: int
    ) -> None:
        behind_the_triggers(ledger_url, f"DELETE FROM audit WHERE sequence > {kept}")
        ledger.verify_audit()
        with pytest.raises(WalferryError, match=rf"line {kept + 1} to 5 were cut off"):
            ledger.verify_audit(head)

    def test_a_trail_written_anew_after_a_cut_is_found_by_the_head(
        self, ledger: Ledger, ledger_url: str, head: AuditHead
    ) -> None:
        behind_the_triggers(ledger_url, "DELETE FROM audit WHERE sequence > 3")
        for _ in range(3):
            ledger.audit("mallory", "look", None, {}, "nothing to see")
        with pytest.raises(WalferryError, match=r"line 5 .*written anew"):
            ledger.verify_audit(head)

    @pytest.mark.parametrize("statement", ["UPDATE audit SET actor = 'mallory'", "DELETE FROM audit"])
    def test_the_database_refuses_to_change_or_remove_lines(
        self, ledger: Ledger, ledger_url: str, head: AuditHead, statement: str
    ) -> None:
        engine = create_engine(ledger_url)
        with pytest.raises(DBAPIError, match="audit lines are never"), engine.begin() as connection:
            connection.execute(text(statement))
        engine.dispose()
        assert ledger.audit_head() == head

    def test_a_change_that_fails_leaves_no_line(self, ledger: Ledger, run: RunRecord) -> None:
        head = ledger.audit_head()
        with pytest.raises(WalferryError):
            ledger.of(run.run_id).objects.made("source", "snapshot", "never planned")
        assert ledger.audit_head() == head


WRITER = """
import sys
from walferry.ledger import Ledger, SeenFile
url, writer, rounds = sys.argv[1], sys.argv[2], int(sys.argv[3])
ledger = Ledger.open(url, actor=writer)
run = ledger.open_run("shared", "all", {"tables": ["t"]}, writer)
ledger = ledger.of(run.run_id)
print("ready", flush=True)
for number in range(rounds):
    ledger.log.see_files([SeenFile(f"{writer}.{number}", writer, writer, number, "/w", 1, True)])
    ledger.phases.start("replay", writer)
"""


def writers(url: str, count: int, rounds: int) -> Sequence[subprocess.Popen[str]]:
    return [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, url, f"writer{number}", str(rounds)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(count)
    ]


class TestProcesses:
    def test_four_processes_write_a_new_ledger_at_once_and_the_chain_holds(self, ledger_url: str) -> None:
        processes = writers(ledger_url, count=4, rounds=15)
        assert [process.communicate(timeout=120)[1] for process in processes] == [""] * 4
        with Ledger.open(ledger_url) as ledger:
            ledger.verify_audit()
            (run,) = ledger.runs()
            assert len(ledger.of(run.run_id).log.files()) == 4 * 15
            assert [phase.attempts for phase in ledger.of(run.run_id).phases.all()] == [15] * 4
            assert ledger.audit_head().sequence == 1 + 4 * 15 * 2

    def test_a_killed_writer_leaves_changes_and_audit_lines_in_step(self, ledger_url: str) -> None:
        (process,) = writers(ledger_url, count=1, rounds=100_000)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        with Ledger.open(ledger_url) as ledger:
            while len(ledger.of("shared-1").log.files()) < 20:
                assert process.poll() is None
                time.sleep(0.01)
            process.send_signal(signal.SIGKILL)
            process.communicate(timeout=30)
            ledger.of("shared-1").phases.start("resume")
            ledger.verify_audit()
            told = [line.action for line in ledger.of("shared-1").audit_trail()]
            assert told.count("see WAL files") == len(ledger.of("shared-1").log.files())
            replay = next(phase for phase in ledger.of("shared-1").phases.all() if phase.phase == "replay")
            assert told.count("start phase") == replay.attempts + 1


def test_an_attempt_that_fails_late_does_not_undo_what_a_newer_one_has_done(ledger: Ledger, run: RunRecord) -> None:
    first = ledger.of(run.run_id).phases.start("replay")
    second = ledger.of(run.run_id).phases.start("replay")
    assert (first, second) == (1, 2)
    ledger.of(run.run_id).phases.fail("replay", "taken over", attempt=first)
    assert [phase.state for phase in ledger.of(run.run_id).phases.all()] == ["running"]
    ledger.of(run.run_id).phases.finish("replay", {"rounds": 3})
    ledger.of(run.run_id).phases.fail("replay", "too late", attempt=second)
    assert ledger.of(run.run_id).phases.facts("replay") == {"rounds": 3}


def test_no_phase_begins_in_a_run_that_has_ended(ledger: Ledger, run: RunRecord) -> None:
    ledger.of(run.run_id).end("failed", "alice", "the plan was refused")
    with pytest.raises(UsageError, match="the plan was refused"):
        ledger.of(run.run_id).phases.start("protect")
    assert ledger.of(run.run_id).phases.all() == []


def test_a_run_that_came_no_further_than_a_failed_plan_gives_way_to_another_of_its_name(
    ledger: Ledger, run: RunRecord
) -> None:
    def another() -> RunRecord:
        return ledger.open_run("move", "dag-run-2", SPEC, "bob")

    with pytest.raises(UsageError, match="is unfinished"):
        another()
    ledger.of(run.run_id).phases.start("plan")
    with pytest.raises(UsageError, match="is unfinished"):
        another()  # it may be at work
    ledger.of(run.run_id).phases.fail("plan", "ZooKeeperError: nobody answers")
    assert ledger.open_run("move", "dag-run-1", SPEC, "alice") == run  # its own owner goes on with it
    assert another().run_id == "move-2"
    assert ledger.run(run.run_id).state == "failed"
    ledger.of("move-2").phases.start("plan")
    ledger.of("move-2").phases.finish("plan", {})
    with pytest.raises(UsageError, match="is unfinished"):
        ledger.open_run("move", "dag-run-3", SPEC, "carol")


def test_who_asks_for_an_unknown_run_is_told_which_there_are(ledger: Ledger, run: RunRecord) -> None:
    with pytest.raises(UsageError, match="knows no run 'mov'; its newest are move-1"):
        ledger.find("mov")
