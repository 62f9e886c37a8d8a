"""The loop: what it keeps up while the run is paused, how it ends, and what the next process finds."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress

import pytest

from unit.moments.keeping.a_source import CLOSED, OPEN, folder, source_of, write
from unit.moments.keeping.test_bases import with_spec
from unit.replay.keeping.test_by_copies import GROUP, LIVE
from walferry.background import begun
from walferry.cutover.ways_out import abort
from walferry.errors import TransientError, WalferryError
from walferry.moments.keeping import keep as keeping
from walferry.moments.keeping.keep import begin, keep_on
from walferry.moments.keeping.keep_run import KeepRun
from walferry.replay.keeping import by_copies
from walferry.run.notes.kept_moments import copied_ends
from walferry.run.run import RunEndedError
from walferry.run.turn import TakenOverError
from walferry.storage import Local


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeping, "LOOK_SECONDS", 0.02)
    monkeypatch.setattr(keeping, "RETRY_SECONDS", (0.02, 0.02))
    monkeypatch.setattr(by_copies, "pause_seconds", lambda ttl_seconds: 0.05)


def wait_until(is_so: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + 20
    while not is_so():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def bases(run: KeepRun) -> set[str]:
    return {base.table for base in run.ledger.bases.there() if base.copied_ms}


def test_it_takes_bases_and_copies_the_log_until_the_run_is_aborted_and_leaves_nothing_then(run: KeepRun) -> None:
    at_work = begun(lambda: keep_on(with_spec(run, tail_seconds=0.05)), "keep")
    wait_until(lambda: bases(run) == {"a", "b"}, "there is no base")
    write(run, LIVE, 10, CLOSED)
    write(run, LIVE, 11, OPEN)
    wait_until((folder(run) / f"{GROUP}.10").exists, "the closed log is not copied")
    wait_until((folder(run) / "open" / f"{GROUP}.11").exists, "the open log is not copied")
    abort(run, "enough")
    with pytest.raises(RunEndedError, match="moments-1 has ended as aborted"):
        at_work.result(30)
    assert not folder(run).exists()
    assert source_of(run).snapshots() == []
    assert run.ledger.bases.there() == []
    assert run.ledger.phases.facts("keep") == {"ended": "aborted"}


def test_what_a_thread_writes_after_an_abort_has_deleted_the_folder_goes_too(
    run: KeepRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    def late(run: KeepRun, ended: threading.Event) -> None:
        ended.wait()
        late_piece = f"{folder(run)}/open/{GROUP}.10/late"
        for _ in range(100):
            with suppress(FileNotFoundError):  # another thread deletes the folder meanwhile
                Local().write(late_piece, [b"late"])
                return

    monkeypatch.setattr(keeping, "tend_ends", late)
    at_work = begun(lambda: keep_on(run), "keep")
    wait_until(lambda: bases(run) == {"a", "b"}, "there is no base")
    abort(run, "enough")
    with pytest.raises(RunEndedError):
        at_work.result(30)
    assert not folder(run).exists()


def test_a_paused_run_copies_the_log_and_takes_no_base(run: KeepRun) -> None:
    run.ledger.whole.set_paused(run.run_id, True, "kim")
    at_work = begun(lambda: keep_on(with_spec(run, tail_seconds=0.05)), "keep")
    wait_until(lambda: copied_ends(run.ledger), "the ends are not copied")
    time.sleep(0.2)
    assert source_of(run).taken == []
    run.ledger.whole.set_paused(run.run_id, False, "kim")
    wait_until(lambda: bases(run) == {"a", "b"}, "there is no base after the pause")
    run.ledger.end("aborted", "kim", "enough")
    with pytest.raises(RunEndedError):
        at_work.result(30)


def test_a_process_whose_run_another_one_goes_on_with_ends_and_leaves_the_folder(run: KeepRun) -> None:
    at_work = begun(lambda: keep_on(with_spec(run, tail_seconds=0.05)), "keep")
    wait_until(lambda: bases(run) == {"a", "b"}, "there is no base")
    run.ledger.phases.start("keep")
    with pytest.raises(TakenOverError, match="another process has taken over moments-1"):
        at_work.result(30)
    assert folder(run).exists()
    phase = run.ledger.phases.find("keep")
    assert phase is not None
    assert (phase.state, phase.attempts) == ("running", 2), "it is the other's"


def test_errors_are_waited_out_and_what_cannot_be_deleted_does_not_stop_the_rest(
    run: KeepRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing = {"stage_of", "let_go"}

    def failing_once(name: str, error: Exception) -> None:
        real = getattr(keeping, name)

        def fails(*of: object) -> object:
            if name in failing:
                failing.remove(name)
                raise error
            return real(*of)

        monkeypatch.setattr(keeping, name, fails)

    failing_once("stage_of", TransientError("the ledger does not answer"))
    failing_once("let_go", WalferryError("somebody has deleted a manifest"))
    at_work = begun(lambda: keep_on(with_spec(run, tail_seconds=0.05)), "keep")
    wait_until(lambda: not failing and bases(run) == {"a", "b"}, "it has ended")
    run.ledger.end("aborted", "kim", "enough")
    with pytest.raises(RunEndedError):
        at_work.result(30)


def test_a_repeated_begin_changes_nothing_although_a_log_was_rolled(run: KeepRun) -> None:
    fence = run.ledger.log.fence("start")
    assert fence
    assert [(position.group, position.number) for position in fence] == [(GROUP, 10)]
    write(run, LIVE, 11, OPEN)
    run.ledger.phases.fail("protect", "killed", "", 1, transient=True)
    begin(run)
    assert run.ledger.log.fence("start") == fence
