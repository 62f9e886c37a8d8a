"""The questions that `hbase_migrate` asks a person, and how their answers reach the ledger.

Airflow gives an answer only to the try of the task that asked. It resumes that task some seconds later, and starts the
next task some seconds after that. If Airflow loses the resumed try, the next try would ask again. So a second task
waits in a trigger, which looks at the answers several times a second and keeps them in the ledger
(`run.notes.answers`). A retried task takes its answer from there, and the app of the phase `replay` learns there that
writes have stopped.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, get_args

import httpx
from airflow.providers.standard.operators.hitl import ApprovalOperator, HITLOperator
from airflow.sdk import BaseOperator, Context, Param
from airflow.sdk.bases.skipmixin import SkipMixin
from airflow.sdk.exceptions import AirflowException, AirflowSkipException

from walferry.airflow.links import base_url
from walferry.airflow.operators import ACTOR, answered_ms, step
from walferry.airflow.triggers import AnswerTrigger, note_asked, open_questions
from walferry.errors import WalferryError
from walferry.ledger import RunLedger
from walferry.run.notes.answers import Word, keep_word, note_refused, word_of
from walferry.run.notes.ways_out import Way, ways_out
from walferry.run.progress.state import state_of
from walferry.run.progress.states import State
from walferry.run.run import Run

log = logging.getLogger(__name__)

HEALTH_SECONDS = 5.0


class AskOperator(ApprovalOperator):
    """Asks a person about a phase, `approve` or `write_stop`, unless the ledger has an answer that no task has used.

    It notes its task instance in the ledger, where `HearAnswersOperator` finds it.
    """

    template_fields = (*ApprovalOperator.template_fields, "run")

    def __init__(self, *, run: Any, phase: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.run = run
        self.phase = phase

    def execute(self, context: Context) -> Any:
        """Ask. Airflow resumes this task when there is an answer."""
        with step(self.run) as run:
            done = run.ledger.phases.find(self.phase)
            if done is not None and done.state == "done":  # by an earlier DAG run, which this one continues
                given = run.done(self.phase)
                return super().execute_complete(context, _event(Word(given["by"], done.finished_ms or 0)))
            word = word_of(run.ledger, self.phase)
            if word is None:
                note_asked(run.ledger, self.phase, str(context["task_instance"].id))
        if word is None:
            return super().execute(context)
        log.info("%s has answered an earlier try of this task, which was lost", word.by)
        return super().execute_complete(context, _event(word))

    def execute_complete(self, context: Context, event: dict[str, Any]) -> Any:
        """Keep an approval in the ledger until the next task has it, since Airflow may lose this try."""
        person, at_ms = event.get("responded_by_user"), answered_ms(event)
        if event.get("chosen_options") == [self.APPROVE] and person and at_ms is not None:
            with step(self.run) as run:
                keep_word(run.ledger, self.phase, Word(f"{ACTOR} {person['name']}", at_ms))
        return super().execute_complete(context, event)


def _event(word: Word) -> dict[str, Any]:
    """An approval in the form in which Airflow gives it to the task that asked."""
    person = word.by.removeprefix(f"{ACTOR} ")
    return {
        "chosen_options": [ApprovalOperator.APPROVE],
        "params_input": {},
        "responded_at": datetime.fromtimestamp(word.said_ms / 1000, UTC),
        "responded_by_user": {"id": person, "name": person},
    }


class HearAnswersOperator(BaseOperator):
    """Waits in a trigger for a person's answers. Nothing waits for this task. If it fails, the write stop takes longer,
    and a person must repeat an answer if Airflow loses the try that asked."""

    template_fields = ("run",)

    def __init__(self, *, run: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.run = run

    def execute(self, context: Context) -> Any:
        """Wait until nobody needs an answer any more."""
        with step(self.run) as run:
            if open_questions(run.ledger):
                if why := no_triggerer():
                    log.warning("%s: answers are read only once one runs; until then the write stop lasts", why)
                self.defer(trigger=AnswerTrigger(run.run_id), method_name="heard", timeout=timedelta(days=14))

    def heard(self, context: Context, event: str) -> None:
        """Log what the trigger has recorded."""
        log.info("%s", event)


def no_triggerer() -> str:
    """Why no trigger would run now, by Airflow's own health check; "" if one would, or if the check cannot be read."""
    url = f"{base_url()}/api/v2/monitor/health"
    try:
        status = httpx.get(url, timeout=HEALTH_SECONDS).json()["triggerer"]["status"]
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, KeyError, TypeError):
        return ""
    return "" if status == "healthy" else f"no triggerer runs ({url} says {status})"


CONTINUES = "continues"
"""param of a DAG run that continues the run of an earlier DAG run: the run's id"""
NEXT_DAG_RUN = "next_dag_run"
"""XCom of the operator: id of the DAG run that continues, the same in each try"""
_CHOSEN = "way out"
_WAYS: Mapping[str, str] = {
    "Check again": "*Check again*: after you have removed the cause.",
    "Repair, check again": "*Repair, check again*: rows of the target that differ are made equal to the source's.",
    "Accept, check again": "*Accept, check again*: the rows named below, or all with a known reason, stay as they are.",
    "Withdraw": "*Withdraw*: writers go on, the log is followed again, and the cutover is offered later. Source tables "
    "that the run has set READONLY become writable at once.",
    "Abort": "*Abort*: the run ends; the source stays in charge, and the target tables are left as they are.",
}
ROWS, REASON = "rows", "reason"
ROWS_PARAM = Param(
    [],
    source="task",
    type="array",
    items={"type": "string"},
    title="Rows to accept",
    description="One per line: source table, space, row key as in the report. Empty: all that differ for a known "
    "reason.",
)
REASON_PARAM = Param(
    "", source="task", type="string", title="Reason", description="For the audit trail. Accepting rows needs one."
)


class WayOutOperator(HITLOperator, SkipMixin):
    """If the tasks before it have left the run with a shut gate, asks a person how to go on, and does that.

    Returns the params for a DAG run that continues the run. If no gate is shut, the task is skipped; if the person
    chose to abort, the tasks after it are skipped. If the choice is not possible, the try fails, and the retry asks
    again and says why.
    """

    template_fields = (*HITLOperator.template_fields, "run")

    def __init__(self, *, run: Any, **kwargs: Any) -> None:
        kwargs["params"] = {ROWS: ROWS_PARAM, REASON: REASON_PARAM}  # leaves out the DAG's params
        super().__init__(subject="How to go on with {{ params.name }}?", options=list(get_args(Way)), **kwargs)
        self.run = run

    def execute(self, context: Context) -> Any:
        """Ask. Airflow resumes this task when there is an answer."""
        if not self.run:
            raise AirflowSkipException("there is no run: its plan failed")
        with step(self.run) as run:
            if (owner := run.record.owner) != f"{ACTOR} {context['run_id']}":
                raise AirflowSkipException(f"{self.run} is continued by {owner}")
            if (chosen := _chosen(run.ledger)) is not None:
                log.info("%s was chosen in an earlier try of this task, which was lost", chosen.way)
                return self._do(context, run, chosen)
            self.options = list(ways_out(run.ledger))
            state, name = state_of(run.ledger), run.record.name
        if not self.options:
            raise AirflowSkipException("no gate is shut")
        self.body = _question(name, state, self.options)
        return super().execute(context)

    def execute_complete(self, context: Context, event: dict[str, Any]) -> Any:
        """Do what the person chose."""
        answer = super().execute_complete(context, event)
        given = answer["params_input"]
        actor = f"{ACTOR} {answer['responded_by_user']['name']}"
        with step(self.run) as run:
            number = 1 + max((facts["number"] for facts, _ in run.ledger.notes.named(_CHOSEN).values()), default=0)
            rows, reason = given.get(ROWS) or [], given.get(REASON) or ""
            chosen = _Chosen(answer["chosen_options"][0], rows, reason, actor, number)
            run.ledger.notes.keep(_CHOSEN, asdict(chosen), run.record.owner)  # Airflow may lose this try
            return self._do(context, run, chosen)

    def _do(self, context: Context, run: Run, chosen: _Chosen) -> dict[str, Any]:
        """Do what was chosen, or the part that an earlier try left undone."""
        from walferry.cutover.ways_out import abort, take

        try:
            if chosen.way in ways_out(run.ledger):
                take(run, chosen.way, chosen.rows, chosen.reason, chosen.actor)
            elif chosen.way == "Abort":
                abort(run, chosen.reason, actor=chosen.actor)  # the run has ended, but its objects may be left
        except WalferryError as error:
            if run.ledger.record.state == "running":
                note_refused(run.ledger, f"{chosen.way} was not possible: {error}")
                run.ledger.notes.drop(_CHOSEN, run.record.owner)
            raise AirflowException(str(error)) from None
        note_refused(run.ledger, "")
        if chosen.way == "Abort":
            self.skip(context["ti"], context["task"].get_direct_relatives(upstream=False))
        context["ti"].xcom_push(key=NEXT_DAG_RUN, value=f"{self.run}__continued_{chosen.number}")
        of_dag = {key: value for key, value in context["params"].items() if key not in (ROWS, REASON)}
        return of_dag | {CONTINUES: self.run}


@dataclass(frozen=True)
class _Chosen:
    """A person's choice in one DAG run."""

    way: Way
    rows: list[str]
    reason: str
    actor: str
    number: int
    """number of the choice, from 1"""


def _chosen(ledger: RunLedger) -> _Chosen | None:
    """The choice in this DAG run; None if a check has failed since, because then the task was cleared."""
    facts, at_ms = ledger.notes.named(_CHOSEN).get(ledger.record.owner, (None, 0))
    failed = [p.finished_ms or 0 for p in ledger.phases.all() if p.state == "failed" and p.error_class]
    return None if facts is None or max(failed, default=0) > at_ms else _Chosen(**facts)


def _question(name: str, state: State, ways: Sequence[str]) -> str:
    """The form's text, in Markdown. Airflow keeps it for all tries of the task."""
    return "\n\n".join(
        [
            f"**{state.name}**: {state.cause}",
            f"`walferry report {name}` shows the rows that differ, with the cells of both sides.",
            *(_WAYS[way] for way in ways),
            "If your choice is not possible, you are asked again; the board and the log of the last try then say why.",
        ]
    )
