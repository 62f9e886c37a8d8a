"""A stream of changes from a source's log: its phases, and what follows the log until a person ends it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NoReturn

from walferry.clock import steady_s
from walferry.errors import TransientError
from walferry.replay.keeping import protect
from walferry.replay.log.cut import start_fence
from walferry.run.notes.waits import begin_wait, end_wait
from walferry.run.run import RunEndedError
from walferry.run.turn import Turn
from walferry.streams.beginning import begin, descriptor_of
from walferry.streams.delivery import AnyDestination
from walferry.streams.destination import open_destination
from walferry.streams.fenced import explaining_fences
from walferry.streams.follower import Follower
from walferry.streams.message.changes import Form
from walferry.streams.ordering.regions import KnownRegions
from walferry.streams.ordering.sent import StreamPositions
from walferry.streams.ordering.stays import BEFORE
from walferry.streams.passes import Passes
from walferry.streams.plan import plan_stream
from walferry.streams.resolved import ResolvedTimes
from walferry.streams.sending import Sending
from walferry.streams.snapshot.covered import Covered
from walferry.streams.snapshot.sender import SnapshotSender
from walferry.streams.stream_run import StreamRun

log = logging.getLogger(__name__)

RETRY_SECONDS = (1.0, 30.0)

WORK: Mapping[str, Callable[[StreamRun], object]] = {
    "plan": lambda run: plan_stream(run),
    "protect": lambda run: protect.protect(run),
    "fence": lambda run: start_fence(run),
    "stream": lambda run: follow(run),
}
"""The function of each phase of a stream (`run.phases`). All are idempotent."""


def stream(run: StreamRun) -> None:
    """Do the phases that are not done, and follow the log until the run is ended. Raises the errors of `follow`."""
    for work in WORK.values():
        work(run)


def follow(run: StreamRun) -> NoReturn:
    """The phase `stream`: send every change until the run is ended. The phase is done then, and this raises
    RunEndedError. Raises TakenOverError if another process takes the stream over, which then has the phase.

    While the destination or the source cannot be reached, this waits and tries again: meanwhile the source's log is
    kept.
    """

    def work() -> dict[str, Any]:
        turn = Turn(run, "stream")
        try:
            _follow_on(run, turn)
        except RunEndedError:
            if (state := run.ledger.record.state) == "running":
                raise
            return {"ended": state}

    facts = run.once("stream", work)
    raise RunEndedError(f"run {run.run_id} has ended as {facts['ended']}", run=run.run_id)


def _follow_on(run: StreamRun, turn: Turn) -> NoReturn:
    """Follow, again after each transient error."""
    pause = RETRY_SECONDS[0]
    with protect.tended(run):
        while True:
            began = steady_s()
            try:
                while True:
                    with explaining_fences(turn):
                        _follow(run, turn)
            except TransientError as error:
                if steady_s() - began > RETRY_SECONDS[1]:
                    pause = RETRY_SECONDS[0]
                log.warning("%s; trying again in %.0f s", error, pause)
                begin_wait(run.ledger, f"to try again, since {error}", pause)
                time.sleep(pause)
                pause = min(2 * pause, RETRY_SECONDS[1])


def _follow(run: StreamRun, turn: Turn) -> None:
    """Follow with one sink, until an error ends it."""
    turn.require()
    with open_destination(run) as opened:
        sink, delivery, form = opened.sink, opened.delivery, run.form()
        positions = begin(run, sink)
        run.note_positions()
        known = _known_regions(run, positions)
        covered = Covered({}, known.origin)
        with SnapshotSender(run, form, delivery, sink, sink.positions, positions.regions, covered) as snapshots:
            sending = _sending(run, form, delivery, positions, covered)
            held = run.ledger.quarantine.holds()
            holding = snapshots.snapshots.holding
            follower = Follower(
                run.source, run.wal_files, run.wal_root, run.source_tables, sending, sink, known, positions,
                {hold.region for hold in held}, holding, opened.images,
            )  # fmt: skip
            end_wait(run.ledger)
            times = ResolvedTimes(opened.resolved, form, delivery, sink)
            Passes(run, turn, follower, snapshots, times, len(held)).make()


def _known_regions(run: StreamRun, positions: StreamPositions) -> KnownRegions:
    known = KnownRegions(
        run.source,
        {name: sent.rows for name, sent in positions.regions.items() if sent.rows is not None},
        {name: sent.origin or BEFORE for name, sent in positions.regions.items()},
    )
    for table in run.source_tables:
        known.learn(table, [name for name, sent in positions.regions.items() if sent.table == table])
    return known


def _sending(
    run: StreamRun, form: Form, delivery: AnyDestination, positions: StreamPositions, covered: Covered
) -> Sending:
    left_out = [
        (item.file, item.start) for item in run.ledger.quarantine.items("released") if item.resolution == "accept"
    ]
    return Sending(
        form,
        delivery,
        describe=partial(descriptor_of, run.source),
        tells_new_history=run.source.release.opens_past_closing,
        schemas={name: table.schema for name, table in positions.tables.items()},
        left_out=left_out,
        covered=covered,
    )
