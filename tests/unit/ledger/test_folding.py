"""Applied files that no longer exist at the source are one row, and are never applied again."""

from __future__ import annotations

import pytest

from unit.ledger.entries import TABLE, sealed
from walferry.errors import WalferryError
from walferry.ledger import Coverage, Ledger, Position, RunLedger, WalRange

OTHER = "users"


@pytest.fixture
def part(ledger: Ledger) -> RunLedger:
    """A run whose start fence is in file 10 of two groups; the files 10 to 19 of each are applied."""
    part = ledger.of(ledger.open_run("both", "me", {"tables": [TABLE, OTHER]}, "me").run_id)
    part.log.set_fence("start", [Position(group, f"{group}.10", 10, 0) for group in ("rs1", "rs2")])
    files = [sealed(f"{group}.{number}", number, group) for group in ("rs1", "rs2") for number in range(10, 20)]
    part.log.see_files(files)
    part.log.set_ranges([item for file in files for item in of(file.name, file.number)])
    return part


def of(name: str, number: int) -> list[WalRange]:
    first = WalRange(name, 0, number, TABLE, 2, 5, 1_000 * number, 1_000 * number + 7, "applied")
    return [first, WalRange(name, 0, number, OTHER, 0, 0, None, None, "applied")]


def names(part: RunLedger) -> list[str]:
    return [file.name for file in part.log.files()]


def test_what_is_gone_from_the_beginning_of_a_group_is_one_row_with_the_sums_of_all(part: RunLedger) -> None:
    before = part.log.coverage(), part.log.gaps(), part.log.reached(), part.log.last_edit_ms(), part.log.groups()
    left = [f"rs1.{number}" for number in (15, 17, 18, 19)] + ["rs2.10"]
    part.log.fold(left)
    # The file of a fence stays, and what is gone after a file that exists.
    assert names(part) == ["rs1.10", "rs1.11", *(f"rs1.{number}" for number in range(15, 20)), "rs2.10", "rs2.11"]
    assert (
        part.log.coverage(),
        part.log.gaps(),
        part.log.reached(),
        part.log.last_edit_ms(),
        part.log.groups(),
    ) == before
    assert part.log.ranges(file="rs1.11") == [
        WalRange("rs1.11", 0, 11 + 12 + 13 + 14, TABLE, 8, 20, 11_000, 14_007, "applied"),
        WalRange("rs1.11", 0, 11 + 12 + 13 + 14, OTHER, 0, 0, None, None, "applied"),
    ]
    part.log.fold(["rs1.18", "rs1.19", "rs2.10"])
    assert names(part) == ["rs1.10", "rs1.11", "rs1.18", "rs1.19", "rs2.10", "rs2.11"]
    assert part.log.coverage() == before[0]
    assert [line.inputs for line in part.audit_trail() if line.action == "fold WAL files"] == [
        {"rows_less": 11}, {"rows_less": 3},
    ]  # fmt: skip


def test_a_folded_file_that_turns_up_again_is_applied(part: RunLedger) -> None:
    """A queue may still name it, or somebody put it back."""
    part.log.fold(["rs1.19", "rs2.19"])
    again = [f"rs1.{number}" for number in range(8, 21)]
    known = {f"rs1.{number}" for number in range(10, 20)}
    assert part.log.applied(again) == known
    assert part.log.pending(again) == {"rs1.8", "rs1.9", "rs1.20"}
    part.log.see_files([sealed("rs1.13", 99), sealed("rs1.11", 99)])
    assert names(part) == ["rs1.10", "rs1.11", "rs1.19", "rs2.10", "rs2.11", "rs2.19"]
    assert part.log.gaps() == []
    with pytest.raises(WalferryError, match="no longer exists"):
        part.log.set_ranges([WalRange("rs1.11", 1, 9, TABLE, 0, 0, None, None, "applied")])


def test_what_is_not_applied_is_never_folded_nor_what_comes_after_it(part: RunLedger) -> None:
    files = [sealed(f"rs3.{number}", 5, "rs3") for number in range(1, 6)]
    part.log.see_files(files)
    part.log.set_ranges([item for file in files if file.number != 3 for item in of(file.name, 5)])
    part.log.fold([])
    assert [name for name in names(part) if name.startswith("rs3")] == ["rs3.1", "rs3.3", "rs3.4", "rs3.5"]
    assert {gap.file for gap in part.log.gaps()} == {"rs3.3"}


def test_neighbours_are_folded_only_if_they_are_verified_for_the_same_tables(part: RunLedger) -> None:
    part.log.mark_verified(TABLE, {f"rs1.{number}" for number in range(10, 15)})
    part.log.fold([])
    assert names(part) == ["rs1.10", "rs1.11", "rs1.15", "rs2.10", "rs2.11"]
    assert part.log.coverage()[0] == Coverage("rs1", TABLE, 0, 0, sum(range(15, 20)), sum(range(10, 15)))
    part.log.mark_verified(TABLE, part.log.applied_for(TABLE))
    assert part.log.coverage()[0] == Coverage("rs1", TABLE, 0, 0, 0, sum(range(10, 20)))
    part.log.fold([])
    assert names(part) == ["rs1.10", "rs1.11", "rs2.10", "rs2.11"]


def test_what_was_folded_is_still_among_the_files_of_a_span(ledger: Ledger, part: RunLedger) -> None:
    """A window asks for them, to know that a part of its log no longer exists."""
    part.log.fold(["rs1.19", "rs2.19"])
    found = ledger.files_between([part.run_id], 14, 16)
    assert [(file.name, file.number) for file in found] == [("rs1.11", 11), ("rs2.11", 11)]
    assert ledger.files_between([part.run_id], 21, 30) == []
