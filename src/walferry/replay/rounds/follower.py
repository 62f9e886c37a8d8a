"""The follower: decides when a round begins, under the leases of the target tables; open logs are sent in between."""

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
from walferry.replay.rights.applying import fence_of, is_paused, wait_while_paused
from walferry.replay.rights.lease import OutcomeUnknownError
from walferry.replay.rights.standstill import Standstill
from walferry.replay.rounds.open_logs import OpenLogs
from walferry.replay.rounds.rounds import NotCutError, run_round
from walferry.run.notes.sent_early import sent_early
from walferry.run.run import Run, RunEndedError

log = logging.getLogger(__name__)

BUSY_BYTES = 64 << 20
"""of log in a round, from which on the next one begins soon: the source itself rolls a WAL of about that size"""
PAUSE_SECONDS = (2.0, 60.0)
"""at least and at most, between two rounds"""
EARLY_SECONDS = 3.0
"""between two rounds at least, of which the second is needed because open logs cannot be followed further, or because
writes are about to stop"""
CUT_SECONDS = 300.0
"""for which the log may not be cut, because a server does not answer or regions move all the time; what can be followed
is followed meanwhile"""
SHOWN_MARKS = 5
LOOK_SECONDS = 0.25
"""between two looks, while no round runs, whether to stop"""
RENEW_SECONDS = 600.0
"""between two looks whether the source may delete what is applied"""


def replay(
    run: Run,
    spark: SparkSession,
    *,
    until: Callable[[], bool],
    standstill: Standstill | None = None,
    at_end: Callable[[Route], object] = lambda route: None,
) -> None:
    """Follow the log until `until` returns True after a round; holds the leases of all target tables meanwhile.

    Between two rounds, each of which rolls the WALs of servers that have something new, a quarter of the spec's
    `max_lag` passes, and what the open logs show is sent (not with `follow: false`). `until` is asked then, too. WALs
    that are applied are let go after a while (`protect`). It rests for whoever waits at `standstill`. `at_end` is
    called under the leases.

    Raises GapError when a file of the log is missing, LeaseHeldError when another run applies,
    TransientError when something stays unreachable for longer than the bounded retries.
    """
    standstill = standstill or Standstill()
    with standstill.about_to_replay():
        while True:
            try:
                return _replay(run, spark, until, standstill, at_end)
            except OutcomeUnknownError as error:
                log.warning("%s; the leases are taken again, once all that was sent under them has ended", error)


def _replay(
    run: Run,
    spark: SparkSession,
    until: Callable[[], bool],
    standstill: Standstill,
    at_end: Callable[[Route], object],
) -> None:
    """The same under one taking of the leases. Raises OutcomeUnknownError, too."""
    renewed = -math.inf
    ended: BaseException | None = None
    with standstill.replaying(run) as route:
        busy, cut_at = False, time.monotonic()
        try:
            open_logs = OpenLogs(run, route, fence_of(run, route)) if run.spec.follow else None
            while True:
                wait_while_paused(run)
                busy = True
                standstill.rest()
                try:
                    done = run_round(run, spark, route, open_logs)
                    cut_at, pause = time.monotonic(), _pause_seconds(run.spec.max_lag, done.bytes)
                except NotCutError as error:
                    if until() or time.monotonic() - cut_at > CUT_SECONDS:
                        raise
                    log.warning("the log cannot be cut now, which is tried again: %s", error)
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
                        pause = min(pause, EARLY_SECONDS)  # approved: what is applied now need not be in the write stop
                    time.sleep(LOOK_SECONDS)
                    stop = until()
                if stop:
                    busy = True
                    at_end(route)
                    return
        except BaseException as error:
            if busy:  # requests may be under way: the next holder of the leases waits for them
                raise
            ended = error
    if ended is not None:
        raise ended


def _let_go(run: Run) -> None:
    try:
        way_of(run).let_go(run)
    except RunEndedError:
        raise
    except WalferryError as error:  # replay itself needs only what is kept
        log.warning("WALs that are applied are kept, more and more of them: %s", error)


def _pause_seconds(max_lag: int, applied_bytes: int) -> float:
    least, most = PAUSE_SECONDS
    return least if applied_bytes >= BUSY_BYTES else min(most, max(least, max_lag / 4))


def follow(
    run: Run,
    spark: SparkSession,
    look: Callable[[], object] = lambda: None,
    standstill: Standstill | None = None,
) -> None:
    """The phase `replay`: follow the log until the phase `write_stop` is done.

    `look` is called after each round and several times a second between two; what it raises ends the replay. If the
    phase is started again elsewhere (a task that was given up and retried), the older one ends: RunEndedError.
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

        is_standby = run.record.kind == "standby"  # no drain follows, and no gate
        replay(run, spark, until=stopped, standstill=standstill, at_end=seal)
        if is_standby:
            marks = [rows.describe() for rows in dirty.marks_of(run)]
            if marks:
                again = f"`walferry verify {run.record.name}` compares them; then `walferry resume {run.record.name}`"
                raise GateShutError(f"{'; '.join(marks[:SHOWN_MARKS])}: {again}", reasons=marks)
        return {}

    run.once("replay", work)
