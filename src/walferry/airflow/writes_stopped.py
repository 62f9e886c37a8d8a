"""The question whether writes have stopped, and how its answer reaches the process that follows the log.

Airflow resumes the task that asked some seconds after a person has answered, and the next task takes some more. Clients
cannot write meanwhile. So a second task listens in a trigger, which looks at the answer several times a second, and
leaves it in the ledger: the app of the phase `replay` looks for it there.
"""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import Any

from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow.sdk import BaseOperator, Context

from walferry.airflow.operators import step
from walferry.airflow.triggers import AnswerTrigger, note_asked

log = logging.getLogger(__name__)


class AskWritesStoppedOperator(ApprovalOperator):
    """Asks a person, and tells `HearWritesStoppedOperator` where the answer will be."""

    template_fields = (*ApprovalOperator.template_fields, "run")

    def __init__(self, *, run: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.run = run

    def execute(self, context: Context) -> Any:
        """Ask; Airflow continues this task when there is an answer."""
        with step(self.run) as run:
            note_asked(run.ledger, str(context["task_instance"].id))
        return super().execute(context)


class HearWritesStoppedOperator(BaseOperator):
    """Waits in a trigger for a person's word that writes have stopped. Nothing waits for this task: if it fails, the
    write stop only takes longer."""

    template_fields = ("run",)

    def __init__(self, *, run: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.run = run

    def execute(self, context: Context) -> Any:
        """Wait; ends at once if walferry stops the writes itself."""
        with step(self.run) as run:
            if run.spec.write_stop == "confirm" and run.ledger.phases.facts("write_stop") is None:
                self.defer(trigger=AnswerTrigger(run.run_id), method_name="heard", timeout=timedelta(days=14))

    def heard(self, context: Context, event: str) -> None:
        """Log what the trigger has recorded."""
        log.info("%s", event)
