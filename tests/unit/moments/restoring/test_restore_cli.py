"""What `walferry restore` refuses before it looks at a cluster, each in one line, and what is said of a restore."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from unit.moments.keep_ledger import base, keep, opened
from unit.run.progress.brought import finish
from unit.test_cli import walferry
from walferry.clock import iso, now_ms
from walferry.errors import UsageError
from walferry.ledger import Ledger, RunLedger, RunRecord
from walferry.moments.restoring.base import Kept
from walferry.moments.restoring.restore import require_past
from walferry.moments.restoring.restore_run import RestoreRun, chosen, open_restore, planned
from walferry.run.notes.kept_moments import copied_ends


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


@pytest.fixture
def lost(run: RunLedger, monkeypatch: pytest.MonkeyPatch) -> RunLedger:
    """A run whose source is lost, 100 s after the log was last copied. Another cluster is known as `standby`."""
    keep(run, 100)
    monkeypatch.setenv("WALFERRY_CLOCK_SKEW_SECONDS", "30")
    standby = {"host": "127.0.0.1", "port": 1, "extra": {"webhdfs": "http://127.0.0.1:1", "rootdir": "/hbase"}}
    monkeypatch.setenv("AIRFLOW_CONN_STANDBY", json.dumps(standby | {"conn_type": "hbase"}))
    return run


def from_folder(folder: Path, at: str, *more: str) -> str:
    return said(folder, "orders", at, "new", "--from-folder", *more)


def test_without_the_source_a_target_and_a_copied_base_are_needed(lost: RunLedger, tmp_path: Path) -> None:
    now = iso(now_ms())
    assert from_folder(tmp_path, now) == (
        "error: with --from-folder the source is lost: name the new table's cluster by --to CONNECTION"
    )
    assert from_folder(tmp_path, "latest", "--to", "standby") == (
        "error: no base of orders was copied to a folder, as with `copy_bases: true`: without the source nothing "
        "can be restored from it"
    )
    assert said(tmp_path, "orders", "latest", "new") == (
        "error: --at latest is for a lost source, with --from-folder: give a time"
    )


def test_without_the_source_a_moment_up_to_which_the_log_was_not_copied_is_refused(
    lost: RunLedger, tmp_path: Path
) -> None:
    older, newer = base("orders", now_ms() - 200_000), base("orders", now_ms() - 5_000)
    lost.bases.record(older)
    lost.bases.copied(older.snapshot)
    covered = copied_ends(lost)
    assert covered is not None
    line = from_folder(tmp_path, iso(covered.covered_ms - 29_000), "--to", "standby")
    assert line == (
        f"error: all of the log was copied up to {iso(covered.covered_ms)} by the clock of moments-1, so, with "
        f"servers' clocks that may differ, up to {iso(covered.covered_ms - 30_000)}: choose a moment up to then, or "
        "--at latest for all that is there"
    )
    with RestoreRun(lost.whole, *kept_of(lost, covered.covered_ms - 31_000)) as restore:
        require_past(restore)
    lost.bases.record(newer)
    with RestoreRun(lost.whole, *kept_of(lost, None)) as restore:
        assert restore.kept.base.snapshot == older.snapshot  # the newer one is not in the folder
        assert restore.at_ms == covered.at_ms + 30_000
        require_past(restore)


def kept_of(run: RunLedger, at_ms: int | None) -> tuple[RunRecord, None, Kept]:
    """What a restore from the folder alone would begin with."""
    kept, moment = chosen(run.whole, "orders", at_ms, alone=True)
    return planned(run.whole, "orders", moment, "new", kept), None, kept


def test_an_unfinished_restore_goes_on_only_as_it_began(run: RunLedger) -> None:
    keep(run, 1)
    kept, at_ms = chosen(run.whole, "orders", now_ms())
    record = planned(run.whole, "orders", at_ms, "new", kept)
    run_id = open_restore(run.whole, record, kept, "cli me")
    assert open_restore(run.whole, record, kept, "cli me") == run_id
    with pytest.raises(UsageError, match=rf"{run_id} is not finished, and began from base {kept.base.snapshot} of mom"):
        open_restore(run.whole, record, replace(kept, alone=True), "cli me")


def test_status_and_report_leave_out_what_a_restore_never_does(run: RunLedger, tmp_path: Path) -> None:
    keep(run, 1)
    book = run.whole
    kept = Kept("moments-1", run.bases.there("orders")[0])
    record = planned(book, "orders", now_ms(), "orders_before", kept)
    run_id = open_restore(book, record, kept, "cli me")
    finish(book.of(run_id), "plan", "end")
    status = walferry(tmp_path, "status", record.name).stdout.splitlines()[0]
    assert status.startswith(f"{run_id}: end: ")
    report = walferry(tmp_path, "report", record.name, "--reports", str(tmp_path)).stdout
    for text in (status, report):
        for left_out in ("Applied", "Lag", "lag", "Backlog", "gaps", "writes"):
            assert left_out not in text
