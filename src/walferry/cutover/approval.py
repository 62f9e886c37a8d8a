"""Start of the cutover: the approval and the write stop."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from walferry.cutover.gates import before_cutover
from walferry.errors import UsageError, WalferryError
from walferry.replay.keeping.objects import made
from walferry.run.facts import WriteStopFacts
from walferry.run.notes.answers import word_of
from walferry.run.run import Run

log = logging.getLogger(__name__)


Answerer = str | Callable[[], str]
"""the person who answered; or a function that asks and returns that person, so that the phase shows as waiting
meanwhile"""


def approve(run: Run, answer: Answerer | None) -> dict[str, Any]:
    """Record a person's approval of the cutover. Raises GateShutError if the gate is shut at that moment."""

    def work() -> dict[str, Any]:
        by = answer() if callable(answer) else answer
        if by is None:
            raise UsageError(f"nobody has approved the cutover of {run.run_id}")
        before_cutover(run)
        run.ledger.audit(by, "approve cutover", {})
        return {"by": by}

    return run.once("approve", work)


def stop_writes(run: Run, confirmed: Answerer | None, said_ms: int | None = None) -> WriteStopFacts:
    """Record that writes have stopped; with `write_stop: readonly`, set the source tables READONLY first.

    With `write_stop: confirm`, the operator has stopped the writers and confirms that: `confirmed`. Fact `at_ms`: the
    moment from which the stop counts. That is the confirmation (`said_ms` if it came before this call) or the first
    table's READONLY.
    """

    def work() -> dict[str, Any]:
        by = None
        if run.spec.write_stop == "confirm":
            by = confirmed() if callable(confirmed) else confirmed
        at_ms = time.time_ns() // 1_000_000
        if run.spec.write_stop == "readonly":
            ours = {o.name for o in run.ledger.objects.all() if o.kind == "read-only table" and o.state != "removed"}
            for pair in run.tables:
                if run.source.describe(pair.source).read_only and pair.source not in ours:
                    continue  # its owner set it: an abort must not lift it
                run.ledger.objects.plan("source", "read-only table", pair.source)
                run.source.set_read_only(pair.source, True)
                made(run, "source", "read-only table", pair.source)
        elif said_ms is not None:
            at_ms = said_ms
        if run.spec.write_stop == "confirm" and by is None:
            raise UsageError(f"nobody has confirmed that writes to the tables of {run.run_id} have stopped")
        return WriteStopFacts(at_ms=at_ms, how=run.spec.write_stop, by=by).model_dump()

    return WriteStopFacts.model_validate(run.once("write_stop", work))


def heed_word(run: Run) -> None:
    """Record the write stop if a person has said that writes have stopped (`run.notes.answers`), unless another process
    is about to record it."""
    if run.spec.write_stop != "confirm" or run.ledger.phases.facts("approve") is None:
        return
    word, phase = word_of(run.ledger, "write_stop"), run.ledger.phases.find("write_stop")
    if word is None or (phase is not None and phase.state != "failed"):
        return
    try:
        stop_writes(run, word.by, word.said_ms)
    except WalferryError as error:
        if run.ledger.phases.facts("write_stop") is None:
            log.warning("the write stop is not recorded yet: %s", error)
