"""A file that every table has applied becomes one row, which still shows everything that its ranges showed."""

from __future__ import annotations

import pytest

from unit.ledger.entries import TABLE, opened, sealed, span
from walferry.errors import WalferryError
from walferry.ledger import Coverage, Gap, Hold, Ledger, LogPosition, QuarantineItem, RunLedger, WalRange
from walferry.refusals import GapKind

OTHER = "users"


@pytest.fixture
def part(ledger: Ledger) -> RunLedger:
    return ledger.of(ledger.open_run("both", "me", {"tables": [TABLE, OTHER]}, "me").run_id)


def rows(part: RunLedger) -> int:
    """The number of ranges with a row of their own."""
    store = part._store
    with store.database.read() as connection:
        return len(connection.execute(store.table("wal_ranges").select()).all())


def whole(name: str, state: str, length: int = 80) -> list[WalRange]:
    """Ranges of a file for both tables; the file holds nothing of the second table."""
    first = WalRange(name, 0, length, TABLE, 2, 5, 1_000, 2_000, state)  # type: ignore[arg-type]
    return [first, WalRange(name, 0, length, OTHER, 0, 0, None, None, state)]  # type: ignore[arg-type]


@pytest.mark.parametrize("state", ["applied", "verified"])
def test_a_file_that_every_table_has_is_one_row_and_its_ranges_are_still_known(part: RunLedger, state: str) -> None:
    part.log.see_files([sealed("rs1.10", 80)])
    part.log.set_ranges(whole("rs1.10", state)[:1])
    assert (rows(part), part.log.applied(["rs1.10"])) == (1, set())
    part.log.set_ranges(whole("rs1.10", state)[1:])
    assert rows(part) == 0
    assert part.log.ranges() == part.log.ranges(file="rs1.10") == part.log.ranges(groups=["rs1"]) == (
        whole("rs1.10", state)
    )  # fmt: skip
    assert part.log.ranges(since_ms=2_000) == whole("rs1.10", state)[:1]
    assert part.log.ranges(since_ms=2_001) == []
    assert part.log.ranges(state="sealed") == part.log.ranges(file="rs1.11") == part.log.ranges(groups=["rs2"]) == []
    assert part.log.applied(["rs1.10", "rs1.11"]) == {"rs1.10"}
    assert part.log.applied_for(TABLE) == part.log.applied_for(OTHER) == {"rs1.10"}
    assert (part.log.without_cells(TABLE), part.log.without_cells(OTHER)) == (set(), {"rs1.10"})
    assert part.log.reached() == {("rs1", TABLE): 10, ("rs1", OTHER): 10}
    assert (part.log.last_edit_ms(), set(part.log.groups()), part.log.gaps()) == (2_000, {"rs1"}, [])


def test_what_is_packed_still_moves_forward_only(part: RunLedger) -> None:
    part.log.see_files([sealed("rs1.10", 80)])
    part.log.set_ranges(whole("rs1.10", "applied"))
    for wrong in (span("rs1.10", 0, 80), span("rs1.10", 0, 90, "applied"), span("rs1.10", 0, 9, "applied", OTHER)):
        with pytest.raises(WalferryError, match="moves forward"):
            part.log.set_ranges([wrong])
    part.log.set_ranges(whole("rs1.10", "applied"))
    part.log.mark_applied(["rs1.10"])
    assert part.log.ranges() == whole("rs1.10", "applied")
    part.log.set_ranges(whole("rs1.10", "verified")[:1])
    assert [item.state for item in part.log.ranges()] == ["verified", "applied"]
    assert part.log.coverage() == [
        Coverage("rs1", TABLE, 0, 0, 0, 80), Coverage("rs1", OTHER, 0, 0, 80, 0),
    ]  # fmt: skip


def test_a_comparison_verifies_packed_files_of_its_table_once(part: RunLedger) -> None:
    part.log.see_files([sealed("rs1.10", 80), sealed("rs1.11", 7), sealed("rs2.5", 3, "rs2")])
    part.log.set_ranges(
        [r for name, n in (("rs1.10", 80), ("rs1.11", 7), ("rs2.5", 3)) for r in whole(name, "applied", n)]
    )
    for _ in range(2):
        part.log.mark_verified(TABLE, {"rs1.10", "rs2.5"})
    assert [(r.file, r.table) for r in part.log.ranges(state="verified")] == [("rs1.10", TABLE), ("rs2.5", TABLE)]
    assert part.log.coverage() == [
        Coverage("rs1", TABLE, 0, 0, 7, 80),
        Coverage("rs1", OTHER, 0, 0, 87, 0),
        Coverage("rs2", TABLE, 0, 0, 0, 3),
        Coverage("rs2", OTHER, 0, 0, 3, 0),
    ]
    told = [line.inputs for line in part.audit_trail() if line.action == "verify ranges"]
    assert told == [{"table": TABLE, "bytes": 83, "entries": 4, "cells": 10}]


def test_a_file_that_turns_out_longer_has_a_gap_and_is_not_applied_again(part: RunLedger) -> None:
    part.log.see_files([sealed("rs1.10", 80)])
    part.log.set_ranges(whole("rs1.10", "applied"))
    part.log.see_files([sealed("rs1.10", 90)])
    assert [(gap.start, gap.end, gap.kind) for gap in part.log.gaps()] == [(80, 90, GapKind.NOT_READ)] * 2
    assert part.log.pending(["rs1.10"]) == set()
    assert part.log.coverage() == [Coverage("rs1", name, 0, 0, 80, 0) for name in (TABLE, OTHER)]
    part.log.set_ranges([], lengths={"rs1.10": 80})
    assert part.log.gaps() == []


def test_a_file_that_was_read_past_its_known_end_has_a_gap(part: RunLedger) -> None:
    part.log.see_files([sealed("rs1.10", 80)])
    part.log.set_ranges(whole("rs1.10", "applied"))
    part.log.set_ranges([], lengths={"rs1.10": 90})
    assert [(gap.start, gap.end, gap.kind) for gap in part.log.gaps()] == [(80, 90, GapKind.NOT_READ)] * 2
    assert part.log.coverage() == [Coverage("rs1", name, 0, 0, 80, 0) for name in (TABLE, OTHER)]


def test_an_end_fence_past_the_end_of_a_packed_file_is_a_gap(part: RunLedger) -> None:
    part.log.see_files([sealed("rs1.10", 80)])
    part.log.set_ranges(whole("rs1.10", "applied"))
    part.log.set_fence("end", [LogPosition("rs1", "rs1.10", 10, 85)])
    assert part.log.gaps() == [Gap("rs1.10", 80, 85, name, GapKind.NOT_READ, "not read") for name in (TABLE, OTHER)]


def test_an_open_file_stays_a_gap_though_all_that_is_known_of_it_is_applied(part: RunLedger) -> None:
    part.log.see_files([opened("rs1.10", 80), sealed("rs1.11", 1)])
    part.log.set_ranges([*whole("rs1.10", "applied"), *whole("rs1.11", "applied", 1)])
    assert {(gap.file, gap.kind) for gap in part.log.gaps()} == {("rs1.10", GapKind.NOT_SEALED)}
    assert part.log.unapplied() == []


def test_a_file_waits_until_each_table_has_it_or_holds_it(part: RunLedger) -> None:
    names = [f"rs1.{number}" for number in range(10, 15)]
    new, done, half, held, killed = names
    part.log.see_files([sealed(name, 80) for name in names])
    part.log.set_ranges([*whole(done, "applied"), *whole(half, "applied")[:1]])
    part.log.set_ranges([*whole(held, "applied")[:1], *whole(held, "sealed")[1:]])
    (item,) = part.quarantine.put([QuarantineItem(held, 0, 9, OTHER, "r1", 1, "refused", b"")])
    part.quarantine.hold([Hold(held, OTHER, "r1", 0, item), *(Hold(killed, t, "r1", 0, item) for t in (TABLE, OTHER))])
    assert part.log.pending(names) == {new, half, killed}
    assert [file.name for file in part.log.unapplied()] == [new, half, held, killed]
