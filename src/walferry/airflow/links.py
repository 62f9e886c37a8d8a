"""Links from tasks to the pages of their run: the board, the report, Data Docs, Spark's web UI."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any
from urllib.parse import quote

from airflow.sdk import DAG, BaseOperatorLink
from airflow.sdk.configuration import conf

_RUN_ID = re.compile(r"^[a-z][a-z0-9_]*-\d+$")


def run_of(operator: Any) -> str | None:
    """The run that a task works for: the argument `run` of an operator or a @task; None when it is unknown."""
    arguments = [
        getattr(operator, "run", None),
        (getattr(operator, "op_kwargs", None) or {}).get("run"),
        *(getattr(operator, "op_args", None) or ())[:1],
    ]
    return next((run for run in arguments if isinstance(run, str) and _RUN_ID.match(run)), None)


def base_url() -> str:
    """This Airflow's URL for people, without a trailing slash; "" if none is configured."""
    return str(conf.get("api", "base_url", fallback="/") or "/").rstrip("/")


def board_url(run_id: str, below: str = "") -> str:
    """The URL of a run's page on the board; `below` is a path under that page."""
    return f"{base_url()}/walferry/runs/{quote(run_id, safe='')}{below}"


class BoardLink(BaseOperatorLink):
    """The run's page on the board."""

    name = "Migration board"
    below = ""

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        """The URL, or "" for a task whose run is unknown."""
        run_id = run_of(operator)
        return board_url(run_id, self.below) if run_id else ""


class ReportLink(BoardLink):
    """The run's report."""

    name = "Report"
    below = "/report"


class DocsLink(BoardLink):
    """Data Docs of the run's checks."""

    name = "Data Docs"
    below = "/docs/index.html"


class SparkLink(BaseOperatorLink):
    """The app's page at Spark's master, at YARN, or wherever the Spark connection's extra `ui` points."""

    name = "Spark UI"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        """The URL, or "" when the connection has none (Spark in one process has no page)."""
        return str(getattr(operator, "spark_page", ""))


def add_links(dag: DAG, links: Mapping[str, Collection[BaseOperatorLink]]) -> None:
    """Add links, by task id, to @task functions of a DAG. (Operators, even mapped ones, have links in their class.)"""
    for task_id, own in links.items():
        dag.get_task(task_id).operator_extra_links = tuple(own)
