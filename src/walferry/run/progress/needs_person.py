"""The states in which a run needs a person. Each function returns None if the run is not in its state."""

from __future__ import annotations

from collections.abc import Sequence

from walferry.amounts import amount
from walferry.ledger import PhaseRecord, RunLedger, RunRecord
from walferry.refusals import RefusalKind
from walferry.run.facts import opened_ms
from walferry.run.heartbeat import SILENT_SECONDS, ticket_faults
from walferry.run.notes.failing import Work, failing
from walferry.run.notes.last_comparison import comparisons_of_phase
from walferry.run.notes.last_pass import last_pass, verdict
from walferry.run.progress.backlog import unapplied
from walferry.run.progress.missing_numbers import undecided, way_on
from walferry.run.progress.next_step import DO_WHAT_IT_SAYS, OPEN_STAYS, again_by, in_airflow, way_on_if_rows_differ
from walferry.run.progress.states import State, StateName, label, meaning, order_of, state_at
from walferry.run.recorded_spec import peer_of


def gap_state(
    ledger: RunLedger, run: RunRecord, phases: Sequence[PhaseRecord], failed: Sequence[PhaseRecord]
) -> State | None:
    """A WAL file is missing."""
    missing = [file.name for file in unapplied(ledger) if file.state == "missing"]
    met = [p for p in failed if p.error_class == "GapError"]
    if not met and not missing:
        return None
    opened, step = opened_ms(ledger) is not None, ""
    if run.kind == "stream":
        step = (
            f"find out who removed the file. If you have it, put it into the source's oldWALs, then "
            f"{again_by(run, 'stream')}; if it is lost, so are its changes: `walferry abort {run.name} --reason …`, "
            f"and start the stream again with a higher `epoch`"
        )
    if opened:
        step = (
            "find out who removed the file. If you have it, put it into the source's oldWALs, then "
            f"{again_by(run, met[-1].phase if met else 'drain')}; if it is lost, {OPEN_STAYS}, and `walferry verify "
            f"{run.name}` names the rows that differ"
        )
    if met and not (opened and missing):  # the error advises to start over: too late once the target is open
        return state_at("gap", met[-1].message, met[-1], run, step, failed=True)
    more = f" and {len(missing) - 1} more files" if len(missing) > 1 else ""
    done = "sent" if run.kind == "stream" else "applied"
    cause = f"WAL file {missing[0]}{more} is missing at the source and was not {done}"
    return state_at("gap", cause, phases[-1] if phases else None, run, step)


def failure_state(
    ledger: RunLedger, run: RunRecord, all_failed: Sequence[PhaseRecord], live: Sequence[PhaseRecord]
) -> State | None:
    """The newest failure that nobody is working on.

    A failed phase is being worked on when an earlier phase of the run is running again. For the two questions, replay
    does not count: they are asked while replay runs.
    """
    order = order_of(run.kind)

    def worked_past(failed: PhaseRecord) -> bool:
        beside = {"replay"} if failed.phase in ("approve", "write_stop") else set()
        return any(order[p.phase] < order[failed.phase] for p in live if p.phase not in beside)

    open_ones = [p for p in all_failed if p.phase in order and not _said_no(p) and not worked_past(p)]
    if not open_ones:
        return None
    newest = max(open_ones, key=lambda p: (p.finished_ms or 0, order[p.phase]))
    if newest.error_class == "KeyboardInterrupt" or newest.message.endswith("was interrupted"):
        cause = f"{label(newest)} was interrupted by a person"
        return state_at("interrupted", cause, newest, run, again_by(run, newest.phase), failed=True)
    if newest.error_class == "DecisionNeededError":
        return _undecided(ledger, run, newest)
    shut = newest.phase == "check_drain" or newest.error_class in ("GateShutError", "SidesDifferError")
    name: StateName = "gate shut" if shut else "failed"
    next_step = f"fix what the cause names, then {again_by(run, newest.phase)}"
    if newest.error_class == "SidesDifferError":
        again = again_by(run, "compare" if newest.phase == "check_drain" else newest.phase)
        next_step = f"{way_on_if_rows_differ(ledger, [])}; then {again}"
    elif shut and newest.phase == "approve" and live and not in_airflow(run):
        next_step = f"{DO_WHAT_IT_SAYS}. The question is then asked again"
    elif shut and (missing := undecided(ledger)):
        next_step = f"{way_on(ledger, missing)}; fix what else the cause names, then {again_by(run, newest.phase)}"
    return state_at(name, f"{label(newest)}: {newest.message}", newest, run, next_step, failed=True)


def _undecided(ledger: RunLedger, run: RunRecord, check: PhaseRecord) -> State:
    waiting = ledger.comparisons.undecided(comparisons_of_phase(ledger)[0])  # as the gate counts them
    tables = sorted({item.table for item in waiting})
    again = again_by(run, check.phase)
    since = check.finished_ms or check.started_ms
    if not waiting:
        cause = "the rows that differ are accepted; the last check has not been repeated"
        return State("waiting for a decision", cause, again, label(check), since, "decision", "an operator")
    named = ", ".join(tables)
    rows = amount(len(waiting), f"row of {named} differs and waits", f"rows of {named} differ and wait")
    cause = f"{rows} for a decision"
    # After `compare` is cleared, it compares again only if rows were repaired.
    return State(
        "waiting for a decision", cause,
        f"{way_on_if_rows_differ(ledger, tables)}; then {again_by(run, 'compare')}",
        label(check), since, "decision", "an operator, in the shell", check.message, check.error_class,
    )  # fmt: skip


def _said_no(phase: PhaseRecord) -> bool:
    return phase.error_class == "NotApprovedError"


def interrupted_state(run: RunRecord, lost: Sequence[PhaseRecord]) -> State | None:
    """The process of a phase is gone."""
    if not lost:
        return None
    cause = (
        f"{label(lost[-1])} is recorded as running, but its process has died, or sent no heartbeat for "
        f"{SILENT_SECONDS:.0f} s: it was killed, or cannot reach the ledger"
    )
    step = again_by(run, lost[-1].phase)
    if in_airflow(run):
        step = f"none if Airflow retries the task; otherwise {step}"
    return state_at("interrupted", cause, lost[-1], run, step)


def stuck_state(ledger: RunLedger, run: RunRecord, live: Sequence[PhaseRecord]) -> State | None:
    """The source's log has not been kept, or not been cut, for a while. While a run is paused, it is not cut."""
    works: tuple[Work, ...] = ("keeping",) if run.paused else ("keeping", "cut")
    found = [one for work in works if (one := failing(ledger, work)) is not None]
    if not live or not found:
        return None
    cause = "; ".join(one.describe() for one in found)
    step = "; ".join(one.to_do(run.name) for one in found)
    return State("stuck", cause, step, label(live[-1]), min(one.since_ms for one in found))


def paused_state(run: RunRecord, live: Sequence[PhaseRecord]) -> State | None:
    """An operator paused the run."""
    if not run.paused:
        return None
    cause = meaning("paused", run).cause if live else "an operator paused the run, and no phase is running"
    return state_at("paused", cause, live[-1] if live else None, run)


def ticket_state(ledger: RunLedger, run: RunRecord, live: Sequence[PhaseRecord]) -> State | None:
    """A Kerberos ticket ends before long, and its renewal failed."""
    faults = ticket_faults(ledger)
    return state_at("ticket ending", "; ".join(faults), live[-1] if live else None, run) if faults else None


def held_state(ledger: RunLedger, run: RunRecord, live: Sequence[PhaseRecord]) -> State | None:
    """Items wait in quarantine."""
    held = ledger.quarantine.items("held")
    if not held:
        return None
    items = amount(len(held), "item waits", "items wait")
    step = f"`walferry quarantine list {run.name}`, then `walferry quarantine release`"
    waiting = "; later changes of the same region wait, all others are sent" if run.kind == "stream" else ""
    if any(item.kind is RefusalKind.LINEAGE for item in held):  # it cannot be released
        step = f"`walferry abort {run.name} --reason …`, then migrate into a new target table"
        if opened_ms(ledger) is not None:
            step = f"`walferry quarantine list {run.name}`: what came after it is not applied, and {OPEN_STAYS}"
    return State(
        "held", f"{items} in quarantine for a decision, the first: {held[0].reason}{waiting}", step,
        label(live[-1]) if live else "", held[0].recorded_ms, "decision", "an operator, in the shell",
    )  # fmt: skip


def pair_state(ledger: RunLedger, run: RunRecord, phases: Sequence[PhaseRecord]) -> State | None:
    """A pass over a pair has ended."""
    made = last_pass(ledger) if run.kind == "pair" else None
    if made is None:
        return None
    newest = phases[-1] if phases else None
    if made.not_judged and not made.differing_rows:
        step = "have the peer ship: do what the cause names; the next pass judges the rows"
        if "rolled_ms" in made.shipped:
            step = "let the peer catch up, or verify while less is written: a pass judges the rows once fewer differ"
        return state_at("stuck", verdict(made), newest, run, step)
    if not made.differing_rows:
        return state_at("following", verdict(made), newest, run, "none")
    step = ""
    if peer_of(run) is not None:
        step = "find out who writes at one side only; `walferry repair NAME` makes the target's rows equal"
    return state_at("differing", verdict(made), newest, run, step)
