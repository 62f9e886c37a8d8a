"""The fences as the ledger has them."""

from __future__ import annotations

from pathlib import Path

from unit.migration.filled_ledger import SPEC
from walferry.ledger import Ledger, LogPosition, RunLedger, SeenFile
from walferry.run.fences import fences_of
from walferry.wal.fences import Fences

DEAD = LogPosition("dead", "", 2, 0)
"""as the start fence has the group of a server that is dead: after its last file"""
START = {"rs1": (10, 0), "rs2": (4, 5), "dead": (2, 0)}


def test_the_fences_are_those_of_the_ledger_with_the_groups_that_the_run_knows(tmp_path: Path) -> None:
    with Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}", actor="test") as ledger:
        check(ledger.of(ledger.open_run("move", "test", SPEC, "test").run_id))


def check(run: RunLedger) -> None:
    assert fences_of(run) == Fences()
    run.log.set_fence("start", [LogPosition("rs1", "rs1.10", 10, 0), LogPosition("rs2", "rs2.4", 4, 5), DEAD])
    run.log.see_files([SeenFile("rs1.10", "rs1", "rs1", 10, "/WALs/rs1/rs1.10", 7, True)])
    assert fences_of(run) == Fences(START, started_ms=4)
    run.log.set_fence("end", [LogPosition("rs2", "rs2.9", 9, 0)])
    assert fences_of(run) == Fences(START, {"rs2": (9, 0)}, frozenset({"rs1"}), started_ms=4)
