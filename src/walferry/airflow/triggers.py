"""Three triggers. That of `hbase_wal_watch` lists a source's WAL files until there is something to record; that of
`hbase_migrate` hears a person's answers; that of `hbase_replicate` and `hbase_receive` waits for the next look."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any
from uuid import UUID

from airflow.sdk.exceptions import AirflowRuntimeError
from airflow.sdk.execution_time.hitl import get_hitl_detail_content_detail
from airflow.triggers.base import BaseTrigger, TriggerEvent
from asgiref.sync import sync_to_async

from walferry.errors import TransientError
from walferry.process import open_ledger
from walferry.run.notes.answers import Word, drop_word, keep_word, word_of
from walferry.run.recorded_spec import options_of

if TYPE_CHECKING:
    from walferry.ledger import RunLedger

log = logging.getLogger(__name__)


class WalTrigger(BaseTrigger):
    """Fires when the listing differs from what the ledger has for the watch's run, and after `beat_seconds` at most.

    The trigger writes nothing and keeps no state: a triggerer that takes it over reads the ledger again. New, sealed
    and vanished files fire it at once; moved and grown files wait for `beat_seconds`. Then it fires in any case, so
    that the task measures lag and backlog even while nothing is sealed.
    """

    def __init__(
        self,
        run_id: str,
        webhdfs: str,
        user: str,
        root: str,
        poll_seconds: float = 5.0,
        beat_seconds: float = 60.0,
        security: dict[str, Any] | None = None,
        tls: dict[str, Any] | None = None,
    ) -> None:
        """`security`: the fields of a `Security` whose files the triggerer has, too. A trigger that waited in Airflow's
        database during an upgrade may have those of a `Kerberos` there, and those of a `Tls` in `tls`."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.run_id = run_id
        self.webhdfs = webhdfs
        self.user = user
        self.root = root
        self.poll_seconds = poll_seconds
        self.beat_seconds = beat_seconds
        before = tls is not None or (security is not None and "kerberos" not in security)
        self.security = {"kerberos": security, "tls": tls} if before else security

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """The class and the arguments with which a triggerer recreates this trigger."""
        names = ("run_id", "webhdfs", "user", "root", "poll_seconds", "beat_seconds", "security")
        return "walferry.airflow.triggers.WalTrigger", {name: getattr(self, name) for name in names}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Poll until something has changed. Yields one event with the number of files of each kind of change."""
        from walferry.watch.watch import changes_since

        deadline = time.monotonic() + self.beat_seconds
        known = await asyncio.to_thread(_known, self.run_id)
        while True:
            counts: dict[str, int] = {}
            pressing = False
            try:
                changes = await changes_since(known, self.webhdfs, self.user, self.root, self.security)
                counts, pressing = changes.counts(), changes.pressing
            except TransientError as error:
                # After `beat_seconds` the task lists the files itself, and its error is visible.
                log.warning("%s; retrying in %.0f s", error, self.poll_seconds)
            if pressing or time.monotonic() >= deadline:
                yield TriggerEvent(counts)  # type: ignore[no-untyped-call]
                return
            await asyncio.sleep(self.poll_seconds)


def _known(run_id: str) -> Any:
    from walferry.watch.watch import known_wals

    with open_ledger(create=False) as ledger:
        return known_wals(ledger, run_id)


ASKED = "asks a person"
ANSWER_SECONDS = 0.3
"""pause between two looks at the answers"""


def note_asked(ledger: RunLedger, phase: str, task_instance: str) -> None:
    """Keep which task instance asks a person about a phase. A retry, which asks again, has another id."""
    ledger.notes.keep(ASKED, {"task_instance": task_instance}, phase)


def use_answer(ledger: RunLedger, phase: str) -> None:
    """Remove the question and its answer, which the task after the one that asked has taken. The next question needs a
    new answer."""
    ledger.notes.drop(ASKED, phase)
    drop_word(ledger, phase)


def open_questions(ledger: RunLedger) -> list[str]:
    """The phases that wait, or will wait, for a person's answer."""
    if ledger.record.state != "running" or ledger.phases.facts("write_stop") is not None:
        return []
    asks = ["approve", "write_stop"] if options_of(ledger.record).write_stop == "confirm" else ["approve"]
    return [phase for phase in asks if ledger.phases.facts(phase) is None]


class AnswerTrigger(BaseTrigger):
    """Keeps each answer of a person in the ledger. Fires after the last answer (that writes have stopped), or once
    nobody needs an answer any more."""

    def __init__(self, run_id: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.run_id = run_id

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """The class and the arguments with which a triggerer recreates this trigger."""
        return "walferry.airflow.triggers.AnswerTrigger", {"run_id": self.run_id}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Look at the answers until the last one is yes. Yields one event with a text that says what happened."""
        said = "the run no longer waits for an answer"
        while True:
            try:
                asked, over = await asyncio.to_thread(_asked, self.run_id)
                for phase, task_instance in asked.items():
                    found = await sync_to_async(_answer)(task_instance)
                    if found is not None and found.response_received and found.chosen_options == ["Approve"]:
                        said = await asyncio.to_thread(_keep, self.run_id, phase, task_instance, found)
                        log.info("%s", said)
                        over = over or phase == "write_stop"
                if over:
                    yield TriggerEvent(said)  # type: ignore[no-untyped-call]
                    return
            except TransientError as error:
                log.warning("%s; looking again", error)
            await asyncio.sleep(ANSWER_SECONDS)


def _answer(task_instance: str) -> Any:
    """Airflow's record of an answer; None if the try that asked no longer exists, and another one is about to ask."""
    try:
        return get_hitl_detail_content_detail(ti_id=UUID(task_instance))
    except AirflowRuntimeError as error:
        log.info("the question of task instance %s cannot be looked up now: %s", task_instance, error)
        return None


def _asked(run_id: str) -> tuple[dict[str, str], bool]:
    """The task instance that asks about each phase, for phases without an answer yet; and whether nobody needs an
    answer any more."""

    with open_ledger(create=False) as whole:
        ledger = whole.of(run_id)
        wanted = open_questions(ledger)
        notes = ledger.notes.named(ASKED)
        unheard = [phase for phase in wanted if phase in notes and word_of(ledger, phase) is None]
    return {phase: notes[phase][0]["task_instance"] for phase in unheard}, not wanted


def _keep(run_id: str, phase: str, task_instance: str, answer: Any) -> str:
    """Keep an answer, unless a task has used it in the meantime. Returns a text that says what was answered."""

    person = answer.responded_by_user.name if answer.responded_by_user else "nobody by name"
    word = Word(f"airflow {person}", round(answer.responded_at.timestamp() * 1000))
    with open_ledger(create=False) as whole:
        ledger = whole.of(run_id)
        if (ledger.notes.get(ASKED, phase) or {}).get("task_instance") == task_instance:
            keep_word(ledger, phase, word)
    what = "approved the cutover" if phase == "approve" else "said that writes have stopped"
    return f"at {answer.responded_at:%H:%M:%S} UTC {person} {what}; the ledger has it"


CHANGED_SECONDS = 5.0
"""pause between two looks whether a run has ended, was paused or resumed"""


class NextLookTrigger(BaseTrigger):
    """Fires after so many seconds, or once the run has ended, or was paused or resumed. (Airflow's own triggers of time
    write a line into the task's log each second.)"""

    def __init__(self, run_id: str, seconds: float, paused: bool) -> None:
        """`paused`: whether the run was, so far."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.run_id = run_id
        self.seconds = seconds
        self.paused = paused

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """The class and the arguments with which a triggerer recreates this trigger, which then waits as long again."""
        names = ("run_id", "seconds", "paused")
        return "walferry.airflow.triggers.NextLookTrigger", {name: getattr(self, name) for name in names}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Wait. Yields one event that says why it is over."""
        deadline, why = time.monotonic() + self.seconds, ""
        while not why and (left := deadline - time.monotonic()) > 0:
            await asyncio.sleep(min(left, CHANGED_SECONDS))
            try:
                why = await asyncio.to_thread(self._changed)
            except TransientError as error:
                log.warning("%s; looking again", error)
        yield TriggerEvent(why or "it is time")  # type: ignore[no-untyped-call]

    def _changed(self) -> str:
        with open_ledger(create=False) as ledger:
            run = ledger.run(self.run_id)
        if run.state != "running":
            return run.state
        return "" if run.paused == self.paused else "paused" if run.paused else "resumed"
