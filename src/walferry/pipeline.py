"""Binds each phase to its function, and runs a migration from a shell. The DAGs run the same functions."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import NoReturn

from pyspark.sql import SparkSession

from walferry.amounts import amount
from walferry.background import begun
from walferry.checks.validation import import_ahead
from walferry.cutover import approval
from walferry.cutover.gates import before_cutover, check_copy, check_drain
from walferry.cutover.late_edits import require_silence, watched
from walferry.cutover.open_target import open_target
from walferry.errors import GateShutError, TransientError, WalferryError, as_recorded
from walferry.migration import report
from walferry.migration.comparing.compare_ahead import compared_ahead
from walferry.migration.comparing.compare_last import compare_last
from walferry.migration.copying import copy
from walferry.migration.explaining.accept import unexplained_but_accepted
from walferry.migration.pairs.pair_pass import verify_pair
from walferry.migration.plan import plan_run
from walferry.migration.repairing.copy_again import copied_again
from walferry.migration.setup import setup
from walferry.migration.setup.put_back import put_back_and_warn
from walferry.replay.keeping import protect
from walferry.replay.log import cut
from walferry.replay.rights.standstill import Standstill
from walferry.replay.rounds import drain, follower, rounds
from walferry.replay.windows import window
from walferry.run.phases import phase_of, phases_of, steps
from walferry.run.run import Run, RunEndedError
from walferry.spark.fan_out import SparkGoneError, cancel_jobs, losses
from walferry.spark.handing_over import with_new_tokens
from walferry.spark.session import NoSparkError

log = logging.getLogger(__name__)

ATTEMPTS = 4
TABLES_AT_ONCE = 4
"""tables handled at once during the write stop, when most of a table's time is waiting for servers"""
LOOK_SECONDS = 2.0
"""pause between two checks whether the gate to the cutover is open"""
ASK_AGAIN_SECONDS = 30.0
"""pause before the next question after a person said no"""
OUTCOMES = {
    "migration": "cut over; nothing unexplained",
    "snapshot": "snapshots taken",
    "copy": "copied",
    "standby": "followed until it was ended",
    "comparison": "compared",
}


@dataclass(frozen=True)
class PhaseContext:
    """What phases need in addition to their run."""

    spark: Callable[[], SparkSession]
    """opens the session, or returns the open one; `without_spark` where there is none"""
    docs: Path
    """where Data Docs go"""
    by: str | None = None
    """the person who approved, or who confirmed that writes have stopped"""
    said_ms: int | None = None
    """when that person answered; None: now"""
    outcome: str | None = None
    """recorded as the run's outcome; None: the usual outcome of its kind"""
    standstill: Standstill = field(default_factory=Standstill)
    """where threads that repair rows wait until this process's replay stands still"""


WORK: Mapping[str, Callable[[Run, str, PhaseContext], object]] = {
    "plan": lambda run, _, context: setup.plan(run) if run.record.kind == "setup" else plan_run(run),
    "protect": lambda run, _, context: protect.protect(run),
    "fence": lambda run, _, context: cut.start_fence(run),
    "snapshot": lambda run, table, context: copy.snapshot(run, table),
    "copy": lambda run, table, context: copy.copy(run, context.spark, table),
    "clone": lambda run, table, context: (setup if run.record.kind == "setup" else copy).clone(run, table),
    "check_copy": lambda run, _, context: check_copy(run, context.docs),
    "replay": lambda run, _, context: follower.follow(
        run, context.spark(), partial(approval.heed_word, run), context.standstill
    ),
    "approve": lambda run, _, context: approval.approve(run, context.by),
    "write_stop": lambda run, _, context: approval.stop_writes(run, context.by, context.said_ms),
    "end_fence": lambda run, _, context: cut.end_fence(run),
    "drain": lambda run, _, context: rounds.drain(run, context.spark()),
    "open_target": lambda run, _, context: open_target(run, context.spark, context.standstill),
    "compare": lambda run, table, context: compare_last(run, context.spark, table, context.standstill),
    "check_drain": lambda run, _, context: check_drain(run, context.docs),
    "release": lambda run, _, context: protect.finish(
        run, context.outcome or _outcome(run), require_silence if run.record.kind == "migration" else None
    ),
    "replay_window": lambda run, _, context: window.replay_window(run, context.spark),
    "scope": lambda run, _, context: setup.scope(run),
    "peer": lambda run, _, context: setup.peer(run),
    "back": lambda run, _, context: setup.back(run),
    "enable": lambda run, _, context: setup.enable_source(run),
    "ship": lambda run, _, context: setup.await_shipped(run),
    "verify": lambda run, _, context: setup.verify(run, context.spark),
    "pass": lambda run, _, context: verify_pair(run, context.spark),
    "drain_sealed": lambda run, _, context: drain.drain_sealed(run, context.spark()),
}
"""The function of each phase of `run.phases`; for a phase by table, it does one table. All are idempotent."""


def _outcome(run: Run) -> str:
    """The outcome to record for a run that reaches its end."""
    accepted = unexplained_but_accepted(run.ledger) if run.record.kind == "migration" else 0
    if not accepted:
        return OUTCOMES[run.record.kind]
    return f"cut over; a person accepted {amount(accepted, 'unexplained row')}"


Ask = Callable[[str, Callable[[], None]], bool]
"""Asks a person a question. While it waits for the answer, it calls the given function about every second; that call
may raise."""


def do(run: Run, phase: str, subject: str, context: PhaseContext) -> None:
    """Do one phase of a run, unless the ledger says that it is done. Raises KeyError if the run's kind lacks it."""
    known = phase_of(run.record.kind, phase)
    with losses(f"{phase} {subject}".strip()) if known.spark else nullcontext():
        with_new_tokens(lambda: WORK[phase](run, subject, context))


def without_spark(phase: str) -> Callable[[], SparkSession]:
    """A replacement for the function that opens a Spark session, in a process that must not start Spark: it raises
    NoSparkError."""

    def refuse() -> NoReturn:
        raise NoSparkError(
            f"{phase} needs Spark, which this process must not start: submit {phase} with WalferrySparkOperator",
            phase=phase,
        )

    return refuse


def do_through(run: Run, phase: str, last: str, context: PhaseContext) -> None:
    """Do a phase of the whole run and the phases after it, up to `last`, in this process.

    An error in a later phase is only logged, since the first phase is done. Whoever does the phases one by one, like
    Airflow's tasks, does the rest and meets the error again. Raises KeyError if the run's kind has no such phase.
    """
    names = [known.name for known in phases_of(run.record.kind)]
    following = names[names.index(phase) + 1 : names.index(last) + 1]
    open_clients(run)
    with compared_ahead(run, context.spark, context.standstill), copied_again(run, context.standstill):
        do(run, phase, "", context)
    try:
        with watched(run):
            _do_all(run, following, context)
    except WalferryError as error:
        log.warning("%s; %s itself is done, and the later phases continue one by one from here", error, phase)


def open_clients(run: Run) -> None:
    """Open the run's clients before several threads use them."""
    _ = run.source, run.target, run.source_files, run.wal_files, run.target_files, run.target_wal_files
    if run.record.kind == "migration" and run.ledger.phases.facts("check_drain") is None:
        import_ahead()  # now, so that the write stop does not wait for imports


def _do_all(run: Run, phases: Sequence[str], context: PhaseContext) -> None:
    """Do phases in order, except those that wait for a person. A phase by table does several tables at once."""
    tables = [pair.source for pair in run.tables]
    todo = [(phase.name, subject) for phase, subject in steps(run.record.kind, tables) if not phase.waits_for]
    for name, same in groupby((step for step in todo if step[0] in phases), key=lambda step: step[0]):
        _do_for_each(run, name, [subject for _, subject in same], context)


def migrate(run: Run, ask: Ask, context: PhaseContext) -> None:
    """Run all phases that are not done yet. Replay continues while a person is asked.

    Transient failures are retried a bounded number of times, each time from the state in the ledger.
    """
    todo = list(steps("migration", [pair.source for pair in run.tables]))
    names = [phase.name for phase, _ in todo]
    begin, end = names.index("replay"), names.index("end_fence")
    open_clients(run)
    with protect.tended(run):
        for phase, subject in todo[:begin]:
            _do_again(run, phase.name, subject, context)
        with compared_ahead(run, context.spark, context.standstill), copied_again(run, context.standstill):
            _follow(run, ask, context)
        with watched(run):
            _do_all(run, names[end:-1], context)
    release, subject = todo[-1]  # only once nothing tends the log any more
    _do_again(run, release.name, subject, context)


def set_up(run: Run, context: PhaseContext) -> None:
    """Do the phases of a setup that are not done, in order. Transient failures are retried as in `migrate`, but a peer
    that ships slowly is left to the next call: it was waited for long enough. However this ends, what an abort beside
    it has left is put back."""
    open_clients(run)
    try:
        for phase, subject in steps("setup", [pair.source for pair in run.tables]):
            if phase.name == "ship":
                do(run, phase.name, subject, context)
            else:
                _do_again(run, phase.name, subject, context)
    except BaseException:
        if run.ledger.record.state == "aborted":  # which has left to this process what it was about to set
            put_back_and_warn(run)
        raise


def _do_again(run: Run, phase: str, subject: str, context: PhaseContext) -> None:
    retry_work(lambda: do(run, phase, subject, context))


def _do_for_each(run: Run, phase: str, subjects: Sequence[str], context: PhaseContext) -> None:
    """Do a phase for several subjects, some of them at the same time. Raises the first error when all work has ended.

    Ctrl-C does not wait: no further subject is started, and work on the others ends with the process.
    """
    waiting = deque(subjects)

    def some() -> None:
        while True:
            try:
                subject = waiting.popleft()
            except IndexError:
                return
            try:
                _do_again(run, phase, subject, context)
            except BaseException:
                waiting.clear()
                raise

    if len(subjects) == 1:
        some()  # in this thread, which receives Ctrl-C
        return
    at_work = [begun(some, phase) for _ in range(min(TABLES_AT_ONCE, len(subjects)))]
    try:
        errors = [error for one in at_work if (error := one.exception()) is not None]
    except BaseException as interrupt:
        waiting.clear()
        for subject in subjects:  # record Ctrl-C before the dying process records errors
            known = run.ledger.phases.find(phase, subject)
            if known is not None and known.state == "running":
                run.ledger.phases.fail(phase, as_recorded(interrupt), subject, known.attempts)
        raise
    if errors:
        raise errors[0]


def _follow(run: Run, ask: Ask, context: PhaseContext) -> None:
    """Replay until writes have stopped. Meanwhile, wait for the gate, then ask for the approval and the write stop."""
    if all(run.ledger.phases.facts(phase) is not None for phase in ("replay", "approve", "write_stop")):
        return
    spark = context.spark()  # in this thread: a failure ends the command at once
    failures: list[BaseException] = []
    interrupted = threading.Event()

    def look() -> None:
        if interrupted.is_set():
            raise RunEndedError(f"the replay of {run.run_id} was interrupted")

    def replay() -> None:
        try:
            with losses("replay"):
                retry_work(
                    lambda: follower.follow(run, spark, look, context.standstill),
                    progress=lambda: run.ledger.rounds.totals().rounds,
                )
        except BaseException as error:
            failures.append(error)

    def at_work() -> None:
        if failures:
            raise failures[0]

    replaying = threading.Thread(target=replay, name="replay", daemon=True)
    replaying.start()
    try:
        _ask_for_cutover(run, ask, at_work)
        replaying.join()
        at_work()
    except BaseException:
        interrupted.set()
        if replaying.is_alive():
            cancel_jobs(spark)
            replaying.join(timeout=10)
        raise


def _ask_for_cutover(run: Run, ask: Ask, at_work: Callable[[], None]) -> None:
    while True:
        try:
            _await_gate(run, at_work)
            approval.approve(run, lambda: _answer(run, ask, _cutover_question(run), at_work))
            approval.stop_writes(
                run, lambda: _answer(run, ask, "Have all writes to the source stopped?", at_work)
            )  # asked with `write_stop: confirm` only
            return
        except GateShutError as shut:  # the gate has shut again since the check
            log.info("not yet: %s", "; ".join(shut.facts["reasons"]))
        except TransientError as error:  # a check of the clusters failed: the replay goes on meanwhile
            at_work()
            log.warning("not yet: %s", error)
            time.sleep(LOOK_SECONDS)
        except NotApprovedError as no:
            log.info("%s; replay goes on, and you will be asked again in %.0f s", no, ASK_AGAIN_SECONDS)
            for _ in range(int(ASK_AGAIN_SECONDS)):
                at_work()
                time.sleep(1.0)


def _await_gate(run: Run, at_work: Callable[[], None]) -> None:
    """Return when the gate to the cutover is open."""
    logged: list[str] = []
    while run.ledger.phases.facts("approve") is None:
        at_work()
        try:
            before_cutover(run)
            return
        except GateShutError as shut:
            if (reasons := shut.facts["reasons"]) != logged:
                logged = reasons
                log.info("the gate is shut: %s", "; ".join(reasons))
            time.sleep(LOOK_SECONDS)


def _cutover_question(run: Run) -> str:
    return f"`walferry ready {run.record.name}` shows every condition. Cut over {run.run_id}?"


def _answer(run: Run, ask: Ask, question: str, at_work: Callable[[], None]) -> str:
    if not ask(question, at_work):
        raise NotApprovedError(f"{run.actor} answered no to: {question}", run=run.run_id)
    return run.actor


class NotApprovedError(WalferryError):
    """A person answered no to the cutover; the question is asked again."""


def retry_work(work: Callable[[], object], progress: Callable[[], object] = lambda: None) -> None:
    """Repeat work after transient failures, a few times, with growing pauses.

    Long work has many failures, so the count restarts if the result of `progress` has changed since the last failure.
    An error that only a new process can recover from is raised at once.
    """
    attempt, reached = 0, progress()
    while True:
        try:
            work()
            return
        except TransientError as error:
            attempt = 1 if (now := progress()) != reached else attempt + 1
            reached = now
            if attempt == ATTEMPTS or isinstance(error, SparkGoneError):
                raise
            log.warning("attempt %d of %d failed: %s; retrying in %d s", attempt, ATTEMPTS, error, 5 * attempt)
            time.sleep(5 * attempt)


def write_report(run: Run, folder: Path) -> Path:
    """Write the run's report below `folder`."""
    return report.write(run.ledger, folder / run.run_id)
