"""One row stands for applied files that no longer exist at the source; no file is applied again."""

from __future__ import annotations

import pytest

from unit.ledger.entries import TABLE, sealed
from walferry.errors import WalferryError
from walferry.ledger import Coverage, Ledger, LogPosition, RunLedger, WalRange

OTHER = "users"


@pytest.fixture
def long_run(ledger: Ledger) -> RunLedger:
    """A run whose start fence is in file 10 of two groups; the files 10 to 19 of each are applied."""
    long_run = ledger.of(ledger.open_run("both", "me", {"tables": [TABLE, OTHER]}, "me").run_id)
    long_run.log.set_fence("start", [LogPosition(group, f"{group}.10", 10, 0) for group in ("rs1", "rs2")])
    files = [sealed(f"{group}.{number}", number, group) for group in ("rs1", "rs2") for number in range(10, 20)]
    long_run.log.see_files(files)
    long_run.log.set_ranges([item for file in files for item in of(file.name, file.number)])
    return long_run


def of(name: str, number: int) -> list[WalRange]:
    first = WalRange(name, 0, number, TABLE, 2, 5, 1_000 * number, 1_000 * number + 7, "applied")
    return [first, WalRange(name, 0, number, OTHER, 0, 0, None, None, "applied")]


def told(long_run: RunLedger) -> list[object]:
    """What folding leaves unchanged."""
    log = long_run.log
    return [log.coverage(), log.gaps(), log.reached(), log.last_edit_ms(), log.groups()]


def names(long_run: RunLedger) -> list[str]:
    return [file.name for file in long_run.log.files()]


def test_what_is_gone_from_the_beginning_of_a_group_is_one_row_with_the_sums_of_all(long_run: RunLedger) -> None:
    before = told(long_run)
    left = [f"rs1.{number}" for number in (15, 17, 18, 19)] + ["rs2.10"]
    long_run.log.fold(left)
    # The file of a fence stays, and what is gone after a file that exists.
    assert names(long_run) == ["rs1.10", "rs1.11", *(f"rs1.{number}" for number in range(15, 20)), "rs2.10", "rs2.11"]
    assert told(long_run) == before
    assert long_run.log.ranges(file="rs1.11") == [
        WalRange("rs1.11", 0, 11 + 12 + 13 + 14, TABLE, 8, 20, 11_000, 14_007, "applied"),
        WalRange("rs1.11", 0, 11 + 12 + 13 + 14, OTHER, 0, 0, None, None, "applied"),
    ]
    long_run.log.fold(["rs1.18", "rs1.19", "rs2.10"])
    assert names(long_run) == ["rs1.10", "rs1.11", "rs1.18", "rs1.19", "rs2.10", "rs2.11"]
    assert long_run.log.coverage() == before[0]
    assert [line.inputs for line in long_run.audit_trail() if line.action == "fold WAL files"] == [
        {"rows_less": 11}, {"rows_less": 3},
    ]  # fmt: skip


def test_a_folded_file_that_turns_up_again_is_applied(long_run: RunLedger) -> None:
    """A replication queue may still name the file, or somebody may have put it back."""
    long_run.log.fold(["rs1.19", "rs2.19"])
    again = [f"rs1.{number}" for number in range(8, 21)]
    known = {f"rs1.{number}" for number in range(10, 20)}
    assert long_run.log.applied(again) == known
    assert long_run.log.pending(again) == {"rs1.8", "rs1.9", "rs1.20"}
    long_run.log.see_files([sealed("rs1.13", 99), sealed("rs1.11", 99)])
    assert names(long_run) == ["rs1.10", "rs1.11", "rs1.19", "rs2.10", "rs2.11", "rs2.19"]
    assert long_run.log.gaps() == []
    with pytest.raises(WalferryError, match="no longer exists"):
        long_run.log.set_ranges([WalRange("rs1.11", 1, 9, TABLE, 0, 0, None, None, "applied")])


def test_what_is_not_applied_is_never_folded_nor_what_comes_after_it(long_run: RunLedger) -> None:
    files = [sealed(f"rs3.{number}", 5, "rs3") for number in range(1, 6)]
    long_run.log.see_files(files)
    long_run.log.set_ranges([item for file in files if file.number != 3 for item in of(file.name, 5)])
    long_run.log.fold([])
    assert [name for name in names(long_run) if name.startswith("rs3")] == ["rs3.1", "rs3.3", "rs3.4", "rs3.5"]
    assert {gap.file for gap in long_run.log.gaps()} == {"rs3.3"}


def test_neighbours_are_folded_only_if_they_are_verified_for_the_same_tables(long_run: RunLedger) -> None:
    long_run.log.mark_verified(TABLE, {f"rs1.{number}" for number in range(10, 15)})
    long_run.log.fold([])
    assert names(long_run) == ["rs1.10", "rs1.11", "rs1.15", "rs2.10", "rs2.11"]
    assert long_run.log.coverage()[0] == Coverage("rs1", TABLE, 0, 0, sum(range(15, 20)), sum(range(10, 15)))
    long_run.log.mark_verified(TABLE, long_run.log.applied_for(TABLE))
    assert long_run.log.coverage()[0] == Coverage("rs1", TABLE, 0, 0, 0, sum(range(10, 20)))
    long_run.log.fold([])
    assert names(long_run) == ["rs1.10", "rs1.11", "rs2.10", "rs2.11"]


def test_what_was_folded_is_still_among_the_files_of_a_span(ledger: Ledger, long_run: RunLedger) -> None:
    """A window looks the files up to learn that a long run of its log no longer exists."""
    long_run.log.fold(["rs1.19", "rs2.19"])
    found = ledger.files_between([long_run.run_id], 14, 16)
    assert [(file.name, file.number) for file in found] == [("rs1.11", 11), ("rs2.11", 11)]
    assert ledger.files_between([long_run.run_id], 21, 30) == []
