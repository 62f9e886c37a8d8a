"""What is sent and recorded of a call: once, whatever fails, and late edits with a mark."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from unit.receive.call_builder import REGION, Sent, received
from walferry.apply.by_group import Part
from walferry.apply.outcomes import Refusal
from walferry.apply.writer_protocol import RefusedError
from walferry.clock import steady_s
from walferry.errors import TransientError
from walferry.formats.cells import encode_cell
from walferry.hbase.errors import RegionNotServedError, TableStateError
from walferry.ledger import Ledger
from walferry.ledger.batches import in_one
from walferry.receive import applying
from walferry.receive.applying import apply_entries
from walferry.receive.holding import NotHeldError, OutOfTimeError
from walferry.receive.seen import seen_of
from walferry.receive.target_table import TargetTable
from walferry.run.spec import TablePair

Key = tuple[int, str]
"""number and region of an edit"""


class Target:
    """A target table under a lease, in a real ledger. `sent`: the numbers that the target got, in order."""

    def __init__(self, ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
        run = ledger.open_run("east", "me", {"name": "east", "tables": ["t1"]}, "me", "receive")
        self.received = ledger.of(run.run_id).received
        self.sent: list[int] = []
        self.dirty: list[tuple[Any, str]] = []
        self.refuses: int | None = None
        monkeypatch.setattr(applying, "send_entries", self._send)
        self.reopen()

    def reopen(self) -> None:
        """As the lease's next holder does."""
        guard = SimpleNamespace(mark_dirty=lambda rows, why: self.dirty.append((rows, why)))
        route: Any = SimpleNamespace(guard=guard)
        pair = TablePair(source="t1", target="copy")
        self.holding = TargetTable(
            pair, lambda: None, in_one(), self.received, seen_of(self.received, "t1"), threading.Lock(), route
        )
        self.holding.route_until = lambda deadline: route  # type: ignore[method-assign]

    def _send(self, _: Any, parts: Sequence[Part]) -> list[Refusal]:
        (part,) = parts
        refused: list[Refusal] = []
        for entry in part.picked.tolist():
            table, region = part.batch.table_and_region(entry)
            number = int(part.batch.sequence_number[entry])
            if any(one.region == region for one in refused):
                continue
            if number == self.refuses:
                refused.append(Refusal("a call", entry, entry + 1, table, region, number, "no family e", b""))
            else:
                self.sent.append(number)
        return refused

    def apply(self, *edits: int | Key) -> None:
        keys = [(edit, REGION) if isinstance(edit, int) else edit for edit in edits]
        cells = [encode_cell(b"r%d" % number, b"d", b"q", 1, 4, b"v") for number, _ in keys]
        batch = received(
            *(Sent([cell], region=region, number=number) for cell, (number, region) in zip(cells, keys, strict=True))
        ).batch
        apply_entries(self.holding, batch, np.arange(len(batch)), steady_s() + 10)

    def sums(self) -> tuple[int, int, int]:
        """Entries that were applied, repeated, late."""
        (total,) = self.received.totals()
        return total.entries, total.repeated, total.late


@pytest.fixture
def target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Target]:
    with Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}", actor="tester") as ledger:
        yield Target(ledger, monkeypatch)


def test_what_was_applied_is_left_out_when_it_comes_again_also_by_the_next_holder(target: Target) -> None:
    target.apply(1, 2)
    target.apply(2, 3)
    target.reopen()
    target.apply(1, 2, 3, 4)
    assert target.sent == [1, 2, 3, 4]
    assert target.sums() == (4, 4, 0)
    assert target.dirty == []


def test_a_call_of_which_all_was_applied_before_leaves_no_trace_but_in_the_sums(target: Target) -> None:
    target.apply(1)
    for _ in range(3):
        target.apply(1)
    assert target.holding.seen.calls == len(list(target.received.contents("t1"))) == 1
    assert target.sums() == (1, 3, 0)


def test_an_edit_that_comes_after_newer_ones_is_applied_and_its_row_is_dirty_before(target: Target) -> None:
    target.apply(1, 5)
    target.apply(3, 6)
    assert target.sent == [1, 5, 3, 6]
    ((rows, why),) = target.dirty
    assert rows == {"copy": (b"r3", b"r3")}
    assert (
        why
        == f"old values: 1 edit, such as number 3 of the source's region {REGION}, came after newer ones of the region"
    )
    assert target.sums() == (4, 0, 1)


def test_of_a_refused_call_the_rest_is_recorded_but_nothing_that_follows_in_the_same_region(target: Target) -> None:
    target.refuses = 2
    with pytest.raises(RefusedError, match=f"refuses edit 2 of region {REGION} of t1: no family e"):
        target.apply(1, 2, (7, "other"), 3, (8, "other"))
    assert target.sent == [1, 7, 8]
    target.refuses = None
    target.apply(1, 2, (7, "other"), 3, (8, "other"))
    assert target.sent == [1, 7, 8, 2, 3]
    assert target.dirty == []


def test_a_ledger_that_may_have_recorded_a_call_all_the_same_is_read_again_before_the_next(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else an older edit would count as new, and the newer one, sent again, as applied."""
    record = target.received.applied

    def lost(calls: Any, check: Any) -> None:
        record(calls, check)
        raise TransientError("the connection broke after the commit")

    monkeypatch.setattr(target.received, "applied", lost)
    with pytest.raises(TransientError):
        target.apply(10)
    monkeypatch.setattr(target.received, "applied", record)
    with pytest.raises(NotHeldError):
        target.apply(7)
    target.reopen()
    target.apply(7)
    assert len(target.dirty) == 1
    target.apply(10)
    assert target.sent == [10, 7]


def test_what_is_remembered_is_bounded_here_and_in_the_ledger_and_an_edit_beyond_is_dirty(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(applying, "MOST_CALLS", 8)
    for number in range(1, 31):
        target.apply(number)
        assert target.holding.seen.calls == len(list(target.received.contents("t1"))) <= 8
    target.reopen()
    target.apply(30)
    assert target.dirty == []
    target.apply(2)
    ((_, why),) = target.dirty
    assert why.endswith("or once more, too long after they were applied")


def test_after_a_failed_request_the_turn_and_the_lease_are_kept_until_the_target_must_have_ended_it(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []
    monkeypatch.setattr("walferry.receive.applying.time.sleep", slept.append)
    target.holding.route.limits = SimpleNamespace(settle_seconds=10)  # type: ignore[misc, assignment]

    def fails(error: Exception) -> None:
        def send(*_: Any) -> Any:
            raise error

        monkeypatch.setattr(applying, "send_entries", send)
        with pytest.raises(type(error)):
            target.apply(1)

    fails(OutOfTimeError("between two attempts"))
    fails(TableStateError("it is disabled"))
    fails(RegionNotServedError("it moves"))
    assert slept == []
    fails(TransientError("a server was killed"))
    assert slept == [10]


def test_a_table_with_few_large_calls_forgets_no_more_than_it_must(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(applying, "MOST_REMEMBERED", 100)
    target.apply(*range(1, 95))
    for number in range(101, 111):
        target.apply(number)
    assert target.holding.seen.remembered == 10
    assert target.holding.seen.floors == {REGION: 94}
    target.apply(101)
    assert target.sums() == (104, 1, 0)
