"""The follower: holds the leases of the target tables, decides when a round begins, and sends open logs in between."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from typing import Any

from pyspark.sql import SparkSession

from walferry.apply.route import Route
from walferry.errors import GateShutError, WalferryError
from walferry.replay.keeping.protect import way_of
from walferry.replay.rights import dirty
from walferry.replay.rights.applying import is_paused, lease_check_of, wait_while_paused
from walferry.replay.rights.lease import OutcomeUnknownError
from walferry.replay.rights.standstill import Standstill
from walferry.replay.rounds.open_logs import OpenLogs
from walferry.replay.rounds.rounds import NotCutError, run_round
from walferry.run.between_rounds import pause_seconds
from walferry.run.notes.failing import Attempts
from walferry.run.notes.sent_early import sent_early
from walferry.run.run import Run, RunEndedError

log = logging.getLogger(__name__)

EARLY_SECONDS = 3.0
"""shortest time before a round that is needed because open logs cannot be followed further, or because writes are about
to stop"""
CUT_SECONDS = 300.0
"""if cuts fail for longer than this, because a server does not answer or regions keep moving, the replay fails; until
then it still follows open logs where it can"""
SHOWN_MARKS = 5
LOOK_SECONDS = 0.25
"""time between two checks whether to stop, while no round runs"""
RENEW_SECONDS = 600.0
"""time between two checks whether the source may delete applied WALs"""


def replay(
    run: Run,
    spark: SparkSession,
    *,
    until: Callable[[], bool],
    standstill: Standstill | None = None,
    at_end: Callable[[Route], object] = lambda route: None,
) -> None:
    """Follow the log, under the leases of all target tables, until `until` returns True after a round.

    Each round rolls the WALs of servers that have something new. A quarter of the spec's `max_lag` passes between two
    rounds; in that time the replay sends what the open logs show (not with `follow: false`) and also asks `until`.
    Applied WALs are released after a while (`protect`). The replay rests for callers that wait at `standstill`.
    `at_end` is called under the leases.

    Raises GapError when a file of the log is missing, LeaseHeldError when another run applies,
    TransientError when something stays unreachable for longer than the bounded retries.
    """
    standstill = standstill or Standstill()
    with standstill.about_to_replay():
        while True:
            try:
                return _replay(run, spark, until, standstill, at_end)
            except OutcomeUnknownError as error:
                log.warning("%s; taking the leases again once all requests sent under them have ended", error)


def _replay(
    run: Run,
    spark: SparkSession,
    until: Callable[[], bool],
    standstill: Standstill,
    at_end: Callable[[Route], object],
) -> None:
    """As `replay`, but takes the leases only once. Also raises OutcomeUnknownError."""
    renewed = -math.inf
    ended: BaseException | None = None
    with standstill.replaying(run) as route:
        busy, cut_at, cuts = False, time.monotonic(), Attempts(run.ledger, "cut")
        try:
            open_logs = OpenLogs(run, route, lease_check_of(run, route)) if run.spec.follow else None
            while True:
                wait_while_paused(run)
                busy = True
                standstill.rest()
                try:
                    done = run_round(run, spark, route, open_logs)
                    cut_at, pause = time.monotonic(), pause_seconds(run.spec.max_lag, done.bytes)
                    cuts.succeeded()
                except NotCutError as error:
                    cuts.failed(error)
                    if until() or time.monotonic() - cut_at > CUT_SECONDS:
                        raise
                    log.warning("the log cannot be cut now; trying again: %s", error)
                    pause = EARLY_SECONDS
                busy = False
                if time.monotonic() - renewed >= RENEW_SECONDS:
                    _let_go(run)
                    renewed = time.monotonic()
                stop, since = until(), time.monotonic()
                while not stop and time.monotonic() - since < pause and not is_paused(run):
                    busy = True
                    standstill.rest()
                    needed = open_logs is not None and not open_logs.go_on()
                    busy = False
                    if needed or run.ledger.phases.facts("approve") is not None:
                        pause = min(pause, EARLY_SECONDS)  # approved: each edit applied now shortens the write stop
                    time.sleep(LOOK_SECONDS)
                    stop = until()
                if stop:
                    busy = True
                    at_end(route)
                    return
        except BaseException as error:
            if busy:  # requests may be under way: raise here, so that the leases' next holder waits for them
                raise
            ended = error
    if ended is not None:
        raise ended


def _let_go(run: Run) -> None:
    try:
        way_of(run).let_go(run)
    except RunEndedError:
        raise
    except WalferryError as error:  # the replay itself needs nothing to be released
        log.warning("applied WALs cannot be released and accumulate: %s", error)


def follow(
    run: Run,
    spark: SparkSession,
    look: Callable[[], object] = lambda: None,
    standstill: Standstill | None = None,
) -> None:
    """The phase `replay`: follow the log until the phase `write_stop` is done.

    `look` is called after each round and several times a second in between; its errors end the replay. If the phase is
    started again elsewhere (Airflow retries a task that it had given up), the older attempt raises RunEndedError.
    """

    def attempts() -> int:
        phase = run.ledger.phases.find("replay")
        return phase.attempts if phase else 0

    def work() -> dict[str, Any]:
        mine = attempts()

        def stopped() -> bool:
            if attempts() != mine:
                raise RunEndedError(f"the replay of {run.run_id} was taken over by a newer attempt")
            look()
            return run.ledger.phases.facts("write_stop") is not None

        def seal(route: Route) -> None:
            if is_standby and sent_early(run.ledger):
                run_round(run, spark, route)

        is_standby = run.record.kind == "standby"  # a standby has no drain and no gate afterwards
        replay(run, spark, until=stopped, standstill=standstill, at_end=seal)
        if is_standby:
            marks = [rows.describe() for rows in dirty.marks_of(run)]
            if marks:
                again = f"`walferry verify {run.record.name}` compares them; then `walferry resume {run.record.name}`"
                raise GateShutError(f"{'; '.join(marks[:SHOWN_MARKS])}: {again}", reasons=marks)
        return {}

    run.once("replay", work)
