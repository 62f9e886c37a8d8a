"""Operators and the frame of every task: open the run, say errors in one line, fail for good what is final."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from walferry.errors import TransientError, WalferryError
from walferry.migration.context import Migration
from walferry.process import opened, quiet_libraries

log = logging.getLogger(__name__)

SPARK_APPS = Path(os.environ.get("WALFERRY_SPARK_APPS", Path(__file__).parents[3] / "spark_apps"))


@contextmanager
def final_errors() -> Iterator[None]:
    """Let Airflow retry what is transient; everything else fails the task at once, in one line."""
    quiet_libraries()
    try:
        yield
    except TransientError:
        raise
    except WalferryError as error:
        raise AirflowFailException(str(error)) from None


@contextmanager
def step(run_id: str) -> Iterator[Migration]:
    """The frame of a task of a run: the migration, with errors as `final_errors` has them."""
    with final_errors(), opened(run_id, actor="airflow") as migration:
        yield migration


class WalferrySparkOperator(SparkSubmitOperator):
    """Submits one of walferry's Spark apps for a run.

    The app ends when this task's process does; a final error of the app (its exit code is not 1, or the ledger says
    so) is not retried.
    """

    template_fields = (*SparkSubmitOperator.template_fields, "run", "phase", "table")

    def __init__(self, *, app: str, run: str, phase: str, table: str = "", **kwargs: Any) -> None:
        super().__init__(
            application=str(SPARK_APPS / app),
            conf={"spark.ui.enabled": "false"} | kwargs.pop("conf", {}),
            name=f"walferry {phase}",
            **kwargs,
        )
        self.run = run
        self.phase = phase
        self.table = table

    def execute(self, context: Any) -> None:
        """Submit the app and wait for its end."""
        self.application_args = [self.run, *([self.table] if self.table else []), "--parent", str(os.getpid())]
        try:
            super().execute(context)
        except AirflowException:
            with opened(self.run, actor="airflow") as migration:
                self._give_up_if_final(migration)
            raise

    def _give_up_if_final(self, migration: Migration) -> None:
        for phase in migration.ledger.phases(migration.run_id):
            if (phase.phase, phase.subject, phase.state) == (self.phase, self.table, "failed"):
                kind, _, message = phase.error.partition(": ")
                if not is_transient(kind):
                    raise AirflowFailException(message) from None
                raise AirflowException(message) from None


def is_transient(class_name: str) -> bool:
    """Whether the error class that a phase recorded may go away by itself; unknown ones (a bug, a kill) may."""
    kinds: list[type[WalferryError]] = [WalferryError]
    while kinds:
        kind = kinds.pop()
        if kind.__name__ == class_name:
            return issubclass(kind, TransientError)
        kinds += kind.__subclasses__()
    return True
