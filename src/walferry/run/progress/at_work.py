"""The states in which a process works on a run, or is about to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from walferry import clock
from walferry.clock import shown_utc
from walferry.ledger import PhaseRecord, RunLedger, RunRecord
from walferry.run.facts import opened_ms
from walferry.run.heartbeat import submitted
from walferry.run.notes.copying_again import waits_for_copying
from walferry.run.notes.shut_gate import shut_gate_noted
from walferry.run.notes.table_snapshots import sends_rows
from walferry.run.notes.waits import waits_for
from walferry.run.phases import Phase, Waits, phases_of, steps
from walferry.run.progress.comparing_ahead import left_to_compare
from walferry.run.progress.lag import caught_up, lag_of
from walferry.run.progress.missing_numbers import CAUSES, undecided, way_on
from walferry.run.progress.moments import moments_of
from walferry.run.progress.next_step import DO_WHAT_IT_SAYS, again_by, in_airflow
from walferry.run.progress.states import STATES, State, StateName, label, state_at, superseded
from walferry.run.progress.write_stop import write_stop_of
from walferry.run.recorded_spec import options_of, source_tables

BETWEEN_SECONDS = 60.0
"""Time between two phases; a shell needs less, and usually so does Airflow's scheduler."""


def work_state(ledger: RunLedger, run: RunRecord, phases: Sequence[PhaseRecord], live: Sequence[PhaseRecord]) -> State:
    """The state while a process does a phase."""
    done = {p.phase for p in phases if p.state == "done"}
    at_work = {p.phase for p in live}
    if "stream" in at_work:
        return _streaming(ledger, run, live)
    if "keep" in at_work:
        return _keeping(ledger, run, live)
    if "replay" in at_work or "approve" in at_work or "write_stop" in at_work:
        return _following(ledger, run, done, live)
    newest = live[-1]
    if "write_stop" in done and run.kind == "migration":
        stop, opened, step = write_stop_of(ledger), opened_ms(ledger), ""
        since = f"; writes have been stopped for {stop.seconds():.0f} s" if stop else ""
        if opened is not None and stop:
            since = (
                f"; the target has been open to clients since {shown_utc(opened)}, {stop.seconds():.1f} s after writes "
                "stopped"
            )
            step = "let clients use the target; wait for the verdict of the whole comparison"
        name: StateName = "draining" if newest.phase in ("end_fence", "drain") else "comparing"
        if newest.phase != "release":
            return state_at(name, f"{_what(run, newest)}{since}", newest, run, step)
    return state_at("working", _what(run, newest), newest, run)


def _streaming(ledger: RunLedger, run: RunRecord, live: Sequence[PhaseRecord]) -> State:
    stream = next(p for p in live if p.phase == "stream")
    lag = lag_of(ledger)
    measured = f"lag {lag.seconds:.0f} s" if lag.seconds is not None else lag.unknown
    name: StateName = "following" if caught_up(ledger) else "catching up"
    rows = sends_rows(ledger)
    cause = f"changes are sent: {measured}"
    return state_at(name, f"{cause}; {rows}" if rows else cause, stream, run)


def _keeping(ledger: RunLedger, run: RunRecord, live: Sequence[PhaseRecord]) -> State:
    keep = next(p for p in live if p.phase == "keep")
    moments = moments_of(ledger)
    if moments.is_exposed:
        return state_at("exposed", moments.text, keep, run)
    return state_at("following" if moments.each_has_a_base else "catching up", moments.text, keep, run)


def with_wait(ledger: RunLedger, state: State) -> State:
    """Add what the run's process is waiting for to the state's cause."""
    waits = waits_for(ledger)
    return replace(state, cause=f"{state.cause}; {waits}") if waits else state


def _following(ledger: RunLedger, run: RunRecord, done: set[str], live: Sequence[PhaseRecord]) -> State:
    replay = next((p for p in live if p.phase == "replay"), live[-1])
    question = next((p for p in live if p.phase in ("approve", "write_stop")), None)
    lag = lag_of(ledger)
    measured = f"lag {lag.seconds:.0f} s" if lag.seconds is not None else lag.unknown
    if "write_stop" in done:
        return state_at("draining", "writes have stopped; replay ends after the current round", replay, run)
    if run.kind != "migration":
        return state_at(
            "following" if caught_up(ledger) else "catching up", f"replay is running: {measured}", replay, run
        )
    if missing := undecided(ledger):
        cause = f"the gate is shut, replay goes on: {'; '.join(missing.values())}. {CAUSES}"
        return State(
            "gate shut", cause, way_on(ledger, missing), label(replay), replay.started_ms, "decision",
            "an operator, in the shell",
        )  # fmt: skip
    if "approve" in done:
        if options_of(run).write_stop == "readonly":
            cause = "the source tables are being set READONLY; replay goes on"
            return state_at("working", cause, question or replay, run)
        return _asked("waiting for the write stop", "write stop", measured, question or replay, run)
    near = caught_up(ledger)
    if again := waits_for_copying(ledger):
        return state_at("following" if near else "catching up", f"replay is running: {measured}; {again}", replay, run)
    if (left := left_to_compare(ledger)) and near:
        cause = f"replay is running: {measured}; {', '.join(left[:5])} will be compared before the cutover is offered"
        return state_at("following", cause, replay, run, "wait")
    if shut := shut_gate_noted(ledger):
        return state_at("gate shut", f"{shut}; replay goes on", replay, run, DO_WHAT_IT_SAYS)
    if (question and question.phase == "approve") or near:
        if not near:
            measured += (
                f", above `max_lag` ({options_of(run).max_lag} s): until it is lower, the gate to the cutover is shut"
            )
        return _asked("waiting for approval", "approval", measured, question or replay, run)
    return state_at("catching up", f"replay is running: {measured}", replay, run)


def _asked(name: StateName, answer: Waits, measured: str, phase: PhaseRecord, run: RunRecord) -> State:
    task = "approve_cutover" if answer == "approval" else "confirm_writes_stopped"
    where = f"in Airflow, task `{task}`" if in_airflow(run) else "in the terminal of the command that runs it"
    first = "stop the writers, then " if answer == "write stop" else ""
    cause = f"{STATES[name].cause}: {measured}"
    step = f"{first}answer {where}"
    return State(name, cause, step, label(phase), phase.started_ms, answer, f"an operator, {where}")


def starting_phases(ledger: RunLedger, phases: Sequence[PhaseRecord]) -> dict[str, int]:
    """The phases whose Spark app was submitted but has not started the phase yet, and when it was submitted."""
    begun = {label(p): p.started_ms for p in phases}
    return {name: at_ms for name, at_ms in submitted(ledger).items() if begun.get(name, 0) < at_ms}


def idle_state(
    run: RunRecord,
    phases: Sequence[PhaseRecord],
    lost: Sequence[PhaseRecord],
    starting: Mapping[str, int],
    command_lives: bool,
) -> State:
    """The state while no phase is running, and none has failed or lost its process (`lost`) since the command began."""
    age = clock.now_ms() - run.created_ms
    if not phases and not command_lives and not in_airflow(run) and age > BETWEEN_SECONDS * 1000:
        cause = "its command ended before the first phase began"
        return state_at("interrupted", cause, None, run, again_by(run, ""))
    if not phases:
        cause = STATES["not started"].cause + ("" if age < BETWEEN_SECONDS * 1000 else f" for {age / 60_000:.0f} min")
        return state_at("not started", cause, None, run)
    last = max(phases, key=lambda p: p.finished_ms or 0)
    if run.kind == "drain":
        return state_at("following", "all sealed edits are applied; hbase_wal_watch starts the next drain", last, run)
    if starting:
        name, since_ms = min(starting.items(), key=lambda start: start[1])
        cause = f"Spark is starting for {name}, for {(clock.now_ms() - since_ms) / 1000:.0f} s so far"
        return state_at("working", cause, last, run)
    if command_lives and lost:
        cause = f"{label(lost[-1])} was interrupted; the command that works on the run now is about to repeat it"
        return state_at("working", cause, lost[-1], run)
    if command_lives:
        return state_at("working", f"{label(last)} is {last.state}; the next phase is about to begin", last, run)
    quiet = (clock.now_ms() - (last.finished_ms or 0)) / 1000
    again = f"{label(last)} is to be done again ({last.message})" if superseded(last) else ""
    if again and not in_airflow(run):
        return state_at(
            "interrupted", f"{again}, and no process works on the run", last, run, again_by(run, last.phase)
        )
    if in_airflow(run) or quiet < BETWEEN_SECONDS:
        due = _due(run, phases)
        ended = f"{quiet:.0f} s ago it was found that {again}" if again else f"{label(last)} ended {quiet:.0f} s ago"
        step = (
            ""
            if quiet < BETWEEN_SECONDS
            else f"look at the DAG run: if the task for {due} is not waiting for its turn, clear it"
        )
        return state_at("between phases", f"{ended}, and {due} has not begun", last, run, step)
    cause = f"{label(last)} ended {quiet / 60:.0f} min ago, and no process has worked on the run since"
    return state_at("interrupted", cause, last, run, again_by(run, last.phase))


def _due(run: RunRecord, phases: Sequence[PhaseRecord]) -> str:
    """The first phase of the run that is not done, with its table."""
    done = {(phase.phase, phase.subject) for phase in phases if phase.state == "done"}
    every = ((phase.name, table) for phase, table in steps(run.kind, source_tables(run)))
    return next((f"{name} {table}".strip() for name, table in every if (name, table) not in done), "the end of the run")


def _what(run: RunRecord, phase: PhaseRecord) -> str:
    known: Phase | None = next((p for p in phases_of(run.kind) if p.name == phase.phase), None)
    return f"{label(phase)}: {known.what}" if known else label(phase)
