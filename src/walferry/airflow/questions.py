"""The questions that `hbase_migrate` asks a person, and how their answers reach the ledger.

Airflow gives an answer only to the try of the task that asked. It resumes that task some seconds later, and the next
task takes some more; if it loses the resumed try, the next one would ask again. So a second task listens in a trigger,
which looks at the answers several times a second, and leaves them in the ledger (`run.answers`). A task that is tried
again takes its answer from there, and the app of the phase `replay` finds there that writes have stopped.
"""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow.sdk import BaseOperator, Context

from walferry.airflow.operators import ACTOR, answered_ms, step
from walferry.airflow.triggers import AnswerTrigger, note_asked, open_questions
from walferry.run.answers import Word, keep_word, word_of

log = logging.getLogger(__name__)


class AskOperator(ApprovalOperator):
    """Asks a person about a phase, `approve` or `write_stop`, unless the ledger has an answer that no task has used.

    It tells `HearAnswersOperator` where the answer will be.
    """

    template_fields = (*ApprovalOperator.template_fields, "run")

    def __init__(self, *, run: Any, phase: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.run = run
        self.phase = phase

    def execute(self, context: Context) -> Any:
        """Ask; Airflow continues this task when there is an answer."""
        with step(self.run) as run:
            word = word_of(run.ledger, self.phase)
            if word is None:
                note_asked(run.ledger, self.phase, str(context["task_instance"].id))
        if word is None:
            return super().execute(context)
        log.info("%s has answered an earlier try of this task, which was lost", word.by)
        return super().execute_complete(context, _event(word))

    def execute_complete(self, context: Context, event: dict[str, Any]) -> Any:
        """Keep an approval in the ledger until the next task has it: this try may be lost."""
        person, at_ms = event.get("responded_by_user"), answered_ms(event)
        if event.get("chosen_options") == [self.APPROVE] and person and at_ms is not None:
            with step(self.run) as run:
                keep_word(run.ledger, self.phase, Word(f"{ACTOR} {person['name']}", at_ms))
        return super().execute_complete(context, event)


def _event(word: Word) -> dict[str, Any]:
    """An approval as Airflow hands it to the task that asked."""
    person = word.by.removeprefix(f"{ACTOR} ")
    return {
        "chosen_options": [ApprovalOperator.APPROVE],
        "params_input": {},
        "responded_at": datetime.fromtimestamp(word.said_ms / 1000, UTC),
        "responded_by_user": {"id": person, "name": person},
    }


class HearAnswersOperator(BaseOperator):
    """Waits in a trigger for a person's answers. Nothing waits for this task: if it fails, the write stop only takes
    longer, and an answer whose try Airflow loses must be given again."""

    template_fields = ("run",)

    def __init__(self, *, run: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.run = run

    def execute(self, context: Context) -> Any:
        """Wait until no answer is needed any more."""
        with step(self.run) as run:
            if open_questions(run.ledger):
                self.defer(trigger=AnswerTrigger(run.run_id), method_name="heard", timeout=timedelta(days=14))

    def heard(self, context: Context, event: str) -> None:
        """Log what the trigger has recorded."""
        log.info("%s", event)
