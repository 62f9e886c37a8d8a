"""What is deleted of the folder and at the source, and what stays; the files are real, on this machine."""

from __future__ import annotations

import logging

import pytest

from unit.moments.keeping.a_source import CLOSED, OPEN, folder, source_of, write
from unit.moments.keeping.test_bases import later, newest, taker, with_spec
from unit.replay.keeping.test_by_copies import GROUP, LIVE
from walferry import clock
from walferry.moments.keeping import letting_go
from walferry.moments.keeping.base_files import BasesInFolder
from walferry.moments.keeping.bases import take
from walferry.moments.keeping.ends import Ends
from walferry.moments.keeping.keep_run import KeepRun
from walferry.moments.keeping.letting_go import let_go
from walferry.replay.keeping import by_copies
from walferry.replay.keeping.by_copies import stage_of
from walferry.run.notes.kept_moments import BaseOfRestore, folder_bytes, note_base_of_restore, note_trouble


def go(run: KeepRun) -> None:
    stage = stage_of(run)
    let_go(run, stage, BasesInFolder(stage))


def two_bases(run: KeepRun) -> None:
    """A base of each table, a roll and a compaction, another base of each table; all logs are copied."""
    one = taker(run)
    one.look()
    write(run, LIVE, 10, CLOSED)
    write(run, LIVE, 11, OPEN)
    by_copies.tend(run)
    source = source_of(run)
    for table in "ab":
        (source.folder(table) / "aa").unlink()
        source.add(table, "cc")
        take(run, stage_of(run), table)
    one.look()


def files(run: KeepRun, table: str) -> set[str]:
    return {path.name for path in (folder(run) / "archive/data/default" / table).glob("*/f/*")}


def logs(run: KeepRun) -> set[str]:
    return {path.name for path in folder(run).iterdir() if path.is_file()}


def test_a_base_from_which_a_restore_begins_stays_until_that_has_ended(run: KeepRun) -> None:
    two_bases(run)
    oldest, whole = run.ledger.bases.there("a")[0], run.ledger.whole
    restore = whole.of(
        whole.open_run("restore_x", "me", {"name": "restore_x", "tables": ["a"]}, "me", "restore").run_id
    )
    note_base_of_restore(restore, BaseOfRestore(keeper=run.run_id, snapshot=oldest.snapshot))
    go(with_spec(run, keep_days=1e-9))
    assert oldest in run.ledger.bases.there("a")
    restore.end("done", "me", "")
    go(with_spec(run, keep_days=1e-9))
    assert oldest not in run.ledger.bases.there("a")


def test_a_base_that_is_no_longer_needed_goes_with_its_files_its_snapshot_and_the_log_before_the_next_one(
    run: KeepRun,
) -> None:
    two_bases(run)
    go(run)
    assert len(run.ledger.bases.there()) == 4, "they are not seven days old"
    assert logs(run) == {f"{GROUP}.10"}
    go(with_spec(run, keep_days=1e-9))
    assert [base.table for base in run.ledger.bases.there()] == ["a", "b"]
    assert files(run, "a") == {"bb", "cc"}
    assert logs(run) == set()
    assert run.ledger.staged.there() == []
    assert {one.name for one in source_of(run).snapshots()} == {newest(run, table).snapshot for table in "ab"}
    assert {path.name for path in (folder(run) / ".hbase-snapshot").iterdir()} == {
        newest(run, table).snapshot for table in "ab"
    }
    sizes = 2 * len("cells of bb" + "cells of cc")
    assert folder_bytes(run.ledger) == sizes


def test_pieces_of_a_log_that_is_lost_go_once_no_base_needs_them(run: KeepRun) -> None:
    ends = Ends(run)
    ends.copy()
    two_bases(with_spec(run, copy_bases=False))
    (folder(run) / f"{GROUP}.10").unlink()
    go(run)
    assert [path.name for path in (folder(run) / "open").iterdir()] == [f"{GROUP}.10"]
    go(with_spec(run, keep_days=1e-9))
    assert list((folder(run) / "open").iterdir()) == []


def test_a_folder_that_is_too_large_loses_its_oldest_bases_with_a_warning_and_an_audit_line(
    run: KeepRun, caplog: pytest.LogCaptureFixture
) -> None:
    two_bases(run)
    with caplog.at_level(logging.WARNING):
        go(with_spec(run, keep_bytes=1.0))
    assert [base.table for base in run.ledger.bases.there()] == ["a", "b"]
    assert files(run, "b") == {"bb", "cc"}
    assert "goes before its 7 days are over" in caplog.text
    assert [line.action for line in run.ledger.audit_trail()].count("base dropped early") == 2


def test_the_bases_of_a_table_that_is_gone_go_after_the_days_that_are_kept(
    run: KeepRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    taker(run).look()
    note_trouble(run.ledger, "a", "there is no table a", gone=True)
    now_ms = clock.now_ms
    monkeypatch.setattr(letting_go, "now_ms", lambda: now_ms() + 6 * 86_400_000)
    go(run)
    assert len(run.ledger.bases.there()) == 2
    monkeypatch.setattr(letting_go, "now_ms", lambda: now_ms() + 8 * 86_400_000)
    go(run)
    assert [base.table for base in run.ledger.bases.there()] == ["b"]
    assert files(run, "a") == set()


def test_a_process_that_was_killed_while_it_deleted_leaves_the_rest_to_the_next_one(
    run: KeepRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    two_bases(run)
    oldest = run.ledger.bases.there("a")[0].snapshot
    run.ledger.bases.dropped(oldest)  # and killed
    go(run)
    assert files(run, "a") == {"bb", "cc"}
    assert not (folder(run) / ".hbase-snapshot" / oldest).exists()
    later(monkeypatch, 2)
    taker(run).drop_orphans()
    assert oldest not in {one.name for one in source_of(run).snapshots()}
