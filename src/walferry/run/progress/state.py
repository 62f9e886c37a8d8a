"""The state of a run, from the ledger alone: shell, board, report and `--json` show what `state_of` returns.

`states` lists all states, `needs_person` and `at_work` derive the current one, and `next_step` says what a person can
do.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Literal

from walferry.amounts import first_of, rows_differ
from walferry.clock import shown_utc
from walferry.ledger import PhaseRecord, RunLedger, RunRecord
from walferry.ledger.rows import RunKind
from walferry.run.facts import opened_ms
from walferry.run.heartbeat import alive, command_since
from walferry.run.notes.answers import why_refused
from walferry.run.notes.last_comparison import comparisons_of_phase
from walferry.run.notes.teardown import teardown_begun, torn_down, torn_down_text
from walferry.run.phases import phases_of
from walferry.run.progress.at_work import idle_state, starting_phases, with_wait, work_state
from walferry.run.progress.needs_person import (
    failure_state,
    gap_state,
    held_state,
    interrupted_state,
    pair_state,
    paused_state,
    stuck_state,
    ticket_state,
)
from walferry.run.progress.next_step import in_airflow
from walferry.run.progress.receiving import receiving_state
from walferry.run.progress.replicating import replication_state
from walferry.run.progress.states import State, StateName, label, meaning, order_of, state_at, superseded

PhaseShown = Literal["not begun", "running", "waiting", "interrupted", "done", "failed"]


def phases_and_signs(ledger: RunLedger) -> tuple[list[PhaseRecord], set[str]]:
    """The phases of a run, and the labels of those at which a live process works ("": a whole command).

    A phase that is recorded as running and is not among the labels has lost its process. Phases and heartbeats are read
    one after the other, and a phase may end with its process in between. So if a phase seems lost, the phases are read
    again: it is lost if the same attempt is still running, and one that has begun since the first reading is at work.
    """
    phases, signs = ledger.phases.all(), alive(ledger)
    lost = [p for p in phases if p.state == "running" and label(p) not in signs]
    if not lost:
        return phases, signs
    with ledger.now():  # `one_moment` would show the first reading: whether a process exists is not of that moment
        phases = ledger.phases.all()
    return phases, signs | {label(p) for p in phases if p.state == "running" and p not in lost}


def phase_shown(phase: PhaseRecord, run: RunRecord, signs: Collection[str]) -> PhaseShown:
    """The state to display for a phase: one recorded as running may wait for a person, or have lost its process.

    `signs`: the labels at which a live process works (`phases_and_signs`).
    """
    if superseded(phase):
        return "not begun"
    if phase.state != "running":
        return phase.state
    if run.state != "running" or label(phase) not in signs:
        return "interrupted"
    known = next((p for p in phases_of(run.kind) if p.name == phase.phase), None)
    return "waiting" if known and known.waits_for else "running"


def state_of(ledger: RunLedger) -> State:
    """The state of a run now, from the ledger."""
    state = _state_of(ledger)
    if state.name in ("gate shut", "waiting for a decision", "gap", "failed") and _asks_way_out(ledger, state):
        refused = f"{why}. " if (why := why_refused(ledger)) else ""
        step = f"`way_out` asks in Airflow how to go on; or {state.next_step}"
        state = replace(state, cause=f"{refused}{state.cause}", next_step=step)
    if state.colour in ("green", "blue") or "open to clients since" in state.cause + state.next_step:
        return state
    if (opened := opened_ms(ledger)) is None:
        return state
    return replace(state, cause=f"{state.cause}; the target has been open to clients since {shown_utc(opened)}")


def _asks_way_out(ledger: RunLedger, state: State) -> bool:
    """Whether the DAG `hbase_migrate` asks a person how to go on. Its runs have the owner "airflow" and the id of a DAG
    run."""
    run = ledger.record
    if not (in_airflow(run) and len(run.owner.split()) == 2 and run.kind == "migration" and run.state == "running"):
        return False
    order = order_of(run.kind)
    late = order.get(state.phase.partition(" ")[0], -1) >= order["end_fence"]
    return late and ledger.phases.facts("write_stop") is not None


def _overtaken(failed: PhaseRecord, phases: Sequence[PhaseRecord], kind: RunKind) -> bool:
    """Whether a failed phase will be done again in any case: it was superseded, or an earlier phase was superseded
    after this one failed."""
    order = order_of(kind)
    at, ended = order.get(failed.phase, 0), failed.finished_ms or 0
    again = [p for p in phases if superseded(p)]
    return any(p is failed or (order.get(p.phase, at) < at and (p.finished_ms or 0) > ended) for p in again)


def _state_of(ledger: RunLedger) -> State:
    run = ledger.record
    if run.state != "running":
        return ended_state(ledger, run, ledger.phases.all())
    if run.kind == "watch":
        return state_at("following", "the source's WAL files are recorded as they change", None, run)
    if run.kind == "replication":
        return replication_state(ledger, run)
    if run.kind == "receive":
        return receiving_state(ledger, run)
    phases, signs = phases_and_signs(ledger)
    # A superseded attempt is still at work: its process notices at the end, and starts over.
    live = [p for p in phases if label(p) in signs and (p.state == "running" or superseded(p))]
    lost = [p for p in phases if p.state == "running" and label(p) not in signs]
    resumed_ms = command_since(ledger) or 0  # phases that ended before are about to be repeated
    starting = starting_phases(ledger, phases)
    again = {name: max(resumed_ms, starting.get(name, 0)) for name in {label(p) for p in phases}}
    ended = [p for p in phases if p.state == "failed" and p not in live and not _overtaken(p, phases, run.kind)]
    failed = [p for p in ended if (p.finished_ms or 0) >= again[label(p)]]
    return (
        gap_state(ledger, run, phases, failed)
        or failure_state(ledger, run, failed, live)
        or stuck_state(ledger, run, live)
        or paused_state(run, live)
        or (None if live else interrupted_state(run, [p for p in lost if p.started_ms >= again[label(p)]]))
        or ticket_state(ledger, run, live)
        or held_state(ledger, run, live)
        or (None if live else pair_state(ledger, run, phases))
        or with_wait(
            ledger,
            work_state(ledger, run, phases, live) if live else idle_state(run, phases, lost, starting, "" in signs),
        )
    )


def ended_state(ledger: RunLedger, run: RunRecord, phases: Sequence[PhaseRecord]) -> State:
    """The run is over."""
    name: StateName = "done" if run.state == "done" else "aborted" if run.state == "aborted" else "failed"
    step = "start a new run" if name == "failed" else meaning(name, run).next_step.replace("NAME", run.name)
    if name == "aborted" and opened_ms(ledger) is not None:
        shown = f"`walferry report {run.name}` says how far"
        step = f"none: clients use the target, which is no longer compared; {shown}"
    compared = comparisons_of_phase(ledger)[0] if name == "done" and run.kind == "migration" else []
    if differing := sum(made.differing_rows for made in compared):
        step = f"read `walferry report {run.name}`: {rows_differ(differing)}, for the reasons that it lists"
    cause = run.outcome or meaning(name, run).cause
    if run.kind == "setup":
        cause, step = _of_setup(ledger, name, cause, step)
    newest = phases[-1] if phases else None
    failed = newest if newest and newest.state == "failed" and name == "failed" else None
    return State(
        name, cause, step, label(newest) if newest else "",
        run.ended_ms or run.created_ms, error=failed.message if failed else "",
        error_class=failed.error_class if failed else "",
    )  # fmt: skip


def _of_setup(ledger: RunLedger, name: StateName, cause: str, step: str) -> tuple[str, str]:
    """Cause and next step of a setup that is over, with what is still set."""
    if torn_down(ledger) is not None:
        return (torn_down_text(ledger), "none") if name == "done" else (cause, step)
    run = ledger.record
    begun = teardown_begun(ledger)
    if name == "done":
        again = f"`walferry replicate teardown {run.name}` goes on"
        return (torn_down_text(ledger), again) if begun else (cause, step)
    still = ledger.objects.left("peer", "scope", "snapshot")
    left = [f"{item.kind} {item.name.partition('=')[0]} at the {item.cluster}" for item in still]
    if not left:
        return cause, step
    again = f"`walferry replicate teardown {run.name}`" if begun else f"`walferry abort {run.run_id} --reason …`"
    return f"{cause}; still set: {first_of(left, most=5)}", f"repeat {again}, which puts it back"
