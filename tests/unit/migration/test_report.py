from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from unit.migration.filled_ledger import FILE, GROUP, compared, filled
from walferry import clock
from walferry.ledger import Difference, Ledger, LogPosition, NumberGap, RangeComparison, SeenFile, WalRange
from walferry.migration.report import render, summary, write
from walferry.migration.report_model import CoverageReport
from walferry.migration.touching.touched import Seen
from walferry.run.heartbeat import NOTE
from walferry.run.notes.last_comparison import AFTER_THE_RUN
from walferry.run.notes.looks import note_look
from walferry.run.progress.status import status, status_line


@pytest.fixture
def book(tmp_path: Path) -> Ledger:
    ledger = Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}", actor="tester")
    ledger.of(filled(ledger)).notes.keep(NOTE, {}, "replay")
    return ledger


def test_the_summary_adds_up_the_regions_of_a_table(book: Ledger) -> None:
    facts = summary(book.of("move-1"))
    table = facts.tables["shop:orders"]
    assert (table.regions, table.equal_regions) == (2, 1)
    assert (table.source_rows, table.target_rows) == (3, 3)
    assert (table.source_cells, table.target_cells) == (5, 6)
    assert table.source_digest == f"{0:032x}"  # modulo 2**128
    assert table.target_digest == f"{3:032x}"
    assert table.dropped == {"source expired": 3}
    assert table.differences == {"in-flight": 1, "unexplained": 1}
    assert facts.unexplained == 1


def test_the_summary_tells_what_was_applied_and_what_waits(book: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "now_ms", lambda: 5_100)  # just after the round
    facts = summary(book.of("move-1"))
    assert (facts.rounds, facts.edits_applied, facts.log_bytes) == (1, 7, 1_000)
    assert facts.longest_lag_seconds == 5.0
    assert facts.quarantine == 1
    assert facts.gaps is None
    assert facts.write_stop_seconds is None
    group = FILE.rpartition(".")[0]
    assert facts.coverage == (CoverageReport(group, "shop:orders", seen=0, sealed=0, applied=1_000, verified=0),)


def test_writes_were_stopped_until_the_target_was_open(book: Ledger) -> None:
    book.of("move-1").phases.start("write_stop")
    book.of("move-1").phases.finish("write_stop", {"at_ms": book.run("move-1").created_ms, "how": "confirm"})
    assert "writes have been stopped for" in render(summary(book.of("move-1")))
    book.of("move-1").phases.start("check_drain")
    book.of("move-1").phases.finish("check_drain", {"data_docs": "docs/index.html"})
    facts = summary(book.of("move-1"))
    assert facts.write_stop_seconds is not None
    assert 0 <= facts.write_stop_seconds < 60
    assert facts.data_docs == "docs/index.html"
    assert f"writes were stopped for {facts.write_stop_seconds} s until the target was open" in render(facts)
    opened_ms = book.run("move-1").created_ms + 1_300
    book.of("move-1").phases.start("open_target")
    book.of("move-1").phases.finish("open_target", {"at_ms": opened_ms})
    facts = summary(book.of("move-1"))
    assert facts.write_stop_seconds == 1.3
    assert "writes were stopped for 1.3 s until the target was open" in render(facts)


def test_the_write_stop_counts_from_the_operators_word_and_tells_of_the_last_edit_too(book: Ledger) -> None:
    """Not from the moment at which the answer was recorded, nor from the end fence."""
    ledger = book.of("move-1")
    assert "writes have not been stopped" in render(summary(ledger))
    word = clock.now_ms() - 98_000
    ledger.log.see_files([SeenFile(f"{GROUP}.11", GROUP, "rs,1,2", 11, "/11", 400, sealed=True)])
    edit = WalRange(f"{GROUP}.11", 0, 400, "shop:orders", 1, 1, word - 5_000, word - 2_000, "applied")
    ledger.log.set_ranges([edit])
    ledger.phases.start("write_stop")
    ledger.phases.finish("write_stop", {"at_ms": word, "how": "confirm"})
    facts = summary(ledger)
    assert facts.write_stop_seconds == pytest.approx(98, abs=5)
    assert facts.seconds_since_last_edit == pytest.approx(100, abs=5)
    assert not facts.write_stop_over


def test_the_report_for_people_names_tables_phases_and_the_audit_head(book: Ledger) -> None:
    text = render(summary(book.of("move-1")))
    assert "shop:orders: differs (1 of 2 regions)" in text
    assert "differences: 1 in-flight, 1 unexplained" in text
    assert "snapshot shop:orders" in text
    assert "quarantine: 1" in text
    assert "gaps: not known yet" in text
    assert book.audit_head().hash in text


def test_the_report_of_a_run_that_has_just_begun_can_be_written(tmp_path: Path) -> None:
    with Ledger.open(f"sqlite:///{tmp_path / 'new.db'}", actor="tester") as book:
        run = book.open_run("move", "tester", {"tables": ["a"]}, "tester")
        path = write(book.of(run.run_id), tmp_path / "out")
        assert path.read_text().startswith("Run move-1: not started: no phase has begun\nNext step: ")
        assert status_line(status(book.of(run.run_id))).startswith("not started: 0.0%; Applied: 0; Backlog: 0.0MB; ")


def test_the_audit_head_lies_beside_the_report_and_proves_the_trail(book: Ledger, tmp_path: Path) -> None:
    write(book.of("move-1"), tmp_path / "out")
    head = json.loads((tmp_path / "out" / "audit-head.json").read_text())
    assert head == json.loads((tmp_path / "out" / "report.json").read_text())["audit_head"]
    assert head["sequence"] == len(book.of("move-1").audit_trail())
    assert head["hash"] == book.of("move-1").audit_trail()[-1].hash


def test_the_status_tells_the_phase_that_runs(book: Ledger) -> None:
    facts = status(book.of("move-1"))
    assert (facts.phase, facts.state, facts.waits_for) == ("replay", "held", "decision")
    assert facts.percent == pytest.approx(100 * 4 / 16, abs=0.1)
    assert facts.edits_applied == 7
    assert facts.backlog_bytes == 0
    assert facts.lag_seconds is not None
    assert facts.lag_seconds > 5
    assert facts.error is None
    line = status_line(facts)
    assert line.startswith("replay: 25.0%; Applied: 7; Backlog: 0.0MB; Time: ")
    assert "State: held; ETA: N/A" in line


def test_the_status_tells_the_last_error(book: Ledger) -> None:
    book.of("move-1").phases.fail("replay", "GapError: gone")
    facts = status(book.of("move-1"))
    assert (facts.error, facts.error_class, facts.cause) == ("gone", "GapError", "gone")
    (phase,) = [phase for phase in summary(book.of("move-1")).phases if phase.phase == "replay"]
    assert (phase.error, phase.error_class) == ("gone", "GapError")


def test_a_source_table_that_stays_read_only_is_named(book: Ledger) -> None:
    assert "read-only" not in render(summary(book.of("move-1")))
    book.of("move-1").objects.plan("source", "read-only table", "shop:orders")
    book.of("move-1").objects.made("source", "read-only table", "shop:orders")
    assert "shop:orders is read-only at the source, and stays so" in render(summary(book.of("move-1")))


def test_a_run_that_ended_grows_no_older(book: Ledger) -> None:
    book.of("move-1").end("aborted", "tester", "enough")
    run = book.run("move-1")
    facts = status(book.of(run.run_id))
    assert run.ended_ms is not None
    assert facts.elapsed_seconds == round((run.ended_ms - run.created_ms) / 1000, 1)
    assert status_line(facts).endswith("State: aborted; ETA: N/A")
    assert render(summary(book.of(run.run_id))).startswith("Run move-1: aborted: enough\nNext step: start a new run\n")


def test_the_backlog_is_what_is_listed_in_front_of_the_end_fence_and_not_applied(book: Ledger) -> None:
    later = [SeenFile(f"{GROUP}.{n}", GROUP, "rs,1,2", n, f"/{n}", 400, sealed=True) for n in (11, 12)]
    book.of("move-1").log.see_files(later)
    assert status(book.of("move-1")).backlog_bytes == 800
    book.of("move-1").log.set_fence("end", [LogPosition(GROUP, f"{GROUP}.12", 12, 0)])
    assert status(book.of("move-1")).backlog_bytes == 400
    book.of("move-1").log.set_ranges([WalRange(f"{GROUP}.11", 0, 400, "shop:orders", 0, 0, None, None, "applied")])
    assert status(book.of("move-1")).backlog_bytes == 0


def test_missing_numbers_are_told_with_the_decision_about_them(book: Ledger) -> None:
    ledger = book.of("move-1")
    assert "Missing numbers" not in render(summary(ledger))
    hole = NumberGap("shop:orders", "abc", 11, 14, "file.1", "file.2", 1)
    ledger.log.set_ranges([], None, ledger.numbers.change([], [hole], []))
    assert "between the WAL files file.1 and file.2" in render(summary(ledger))
    assert render(summary(ledger)).count("; not accepted") == 1
    ledger.numbers.accept("shop:orders", "skips the log", "kim")
    told = render(summary(ledger))
    assert "; accepted by kim: skips the log" in told
    assert "accepted for this run by kim: skips the log; counted: 0 numbers at 0 places" in told


def test_numbers_that_1_x_skips_are_told_as_a_warning(book: Ledger) -> None:
    ledger = book.of("move-1")
    hole = NumberGap("shop:orders", "abc", 11, 14, "file.1", "file.2", 1)
    ledger.log.set_ranges([], None, ledger.numbers.change([], [hole], [], only_count=True))
    told = render(summary(ledger))
    assert "WARNING: the log of shop:orders lacks 4 numbers at 1 place. In HBase 1.x, incr" in told
    assert "not accepted" not in told
    assert [row.places for row in summary(ledger).counted_numbers] == [1]


def test_what_looks_do_not_see_is_told_until_the_last_whole_comparison_is_done(book: Ledger) -> None:
    ledger = book.of("move-1")
    assert "Until the last whole comparison" not in render(summary(ledger))
    seen = Seen(uncounted={"source": ["s1"]}, recent_ms={"shop:orders": clock.now_ms()})
    Seen.change(ledger, lambda _: seen)
    text = render(summary(ledger))
    assert "Until the last whole comparison: servers have counted writes that skip the log (SKIP_WAL)" in text
    assert "Until the last whole comparison: 1 server of the source does not report writes that skip the log" in text
    ledger.phases.start("check_drain")
    ledger.phases.finish("check_drain", {})
    assert "Until the last whole comparison" not in render(summary(ledger))


def test_rows_that_are_equal_since_they_were_looked_at_again_are_told_so_and_are_no_fault_now(book: Ledger) -> None:
    ledger = book.of("move-1")
    (made,) = ledger.comparisons.tables()
    assert summary(ledger).tables["shop:orders"].equal_since is False
    note_look(ledger, "shop:orders", made.ended_ms, rows=2)
    facts = summary(ledger)
    assert facts.unexplained == 1
    assert facts.tables["shop:orders"].equal_since is True
    assert "  equal when they were looked at again\n" in render(facts)
    note_look(ledger, "shop:orders", made.ended_ms + 1, rows=2, differing={b"row": "a reason"})
    assert "looked at again" not in render(summary(ledger))


def test_a_comparison_after_the_end_of_the_run_is_said_to_count_what_clients_wrote(book: Ledger) -> None:
    ledger = book.of("move-1")
    assert "after the end of the run" not in render(summary(ledger))
    ledger.end("done", "tester", "cut over")
    ended = ledger.record.ended_ms
    assert ended is not None
    assert "after the end of the run" not in render(summary(ledger))  # it was made before
    later = replace(compared("shop:orders", 1), began_ms=ended, ended_ms=ended + 1)
    region = RangeComparison("shop:orders", "r1", b"", b"", 2, 4, "01", 2, 4, "02", {})
    ledger.comparisons.record(later, [region], [Difference("shop:orders", b"y", "unexplained", "d")])
    assert f"\n  {AFTER_THE_RUN}\n" in render(summary(ledger))
