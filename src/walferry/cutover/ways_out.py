"""Ways out of a write stop whose checks did not pass: repair, accept or mend, and check again; or withdraw, or abort.

The shell has a verb for each; in Airflow, `hbase_migrate` asks which one to take.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from walferry.clock import shown_utc
from walferry.errors import UsageError
from walferry.ledger import RunLedger
from walferry.migration.explaining.accept import accept, waiting
from walferry.migration.repairing.asked_repairs import candidates, compare_again, repair_now, repaired_row_text
from walferry.migration.setup import teardown
from walferry.replay.keeping import objects
from walferry.run.facts import opened_ms
from walferry.run.heartbeat import alive
from walferry.run.notes.answers import drop_word
from walferry.run.notes.ways_out import Way, ways_out
from walferry.run.run import LogRun, Run

log = logging.getLogger(__name__)

LAST_TO_FIRST = ("open_target", "drain", "end_fence", "replay", "write_stop", "approve")
"""the phases from the approval on, as a withdrawal reopens them: if it is killed before it reopens the write stop, it
can be repeated"""


def take(run: Run, way: Way, rows: Sequence[str], reason: str, actor: str) -> None:
    """Take the way that a person chose. Unless that is "Abort", the phases of the run that are not done must then be
    done again.

    `rows`, to accept: each a source table and a row key as in the report, separated by a space; if there are none, all
    rows that differ for a known reason. Raises UsageError for a way that is no longer possible, and for rows that wait
    for no decision.
    """
    if way not in ways_out(run.ledger):
        raise UsageError(f"{way}: this is not possible any more, or not yet, for {run.run_id}", run=run.run_id)
    match way:
        case "Check again":
            for pair in run.tables:
                if waiting(run.ledger, pair.source, unexplained=True):
                    compare_again(run, pair.source, "the cause may be gone")
        case "Repair, check again":
            _repair(run)
        case "Accept, check again":
            _accept(run, rows, reason, actor)
        case "Withdraw":
            lifted = withdraw(run, reason, actor)
            log.info("writers may go on%s", f"; writable again: {', '.join(lifted)}" if lifted else "")
        case "Abort":
            facts = abort(run, reason or "a gate was shut", actor=actor)
            log.info("removed: %s", ", ".join(facts["removed"]) or "nothing")


def _repair(run: Run) -> None:
    made = repair_now(run, {pair.source: candidates(run, pair.source) for pair in run.tables})
    for row in made:
        log.info("%s", repaired_row_text(row))
    if not made:
        log.info("no row of %s is known to differ", run.run_id)


def _accept(run: Run, rows: Sequence[str], reason: str, actor: str) -> None:
    ledger = run.ledger
    wanted: dict[str, list[str] | None] = {}
    for line in rows:
        table, _, row = line.partition(" ")
        if not row:
            raise UsageError(f"{line!r} names no row: write a source table, a space and a row key")
        wanted[table] = [*(wanted.get(table) or ()), row]
    if not rows:
        wanted = {pair.source: None for pair in run.tables if waiting(ledger, pair.source)}
        if not wanted:
            raise UsageError(f"no row of {run.run_id} differs for a known reason: name those to accept")
    for dry_run in (True, False):  # all or none
        for table, of_table in wanted.items():
            accept(ledger, table, of_table, reason, actor, dry_run=dry_run)


def require_closed(ledger: RunLedger, *, target_is_open: bool) -> None:
    """Raise UsageError once clients may use the target, unless the caller knows that (`target_is_open`): nobody then
    checks whether both sides are equal."""
    opened = opened_ms(ledger)
    if ledger.record.state != "running" or opened is None or target_is_open:
        return
    at = shown_utc(opened, "%Y-%m-%d ")
    raise UsageError(
        f"the target of {ledger.run_id} has been open to clients since {at}: there is no way back to the source. An "
        "abort would only end the comparison with the source, whose tables stay READONLY if the run has set that. To "
        "abort all the same, add --target-is-open",
        run=ledger.run_id, opened_ms=opened,
    )  # fmt: skip


def withdraw(run: Run, reason: str, actor: str, *, dry_run: bool = False) -> list[str]:
    """Take the cutover back, so that the writers can continue: the next attempt replays again and repeats everything
    from the approval on.

    This lifts READONLY where the run set it. Start fence, peer and unapplied edits stay; rejected late edits stay left
    out for good. Returns the source tables that were read-only. Raises UsageError before the write stop, once the
    target is open to clients, and while a process works on the run.
    """
    run.ledger.require_running()
    if run.ledger.phases.facts("write_stop") is None:
        raise UsageError(f"writes to the tables of {run.run_id} have not been stopped: there is no cutover to withdraw")
    if opened_ms(run.ledger) is not None:
        raise UsageError(
            f"the target of {run.run_id} is open, and clients may have written to it: the writers cannot go back"
        )
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
    for phase in ("approve", "write_stop"):  # the person who answered will be asked again
        drop_word(run.ledger, phase)
    for pair in run.tables:
        run.ledger.phases.reopen("compare", pair.source, "the writers go on")
    for phase in LAST_TO_FIRST:
        run.ledger.phases.reopen(phase, reason="the writers go on")
    run.ledger.audit(actor, "withdraw the cutover", {"run": run.run_id, "read_only_lifted": ours, "reason": reason})
    return ours


def abort(run: LogRun, reason: str, *, target_is_open: bool = False, actor: str | None = None) -> dict[str, Any]:
    """End the run as aborted and remove the objects that it created on the clusters; target tables stay as they are.

    Returns the facts of `objects.release`. Repeat the abort to remove objects that were left the first time. Once
    clients may use the target, raises UsageError unless `target_is_open`; with it, source tables that the run set
    READONLY stay READONLY.
    """
    if run.record.kind == "setup":
        assert isinstance(run, Run), f"{run.run_id} has two clusters"
        return teardown.abort(run, reason, actor or run.actor)
    require_closed(run.ledger, target_is_open=target_is_open)
    run.ledger.end("aborted", actor or run.actor, reason)
    return objects.release(run, aborted=True)
