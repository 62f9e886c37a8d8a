"""When a base is taken, which log it needs, and what one table's trouble does to the others."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from unit.moments.keeping.a_source import CLOSED, OPEN, folder, set_up_again, source_of, write
from unit.replay.keeping.test_by_copies import GROUP, LIVE
from walferry import clock
from walferry.errors import UsageError
from walferry.ledger.rows import Base
from walferry.moments.keeping import bases as bases_module
from walferry.moments.keeping.bases import BaseTaker, fence_of, take
from walferry.moments.keeping.keep_run import KeepRun
from walferry.replay.keeping.by_copies import stage_of
from walferry.replay.keeping.objects import snapshot_name, take_snapshot
from walferry.run.notes.kept_moments import note_lost_end, troubles_of
from walferry.run.progress.exposure import Exposure, note_exposure
from walferry.run.run import RunEndedError
from walferry.snapshots.manifest import read_manifest
from walferry.storage import Local
from walferry.wal.files import list_live


def taker(run: KeepRun) -> BaseTaker:
    return BaseTaker(run, lambda: None)


def newest(run: KeepRun, table: str) -> Base:
    return run.ledger.bases.there(table)[-1]


def with_spec(run: KeepRun, **changed: object) -> KeepRun:
    """The run with other keys."""
    run.spec = run.spec.model_copy(update=changed)
    return run


def later(monkeypatch: pytest.MonkeyPatch, hours: float) -> None:
    now_ms = clock.now_ms
    monkeypatch.setattr(bases_module, "now_ms", lambda: now_ms() + int(hours * 3_600_000))


def test_a_log_that_is_created_while_the_snapshot_is_taken_is_behind_the_fence(run: KeepRun) -> None:
    source_of(run).meanwhile = lambda: (write(run, LIVE, 10, CLOSED), write(run, LIVE, 11, OPEN))
    base = take(run, stage_of(run), "a")
    assert base.fence == {GROUP: 10}
    assert base.begun_ms <= base.complete_ms
    assert newest(run, "a") == base
    assert base.bytes == len("cells of aa") + len("cells of bb")


def test_of_a_cluster_that_was_set_up_in_place_of_the_source_no_base_is_taken_and_older_ones_stay(run: KeepRun) -> None:
    assert taker(run).look()
    set_up_again(run)
    later_run = with_spec(run, base_hours=1e-9)
    assert not taker(later_run).look()
    assert len(run.ledger.bases.there()) == 2
    for trouble in troubles_of(run.ledger).values():
        assert "is another one now: its id is another id, not its id" in trouble.why
        assert not trouble.gone  # bases of a table that is gone are let go


def test_the_fence_is_at_the_last_log_that_was_certainly_left_by_its_writer(run: KeepRun) -> None:
    write(run, LIVE, 11, OPEN)  # created, but 10 has no trailer: it may still get edits
    write(run, f"{LIVE}-splitting", 5, OPEN, group="rs%2C1%2C1")
    write(run, "WALs/rs,9,9", 7, OPEN, group="rs%2C9%2C9")
    root = run.wal_root
    assert fence_of(Local(), root, list_live(Local(), root)) == {GROUP: 10, "rs%2C9%2C9": 7}
    write(run, LIVE, 10, CLOSED)
    assert fence_of(Local(), root, list_live(Local(), root)) == {GROUP: 11, "rs%2C9%2C9": 7}


def test_each_table_has_a_base_at_once_then_by_period(run: KeepRun, monkeypatch: pytest.MonkeyPatch) -> None:
    one = taker(run)
    assert one.look()
    assert not one.look()
    assert {base.table for base in run.ledger.bases.there()} == {"a", "b"}
    assert len(run.ledger.bases.there()) == 2
    later(monkeypatch, 23.9)
    assert not one.look()
    later(monkeypatch, 24.1)
    assert one.look()
    assert len(run.ledger.bases.there()) == 4


def test_a_base_in_the_folder_is_read_as_from_an_hbase_root_folder(run: KeepRun) -> None:
    taker(run).look()
    base = newest(run, "a")
    assert base.copied_ms is not None
    assert read_manifest(Local(), str(folder(run)), base.snapshot).region_manifests
    (copied,) = (folder(run) / "archive/data/default/a").iterdir()
    assert (copied / "f" / "aa").read_text() == "cells of aa"


def test_a_file_that_is_in_the_folder_is_not_copied_again(run: KeepRun, caplog: pytest.LogCaptureFixture) -> None:
    one = taker(run)
    one.look()
    (copied,) = (folder(run) / "archive/data/default/a").glob("*/f/aa")
    source_of(run).add("a", "cc")
    take(run, stage_of(run), "a")
    with caplog.at_level(logging.INFO):
        assert one.look()
    assert newest(run, "a").copied_ms is not None
    assert "1 file copied, 0.0 MB; 2 were there" in caplog.text
    assert (copied.parent / "cc").read_text() == "cells of cc"


def test_without_copy_bases_the_folder_has_none(run: KeepRun) -> None:
    taker(with_spec(run, copy_bases=False)).look()
    assert newest(run, "a").copied_ms is None
    assert not (folder(run) / "archive").exists()


def test_a_table_that_was_made_anew_gets_a_base_before_its_time(run: KeepRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bases_module, "REGIONS_SECONDS", 0.0)
    one = taker(run)
    one.look()
    assert not one.look()
    source_of(run).add("a", "dd", region_id=2)
    assert one.look()
    assert [len(run.ledger.bases.there(table)) for table in "ab"] == [2, 1]
    assert not one.look()


@pytest.mark.parametrize("lost", ["an end", "time"])
def test_log_that_is_lost_leads_to_a_base_of_each_table(
    lost: str, run: KeepRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bases_module, "REGIONS_SECONDS", 0.0)
    one = taker(run)
    one.look()
    assert not one.look()
    if lost == "an end":
        note_lost_end(run.ledger, f"{GROUP}.10", 5, covered_ms=1)
    else:
        now = clock.now_ms()
        for at_ms in (now - 700_000, now + 1):
            note_exposure(run.ledger, Exposure("copies", 0, 0, False, None, None, 600.0, False, at_ms))
    assert one.look()
    assert [len(run.ledger.bases.there(table)) for table in "ab"] == [2, 2]


def test_a_table_that_is_gone_costs_only_its_own_bases_and_is_tried_again_later(
    run: KeepRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    region = source_of(run).region_ids.pop("a")
    one = taker(run)
    assert one.look()
    assert {base.table for base in run.ledger.bases.there()} == {"b"}
    (told,) = troubles_of(run.ledger).items()
    assert (told[0], told[1].gone) == ("a", True)
    source_of(run).region_ids["a"] = region
    assert not one.look()
    steady_s = clock.steady_s
    monkeypatch.setattr(bases_module, "steady_s", lambda: steady_s() + 11)
    assert one.look()
    assert newest(run, "a")
    assert troubles_of(run.ledger) == {}


def test_a_table_whose_base_could_not_be_read_has_none(run: KeepRun) -> None:
    source_of(run).attributes = {"IS_MOB": "true"}
    with pytest.raises(UsageError, match="no base of a can be taken, since family f keeps values elsewhere"):
        take(run, stage_of(run), "a")
    assert source_of(run).taken == []


def test_an_error_in_a_run_that_was_ended_is_told_as_its_end(run: KeepRun) -> None:
    def ended() -> None:
        raise RunEndedError("it has ended")

    source_of(run).region_ids.pop("a")
    with pytest.raises(RunEndedError):
        BaseTaker(run, ended).look()
    assert troubles_of(run.ledger) == {}


def test_a_base_that_is_taken_while_the_run_is_aborted_leaves_no_snapshot(run: KeepRun) -> None:
    source_of(run).meanwhile = lambda: run.ledger.end("aborted", "kim", "enough")
    with pytest.raises(RunEndedError):
        take(run, stage_of(run), "a")
    assert source_of(run).snapshots() == []


def test_a_snapshot_that_a_killed_process_has_not_recorded_goes_after_an_hour(
    run: KeepRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = taker(run)
    one.look()
    take_snapshot(run, snapshot_name(run.run_id, "a"), "a")
    one.drop_orphans()
    assert len(source_of(run).snapshots()) == 3
    later(monkeypatch, 1.1)
    one.drop_orphans()
    assert {one.name for one in source_of(run).snapshots()} == {base.snapshot for base in run.ledger.bases.there()}
    kinds = json.dumps([item.state for item in run.ledger.objects.all() if item.kind == "snapshot"])
    assert kinds.count("removed") == 1


def test_half_a_file_of_a_killed_process_does_not_count(run: KeepRun) -> None:
    place = Path("archive") / source_of(run).folder("a").relative_to(source_of(run).root) / "aa"
    Local().write(str(folder(run) / place), [b"half"])
    taker(run).look()
    assert (folder(run) / place).read_text() == "cells of aa"
