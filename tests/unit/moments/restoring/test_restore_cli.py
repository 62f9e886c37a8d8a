"""What `walferry restore` refuses before it looks at a cluster, each in one line, and what is said of a restore."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from unit.moments.keep_ledger import keep, opened
from unit.run.progress.brought import finish
from unit.test_cli import walferry
from walferry.clock import iso, now_ms
from walferry.ledger import Ledger, RunLedger
from walferry.moments.restoring.restore_run import open_restore, planned


@pytest.fixture
def run(tmp_path: Path) -> Iterator[RunLedger]:
    with Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}", actor="tester") as book:
        yield opened(book)


def said(folder: Path, table: str, at: str, new: str, *more: str) -> str:
    answer = walferry(folder, "restore", table, "--at", at, "--as", new, *more)
    assert (answer.returncode, answer.stdout) == (2, "")
    (line,) = answer.stderr.splitlines()
    return line


def test_a_table_of_which_nothing_is_kept(run: RunLedger, tmp_path: Path) -> None:
    keep(run, 1)
    line = said(tmp_path, "other", "2026-01-01", "new")
    assert line.startswith("error: no run keeps bases of other: `walferry keep SPEC`")


def test_a_moment_before_the_oldest_base(run: RunLedger, tmp_path: Path) -> None:
    keep(run, 1)
    oldest = run.bases.there("orders")[0]
    line = said(tmp_path, "default:orders", "2020-01-01T00:00:00Z", "new")
    assert line == (
        f"error: the oldest base of orders, {oldest.snapshot}, was complete at {iso(oldest.complete_ms)}, which is "
        "after 2020-01-01T00:00:00Z: choose a moment after that"
    )


@pytest.mark.parametrize(
    ("at", "why"),
    [
        ("yesterday", "'yesterday' is no time: give ISO 8601, such as 2026-11-28T14:30:00Z"),
        ("9999-12-31T23:59:59.9999", "9999-12-31T23:59:59.9999 is in the future: give a moment that has passed"),
    ],
)
def test_a_moment_that_is_none(run: RunLedger, tmp_path: Path, at: str, why: str) -> None:
    keep(run, 1)
    assert said(tmp_path, "orders", at, "new") == f"error: {why}"


def test_names_that_cannot_be_used(run: RunLedger, tmp_path: Path) -> None:
    keep(run, 1)
    now = iso(now_ms())
    assert said(tmp_path, "orders", now, "a:b:c").startswith("error: restore orders as a:b:c: ")
    assert said(tmp_path, "orders", now, "new", "--base", "gone").startswith("error: orders has no base gone, only ")
    assert said(tmp_path, "orders", now, "new", "--to", "nowhere").startswith("error: connection nowhere is not known")


def test_status_and_report_leave_out_what_a_restore_never_does(run: RunLedger, tmp_path: Path) -> None:
    keep(run, 1)
    book = run.whole
    record = planned(book, "orders", now_ms(), "orders_before", ("moments-1", run.bases.there("orders")[0]))
    run_id = open_restore(book, record, ("moments-1", run.bases.there("orders")[0]), "cli me")
    finish(book.of(run_id), "plan", "end")
    status = walferry(tmp_path, "status", record.name).stdout.splitlines()[0]
    assert status.startswith(f"{run_id}: end: ")
    report = walferry(tmp_path, "report", record.name, "--reports", str(tmp_path)).stdout
    for text in (status, report):
        for left_out in ("Applied", "Lag", "lag", "Backlog", "gaps", "writes"):
            assert left_out not in text
