"""What the ledger promises about the log: fences, files, ranges."""

from __future__ import annotations

import hashlib

import pytest

from unit.ledger.entries import TABLE, apply, opened, sealed, span
from walferry.errors import WalferryError
from walferry.ledger import Coverage, Ledger, LogPosition, RunRecord


class TestFences:
    def test_a_fence_is_set_once(self, ledger: Ledger, run: RunRecord) -> None:
        first = [LogPosition("rs1", "rs1.10", 10, 0), LogPosition("rs2", "rs2.11", 11, 5)]
        assert ledger.of(run.run_id).log.fence("start") is None
        assert ledger.of(run.run_id).log.set_fence("start", first) == first
        assert ledger.of(run.run_id).log.set_fence("start", [LogPosition("rs1", "rs1.99", 99, 0)]) == first
        assert ledger.of(run.run_id).log.fence("start") == first
        assert ledger.of(run.run_id).log.fence("end") is None

    def test_an_end_fence_moves_forward_only_and_the_trail_keeps_each(self, ledger: Ledger, run: RunRecord) -> None:
        early, late = [LogPosition("rs1", "rs1.10", 10, 0)], [LogPosition("rs1", "rs1.12", 12, 0)]
        ledger.of(run.run_id).log.set_fence("start", [LogPosition("rs1", "rs1.9", 9, 0)])
        ledger.of(run.run_id).log.set_fence("end", early)
        assert ledger.of(run.run_id).log.set_fence("end", late) == late
        with pytest.raises(WalferryError, match="cannot move back"):
            ledger.of(run.run_id).log.set_fence("end", early)
        assert ledger.of(run.run_id).log.fence("start") == [LogPosition("rs1", "rs1.9", 9, 0)]
        told = [
            line.inputs["positions"] for line in ledger.of(run.run_id).audit_trail() if line.action == "set end fence"
        ]
        assert told == [{"rs1": "rs1.10@0"}, {"rs1": "rs1.12@0"}]

    def test_a_group_has_one_position(self, ledger: Ledger, run: RunRecord) -> None:
        with pytest.raises(WalferryError, match="two positions"):
            ledger.of(run.run_id).log.set_fence(
                "end", [LogPosition("rs1", "rs1.10", 10, 0), LogPosition("rs1", "rs1.11", 11, 0)]
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
        # The server died, and with it what it had not acknowledged.
        log.set_ranges([span("rs1.10", 0, 40, "applied")], lengths={"rs1.10": 40})
        assert [file.length for file in log.files()] == [40]
        assert log.gaps() == []

    def test_new_and_sealed_files_are_in_the_audit_trail_once(self, ledger: Ledger, run: RunRecord) -> None:
        for _ in range(2):
            ledger.of(run.run_id).log.see_files([sealed("rs1.10", 80)])
        lines = [line for line in ledger.of(run.run_id).audit_trail() if line.action == "see WAL files"]
        told = {"files": 1, "bytes": 80, "names": ["rs1.10"]}
        assert [line.inputs for line in lines] == [{"new": told, "sealed": told}]

    def test_the_audit_trail_has_a_digest_of_many_files(self, ledger: Ledger, run: RunRecord) -> None:
        files = [sealed(f"rs1.{number}", number) for number in range(10, 20)]
        ledger.of(run.run_id).log.see_files(files)
        (line,) = [line for line in ledger.of(run.run_id).audit_trail() if line.action == "see WAL files"]
        lines = "\n".join(f"{file.name} {file.length}" for file in files)
        told = {"files": 10, "bytes": 145, "sha256": hashlib.sha256(lines.encode()).hexdigest()}
        assert line.inputs == {"new": told, "sealed": told}

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
