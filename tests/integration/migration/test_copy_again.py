"""A table that is copied again ends as the source has it, while it and another one are written to."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial

import pytest
from pyspark.sql import SparkSession

from integration.migration.command import COMMAND
from integration.migration.moves import at_work, raw, skip
from walferry.cutover.gates import after_drain
from walferry.cutover.readiness import readiness
from walferry.errors import GateShutError, UsageError
from walferry.formats.cells import CellType
from walferry.hbase.client import HBaseClient
from walferry.hbase.mutate import Cell, delete_column, delete_version
from walferry.migration.comparing import compare_ahead
from walferry.migration.comparing.compare import compare
from walferry.migration.repairing import copy_again as module
from walferry.migration.repairing.copy_again import ask_copy_again, copied_again, copy_again, plan_copy_again
from walferry.migration.report import render, summary
from walferry.migration.touching.equality import standing_comparison
from walferry.replay.rights.lease import LeaseHeldError
from walferry.replay.rights.standstill import Standstill
from walferry.replay.rounds.follower import replay
from walferry.run.notes.copying_again import copying
from walferry.run.run import Run

pytestmark = pytest.mark.cluster

StartRun = Callable[..., Run]
Sides = Callable[[Run], tuple[dict[str, object], dict[str, object]]]
ROWS = [b"%s%03d" % (letter, number) for letter in (b"a", b"h", b"n", b"r") for number in range(50)]


def value(row: bytes, text: bytes, timestamp: int = 5) -> Cell:
    return Cell(row, b"f", b"q", text, timestamp)


@pytest.fixture
def spoilt(
    at_source: HBaseClient, at_target: HBaseClient, make_table: Callable[..., str], start_run: StartRun,
    spark: SparkSession,
) -> tuple[Run, str, str]:  # fmt: skip
    """Two tables; the target's copy of the first one lacks rows, and has others and markers that the source has not."""
    table, other = make_table((b"h", b"n", b"r")), make_table()
    run = start_run(table, other, unlogged_writes="ignore")
    at_source.put(table, [value(row, b"first") for row in ROWS])
    at_source.put(other, [value(row, b"first") for row in ROWS])
    at_source.mutate(table, [delete_version(row, b"f", b"q", 5) for row in ROWS[::7]])
    replay(run, spark, until=lambda: True)
    skip(run, "check_copy")
    at_target.mutate(table, [delete_column(row, b"f", b"q", 9) for row in ROWS[1::5]])
    at_target.put(table, [value(b"stray", b"of nobody")])
    return run, table, other


def markers(client: HBaseClient, table: str) -> list[object]:
    return [cell for row in ROWS for cell in raw(client, table, row) if cell[2] != CellType.PUT]


def command(verb: str, run: Run, table: str, *more: str) -> subprocess.CompletedProcess[str]:
    options = ("--table", table, "--reason", "too much differs", "--ledger", run.ledger.whole.url)
    return subprocess.run(
        [*COMMAND, verb, run.record.name, *options, *more], capture_output=True, text=True, timeout=120
    )


def finish(run: Run, table: str) -> None:
    """Copy on, once the lease of one that was killed has run out."""
    deadline = time.monotonic() + 90
    while True:
        try:
            copy_again(run, table, "too much differs")
            return
        except LeaseHeldError:
            assert time.monotonic() < deadline
            time.sleep(1)


def test_a_table_that_is_copied_again_ends_as_the_source_has_it_while_writers_go_on(
    spoilt: tuple[Run, str, str], at_source: HBaseClient, at_target: HBaseClient, spark: SparkSession, sides: Sides,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    run, table, other = spoilt
    monkeypatch.setattr(module, "WINDOW_SECONDS", 0.0)  # a block at a time
    monkeypatch.setattr(module, "AT_ONCE", 1)
    standstill = Standstill()

    def write(over: Callable[[], bool]) -> None:
        number = 0
        while not over():  # of puts with one timestamp the last one wins
            number += 1
            for name in (table, other):
                at_source.put(name, [value(row, b"%d" % number) for row in ROWS[3::4]])
                at_source.mutate(name, [delete_version(ROWS[number % len(ROWS)], b"f", b"q2", 5)])

    follow = partial(replay, run, spark, standstill=standstill)
    with copied_again(run, standstill), at_work(write, lambda over: follow(until=over)):
        time.sleep(1)
        ask_copy_again(run, table, "too much differs")
        assert "is being copied again" in readiness(run.ledger).model_dump_json()
        seen = set()
        deadline = time.monotonic() + 120
        while (now := copying(run.ledger).get(table)) is not None:
            assert not now.fault
            assert time.monotonic() < deadline
            seen.add((now.emptied, now.regions))
            time.sleep(0.02)
    assert {(False, 0), (True, 2)} <= seen
    replay(run, spark, until=lambda: True)
    here, there = sides(run)
    assert there == here
    assert set(map(str, markers(at_source, table))) == set(map(str, markers(at_target, table)))
    assert not compare(run, lambda: spark, table).differing_rows


@pytest.mark.long
def test_until_a_table_is_copied_again_no_gate_opens_and_afterwards_it_is_compared_as_a_whole(
    spoilt: tuple[Run, str, str], spark: SparkSession, sides: Sides
) -> None:
    run, table, other = spoilt
    with pytest.raises(UsageError, match="has no table 'nothing'"):
        plan_copy_again(run, "nothing")
    assert not compare(run, lambda: spark, other).shuts_the_gate
    assert compare(run, lambda: spark, table).shuts_the_gate
    planned = plan_copy_again(run, table)
    assert (planned["regions"], planned["target"]) == (4, table)
    assert not copying(run.ledger)
    ask_copy_again(run, table, "too much differs")
    with pytest.raises(GateShutError, match="is being copied again: its target table is about to be emptied"):
        after_drain(run)
    pace = compare_ahead._Pace()
    assert standing_comparison(run.ledger, table) is None
    assert not pace.of(run, table), "it is not compared now"
    said = command("copy-again", run, table, "--dry-run")
    first, second = said.stdout.splitlines()
    assert first.startswith(f"would empty {table} at the target: "), said.stderr
    assert second.startswith(f"would copy 4 regions of {table} again: ")
    assert second.endswith("(at least as long as its last comparison took to read it)")
    done = json.loads(command("copy-again", run, table, "--json").stdout)
    assert (done["regions"], done["target"]) == (4, table)
    assert done["cells"] >= len(ROWS)
    assert "copied again until" in render(summary(run.ledger))
    assert pace.of(run, table)
    assert not pace.of(run, other)
    here, there = sides(run)
    assert there == here
    assert not compare(run, lambda: spark, table).differing_rows
    assert standing_comparison(run.ledger, table) is not None
    skip(run, "approve")
    with pytest.raises(UsageError, match=r"the cutover of .* has begun"):
        copy_again(run, table, "once more")


KILLED = """
import os, signal, sys
from walferry.ledger import Ledger
from walferry.migration.repairing import copy_again as module
from walferry.run.run import Run

url, run_id, table, place = sys.argv[1:5]

def dies(work, *, after, number=1):
    def die(*arguments, **keywords):
        nonlocal number
        number -= 1
        made = work(*arguments, **keywords) if after or number else None
        if not number:
            os.kill(os.getpid(), signal.SIGKILL)
        return made
    return die

with Ledger.open(url) as ledger, Run(ledger, run_id) as run:
    module.WINDOW_SECONDS, module.AT_ONCE = 0.0, 1
    if place == "disabled":
        run.target.disable_table = dies(run.target.disable_table, after=True)
    if place == "emptied":
        run.target.truncate_table = dies(run.target.truncate_table, after=True)
    if place == "some is copied":
        module.send_cells = dies(module.send_cells, after=True, number=2)
    if place == "all is copied":
        module.end_copying = dies(module.end_copying, after=False)
    module.copy_again(run, table, "too much differs")
"""


@pytest.mark.parametrize(
    ("place", "by_replay"),
    [
        ("emptied", False),
        ("some is copied", True),
        pytest.param("disabled", True, marks=pytest.mark.long),
        pytest.param("all is copied", False, marks=pytest.mark.long),
    ],
)
def test_a_copy_that_is_killed_goes_on(
    spoilt: tuple[Run, str, str], place: str, by_replay: bool, spark: SparkSession, sides: Sides, at_source: HBaseClient
) -> None:
    run, table, _ = spoilt
    command = [sys.executable, "-c", KILLED, run.ledger.whole.url, run.run_id, table, place]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    left = copying(run.ledger)[table]
    assert left.emptied == (place in ("some is copied", "all is copied"))
    at_source.put(table, [value(row, b"meanwhile", 6) for row in ROWS[::3]])
    if by_replay:
        standstill = Standstill()
        with copied_again(run, standstill):
            replay(run, spark, until=lambda: not copying(run.ledger), standstill=standstill)
    else:
        finish(run, table)
    replay(run, spark, until=lambda: True)
    here, there = sides(run)
    assert there == here
    assert run.target.table_enabled(table)
