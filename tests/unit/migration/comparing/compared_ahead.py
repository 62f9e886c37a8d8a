"""Comparisons beside a replay, without clusters."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from unit.cutover.test_readiness import TABLE, compare
from walferry.ledger import RunLedger
from walferry.ledger.rows import DifferenceKind
from walferry.migration.comparing import compare_ahead
from walferry.migration.sides.fragile_rows import NONE
from walferry.migration.touching import equality, touched
from walferry.migration.touching.equality import Begun
from walferry.replay.rights import dirty
from walferry.replay.rights.standstill import Standstill
from walferry.run.run import Run

OTHER = "shop:customers"


class Comparisons:
    """In place of both kinds of comparison: what was compared, in order, and what is to be found."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made: list[str] = []
        self.finds: list[DifferenceKind] = []
        self.may_look = threading.Event()
        self.may_look.set()
        self.failures: list[Exception] = []
        monkeypatch.setattr(compare_ahead, "compare", self.whole)
        monkeypatch.setattr(compare_ahead, "look", self.written)
        monkeypatch.setattr(compare_ahead, "Parts", lambda *_, keeps_equality: None)
        monkeypatch.setattr(touched, "look", lambda _: None)
        self.marks: list[dirty.DirtyRows] = []
        monkeypatch.setattr(dirty, "marks_of", lambda _: list(self.marks))
        self.counts = True
        self.read_for: list[str] = []
        """the tables for which the log was read"""
        self.took = 0.0

    def whole(self, run: Run, spark: object, table: str, parts: object) -> None:
        self.made.append(f"whole {table}")
        if table == TABLE:
            compare(run.ledger, *self.finds)
        else:
            compare(run.ledger, table=table)
        if self.counts:
            found_equal(run, table)
        dirty.compared(run, run.ledger.comparisons.tables()[-1], self.marks, equal=False)
        if not self.finds:
            self.marks.clear()

    def written(self, run: Run, spark: object, table: str, *_: object, looks: bool) -> float:
        self.made.append(f"written {table}")
        assert self.may_look.wait(10)
        if self.failures:
            raise self.failures.pop()
        if looks:
            self.read_for.append(table)
        return self.took if looks else 0.0


def found_equal(run: Run, table: str = TABLE) -> None:
    """What touches the table after its newest comparison is known."""
    made = [one for one in run.ledger.comparisons.tables() if one.table == table][-1]
    known, claimed = touched.Seen.of(run.ledger).known(table), equality._claimed(run.ledger, table)
    assert equality.keep_whole(run, Begun(known, [], "rules", claimed), made, NONE)


def run_of(ledger: RunLedger) -> Run:
    return Run(ledger.whole, ledger.run_id)


@contextmanager
def comparing(ledger: RunLedger) -> Iterator[None]:
    with compare_ahead.compared_ahead(run_of(ledger), lambda: None, Standstill()):  # type: ignore[arg-type,return-value]
        yield


def wait_until(true: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 10
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def end_phase(ledger: RunLedger, name: str) -> None:
    ledger.phases.start(name)
    ledger.phases.finish(name, {"by": "kim"})
