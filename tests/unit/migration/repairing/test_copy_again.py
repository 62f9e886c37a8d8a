"""Copying a table again: every row, in windows, from wherever it was interrupted; refused where it would do harm."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unit.migration.filled_ledger import SPEC, compared
from walferry.clock import now_ms
from walferry.cutover.cluster_answers import schema_differences
from walferry.cutover.ledger_answers import newest_comparison
from walferry.errors import TransientError, UsageError
from walferry.formats.cells import CellType, encode_cell
from walferry.hbase.errors import RemoteError, TableNotFoundError
from walferry.hbase.writer_kind import WriterKind
from walferry.ledger import Difference, Hold, Ledger, QuarantineItem, RangeComparison, RunLedger
from walferry.migration.repairing import copy_again as module
from walferry.migration.repairing.copy_again import (
    ask_copy_again,
    check_copy_again,
    copied_again,
    give_up,
    plan_copy_again,
)
from walferry.replay.rights.lease import LeaseLostError
from walferry.run.notes.copying_again import Copying, GivenUpError, copied, copying, end_copying, waits_for_copying
from walferry.run.run import Run

TABLE = "shop:orders"
KEYS = st.lists(st.binary(min_size=1, max_size=2), unique=True, max_size=12).map(sorted)


def no_check(connection: object) -> None:
    """Nobody has taken the leases."""


class Notes:
    """The ledger's notes, without a ledger."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, str], str] = {}

    def keep(self, name: str, facts: Mapping[str, Any], subject: str = "") -> None:
        self._kept[name, subject] = json.dumps(facts)

    def advance(self, name: str, facts: Mapping[str, Any] | None, subject: str, also: Any) -> bool:
        also(None, json.loads(self._kept[name, subject]))
        assert facts is not None
        self.keep(name, facts, subject)
        return True

    def named(self, name: str) -> dict[str, tuple[dict[str, Any], int]]:
        return {subject: (json.loads(facts), 0) for (of, subject), facts in self._kept.items() if of == name}


class Source:
    """A table of some rows in regions that may be split and merged at any time; a block has one row."""

    def __init__(self, rows: list[bytes], borders: list[bytes]) -> None:
        self._rows, self.borders = rows, borders

    def regions(self, table: str) -> list[Any]:
        ends = [*self.borders, b""]
        found = [SimpleNamespace(start=s, end=e) for s, e in zip([b"", *self.borders], ends, strict=True)]
        return found[::-1]

    def scan_raw(self, table: str, start: bytes, stop: bytes) -> Iterator[bytes]:
        for row in self._rows:
            if start <= row and (not stop or row < stop):
                yield encode_cell(row, b"f", b"q", 5, CellType.PUT, b"v")


@given(
    KEYS, st.lists(KEYS, min_size=1, max_size=4), st.lists(st.integers(1, 4), min_size=1), st.sets(st.integers(0, 20))
)
def test_every_row_is_copied_in_whatever_windows_and_from_wherever_it_was_interrupted(
    rows: list[bytes], borders: list[list[bytes]], windows: list[int], kills: set[int]
) -> None:
    ledger: Any = SimpleNamespace(notes=Notes())
    source = Source(rows, borders[0])
    run: Any = SimpleNamespace(ledger=ledger, source=source)
    sent: list[bytes] = []
    left = 0

    def send(writer: object, route: object, table: str, cells: bytes) -> int:
        nonlocal left
        left -= 1
        sent.append(cells)
        return 1

    Copying("kim", "", 1, (1, 2), emptied=True).begin(ledger, TABLE)
    work = module._Work(run, cast(Any, None), TABLE, lambda: False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "send_cells", send)
        patch.setattr(module, "writer_to", lambda route: None)
        patch.setattr(module, "steady_s", lambda: 0.0 if left > 0 else 1e9)
        patch.setattr(module, "WINDOW_SECONDS", 1.0)
        patch.setattr(module, "lease_check_of", lambda run, route: no_check)
        for step in range(1_000):
            if work.now.is_done:
                break
            source.borders = borders[step % len(borders)]
            left = windows[step % len(windows)]
            before = dict(ledger.notes._kept)
            module._copy_some(work, cast(Any, None))
            if step in kills:
                ledger.notes._kept = before  # killed before it was kept
        assert work.now.is_done
    expected = {encode_cell(row, b"f", b"q", 5, CellType.PUT, b"v") for row in rows}
    assert set(sent) == expected


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    """A run that follows its log."""
    with Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}", actor="test") as ledger:
        run = Run(ledger, ledger.open_run("move", "test", SPEC, "test").run_id)
        source = SimpleNamespace(regions=lambda table: [1, 2, 3], held_bytes=lambda: {TABLE: 7_000_000})
        run.__dict__ |= {"source": source, "target": SimpleNamespace(held_bytes=lambda: {TABLE: 9_000_000})}
        run.ledger.phases.start("check_copy")
        run.ledger.phases.finish("check_copy", {})
        yield run


def approve(run: Run) -> None:
    run.ledger.phases.start("approve")
    run.ledger.phases.finish("approve", {})


def hold(run: Run) -> None:
    (number,) = run.ledger.quarantine.put([QuarantineItem("rs%2C1%2C2.10", 5, 7, TABLE, "r1", 4, "damaged", b"")])
    run.ledger.quarantine.hold([Hold("rs%2C1%2C2.10", TABLE, "r1", 0, number)])


def by_thrift(run: Run) -> None:
    run.__dict__["spec"] = SimpleNamespace(writer_kind=WriterKind.THRIFT, tables=run.spec.tables)


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda run: run.ledger.end("aborted", "kim"), "only tables of an unfinished migration"),
        (lambda run: run.ledger.phases.reopen("check_copy"), "wait for the phase check_copy"),
        (
            lambda run: run.ledger.whole.set_paused(run.run_id, True, "kim"),
            "is paused: run `walferry resume move` first",
        ),
        (approve, "the cutover of .* has begun.*`walferry withdraw move` first"),
        (hold, "quarantine holds edits of shop:orders"),
        (by_thrift, r"Thrift \(`apply: thrift`\) cannot express delete markers and tags"),
    ],
)
def test_a_table_is_not_copied_again_where_that_would_lose_or_hide_something(run: Run, spoil: Any, why: str) -> None:
    check_copy_again(run, TABLE)
    spoil(run)
    with pytest.raises(UsageError, match=why):
        ask_copy_again(run, TABLE, "too much differs")
    assert not copying(run.ledger)


def test_what_is_planned_says_how_much_it_is_and_which_decisions_would_not_hold(run: Run) -> None:
    run.ledger.comparisons.accept([Difference(TABLE, b"x", "not-in-log", "known", "1f")], "a cache", "kim")
    planned = plan_copy_again(run, TABLE)
    assert (planned["regions"], planned["source_bytes"], planned["target_bytes"]) == (3, 7_000_000, 9_000_000)
    assert (planned["accepted_rows"], planned["left_out_edits"]) == (1, 0)


def test_whoever_asks_twice_does_not_begin_anew(run: Run) -> None:
    first = ask_copy_again(run, TABLE, "too much differs")
    assert ask_copy_again(run, TABLE, "once more") == first
    assert waits_for_copying(run.ledger) == f"{TABLE} is being copied again: its target table is about to be emptied"
    going_on = Copying(
        "kim", "why", first.asked_ms, first.nonce, True, ((b"\x00", b"m"),), b"m", 1, 3, 10, 5_000_000, "refused"
    )
    going_on.advance(run.ledger, TABLE)
    assert copying(run.ledger) == {TABLE: going_on}
    assert waits_for_copying(run.ledger).endswith("1 of 3 regions, 5 MB are copied; its last attempt failed: refused")
    end_copying(run.ledger, TABLE, going_on, no_check)
    assert not waits_for_copying(run.ledger)
    assert copied(run.ledger)[TABLE].describe().endswith(", 10 cells, 5.0 MB (kim: why)")


# ------------------------------------------------------------------ what was wrong at first


def test_one_error_of_the_ledger_does_not_end_the_thread(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hole: nothing was copied on, and whoever had asked waited for ever."""
    ask_copy_again(run, TABLE, "too much differs")
    went_on = threading.Event()
    errors = iter([TransientError("the ledger is away")])
    found = copying

    def read(ledger: RunLedger) -> dict[str, Copying]:
        for error in errors:
            raise error
        return found(ledger)

    monkeypatch.setattr(module, "copying", read)
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(module, "RETRY_SECONDS", 0.01)
    monkeypatch.setattr(module, "go_on", lambda *_: went_on.set())
    monkeypatch.setattr(module, "_open_again", lambda *_: None)
    with copied_again(run, cast(Any, SimpleNamespace(replays=True))):
        assert went_on.wait(10)


def test_why_it_does_not_go_on_is_told(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    ask_copy_again(run, TABLE, "too much differs")

    def fails(*_: object) -> None:
        raise TransientError("the target refuses a cell")

    monkeypatch.setattr(module, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(module, "go_on", fails)
    monkeypatch.setattr(module, "_open_again", lambda *_: None)
    with copied_again(run, cast(Any, SimpleNamespace(replays=True))):
        deadline = time.monotonic() + 10
        while "its last attempt failed: the target refuses a cell" not in waits_for_copying(run.ledger):
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_a_table_that_cannot_be_copied_keeps_no_other_waiting(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    went_on = threading.Event()

    def go_on(run: Run, standstill: object, table: str, over: object) -> None:
        if table == "bad":
            raise TransientError("the target refuses a cell")
        went_on.set()

    monkeypatch.setattr(module, "copying", lambda ledger: {"bad": None, "good": None})
    monkeypatch.setattr(module, "_note_fault", lambda *_: None)
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(module, "RETRY_SECONDS", 0.01)
    monkeypatch.setattr(module, "go_on", go_on)
    monkeypatch.setattr(module, "_open_again", lambda *_: None)
    with copied_again(run, cast(Any, SimpleNamespace(replays=True))):
        assert went_on.wait(10)


def test_a_suspended_process_brings_nothing_back_that_was_ended_or_begun_anew(run: Run) -> None:
    """Hole: what it kept late made a table that was emptied again count as copied, or shut the gate for good."""
    old = ask_copy_again(run, TABLE, "too much differs")
    give_up(run, TABLE, "never mind")
    with pytest.raises(GivenUpError):
        old.advance(run.ledger, TABLE)
    assert not copying(run.ledger)
    time.sleep(0.002)
    ask_copy_again(run, TABLE, "once more")
    with pytest.raises(GivenUpError):
        replace(old, emptied=True, rest=None).advance(run.ledger, TABLE)
    assert not copying(run.ledger)[TABLE].emptied

    def succeeded(connection: object) -> None:
        raise LeaseLostError("another process has taken the leases")

    with pytest.raises(LeaseLostError):
        replace(copying(run.ledger)[TABLE], emptied=True).advance(run.ledger, TABLE, succeeded)
    assert not copying(run.ledger)[TABLE].emptied


class Target:
    """A target whose master may refuse to empty a table."""

    def __init__(self, *, refuses: bool) -> None:
        self.enabled, self.refuses, self.asked = True, refuses, list[str]()
        self.nonces: list[object] = []

    def table_enabled(self, name: str) -> bool:
        return self.enabled

    def disable_table(self, name: str) -> None:
        self.enabled = False
        self.asked.append("disable")

    def enable_table(self, name: str) -> None:
        self.enabled = True
        self.asked.append("enable")

    def truncate_table(self, name: str, *, nonce: object) -> None:
        self.asked.append("truncate")
        self.nonces.append(nonce)
        if self.refuses:
            raise RemoteError("no right to do that")
        self.enabled = True

    def regions(self, name: str) -> list[Any]:
        return [SimpleNamespace(server="one")]


def emptied_by(run: Run, target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    run.__dict__["target"] = target
    monkeypatch.setattr(module, "lease_check_of", lambda run, route: no_check)
    route: Any = SimpleNamespace(guard=lambda tables: None)
    module._empty(module._Work(run, cast(Any, None), TABLE, lambda: False), route)


def test_a_table_that_is_not_emptied_is_enabled_again_and_asked_for_with_another_nonce(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hole: it stayed disabled, and the replay of all tables failed at it."""
    target = Target(refuses=True)
    ask_copy_again(run, TABLE, "too much differs")
    for _ in range(2):
        with pytest.raises(RemoteError):
            emptied_by(run, target, monkeypatch)
        assert target.enabled
    assert len(set(target.nonces)) == 2, "the master remembers what failed, too"
    target.refuses = False
    emptied_by(run, target, monkeypatch)
    assert copying(run.ledger)[TABLE].emptied
    target.enabled = False  # by a late request of a suspended process
    emptied_by(run, target, monkeypatch)
    assert target.enabled
    assert target.asked.count("truncate") == 3


def test_a_table_is_not_emptied_once_the_cutover_has_begun(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hole: it was approved in the moment between the gate and the request."""
    ask_copy_again(run, TABLE, "too much differs")
    approve(run)
    target = Target(refuses=False)
    with pytest.raises(GivenUpError, match="the cutover has begun"):
        emptied_by(run, target, monkeypatch)
    assert not target.asked
    assert not copying(run.ledger)


def test_a_comparison_from_before_the_copy_opens_no_gate(run: Run) -> None:
    """Hole: with `compare_ahead: false` it counted."""
    side = RangeComparison(TABLE, "r1", b"", b"", 5, 9, "01", 5, 9, "01", {})
    run.ledger.comparisons.record(replace(compared(TABLE), began_ms=now_ms(), ended_ms=now_ms()), [side], [])
    assert not newest_comparison(run.ledger).reasons
    ask_copy_again(run, TABLE, "too much differs")
    give_up(run, TABLE, "never mind")
    (reason,) = newest_comparison(run.ledger).reasons
    assert reason.why == f"{TABLE} has not been compared since it was copied again"


def test_the_gate_does_not_ask_for_the_schema_of_a_table_that_is_just_being_emptied(run: Run) -> None:
    """Hole: for a moment the master knows no such table, and the command that asked the gate ended."""

    def describe(table: str) -> None:
        raise TableNotFoundError("there is no such table")

    run.__dict__["target"] = SimpleNamespace(describe=describe)
    run.source.__dict__["describe"] = lambda table: None
    asked = ask_copy_again(run, TABLE, "too much differs")
    assert schema_differences(run) == []
    replace(asked, emptied=True).advance(run.ledger, TABLE)
    with pytest.raises(TableNotFoundError):
        schema_differences(run)
