from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG, task

from walferry.airflow.links import BoardLink, DocsLink, ReportLink, SparkLink, add_links, board_url, run_of


@pytest.fixture(autouse=True)
def base_url(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "https://airflow.example/prefix/")


@pytest.mark.parametrize(
    ("operator", "run"),
    [
        (SimpleNamespace(run="move-1"), "move-1"),
        (SimpleNamespace(op_kwargs={"run": "move-12"}, op_args=()), "move-12"),
        (SimpleNamespace(op_kwargs={}, op_args=("move-2", "shop:orders")), "move-2"),
        (SimpleNamespace(op_kwargs={}, op_args=()), None),
        (SimpleNamespace(run="{{ ti.xcom_pull('plan') }}"), None),
        (SimpleNamespace(run="../../login"), None),
    ],
)
def test_the_run_of_a_task_is_its_argument_run(operator: Any, run: str | None) -> None:
    assert run_of(operator) == run


def test_links_lead_below_the_board_of_this_airflow() -> None:
    operator: Any = SimpleNamespace(run="move-1")
    page = "https://airflow.example/prefix/walferry/runs/move-1"
    assert BoardLink().get_link(operator, ti_key=None) == page == board_url("move-1")
    assert ReportLink().get_link(operator, ti_key=None) == f"{page}/report"
    assert DocsLink().get_link(operator, ti_key=None) == f"{page}/docs/index.html"
    assert SparkLink().get_link(operator, ti_key=None) == ""


def test_a_task_without_a_run_has_no_address() -> None:
    assert BoardLink().get_link(SimpleNamespace(run=""), ti_key=None) == ""


def test_every_link_keeps_its_address_under_a_key_of_its_own() -> None:
    links = (BoardLink(), ReportLink(), DocsLink(), SparkLink())
    assert len({link.xcom_key for link in links}) == len({link.name for link in links}) == len(links)


def test_functions_of_a_dag_get_links_by_task_id() -> None:
    with DAG("linked", schedule=None) as dag:

        @task
        def check(run: str) -> None: ...

        check("move-1")
    add_links(dag, {"check": [BoardLink(), DocsLink()]})
    assert [link.name for link in dag.get_task("check").operator_extra_links] == ["Migration board", "Data Docs"]
