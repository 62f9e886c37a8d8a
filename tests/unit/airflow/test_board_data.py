from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from unit.airflow.board_ledger import (
    EVIL,
    NAMES,
    aborted,
    clock,
    compare,
    done,
    fill,
    group,
    large,
    running,
    seen,
    spec,
)
from unit.migration.pair_ledger import REGION, differs, one_pass
from unit.run.progress.brought import after_reading_phases, end_with_process, work_on
from walferry.airflow.board.data import (
    MOST_POINTS,
    Pages,
    check_audit,
    overview,
    phase_rows,
    run_page,
    series,
)
from walferry.airflow.board.lanes import MOST_BLOCKS, Part, find_holes, merge
from walferry.clock import now_ms
from walferry.ledger import Difference, Hold, Ledger, LogPosition, NumberGap, QuarantineItem, Round, WalRange
from walferry.refusals import GapKind
from walferry.run.heartbeat import NOTE
from walferry.run.notes.looks import note_look
from walferry.run.phases import phases_of
from walferry.run.progress.exposure import Exposure, note_exposure


@pytest.fixture
def book(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}", actor="tester") as ledger:
        yield ledger


def begun(book: Ledger, groups: int = 1) -> str:
    run = book.open_run("move", "tester", spec("move"), "tester").run_id
    book.of(run).log.set_fence("start", [LogPosition(group(i), seen(i, 10).name, 10, 0) for i in range(groups)])
    return run


def whole(number: int, state: str, *tables: str, i: int = 0) -> list[WalRange]:
    file = seen(i, number, length=100)
    return [WalRange(file.name, 0, 100, table, 1, 1, 1, 1, state) for table in tables]  # type: ignore[arg-type]


def blocks(book: Ledger, run: str, lane: int = 0) -> list[tuple[str, int]]:
    facts = run_page(book, book.run(run))
    return [(block["state"], block["files"]) for block in facts["lanes"]["rows"][lane]["blocks"]]


# ---- lanes


def test_a_block_says_the_least_that_any_table_has_reached(book: Ledger) -> None:
    run = begun(book)
    book.of(run).log.see_files([seen(0, n, length=100, sealed=n < 15) for n in range(10, 16)])
    orders, customers = NAMES
    book.of(run).log.set_ranges(
        whole(10, "verified", *NAMES) + whole(11, "verified", orders) + whole(11, "applied", customers)
    )
    book.of(run).log.set_ranges(
        whole(12, "applied", *NAMES) + whole(13, "applied", orders) + whole(13, "sealed", customers)
    )
    assert blocks(book, run) == [("verified", 1), ("applied", 2), ("sealed", 2), ("seen", 1)]


def test_what_waits_for_its_turn_is_no_gap(book: Ledger) -> None:
    run = begun(book)
    book.of(run).log.see_files([seen(0, n, length=100) for n in range(10, 13)])
    book.of(run).log.set_ranges(whole(10, "applied", *NAMES))
    facts = run_page(book, book.run(run))
    assert facts["gaps"]["total"] == 0
    assert facts["alarms"] == []
    assert {hole.kind for hole in find_holes(book, run, drained=False)} == {"waiting"}


def test_a_file_that_was_passed_over_is_a_gap(book: Ledger) -> None:
    run = begun(book)
    book.of(run).log.see_files([seen(0, n, length=100) for n in range(10, 13)])
    book.of(run).log.set_ranges(whole(10, "applied", *NAMES) + whole(12, "applied", *NAMES))
    assert blocks(book, run) == [("applied", 1), ("gap", 1), ("applied", 1)]
    facts = run_page(book, book.run(run))
    assert {(row["kind"], row["file"]) for row in facts["gaps"]["rows"]} == {("gap", seen(0, 11).name)}
    assert facts["alarms"][0]["kind"] == "gap"


def test_a_hole_inside_of_a_file_is_a_gap(book: Ledger) -> None:
    run = begun(book)
    file = seen(0, 10, length=100)
    book.of(run).log.see_files([file])
    ends = [(0, 40), (60, 100)]
    book.of(run).log.set_ranges(
        [WalRange(file.name, a, b, table, 1, 1, 1, 1, "applied") for a, b in ends for table in NAMES]
    )
    assert blocks(book, run) == [("gap", 1)]


def test_an_item_in_quarantine_is_held_and_no_gap_also_before_its_regions_are(book: Ledger) -> None:
    run = begun(book)
    file = seen(0, 10, length=100)
    book.of(run).log.see_files([file, seen(0, 11, length=100)])
    book.of(run).log.set_ranges(whole(10, "applied", *NAMES) + whole(11, "applied", *NAMES))
    book.of(run).quarantine.put([QuarantineItem(file.name, 5, 7, NAMES[0], "r1", 4, "refused", b"\x00")])
    holes = find_holes(book, run, drained=True)
    assert [(hole.kind, hole.gap.kind) for hole in holes] == [("held", GapKind.HELD)]
    assert [row["kind"] for row in run_page(book, book.run(run))["gaps"]["rows"]] == ["held"]


def test_a_missing_file_is_a_gap_and_its_lane_comes_first(book: Ledger) -> None:
    run = begun(book, groups=3)
    book.of(run).log.see_files([seen(i, n, length=100) for i in range(3) for n in (10, 11)])
    book.of(run).log.mark_missing(seen(2, 11).name)
    lanes = run_page(book, book.run(run))["lanes"]
    assert [lane["group"] for lane in lanes["rows"]] == [group(2), group(0), group(1)]
    assert lanes["rows"][0]["counts"]["gap"] == 1


def test_a_fence_in_a_file_that_nobody_saw_is_a_gap_of_its_lane(book: Ledger) -> None:
    run = begun(book)
    assert blocks(book, run) == [("gap", 1)]


def test_what_is_not_applied_after_the_drain_is_a_gap(book: Ledger) -> None:
    run = begun(book)
    book.of(run).log.see_files([seen(0, n, length=100) for n in (10, 11)])
    book.of(run).log.set_ranges(whole(10, "applied", *NAMES))
    book.of(run).log.set_fence("end", [LogPosition(group(0), seen(0, 12).name, 12, 0)])
    book.of(run).phases.start("drain")
    book.of(run).phases.finish("drain", {})
    assert blocks(book, run) == [("applied", 1), ("gap", 1)]


def test_a_held_range_is_held_and_no_gap(book: Ledger) -> None:
    run = begun(book)
    file = seen(0, 10, length=100)
    book.of(run).log.see_files([file, seen(0, 11, length=100)])
    (number,) = book.of(run).quarantine.put([QuarantineItem(file.name, 5, 9, NAMES[0], "r1", 1, "refused", b"\xff")])
    book.of(run).quarantine.hold([Hold(file.name, NAMES[0], "r1", 0, number)])
    book.of(run).log.set_ranges(
        whole(10, "sealed", NAMES[0]) + whole(10, "applied", NAMES[1]) + whole(11, "applied", *NAMES)
    )
    assert blocks(book, run) == [("held", 1), ("applied", 1)]
    assert {row["kind"] for row in run_page(book, book.run(run))["gaps"]["rows"]} == {"held"}


def test_files_behind_the_end_fence_are_outside(book: Ledger) -> None:
    run = begun(book)
    book.of(run).log.see_files([seen(0, n, length=100) for n in range(10, 14)])
    book.of(run).log.set_ranges(whole(10, "applied", *NAMES) + whole(11, "applied", *NAMES))
    book.of(run).log.set_fence("end", [LogPosition(group(0), seen(0, 12).name, 12, 0)])
    assert blocks(book, run) == [("applied", 2), ("outside", 2)]


def test_a_lane_of_many_changes_stays_short_and_shows_its_gap() -> None:
    files: list[Part] = [("applied" if n % 2 else "verified", 1, f"g.{n}") for n in range(5_000)]
    files[777] = ("gap", 1, "g.777")
    drawn = merge(files)
    assert len(drawn) <= MOST_BLOCKS
    assert sum(block.files for block in drawn) == 5_000
    assert [block.state for block in drawn].count("gap") == 1


def test_two_hundred_files_of_one_state_are_one_block() -> None:
    (block,) = merge([("applied", 7, f"g.{n}") for n in range(200)])
    assert (block.files, block.bytes, block.first, block.last) == (200, 1_400, "g.0", "g.199")


def test_hundreds_of_lanes_come_in_pages(book: Ledger) -> None:
    run = begun(book, groups=45)
    book.of(run).log.see_files([seen(i, 10, length=100) for i in range(45)])
    lanes = [run_page(book, book.run(run), Pages(lanes=page))["lanes"] for page in range(3)]
    assert [len(page["rows"]) for page in lanes] == [20, 20, 5]
    assert {page["total"] for page in lanes} == {45}
    assert len({row["group"] for page in lanes for row in page["rows"]}) == 45


# ---- the overview


def test_the_overview_lists_the_newest_run_first_and_its_troubles(book: Ledger) -> None:
    fill(book, files=12)
    rows = overview(book)["runs"]["rows"]
    assert [row["run"] for row in rows] == ["orders-1", "accounts-1", "visits-1", "trial-1"]
    assert [row["gaps"] for row in rows] == [0, 1, 0, 0]
    assert [row["held"] for row in rows] == [1, 0, 0, 0]
    assert rows[2]["percent"] == 100
    assert rows[3]["state"] == "aborted"


def test_the_overview_asks_only_once_about_a_run_that_has_ended(book: Ledger) -> None:
    aborted(book)
    asked = []

    def remember(question: object, work: object) -> dict[str, object]:
        asked.append(question)
        return {"kept": True}

    assert overview(book, 0, remember)["runs"]["rows"] == [{"kept": True}]
    assert len(asked) == 1


def test_an_empty_ledger_has_an_empty_overview(book: Ledger) -> None:
    assert overview(book)["runs"] == {"total": 0, "page": 0, "size": 25, "rows": []}


# ---- a run


def test_a_run_that_has_just_begun_can_be_shown(book: Ledger) -> None:
    facts = run_page(book, book.open_run("move", "tester", {"name": "move", "tables": []}, "tester"))
    assert facts["lanes"]["total"] == 0
    assert facts["charts"]["from_ms"] is None
    assert {phase["state"] for phase in facts["phases"]} == {"not begun"}


def test_a_finished_run_shows_its_comparison_the_differing_region_first(book: Ledger) -> None:
    facts = run_page(book, book.run(done(book)))
    regions = facts["comparison"]
    assert (regions["total"], regions["differing"]) == (8, 1)
    assert [row["equal"] for row in regions["rows"]] == [False] + [True] * 7
    assert regions["rows"][0]["start"] == "0300"
    assert regions["rows"][0]["stop"] == r"06\x00\xFF"
    assert facts["differences"]["kinds"] == {"history-dependent": 1}
    assert {block["state"] for lane in facts["lanes"]["rows"] for block in lane["blocks"]} == {"verified"}
    assert [table["target"] for table in facts["tables"]["rows"]] == ["crm:customers", "shop:orders"]
    assert facts["run"]["write_stop_seconds"] > 0


def test_a_table_with_rows_that_nobody_decided_about_can_be_repaired_while_the_run_goes_on(book: Ledger) -> None:
    run, table = begun(book), NAMES[0]

    def repairs() -> dict[str, bool]:
        return {row["source"]: row["repair"] for row in run_page(book, book.run(run))["tables"]["rows"]}

    assert set(repairs().values()) == {False}
    book.of(run).comparisons.record_look(table, [Difference(table, b"r", "unexplained", "at the target only", "1f")])
    assert repairs() == {name: name == table for name in NAMES}
    book.of(run).comparisons.accept(book.of(run).comparisons.looked(table), "a cache", "kim")
    assert not repairs()[table]
    book.of(run).comparisons.record_look(table, [Difference(table, b"r", "unexplained", "another", "2f")])
    assert repairs()[table]
    book.of(run).end("aborted", "kim")
    assert not repairs()[table]


def test_a_lost_file_is_the_state_of_the_run_and_the_first_alarm(book: Ledger) -> None:
    facts = run_page(book, book.run(running(book, "accounts", gap=True, held=False, files=12)))
    assert (facts["run"]["state"], facts["run"]["colour"]) == ("gap", "red")
    assert "is missing at the source" in facts["run"]["cause"]
    assert facts["alarms"][0]["kind"] == "gap"
    assert facts["gaps"]["files"] == 1


def test_a_quarantined_item_shows_where_it_is_and_what_waits_behind_it(book: Ledger) -> None:
    facts = run_page(book, book.run(running(book, "orders", gap=False, held=True, files=12)))
    (item,) = facts["quarantine"]["rows"]
    assert item["state"] == "held"
    assert EVIL in item["reason"]
    assert item["bytes"] == 640
    assert item["holds"] == ["5f0a1c7be2d94d3f8b6a7c9d0e1f2a3b of shop:orders"]
    assert facts["quarantine"]["held"] == 1


def test_phases_come_in_the_order_of_a_run_with_those_to_come_and_sum_their_tables_up(book: Ledger) -> None:
    run = book.open_run("move", "tester", spec("move"), "tester")
    ledger = book.of(run.run_id)
    for phase, subject in (("plan", ""), ("copy", NAMES[0]), ("copy", NAMES[1])):
        ledger.phases.start(phase, subject)
    ledger.phases.finish("plan", {})
    ledger.phases.finish("copy", {}, NAMES[0])
    rows = phase_rows(run, ledger.phases.all(), {f"copy {NAMES[1]}"})
    assert [row["phase"] for row in rows] == [phase.name for phase in phases_of("migration")]
    copy = rows[4]
    assert (copy["state"], copy["tables"], copy["done"], copy["attempts"]) == ("running", 2, 1, 1)
    assert [row["state"] for row in rows[:4]] == ["done", "not begun", "not begun", "not begun"]
    assert phase_rows(run, ledger.phases.all(), set())[4]["state"] == "interrupted"  # nobody gives a sign of life
    ledger.phases.fail("copy", "no room", NAMES[1])
    failed = phase_rows(run, ledger.phases.all(), set())[4]
    assert (failed["state"], failed["error"]) == ("failed", f"{NAMES[1]} no room")


def test_a_phase_that_ends_with_its_process_while_the_board_looks_is_not_shown_as_interrupted(
    book: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = book.of(begun(book))
    work_on(run, "plan")
    after_reading_phases(monkeypatch, lambda: end_with_process(run, "plan", monkeypatch))
    assert run_page(book, run.record)["phases"][0]["state"] == "done"


def test_fifty_tables_and_five_hundred_regions_come_in_pages(book: Ledger) -> None:
    run = book.run(large(book))
    facts = run_page(book, run)
    assert (facts["tables"]["total"], len(facts["tables"]["rows"])) == (50, 25)
    assert facts["tables"]["rows"][0]["errors"] == ["compare: 1 row differs"]
    assert (facts["comparison"]["total"], len(facts["comparison"]["rows"])) == (500, 25)
    assert len(facts["phases"]) == len(phases_of("migration"))
    assert facts["tables"]["rows"][1]["compared"]["dropped"] == {"source expired": 70, "target masked": 30}
    second = run_page(book, run, Pages(tables=1))["tables"]["rows"]
    assert {row["source"] for row in facts["tables"]["rows"]}.isdisjoint(row["source"] for row in second)


def test_a_run_with_phases_of_its_own_shows_only_those(book: Ledger) -> None:
    run = book.open_run("hour", "tester", spec("hour"), "tester", "window").run_id
    book.of(run).phases.start("replay_window")
    book.of(run).phases.finish("replay_window", {"cells": 1})
    book.of(run).end("done", "tester", "1 cells")
    facts = run_page(book, book.run(run))
    assert [(phase["phase"], phase["state"]) for phase in facts["phases"]] == [("replay_window", "done")]
    assert facts["run"]["percent"] == 100


def test_the_audit_trail_comes_in_pages_newest_first(book: Ledger) -> None:
    run = book.open_run("move", "tester", spec("move"), "tester")
    for n in range(60):
        book.audit("kim", "note", run.run_id, {"n": n, "long": "x" * 5_000})
    pages = [run_page(book, run, Pages(audit=page))["audit"] for page in range(3)]
    assert [len(page["rows"]) for page in pages] == [25, 25, 11]
    assert [page["rows"][0]["sequence"] for page in pages] == [61, 36, 11]
    assert pages[0]["total"] == 61
    assert "(5018 characters, all of it in the ledger)" in pages[0]["rows"][0]["inputs"]
    assert len(pages[0]["rows"][0]["inputs"]) < 2_100


def test_what_a_phase_failed_with_is_told_without_a_class_in_the_audit_trail_too(book: Ledger) -> None:
    run = book.open_run("move", "tester", spec("move"), "tester")
    book.of(run.run_id).phases.start("plan")
    book.of(run.run_id).phases.fail("plan", "UsageError: no such table")
    facts = run_page(book, run)
    (line,) = [line for line in facts["audit"]["rows"] if line["action"] == "fail phase"]
    assert line["outcome"] == "no such table"
    assert book.of(run.run_id).audit_trail()[-1].outcome == "UsageError: no such table", "the trail itself has it"
    assert next(phase for phase in facts["phases"] if phase["phase"] == "plan")["error"] == "no such table"


def test_a_page_behind_the_last_is_empty(book: Ledger) -> None:
    run = book.run(done(book))
    assert run_page(book, run, Pages(comparison=9, audit=900, lanes=5))["comparison"]["rows"] == []


def test_a_pair_shows_its_passes_newest_first_and_what_differs_since_and_other_runs_show_none(book: Ledger) -> None:
    run = book.of(book.open_run("shop", "pair", spec("shop"), "tester", "pair").run_id)
    facts = run_page(book, run.record)["passes"]
    assert (facts["total"], facts["rows"], facts["tables"], facts["trend"]["at_ms"]) == (0, [], [], [])
    one_pass(run)
    one_pass(run, replace(differs(b"<row>"), detail=EVIL))
    third = run.passes.begin(3)
    run.passes.record(third, [REGION], [])
    facts = run_page(book, run.record)["passes"]
    assert [(made["number"], made["seconds"] is None) for made in facts["rows"]] == [(3, True), (2, False), (1, False)]
    assert facts["trend"]["differing_rows"] == [0, 1]  # the third is not over
    assert facts["trend"]["rows_read"] == [5, 5]
    assert facts["rows"][1]["reasons"] == {"never read before": 1}
    assert [made["second_reader"] for made in facts["rows"]] == [{}, {}, {}], "it had none"
    run.passes.add(third, [differs(b"b")], 1, {"rows": 9, "differing": 1, "text": "9 rows read"})
    facts = run_page(book, run.record)["passes"]
    assert facts["rows"][0]["second_reader"] == {"rows": 9, "differing": 1, "text": "9 rows read"}
    assert len(facts["differences"]) == 1
    assert run_page(book, run.record, Pages(passes=1))["passes"]["rows"] == []
    assert run_page(book, book.run(begun(book)))["passes"] is None
    assert overview(book)["runs"]["rows"][1]["state"] == "differing"


def test_a_whole_chain_is_told_from_a_broken_one(book: Ledger) -> None:
    aborted(book)
    assert check_audit(book)["broken"] is None
    database = book._store.database
    with database.write() as connection:
        connection.exec_driver_sql("DROP TRIGGER audit_no_update")
        connection.exec_driver_sql("UPDATE audit SET actor = 'nobody' WHERE sequence = 2")
    assert "line 2" in str(check_audit(book)["broken"])


# ---- lag and rate


def rounds(n: int, cells: int = 100) -> list[Round]:
    return [Round(i + 1, i * 10_000, i * 10_000 + 10_000, 1, 5_000, 1, cells, 3_000, 0) for i in range(n)]


def test_the_lag_grows_until_a_round_ends_and_falls_then() -> None:
    facts = series(rounds(3))
    assert facts["lag"]["at_ms"] == [10_000, 10_000, 20_000, 20_000, 30_000, 30_000]
    assert facts["lag"]["seconds"] == [3, 3, 13, 3, 13, 3]


def test_the_rate_is_what_was_applied_since_the_round_before() -> None:
    assert series(rounds(3))["rate"] == {"at_ms": [10_000, 20_000, 30_000], "edits": [10.0] * 3, "bytes": [500.0] * 3}


def test_thousands_of_rounds_are_put_together_without_losing_the_highest_lag() -> None:
    many = rounds(5_000)
    many[2_345] = Round(2_346, 0, many[2_345].finished_ms, 1, 5_000, 1, 100, 77_000, 0)
    facts = series(many)
    assert len(facts["rate"]["at_ms"]) <= MOST_POINTS
    assert max(facts["lag"]["seconds"]) >= 77
    assert set(facts["rate"]["edits"]) == {10.0}


def test_the_clock_of_the_ledger_runs_again_after_filling(book: Ledger) -> None:
    with clock(1_000_000) as hands:
        old = book.open_run("old", "tester", spec("old"), "tester").created_ms
    assert old <= hands.ms < book.open_run("new", "tester", spec("new"), "tester").created_ms


# ---- what keeps the log, and its numbers


def test_a_log_that_nobody_copies_and_numbers_that_are_missing_are_alarms(book: Ledger) -> None:
    run = begun(book)
    book.of(run).log.see_files([seen(0, 10, length=100)])
    copies = Exposure("copies in /copies/move-1", 2, 3_400_000, False, None, None, 600, False, now_ms())
    note_exposure(book.of(run), copies)
    facts = run_page(book, book.run(run))
    assert facts["alarms"] == []
    assert facts["run"]["log"]["kept_bytes"] == 3_400_000

    note_exposure(book.of(run), replace(copies, at_ms=now_ms() - 500_000))
    hole = NumberGap(NAMES[0], "abc", 11, 14, "file.1", "file.2", now_ms())
    book.of(run).log.set_ranges([], None, book.of(run).numbers.change([], [hole], []))
    late, missing = run_page(book, book.run(run))["alarms"]
    assert late["text"].startswith("The log is not being copied in time: the log is kept by copies in /copies/move-1")
    assert missing["text"].startswith(
        f"region abc of {NAMES[0]} has no entries 11 to 14 (4) between the WAL files file.1"
    )
    assert f"`walferry accept-numbers move --table {NAMES[0]} --reason …`" in missing["text"]
    book.of(run).numbers.accept(NAMES[0], "skips the log", "me")
    _, decided = run_page(book, book.run(run))["alarms"]
    assert decided["kind"] == "note"
    assert "are accepted for this run by me: skips the log" in decided["text"]


def test_the_head_says_that_missing_numbers_shut_the_gate_and_no_alarm_repeats_it(book: Ledger) -> None:
    run = begun(book)
    ledger = book.of(run)
    ledger.log.see_files([seen(0, 10, length=100)])
    ledger.phases.start("replay")
    ledger.notes.keep(NOTE, {}, "replay")
    hole = NumberGap(NAMES[0], "abc", 11, 14, "file.1", "file.2", now_ms())
    ledger.log.set_ranges([], None, ledger.numbers.change([], [hole], []))
    facts = run_page(book, book.run(run))
    assert (facts["run"]["state"], facts["run"]["waits_for"]) == ("gate shut", "decision")
    assert "has no entries 11 to 14" in facts["run"]["cause"]
    assert "`walferry accept-numbers move" in facts["run"]["next_step"]
    assert facts["alarms"] == []


def test_numbers_that_1_x_skips_are_a_note(book: Ledger) -> None:
    run = begun(book)
    book.of(run).log.see_files([seen(0, 10, length=100)])
    hole = NumberGap(NAMES[0], "abc", 11, 14, "file.1", "file.2", now_ms())
    book.of(run).log.set_ranges([], None, book.of(run).numbers.change([], [hole], [], only_count=True))
    (note,) = run_page(book, book.run(run))["alarms"]
    assert note["kind"] == "note"
    assert "lacks 4 numbers at 1 place. In HBase 1.x, increments" in note["text"]


def test_a_standstill_of_the_copying_stays_an_alarm(book: Ledger) -> None:
    run = begun(book)
    book.of(run).log.see_files([seen(0, 10, length=100)])
    copies = Exposure("copies in /copies/move-1", 0, 0, False, None, None, 600, False, now_ms() - 700_000)
    for looked in (copies, replace(copies, at_ms=now_ms())):
        note_exposure(book.of(run), looked)
    (alarm,) = run_page(book, book.run(run))["alarms"]
    assert alarm["text"].startswith("The source's log was not looked at from ")


# ---- rows that differ


def test_rows_that_wait_for_a_decision_are_an_alarm_whatever_their_known_reason_is(book: Ledger) -> None:
    run = begun(book)
    with clock(60_000) as hands:
        compare(book, run, hands)  # one row is history-dependent
    told = "1 row differs for a known reason, and no decision has been made"
    assert told in [alarm["text"] for alarm in run_page(book, book.run(run))["alarms"]]
    note_look(book.of(run), "customers", now_ms() + 100_000, rows=1)  # it is equal now
    assert told not in [alarm["text"] for alarm in run_page(book, book.run(run))["alarms"]]
