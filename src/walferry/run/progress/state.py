"""The state of a run: its name, colour and cause, and the next step that a person can take.

One function derives it from the ledger alone; the shell, the board, the report and `--json` show what it returns.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from walferry import clock
from walferry.amounts import amount, rows_differ
from walferry.clock import shown_utc
from walferry.ledger import PhaseRecord, RunLedger, RunRecord, source_tables
from walferry.ledger.rows import RunKind
from walferry.refusals import RefusalKind
from walferry.run.facts import opened_ms
from walferry.run.heartbeat import SILENT_SECONDS, alive, command_since, submitted
from walferry.run.notes.answers import why_refused
from walferry.run.notes.copying_again import waits_for_copying
from walferry.run.notes.last_comparison import comparisons_of_phase
from walferry.run.notes.pairs import last_pass, verdict
from walferry.run.notes.shut_gate import shut_gate_noted
from walferry.run.notes.waits import waits_for
from walferry.run.phases import Phase, Waits, phases_of, steps
from walferry.run.progress.backlog import unapplied
from walferry.run.progress.comparing_ahead import left_to_compare
from walferry.run.progress.lag import caught_up, lag_of, max_lag
from walferry.run.progress.missing_numbers import CAUSES, undecided, way_on
from walferry.run.progress.write_stop import write_stop_of

Colour = Literal["grey", "blue", "amber", "violet", "red", "green"]
StateName = Literal[
    "not started", "working", "between phases", "catching up", "following", "waiting for approval",
    "waiting for the write stop", "waiting for a decision", "draining", "comparing", "paused", "held", "gate shut",
    "gap", "differing", "failed", "interrupted", "done", "aborted",
]  # fmt: skip
_DO_WHAT_IT_SAYS = "do what the cause says; `walferry ready NAME` shows every reason"
BETWEEN_SECONDS = 60.0
"""Longer than a shell, or usually Airflow's scheduler, takes from one phase to the next."""


@dataclass(frozen=True)
class Kind:
    """What a state means in general. docs/board.md has this as a table."""

    colour: Colour
    cause: str
    next_step: str


STATES: Mapping[StateName, Kind] = {
    "not started": Kind(
        "grey",
        "no phase has begun",
        "wait; if nothing begins, check whether the DAG is paused or the shell has ended",
    ),
    "working": Kind(
        "blue",
        "a phase is running",
        "wait",
    ),
    "between phases": Kind(
        "blue",
        "a phase has ended and the next one has not begun",
        "wait a minute; then look at the DAG run, or `walferry resume NAME`",
    ),
    "catching up": Kind(
        "blue",
        "replay is running, and the lag is above `max_lag` or not measured yet",
        "wait; if the lag keeps growing, give Spark more cores",
    ),
    "following": Kind(
        "blue",
        "the target follows the log within `max_lag`",
        "none: replay goes on until a person ends it",
    ),
    "waiting for approval": Kind(
        "amber",
        "nobody has approved the cutover yet; replay goes on",
        "answer the question in the shell, or approve `approve_cutover` in Airflow",
    ),
    "waiting for the write stop": Kind(
        "amber",
        "the cutover is approved, but nobody has confirmed yet that writes have stopped; replay goes on",
        "stop the writers, then answer the question in the shell, or approve `confirm_writes_stopped` in Airflow",
    ),
    "waiting for a decision": Kind(
        "amber",
        "rows differ for a reason that is known, and nobody has decided yet whether to accept that",
        "`walferry repair NAME`, or `walferry accept NAME --table TABLE --all --reason …`; or, while the target is not "
        "open, `walferry withdraw NAME` lets the writers go on; then clear `compare`, or `walferry resume NAME`",
    ),
    "draining": Kind(
        "blue",
        "writes have stopped; the rest of the log is being applied",
        "wait: clients cannot write meanwhile",
    ),
    "comparing": Kind(
        "blue",
        "writes have stopped; both sides are being compared and checked",
        "wait: clients cannot write until the target is open",
    ),
    "paused": Kind(
        "violet",
        "an operator paused the run; no edits are sent to the target",
        "`walferry resume NAME`",
    ),
    "held": Kind(
        "violet",
        "edits in quarantine wait for a decision; others are still applied",
        "`walferry quarantine list NAME`, then release each item",
    ),
    "gate shut": Kind(
        "red",
        "a check found a reason not to go on",
        "fix what the cause names, then clear the task, or `walferry resume NAME`",
    ),
    "gap": Kind(
        "red",
        "a log file that was not applied is missing",
        "find out who removed the file. If you have it, put it into the source's oldWALs and clear the task, or "
        "`walferry resume NAME`; if it is lost and the target is not open, `walferry abort NAME`, drop the target "
        "tables and start over",
    ),
    "differing": Kind(
        "red",
        "rows of a pair differed in its last pass",
        "find out who writes at one side only; mend the rows, and verify the pair again",
    ),
    "failed": Kind(
        "red",
        "a phase failed, or the run ended as failed",
        "fix what the cause names, then clear the task, or `walferry resume NAME`; start a new run if it has ended",
    ),
    "interrupted": Kind(
        "red",
        f"a phase is recorded as running, but its process has died, or sent no heartbeat for {SILENT_SECONDS:.0f} s",
        "`walferry resume NAME`; in Airflow the task is retried automatically, or clear it",
    ),
    "done": Kind(
        "green",
        "every check has passed",
        "none",
    ),
    "aborted": Kind(
        "grey",
        "an operator ended the run; target tables stay as they are",
        "start a new run",
    ),
}
"""Every state that a run can be in."""


@dataclass(frozen=True)
class State:
    """The state of one run now."""

    name: StateName
    cause: str
    """the cause for this run; the general one is in `STATES`"""
    next_step: str
    phase: str
    """the phase that the state is about, with its table; "" before the first phase"""
    since_ms: int
    waits_for: Waits | Literal["decision"] | None = None
    """the answer that a person owes"""
    whom: str = ""
    """who owes it, and where it is asked"""
    error: str = ""
    """what the phase failed with"""
    error_class: str = ""
    """and the class of that error, for programs"""

    @property
    def colour(self) -> Colour:
        """The state's colour."""
        return STATES[self.name].colour


PhaseShown = Literal["not begun", "running", "waiting", "interrupted", "done", "failed"]


def phase_shown(phase: PhaseRecord, run: RunRecord, signs: Collection[str]) -> PhaseShown:
    """The state to display for a phase: one recorded as running may wait for a person, or have lost its process.

    `signs`: the labels with a live heartbeat (`heartbeat.alive`).
    """
    if _superseded(phase):
        return "not begun"
    if phase.state != "running":
        return phase.state
    if run.state != "running" or label(phase) not in signs:
        return "interrupted"
    known = next((p for p in phases_of(run.kind) if p.name == phase.phase), None)
    return "waiting" if known and known.waits_for else "running"


def label(phase: PhaseRecord) -> str:
    """A phase with its table."""
    return f"{phase.phase} {phase.subject}".strip()


def state_of(ledger: RunLedger) -> State:
    """The state of a run, from what the ledger says now."""
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
    """Whether the DAG `hbase_migrate`, which gives its runs' ids as owners, asks a person how to go on."""
    run = ledger.record
    if not (_in_airflow(run) and len(run.owner.split()) == 2 and run.kind == "migration" and run.state == "running"):
        return False
    order = _order(run.kind)
    late = order.get(state.phase.partition(" ")[0], -1) >= order["end_fence"]
    return late and ledger.phases.facts("write_stop") is not None


def _order(kind: RunKind) -> dict[str, int]:
    """The places of the phases of a kind of run."""
    return {phase.name: number for number, phase in enumerate(phases_of(kind))}


def _superseded(phase: PhaseRecord) -> bool:
    """Whether a phase is to be done again, since what it was based on has changed."""
    return phase.state == "failed" and phase.transient and not phase.error_class


def _overtaken(failed: PhaseRecord, phases: Sequence[PhaseRecord], kind: RunKind) -> bool:
    """Whether a phase that failed is to be done again in any case, or one before it since then."""
    order = _order(kind)
    at, ended = order.get(failed.phase, 0), failed.finished_ms or 0
    again = [p for p in phases if _superseded(p)]
    return any(p is failed or (order.get(p.phase, at) < at and (p.finished_ms or 0) > ended) for p in again)


def _state_of(ledger: RunLedger) -> State:
    run = ledger.record
    phases = ledger.phases.all()
    if run.state != "running":
        return _ended(ledger, run, phases)
    if run.kind == "watch":
        return _state("following", "the source's WAL files are recorded as they change", None, run)
    signs = alive(ledger)
    # A superseded attempt is still at work: its process notices at the end, and begins again.
    live = [p for p in phases if label(p) in signs and (p.state == "running" or _superseded(p))]
    lost = [p for p in phases if p.state == "running" and label(p) not in signs]
    resumed_ms = command_since(ledger) or 0  # what ended before is about to be repeated
    starting = _starting(ledger, phases)
    again = {name: max(resumed_ms, starting.get(name, 0)) for name in {label(p) for p in phases}}
    ended = [p for p in phases if p.state == "failed" and p not in live and not _overtaken(p, phases, run.kind)]
    failed = [p for p in ended if (p.finished_ms or 0) >= again[label(p)]]
    return (
        _gap(ledger, run, phases, failed)
        or _failed(ledger, run, failed, live)
        or _paused(run, live)
        or (None if live else _interrupted(run, [p for p in lost if p.started_ms >= again[label(p)]]))
        or _held(ledger, run, live)
        or (None if live else _pair(ledger, run, phases))
        or _waiting(
            ledger, _at_work(ledger, run, phases, live) if live else _idle(run, phases, lost, starting, "" in signs)
        )
    )


# ------------------------------------------------------------------ states that need a person


def _gap(
    ledger: RunLedger, run: RunRecord, phases: Sequence[PhaseRecord], failed: Sequence[PhaseRecord]
) -> State | None:
    missing = [file.name for file in unapplied(ledger) if file.state == "missing"]
    met = [p for p in failed if p.error_class == "GapError"]
    if not met and not missing:
        return None
    opened, step = opened_ms(ledger) is not None, ""
    if opened:
        step = (
            "find out who removed the file. If you have it, put it into the source's oldWALs, then "
            f"{_again(run, met[-1].phase if met else 'drain')}; if it is lost, {_OPEN_STAYS}, and `walferry verify "
            f"{run.name}` names the rows that differ"
        )
    if met and not (opened and missing):  # what it says of starting over is too late for an open target
        return _state("gap", met[-1].message, met[-1], run, step, failed=True)
    more = f" and {len(missing) - 1} more files" if len(missing) > 1 else ""
    cause = f"WAL file {missing[0]}{more} is missing at the source and was not applied"
    return _state("gap", cause, phases[-1] if phases else None, run, step)


def _failed(
    ledger: RunLedger, run: RunRecord, all_failed: Sequence[PhaseRecord], live: Sequence[PhaseRecord]
) -> State | None:
    """The newest failure that is not being worked on already.

    A failed phase is being worked on when an earlier phase of the run is running again. Replay does not count for the
    two questions, which are asked while it runs.
    """
    order = _order(run.kind)

    def worked_past(failed: PhaseRecord) -> bool:
        beside = {"replay"} if failed.phase in ("approve", "write_stop") else set()
        return any(order[p.phase] < order[failed.phase] for p in live if p.phase not in beside)

    open_ones = [p for p in all_failed if p.phase in order and not _said_no(p) and not worked_past(p)]
    if not open_ones:
        return None
    newest = max(open_ones, key=lambda p: (p.finished_ms or 0, order[p.phase]))
    if newest.error_class == "KeyboardInterrupt" or newest.message.endswith("was interrupted"):
        cause = f"{label(newest)} was interrupted by a person"
        return _state("interrupted", cause, newest, run, _again(run, newest.phase), failed=True)
    if newest.error_class == "DecisionNeededError":
        return _undecided(ledger, run, newest)
    shut = newest.phase == "check_drain" or newest.error_class in ("GateShutError", "SidesDifferError")
    name: StateName = "gate shut" if shut else "failed"
    next_step = f"fix what it names, then {_again(run, newest.phase)}"
    if newest.error_class == "SidesDifferError":
        again = _again(run, "compare" if newest.phase == "check_drain" else newest.phase)
        next_step = f"{way_on_if_rows_differ(ledger, [])}; then {again}"
    elif shut and newest.phase == "approve" and live and not _in_airflow(run):
        next_step = f"{_DO_WHAT_IT_SAYS}. The question is then asked again"
    elif shut and (missing := undecided(ledger)):
        next_step = f"{way_on(ledger, missing)}; fix what else it names, then {_again(run, newest.phase)}"
    return _state(name, f"{label(newest)}: {newest.message}", newest, run, next_step, failed=True)


def _undecided(ledger: RunLedger, run: RunRecord, check: PhaseRecord) -> State:
    waiting = ledger.comparisons.undecided(comparisons_of_phase(ledger)[0])  # those that the gate goes by
    tables = sorted({item.table for item in waiting})
    again = _again(run, check.phase)
    since = check.finished_ms or check.started_ms
    if not waiting:
        cause = "the rows that differ are accepted; the last check has not been repeated"
        return State("waiting for a decision", cause, again, label(check), since, "decision", "an operator")
    named = ", ".join(tables)
    rows = amount(len(waiting), f"row of {named} differs and waits", f"rows of {named} differ and wait")
    cause = f"{rows} for a decision"
    # Clearing `compare` compares again only if rows were repaired.
    return State(
        "waiting for a decision", cause,
        f"{way_on_if_rows_differ(ledger, tables)}; then {_again(run, 'compare')}",
        label(check), since, "decision", "an operator, in the shell", check.message, check.error_class,
    )  # fmt: skip


_OPEN_STAYS = "the target, which is open to clients, stays as it is"


def way_on_if_rows_differ(ledger: RunLedger, explained: Sequence[str]) -> str:
    """What a person can do about rows that differ at the end. `explained`: the tables in which all of them have a
    reason, so that they can be accepted together."""
    run, opened = ledger.record, opened_ms(ledger)
    shown = f"`walferry report {run.name}` shows the rows with the cells of both sides"
    together = " and ".join(accept_command(run, table) for table in explained)
    if run.kind != "migration":
        return f"{shown}; {together} accepts them" if together else shown
    if opened is not None:
        return (
            f"the target has been open to clients since {shown_utc(opened)}, and stays so: {shown}. `walferry repair "
            f"{run.name}` makes those equal that no client has written to and that need no compaction; "
            f"{together or f'`walferry accept {run.name} --table TABLE --row ROW --reason …`'} leaves "
            f"{'them as they are' if together else 'a row as it is'}"
        )
    back = f"`walferry withdraw {run.name}` lets the writers go on"
    if together:
        return f"`walferry repair {run.name}` makes them equal, {together} leaves them as they are, or {back}"
    return f"do not let clients in; {shown}. `walferry repair {run.name}` makes them equal, or {back}"


def accept_command(run: RunRecord, table: str) -> str:
    """How a person accepts what the log does not hold of a table."""
    return f"`walferry accept {run.name} --table {table} --all --reason …`"


def _said_no(phase: PhaseRecord) -> bool:
    return phase.error_class == "NotApprovedError"


def _interrupted(run: RunRecord, lost: Sequence[PhaseRecord]) -> State | None:
    if not lost:
        return None
    cause = (
        f"{label(lost[-1])} is recorded as running, but its process has died, or sent no heartbeat for "
        f"{SILENT_SECONDS:.0f} s: it was killed, or cannot reach the ledger"
    )
    step = _again(run, lost[-1].phase)
    if _in_airflow(run):
        step = f"none if Airflow retries the task; otherwise {step}"
    return _state("interrupted", cause, lost[-1], run, step)


def _paused(run: RunRecord, live: Sequence[PhaseRecord]) -> State | None:
    if not run.paused:
        return None
    cause = STATES["paused"].cause if live else "an operator paused the run, and no phase is running"
    return _state("paused", cause, live[-1] if live else None, run)


def _held(ledger: RunLedger, run: RunRecord, live: Sequence[PhaseRecord]) -> State | None:
    held = ledger.quarantine.items("held")
    if not held:
        return None
    items = amount(len(held), "item waits", "items wait")
    step = f"`walferry quarantine list {run.name}`, then `walferry quarantine release`"
    if any(item.kind is RefusalKind.LINEAGE for item in held):  # it cannot be released
        step = f"`walferry abort {run.name} --reason …`, then migrate into a new target table"
        if opened_ms(ledger) is not None:
            step = f"`walferry quarantine list {run.name}`: what came after it is not applied, and {_OPEN_STAYS}"
    return State(
        "held", f"{items} in quarantine for a decision, the first: {held[0].reason}", step,
        label(live[-1]) if live else "", held[0].recorded_ms, "decision", "an operator, in the shell",
    )  # fmt: skip


def _pair(ledger: RunLedger, run: RunRecord, phases: Sequence[PhaseRecord]) -> State | None:
    made = last_pass(ledger) if run.kind == "pair" else None
    if made is None:
        return None
    name: StateName = "differing" if made.differing_rows else "following"
    return _state(name, verdict(made), phases[-1] if phases else None, run, "" if made.differing_rows else "none")


# ------------------------------------------------------------------ states in which a process works


def _at_work(ledger: RunLedger, run: RunRecord, phases: Sequence[PhaseRecord], live: Sequence[PhaseRecord]) -> State:
    done = {p.phase for p in phases if p.state == "done"}
    at_work = {p.phase for p in live}
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
            return _state(name, f"{_what(run, newest)}{since}", newest, run, step)
    return _state("working", _what(run, newest), newest, run)


def _waiting(ledger: RunLedger, state: State) -> State:
    """The state of a run, with what its process is waiting for."""
    waits = waits_for(ledger)
    return replace(state, cause=f"{state.cause}; {waits}") if waits else state


def _following(ledger: RunLedger, run: RunRecord, done: set[str], live: Sequence[PhaseRecord]) -> State:
    replay = next((p for p in live if p.phase == "replay"), live[-1])
    question = next((p for p in live if p.phase in ("approve", "write_stop")), None)
    lag = lag_of(ledger)
    measured = f"lag {lag.seconds:.0f} s" if lag.seconds is not None else lag.unknown
    if "write_stop" in done:
        return _state("draining", "writes have stopped; replay ends after the current round", replay, run)
    if run.kind != "migration":
        return _state(
            "following" if caught_up(ledger) else "catching up", f"replay is running: {measured}", replay, run
        )
    if missing := undecided(ledger):
        cause = f"the gate is shut, replay goes on: {'; '.join(missing.values())}. {CAUSES}"
        return State(
            "gate shut", cause, way_on(ledger, missing), label(replay), replay.started_ms, "decision",
            "an operator, in the shell",
        )  # fmt: skip
    if "approve" in done:
        if run.spec.get("write_stop") == "readonly":
            cause = "the source tables are being set READONLY; replay goes on"
            return _state("working", cause, question or replay, run)
        return _asked("waiting for the write stop", "write stop", measured, question or replay, run)
    near = caught_up(ledger)
    if again := waits_for_copying(ledger):
        return _state("following" if near else "catching up", f"replay is running: {measured}; {again}", replay, run)
    if (left := left_to_compare(ledger)) and near:
        cause = f"replay is running: {measured}; {', '.join(left[:5])} will be compared before the cutover is offered"
        return _state("following", cause, replay, run, "wait")
    if shut := shut_gate_noted(ledger):
        return _state("gate shut", f"{shut}; replay goes on", replay, run, _DO_WHAT_IT_SAYS)
    if (question and question.phase == "approve") or near:
        if not near:
            measured += f", above `max_lag` ({max_lag(ledger)} s): until it is lower, the gate to the cutover is shut"
        return _asked("waiting for approval", "approval", measured, question or replay, run)
    return _state("catching up", f"replay is running: {measured}", replay, run)


def _asked(name: StateName, answer: Waits, measured: str, phase: PhaseRecord, run: RunRecord) -> State:
    task = "approve_cutover" if answer == "approval" else "confirm_writes_stopped"
    where = f"in Airflow, task `{task}`" if _in_airflow(run) else "in the terminal of the command that runs it"
    first = "stop the writers, then " if answer == "write stop" else ""
    cause = f"{STATES[name].cause}: {measured}"
    step = f"{first}answer {where}"
    return State(name, cause, step, label(phase), phase.started_ms, answer, f"an operator, {where}")


def _starting(ledger: RunLedger, phases: Sequence[PhaseRecord]) -> dict[str, int]:
    """The phases for which a Spark app was submitted that has not begun yet, and when it was."""
    begun = {label(p): p.started_ms for p in phases}
    return {name: at_ms for name, at_ms in submitted(ledger).items() if begun.get(name, 0) < at_ms}


def _idle(
    run: RunRecord,
    phases: Sequence[PhaseRecord],
    lost: Sequence[PhaseRecord],
    starting: Mapping[str, int],
    command_lives: bool,
) -> State:
    """No phase is running, and none has failed or lost its process (`lost`) since the command began."""
    age = clock.now_ms() - run.created_ms
    if not phases and not command_lives and not _in_airflow(run) and age > BETWEEN_SECONDS * 1000:
        cause = "its command ended before the first phase began"
        return _state("interrupted", cause, None, run, _again(run, ""))
    if not phases:
        cause = STATES["not started"].cause + ("" if age < BETWEEN_SECONDS * 1000 else f" for {age / 60_000:.0f} min")
        return _state("not started", cause, None, run)
    last = max(phases, key=lambda p: p.finished_ms or 0)
    if run.kind == "drain":
        return _state("following", "all sealed edits are applied; hbase_wal_watch starts the next drain", last, run)
    if starting:
        name, since_ms = min(starting.items(), key=lambda start: start[1])
        cause = f"Spark is starting for {name}, for {(clock.now_ms() - since_ms) / 1000:.0f} s so far"
        return _state("working", cause, last, run)
    if command_lives and lost:
        cause = f"{label(lost[-1])} was interrupted; the command that works on the run now is about to repeat it"
        return _state("working", cause, lost[-1], run)
    if command_lives:
        return _state("working", f"{label(last)} is {last.state}; the next phase is about to begin", last, run)
    quiet = (clock.now_ms() - (last.finished_ms or 0)) / 1000
    again = f"{label(last)} is to be done again ({last.message})" if _superseded(last) else ""
    if again and not _in_airflow(run):
        return _state("interrupted", f"{again}, and no process works on the run", last, run, _again(run, last.phase))
    if _in_airflow(run) or quiet < BETWEEN_SECONDS:
        due = _due(run, phases)
        ended = f"{quiet:.0f} s ago it was found that {again}" if again else f"{label(last)} ended {quiet:.0f} s ago"
        step = (
            ""
            if quiet < BETWEEN_SECONDS
            else f"look at the DAG run: if the task for {due} does not wait its turn, clear it"
        )
        return _state("between phases", f"{ended}, and {due} has not begun", last, run, step)
    cause = f"{label(last)} ended {quiet / 60:.0f} min ago, and no process has worked on the run since"
    return _state("interrupted", cause, last, run, _again(run, last.phase))


def _due(run: RunRecord, phases: Sequence[PhaseRecord]) -> str:
    """The first phase of the run that is not done, with its table."""
    done = {(phase.phase, phase.subject) for phase in phases if phase.state == "done"}
    every = ((phase.name, table) for phase, table in steps(run.kind, source_tables(run.spec)))
    return next((f"{name} {table}".strip() for name, table in every if (name, table) not in done), "the end of the run")


def _what(run: RunRecord, phase: PhaseRecord) -> str:
    known: Phase | None = next((p for p in phases_of(run.kind) if p.name == phase.phase), None)
    return f"{label(phase)}: {known.what}" if known else label(phase)


# ------------------------------------------------------------------ parts


def _ended(ledger: RunLedger, run: RunRecord, phases: Sequence[PhaseRecord]) -> State:
    name: StateName = "done" if run.state == "done" else "aborted" if run.state == "aborted" else "failed"
    step = "start a new run" if name == "failed" else STATES[name].next_step
    if name == "aborted" and opened_ms(ledger) is not None:
        step = (
            f"none: clients use the target, and nobody compares it any more; `walferry report {run.name}` says how far"
        )
    compared = comparisons_of_phase(ledger)[0] if name == "done" and run.kind == "migration" else []
    if differing := sum(made.differing_rows for made in compared):
        step = f"read `walferry report {run.name}`: {rows_differ(differing)}, for the reasons that it lists"
    newest = phases[-1] if phases else None
    failed = newest if newest and newest.state == "failed" and name == "failed" else None
    return State(
        name, run.outcome or STATES[name].cause, step, label(newest) if newest else "",
        run.ended_ms or run.created_ms, error=failed.message if failed else "",
        error_class=failed.error_class if failed else "",
    )  # fmt: skip


def _state(
    name: StateName,
    cause: str,
    phase: PhaseRecord | None,
    run: RunRecord,
    next_step: str = "",
    *,
    failed: bool = False,
) -> State:
    since = run.created_ms if phase is None else phase.finished_ms or phase.started_ms
    step = (next_step or STATES[name].next_step).replace("NAME", run.name)
    error, error_class = (phase.message, phase.error_class) if failed and phase else ("", "")
    return State(name, cause, step, label(phase) if phase else "", since, error=error, error_class=error_class)


def _in_airflow(run: RunRecord) -> bool:
    return run.owner.startswith("airflow")


_TASKS = {"approve": "how_to_stop_writes", "write_stop": "stop_writes"}
"""tasks of the DAG hbase_migrate that are not named after their phase"""


def _again(run: RunRecord, phase: str) -> str:
    """How a person has a phase repeated."""
    if _in_airflow(run):
        return f"clear the task `{_TASKS.get(phase, phase)}` in Airflow"
    if run.kind == "pair":
        return "run `walferry verify --pair SPEC` again, or wait for the next run of `hbase_verify`"
    if run.kind == "window":
        return "run `walferry replay SPEC --from … --to …` again"
    return f"`walferry resume {run.name}`"
