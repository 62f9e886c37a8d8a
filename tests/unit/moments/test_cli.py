"""The command of a run that keeps moments: what it says of it, and what an abort would take away."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from unit.moments.keep_ledger import TABLES, base, brought_to, keep, opened
from unit.test_cli import UNREACHABLE, walferry
from walferry.ledger import Ledger, RunLedger
from walferry.ledger.rows import ObjectKind


@pytest.fixture
def run(tmp_path: Path) -> Iterator[RunLedger]:
    with Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}", actor="tester") as book:
        yield opened(book)


def test_the_status_says_what_a_loss_would_cost_and_warns_of_too_much(run: RunLedger, tmp_path: Path) -> None:
    keep(run, 300)
    lines = walferry(tmp_path, "status", "moments").stdout.splitlines()
    assert lines[0].startswith("moments-1: keep: Bases: 2; ")
    assert lines[1].startswith("exposed: a loss of the source now would cost 5 min ")
    assert any(line.startswith("WARNING: a loss of the source now would cost 5 min ") for line in lines)
    moments = json.loads(walferry(tmp_path, "status", "moments", "--json").stdout)["moments"]
    assert moments["too_much"]
    assert moments["loss_seconds"] == pytest.approx(300, abs=20)
    assert moments["since_ms"].keys() == set(TABLES)


def test_a_dry_run_of_abort_says_that_no_moment_could_be_restored_afterwards(run: RunLedger, tmp_path: Path) -> None:
    brought_to(run, "following")
    made: list[tuple[ObjectKind, str]] = [
        ("folder", "file:///backup/moments-1"), ("snapshot", base("orders", 1).snapshot),
    ]  # fmt: skip
    for kind, name in made:
        run.objects.plan("source", kind, name)
        run.objects.made("source", kind, name)
    said = walferry(tmp_path, "abort", "moments", "--reason", "r", "--dry-run").stdout
    assert said == (
        "would abort moments-1 and remove: folder file:///backup/moments-1, snapshot moments-1-orders-1 at the source; "
        "no moment that it has kept could be restored afterwards\n"
    )
    assert run.record.state == "running"
    assert len(run.bases.there()) == 2


def test_a_pause_says_that_the_log_is_copied_on(run: RunLedger, tmp_path: Path) -> None:
    keep(run, 1)
    said = walferry(tmp_path, "pause", "moments").stdout
    assert said == (
        "moments-1 takes no base and deletes nothing (the log is copied on) within a second; `walferry resume moments` "
        "continues it\n"
    )


def test_the_report_leaves_out_what_such_a_run_never_does(run: RunLedger, tmp_path: Path) -> None:
    keep(run, 1)
    said = walferry(tmp_path, "report", "moments", "--reports", str(tmp_path)).stdout
    assert said.startswith("Run moments-1: following: a loss of the source now would cost ")
    assert "Longest lag" not in said
    assert "write stop" not in said


def test_a_spec_that_cannot_be_used_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "keep.yaml").write_text(f"{{name: m, source: {UNREACHABLE}, tables: [t], folder: relative}}")
    answer = walferry(tmp_path, "keep", "keep.yaml")
    assert (answer.returncode, answer.stdout) == (2, "")
    assert answer.stderr == "error: keep.yaml: folder: give the whole path of a folder\n"
