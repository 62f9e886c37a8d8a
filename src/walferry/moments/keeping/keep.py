"""Keep what restores any later moment of tables: the phases of a run of kind `keep`, and its loop."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from walferry.background import beside
from walferry.clock import steady_s
from walferry.errors import TransientError, WalferryError
from walferry.ledger import LogPosition
from walferry.moments.keeping.base_files import BasesInFolder
from walferry.moments.keeping.bases import BaseTaker, fence_of
from walferry.moments.keeping.ends import tend_ends
from walferry.moments.keeping.keep_run import KeepRun
from walferry.moments.keeping.letting_go import let_go
from walferry.moments.keeping.plan import plan_keep
from walferry.replay.keeping import by_copies, protect
from walferry.replay.keeping.by_copies import stage_of
from walferry.run.notes.waits import begin_wait, end_wait
from walferry.run.run import RunEndedError
from walferry.run.turn import Turn
from walferry.wal.files import WalFile, list_wals

log = logging.getLogger(__name__)

RETRY_SECONDS = (1.0, 30.0)
LOOK_SECONDS = 1.0
"""time between two looks into the ledger: whether the run has ended or is paused, and which base is due"""
LET_GO_SECONDS = 60.0
"""time between two looks at what is no longer needed"""

WORK: Mapping[str, Callable[[KeepRun], object]] = {
    "plan": lambda run: plan_keep(run),
    "protect": lambda run: begin(run),
    "keep": lambda run: keep_on(run),
}
"""The function of each phase of a run of kind `keep` (`run.phases`). All are idempotent."""


def keep(run: KeepRun) -> None:
    """Do the phases that are not done, and keep until the run is ended. Raises the errors of `keep_on`."""
    for work in WORK.values():
        work(run)


def begin(run: KeepRun) -> dict[str, Any]:
    """The phase `protect`: create the run's folder. The log that is written from now on is copied by `keep_on`."""

    def work() -> dict[str, Any]:
        facts = by_copies.begin(run)
        stage = stage_of(run)
        listed = list_wals(stage.source, stage.root)
        run.ledger.log.set_fence("start", _positions(listed, fence_of(stage.source, stage.root, listed)))
        return facts

    return run.once("protect", work)


def _positions(listed: list[WalFile], fence: Mapping[str, int]) -> list[LogPosition]:
    """Where the log begins that is copied: at the files that are written now. Any later base has what is before."""
    names = {(file.group, file.number): file.name for file in listed}
    newest = {file.group: file.number for file in listed}  # `listed` is ordered by number
    return [
        LogPosition(group, names[group, fence[group]], fence[group], 0)
        if group in fence
        else LogPosition(group, "", number + 1, 0)
        for group, number in newest.items()
    ]


def keep_on(run: KeepRun) -> NoReturn:
    """The phase `keep`: copy the log and take bases until the run is ended. The phase is done then, and this raises
    RunEndedError. Raises TakenOverError if another process has begun the phase.

    While the source cannot be reached, this waits and tries again.
    """

    def work() -> dict[str, Any]:
        turn = Turn(run, "keep")
        try:
            with protect.tended(run), beside(lambda ended: tend_ends(run, ended), "ends of open logs"):
                _keep_on(run, turn)
        except RunEndedError:
            if (state := run.ledger.record.state) == "running":
                raise
            by_copies.leave(run)  # the threads may have written to the folder after the abort had deleted it
            return {"ended": state}

    facts = run.once("keep", work)
    raise RunEndedError(f"run {run.run_id} has ended as {facts['ended']}", run=run.run_id)


def _keep_on(run: KeepRun, turn: Turn) -> NoReturn:
    """Take bases and delete what is no longer needed, again after each transient error, such as one of the ledger."""
    pause = RETRY_SECONDS[0]
    while True:
        began = steady_s()
        try:
            _keep(run, turn)
        except TransientError as error:
            turn.require()
            if steady_s() - began > RETRY_SECONDS[1]:
                pause = RETRY_SECONDS[0]
            log.warning("%s; trying again in %.0f s", error, pause)
            begin_wait(run.ledger, f"to try again, since {error}", pause)
            time.sleep(pause)
            pause = min(2 * pause, RETRY_SECONDS[1])


def _keep(run: KeepRun, turn: Turn) -> NoReturn:
    """Until an error ends it. While the run is paused, the log is copied and nothing else is done."""
    stage = stage_of(run)
    bases, copied = BaseTaker(run, turn.require), BasesInFolder(stage)
    let_go_at = -LET_GO_SECONDS
    end_wait(run.ledger)
    while True:
        turn.require()
        if not run.ledger.record.paused:
            did = bases.look()
            if did or steady_s() - let_go_at >= LET_GO_SECONDS:
                let_go_at = steady_s()
                try:
                    bases.drop_orphans()
                    let_go(run, stage, copied)
                except (WalferryError, OSError) as error:  # the log must be copied on
                    turn.require()
                    log.warning("what is no longer needed was not deleted; trying again: %s", error)
        time.sleep(LOOK_SECONDS)
