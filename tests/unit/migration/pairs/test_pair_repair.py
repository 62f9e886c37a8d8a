"""Which rows of a pair are repaired, and what is said of the others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from unit.migration.filled_ledger import SPEC
from unit.migration.pair_ledger import differs, one_pass
from walferry.errors import SidesDifferError, TransientError, UsageError
from walferry.formats.cells import CellType
from walferry.ledger import Ledger, PassDifference, RepairedRow
from walferry.migration.pairs import pair_repair
from walferry.migration.pairs.pair_pass import open_pair
from walferry.migration.pairs.pair_repair import ATTEMPTS, ask
from walferry.migration.pairs.pair_shipping import Shipping
from walferry.migration.repairing.repair import NO_COMPACTION, Refusal
from walferry.migration.repairing.row_plan import RawCell, RowRepair
from walferry.migration.sides.row_sides import Cell, cell_as_compared
from walferry.run.heartbeat import beating
from walferry.run.pair_spec import ResolvedPairSpec
from walferry.run.run import Run

TABLE = {"source": "t", "target": "t"}
PROOF = {"peer": "east", "rolled_ms": 1, "why": ""}


def opened(tmp_path: Path, name: str, **keys: Any) -> Iterator[Run]:
    spec = ResolvedPairSpec.model_validate(SPEC | {"tables": [TABLE]} | keys)
    with Ledger.open(f"sqlite:///{tmp_path / name}", actor="test") as ledger:
        yield Run(ledger, open_pair(ledger, spec, "test", 7).run_id)


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    yield from opened(tmp_path, "ledger.db", peer="east")


@pytest.fixture
def unfed(tmp_path: Path) -> Iterator[Run]:
    yield from opened(tmp_path, "unfed.db")


class Sides:
    """Rows that differ, or are under way, until they were repaired so often; and what was repaired."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **repairs: int) -> None:
        self.left = {name.encode(): count for name, count in repairs.items()}
        self.under_way = set[bytes]()
        self.faults = dict[bytes, str]()
        self.cells = dict[bytes, set[Cell]]()
        self.plans = dict[bytes, tuple[RowRepair, Sequence[RawCell]]]()
        self.repaired = list[list[bytes]]()
        self.compacts = True
        monkeypatch.setattr(pair_repair, "require_comparable", lambda run, done: None)
        monkeypatch.setattr(pair_repair, "unnamed_back", lambda run: None)
        monkeypatch.setattr(pair_repair, "still_differing", self.still_differing)
        monkeypatch.setattr(pair_repair, "repair", self.repair)

    def still_differing(
        self, run: Run, found: Sequence[PassDifference], shipping: Shipping, *, proved_cells: dict[bytes, set[Cell]]
    ) -> tuple[list[PassDifference], int]:
        left = [item for item in found if item.row in self.under_way or self.left.get(item.row)]
        proved_cells |= self.cells
        return [item if item.row in self.under_way else replace(item, state="differs") for item in left], len(left)

    def repair(
        self, run: Run, standstill: Any, table: str, kinds: Mapping[bytes, str], *,
        region_bytes: int, refuses: Refusal = lambda row, plan, target: "",
    ) -> list[RepairedRow]:  # fmt: skip
        self.repaired.append(sorted(kinds))
        self.compacts = region_bytes > NO_COMPACTION
        made = []
        for row in sorted(kinds):
            refused = refuses(row, *self.plans[row]) if row in self.plans else ""
            self.left[row] -= not refused
            fault = refused or self.faults.get(row, "")
            made.append(RepairedRow(table, row, "", "" if refused else "sent", 0 if refused else 1, fault, 5))
        return made


def test_rows_that_differed_in_the_last_pass_are_repaired_and_read_again(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    one_pass(run.ledger, *map(differs, (b"a", b"b", b"equal")), differs(b"w", state="under way"), shipped=PROOF)
    sides = Sides(monkeypatch, a=1, b=2)
    found = ask(run, None)
    assert sides.repaired == [[b"a", b"b"], [b"b"]]
    assert [(row.row, row.action, row.cells, row.fault) for row in found.rows] == [
        (b"a", "sent", 1, ""),
        (b"b", "sent", 2, ""),
    ]
    assert found.lines()[-1] == "repaired: 2 of 2. A comparison shows whether more differ"
    found.require_all()


def test_a_row_that_nobody_can_tell_about_is_left_alone_and_recorded(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    sides = Sides(monkeypatch, a=1)
    sides.under_way = {b"w"}
    found = ask(run, "t", ["a", "w"])
    assert sides.repaired == [[b"a"]]
    assert [(row.row, row.fault[:22]) for row in found.rows] == [(b"w", "it is not known to dif"), (b"a", "")]
    assert [(row.row, row.fault[:22]) for row in run.ledger.repairs.all()] == [(b"w", "it is not known to dif")]
    with pytest.raises(SidesDifferError, match="1 row of move-1 cannot be repaired now"):
        found.require_all()


def test_a_row_that_cannot_be_repaired_or_differs_each_time_is_a_fault(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    one_pass(run.ledger, *map(differs, (b"a", b"b")), shipped=PROOF)
    sides = Sides(monkeypatch, a=99, b=99)
    sides.faults = {b"b": "the target refuses its cells"}
    found = {row.row: row for row in ask(run, "t").rows}
    assert len(sides.repaired) == ATTEMPTS
    assert found[b"a"].fault == "it was repaired 3 times, and differs again"
    assert found[b"b"].fault == "the target refuses its cells"


def test_what_a_pair_cannot_repair_is_refused_with_what_to_do(
    run: Run, unfed: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    Sides(monkeypatch)
    with pytest.raises(UsageError, match="only if its spec names the replication `peer` that feeds the target"):
        ask(unfed, None)
    with pytest.raises(UsageError, match="the pair move has no table 'u'; its tables: t"):
        ask(run, "u")
    with pytest.raises(UsageError, match="name the table of the rows with --table"):
        ask(run, None, ["a"])
    monkeypatch.setattr(pair_repair, "unnamed_back", lambda run: "west")
    with pytest.raises(UsageError, match="the target's peer west replicates tables of the pair, perhaps to the source"):
        ask(run, None)
    run.ledger.end("aborted", "test")
    with pytest.raises(UsageError, match="the pair move-1 was aborted: verify it again first"):
        ask(run, None)


def test_a_fault_of_a_row_that_is_equal_in_the_end_is_forgotten(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replication changed the row between two readings."""
    one_pass(run.ledger, differs(b"a"), shipped=PROOF)
    sides = Sides(monkeypatch, a=1)
    sides.faults = {b"a": "still to be done after that: send 1 cell"}
    (row,) = ask(run, None).rows
    assert row.fault == ""


def test_a_row_that_is_written_all_the_time_is_repaired_and_left_to_the_next_pass(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    one_pass(run.ledger, differs(b"a"), shipped=PROOF)
    sides = Sides(monkeypatch, a=9)

    def repaired(*args: Any, **keys: Any) -> list[RepairedRow]:
        sides.under_way = {b"a"}
        return sides.repair(*args, **keys)

    monkeypatch.setattr(pair_repair, "repair", repaired)
    (row,) = ask(run, None).rows
    assert (row.action, row.fault[:36]) == ("sent", "it has been repaired, and is being w")


def test_rows_are_named_only_by_a_pass_that_has_ended(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    sides = Sides(monkeypatch, a=1)
    one_pass(run.ledger, differs(b"a"), shipped=PROOF)
    run.ledger.passes.begin(1)
    with pytest.raises(UsageError, match="the last pass over the pair move was interrupted"):
        ask(run, None)
    with (
        beating(run.ledger, "pass", "test"),
        pytest.raises(TransientError, match="a pass over the pair move is under way"),
    ):
        ask(run, None)
    assert len(ask(run, "t", ["a"]).rows) == 1
    assert sides.repaired == [[b"a"]]


def test_what_a_killed_repair_still_owes_is_sent_though_no_row_differs(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    one_pass(run.ledger, shipped=PROOF)
    Sides(monkeypatch)
    finished = list[str]()
    monkeypatch.setattr(pair_repair, "finish_repair", lambda run, standstill, table: finished.append(table))
    assert ask(run, None).rows == []
    assert set(finished) == {"t"}


# ---- clients at both clusters


def put(qualifier: bytes, timestamp: int = 5, kind: CellType = CellType.PUT, value: bytes = b"v") -> RawCell:
    return RawCell(b"f", qualifier, timestamp, kind, value, b"", b"")


def proved(cell: RawCell) -> Cell:
    return cell_as_compared(*cell[:6])


@pytest.mark.parametrize(
    ("plan", "at_target", "fault"),
    [
        (RowRepair((), (put(b"new"),), (put(b"lost"),)), [put(b"lost")], ""),
        (RowRepair((), (), (put(b"lost"), put(b"theirs"))), [put(b"lost"), put(b"theirs")], "clients have written to"),
        (RowRepair((), (put(b"lost", value=b"w"),), ()), [put(b"lost")], ""),
        (RowRepair((), (put(b"theirs", value=b"w"),), ()), [put(b"theirs")], "clients have written to"),
        (RowRepair((put(b"lost", 9, CellType.DELETE_COLUMN),), (), ()), [], "a delete that only the target has hides"),
    ],
)
def test_where_both_clusters_have_clients_only_what_is_proved_is_changed_and_nothing_is_compacted(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    plan: RowRepair,
    at_target: Sequence[RawCell],
    fault: str,
) -> None:
    for run in opened(tmp_path, "both.db", peer="east", peer_back="west"):
        sides = Sides(monkeypatch, a=1)
        sides.plans = {b"a": (plan, at_target)}
        sides.cells = {b"a": {proved(put(b"lost"))}}
        (row,) = ask(run, "t", ["a"]).rows
        assert row.fault[:23] == fault[:23]
        assert not sides.compacts
        assert sides.repaired == [[b"a"]], "a refusal does not change"
