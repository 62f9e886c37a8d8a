"""The Spark app of every phase that is a Spark job: `spark-submit spark_app.py PHASE RUN [TABLE]`.

The operators submit this file of the installed package. To submit an app by hand, use `spark_apps/run_phase.py`: Python
first looks for modules beside the file that it runs, and beside this one it would find our `airflow` and `hbase`.
"""

from __future__ import annotations

from typing import Annotated

import typer

from walferry.errors import UsageError
from walferry.pipeline import PhaseContext, do, do_through
from walferry.process import reports_folder, run_app
from walferry.run.phases import phases_of, subjects
from walferry.run.run import Run
from walferry.spark.session import opened_once


def main(
    phase: Annotated[str, typer.Argument(metavar="PHASE", help="name of a phase that is a Spark job, such as copy")],
    run_id: Annotated[str, typer.Argument(metavar="RUN")],
    table: Annotated[str, typer.Argument(metavar="TABLE", help="source table, for a phase done by table")] = "",
    parent: Annotated[int | None, typer.Option(help="pid of the submitter; the app ends when it does")] = None,
    actor: Annotated[str | None, typer.Option(help="who signs the audit lines; default: the OS user")] = None,
    through: Annotated[str, typer.Option(help="a later phase: also do the phases up to it")] = "",
) -> None:
    """Do PHASE of RUN: for one source table, or for the whole run."""

    def work(run: Run) -> None:
        require_job(run, phase, table)
        means = PhaseContext(opened_once(f"{run_id} {phase} {table}".strip()), reports_folder() / "data_docs")
        if through:
            require_follows(run, phase, through)
            do_through(run, phase, through, means)
        else:
            do(run, phase, table, means)

    run_app(work, run_id, parent, actor)


def require_job(run: Run, phase: str, table: str) -> None:
    """Raise UsageError if the run has no such Spark job."""
    tables = [pair.source for pair in run.tables]
    jobs = {(one.name, subject) for one in phases_of(run.record.kind) if one.spark for subject in subjects(one, tables)}
    if (phase, table) not in jobs:
        known = ", ".join(sorted(" ".join(job).strip() for job in jobs))
        raise UsageError(
            f"run {run.run_id} has no Spark job {f'{phase} {table}'.strip()}: give one of {known}",
            run=run.run_id, phase=phase, subject=table,
        )  # fmt: skip


def require_follows(run: Run, phase: str, last: str) -> None:
    """Raise UsageError unless `last` is a phase of the run after `phase`."""
    names = [one.name for one in phases_of(run.record.kind)]
    later = names[names.index(phase) + 1 :]
    if last not in later:
        raise UsageError(
            f"run {run.run_id} has no phase {last} after {phase}: give one of {', '.join(later)}",
            run=run.run_id, phase=last,
        )  # fmt: skip


if __name__ == "__main__":
    typer.run(main)
