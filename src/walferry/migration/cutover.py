"""Cut over: the approval and the write stop."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from walferry.clock import shown_utc
from walferry.errors import UsageError, WalferryError
from walferry.ledger import RunLedger
from walferry.replay.objects import made
from walferry.run.answers import drop_word, word_of
from walferry.run.facts import WriteStopFacts, note_opened, opened_ms
from walferry.run.heartbeat import alive
from walferry.run.run import Run

log = logging.getLogger(__name__)


Answer = str | Callable[[], str]
"""who gave an answer; or a function that asks and returns who did, so that the phase shows as waiting meanwhile"""


def approve(run: Run, answer: Answer | None, gate: Callable[[Run], None]) -> dict[str, Any]:
    """Record a person's approval of the cutover; `gate` raises GateShutError unless it is open at that moment."""

    def work() -> dict[str, Any]:
        by = answer() if callable(answer) else answer
        if by is None:
            raise UsageError(f"nobody has approved the cutover of {run.run_id}")
        gate(run)
        run.ledger.audit(by, "approve cutover", {})
        return {"by": by}

    return run.once("approve", work)


def stop_writes(run: Run, confirmed: Answer | None, said_ms: int | None = None) -> WriteStopFacts:
    """Record that writes have stopped; with `write_stop: readonly` set the source tables READONLY first.

    With `write_stop: confirm` the operator has stopped the writers and confirms it: `confirmed`. Fact `at_ms`: the
    moment from which the stop counts, which is the confirmation (`said_ms` if it was given before this is called) or
    the first table's READONLY.
    """

    def work() -> dict[str, Any]:
        by = None
        if run.spec.write_stop == "confirm":
            by = confirmed() if callable(confirmed) else confirmed
        at_ms = time.time_ns() // 1_000_000
        if run.spec.write_stop == "readonly":
            ours = {o.name for o in run.ledger.objects.all() if o.kind == "read-only table"}
            for pair in run.tables:
                if run.source.describe(pair.source).read_only and pair.source not in ours:
                    continue  # set by its owner: an abort must not lift it
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
    """Record the write stop if a person has said that writes have stopped (`run.answers`), unless somebody
    else is about to record it."""
    if run.spec.write_stop != "confirm" or run.ledger.phases.facts("approve") is None:
        return
    word, phase = word_of(run.ledger, "write_stop"), run.ledger.phases.find("write_stop")
    if word is None or (phase is not None and phase.state != "failed"):
        return
    try:
        stop_writes(run, word.by, word.said_ms)
    except WalferryError as error:
        if run.ledger.phases.facts("write_stop") is None:
            log.warning("that writes have stopped is not recorded yet: %s", error)


def drain_again(run: Run, *phases: str) -> None:
    """Have the next attempt repeat these phases, the drain and what follows it. An open target stays open."""
    note_opened(run.ledger)
    for phase in (*phases, "drain"):
        run.ledger.phases.reopen(phase)
    if opened_ms(run.ledger) is None:
        run.ledger.phases.reopen("open_target")
    for pair in run.tables:
        run.ledger.phases.reopen("compare", pair.source)


def require_closed(ledger: RunLedger, *, target_is_open: bool) -> None:
    """Raise UsageError once clients may use the target, unless that is known: nobody then looks whether both sides are
    equal."""
    opened = opened_ms(ledger)
    if ledger.record.state != "running" or opened is None or target_is_open:
        return
    at = shown_utc(opened, "%Y-%m-%d ")
    raise UsageError(
        f"the target of {ledger.run_id} has been open to clients since {at}: there is no way back to the source. An "
        "abort would only end the comparison with the source, whose tables stay READONLY if the run has set that. Say "
        "--target-is-open if that is what you want",
        run=ledger.run_id, opened_ms=opened,
    )  # fmt: skip


AFTER_APPROVAL = ("approve", "write_stop", "replay", "end_fence", "drain", "open_target")


def withdraw(run: Run, reason: str, actor: str, *, dry_run: bool = False) -> list[str]:
    """Take the cutover back, so that the writers go on: the next attempt replays again, and everything from the
    approval on is done anew.

    READONLY that the run has set is lifted. Start fence, peer and whatever is not applied stay; so do rejected late
    edits, which are left out for good. Returns the source tables that were read-only. Raises UsageError before the
    write stop, once the target is open to clients, and while a process works on the run.
    """
    run.ledger.require_running()
    if run.ledger.phases.facts("write_stop") is None:
        raise UsageError(f"writes to the tables of {run.run_id} have not been stopped: there is no cutover to withdraw")
    if opened_ms(run.ledger) is not None:
        raise UsageError(f"the target of {run.run_id} is open to clients: the source can no longer take their place")
    if working := sorted(alive(run.ledger)):
        raise UsageError(
            f"a process works on {run.run_id} ({', '.join(filter(None, working)) or 'its command'}): interrupt it first"
        )
    late = run.ledger.late.all()
    ours = [o.name for o in run.ledger.objects.all() if o.kind == "read-only table" and o.state != "removed"]
    if dry_run:
        return ours
    for name in ours:
        run.source.set_read_only(name, False)
        run.ledger.objects.removed("source", "read-only table", name)
    run.ledger.late.decide([edit for edit in late if not edit.decision], "apply", reason or "the writers go on", actor)
    for phase in ("approve", "write_stop"):  # whoever answered will be asked again
        drop_word(run.ledger, phase)
    for phase in AFTER_APPROVAL:
        run.ledger.phases.reopen(phase, reason="the writers go on")
    for pair in run.tables:
        run.ledger.phases.reopen("compare", pair.source, "the writers go on")
    run.ledger.audit(actor, "withdraw the cutover", {"run": run.run_id, "read_only_lifted": ours, "reason": reason})
    return ours
