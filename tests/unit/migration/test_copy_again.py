"""Copying a table again: every row, in windows, from wherever it was interrupted; refused where it would do harm."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unit.migration.filled_ledger import SPEC
from walferry.errors import UsageError
from walferry.formats.cells import CellType, encode_cell
from walferry.hbase.writer_kind import WriterKind
from walferry.ledger import Difference, Hold, Ledger, QuarantineItem
from walferry.migration import copy_again as module
from walferry.migration.copy_again import ask_copy_again, check_copy_again, plan_copy_again
from walferry.run.copying_again import Copying, copied, copying, end_copying, waits_for_copying
from walferry.run.run import Run

TABLE = "shop:orders"
KEYS = st.lists(st.binary(min_size=1, max_size=2), unique=True, max_size=12).map(sorted)


class Notes:
    """The ledger's notes, without a ledger."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, str], str] = {}

    def keep(self, name: str, facts: Mapping[str, Any], subject: str = "") -> None:
        self._kept[name, subject] = json.dumps(facts)

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

    Copying("kim", "", 1, (1, 2), emptied=True).keep(ledger, TABLE)
    work = module._Work(run, cast(Any, None), TABLE, lambda: False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "send_cells", send)
        patch.setattr(module, "writer_to", lambda route: None)
        patch.setattr(module, "steady_s", lambda: 0.0 if left > 0 else 1e9)
        patch.setattr(module, "WINDOW_SECONDS", 1.0)
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
        (lambda run: run.ledger.end("aborted", "kim"), "is no migration that goes on"),
        (lambda run: run.ledger.phases.reopen("check_copy"), "wait for the phase check_copy"),
        (approve, "the cutover of .* has begun.*`walferry withdraw move` first"),
        (hold, "quarantine holds edits of shop:orders"),
        (by_thrift, "Thrift cannot express delete markers and tags"),
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
    going_on = Copying("kim", "why", 1, first.nonce, True, ((b"\x00", b"m"),), b"m", 1, 3, 10, 5_000_000, "refused")
    going_on.keep(run.ledger, TABLE)
    assert copying(run.ledger) == {TABLE: going_on}
    assert waits_for_copying(run.ledger).endswith("1 of 3 regions, 5 MB are copied; it did not go on: refused")
    end_copying(run.ledger, TABLE, going_on)
    assert not waits_for_copying(run.ledger)
    assert copied(run.ledger)[TABLE].describe().endswith(", 10 cells, 5.0 MB (kim: why)")
