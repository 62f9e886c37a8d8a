"""The DAG hbase_keep_log: its form is the spec's, and its tasks end as the run does."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any, NoReturn

import pytest
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from unit.airflow.dag_ledger import book as book
from unit.moments.keep_ledger import PARAMS, TABLES
from walferry.airflow.dags import hbase_keep_log
from walferry.airflow.dags import keep_log as dag_module
from walferry.ledger import Ledger
from walferry.moments.keeping import keep as keeping
from walferry.moments.keeping.keep_run import KeepRun
from walferry.moments.keeping.keep_spec import KeepSpec
from walferry.run.phases import phases_of
from walferry.run.run import RunEndedError
from walferry.run.turn import TakenOverError


@pytest.fixture
def dag_run(book: Ledger, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Let tasks be those of a DAG run, with these values in its form; the phase `plan` finds nothing in the way."""

    def of(run_id: str, **params: Any) -> None:
        form = {key: param.value for key, param in dag_module.PARAMS.items()} | PARAMS
        context = {"params": form | params, "run_id": run_id}
        monkeypatch.setattr(dag_module, "get_current_context", lambda: context)

    monkeypatch.setitem(keeping.WORK, "plan", lambda run: run.once("plan", dict))
    of("manual__1")
    return of


def ends(monkeypatch: pytest.MonkeyPatch, act: Callable[[KeepRun], object]) -> None:
    """Let something happen while the phase `keep` is at work."""

    def keep_on(run: KeepRun) -> NoReturn:
        act(run)
        raise RunEndedError(f"run {run.run_id} has ended")

    monkeypatch.setattr(keeping, "keep_on", keep_on)


def test_each_phase_is_a_task_and_it_goes_on_whatever_kills_it() -> None:
    made = hbase_keep_log()
    names = [phase.name for phase in phases_of("keep")]
    assert list(made.task_dict) == names
    for before, after in pairwise(names):
        assert made.get_task(after).upstream_task_ids == {before}
    assert made.get_task("keep").retries == 1_000_000
    assert made.schedule is None


def test_each_key_of_the_spec_has_its_field_with_the_models_words() -> None:
    assert dag_module.PARAMS.keys() == KeepSpec.model_fields.keys()
    for key, model in KeepSpec.model_fields.items():
        field = dag_module.PARAMS[key]
        assert field.schema["title"] == model.title
        assert (field.description or "").startswith(model.description or "")


def test_another_dag_run_goes_on_with_the_run_and_may_give_it_more_tables(book: Ledger, dag_run: Any) -> None:
    run_id = dag_module.plan.function()
    assert (book.run(run_id).kind, book.run(run_id).owner) == ("keep", "airflow manual__1")
    dag_run("manual__2", tables=[*TABLES, "more"], keep_days=3)
    assert dag_module.plan.function() == run_id
    assert (book.run(run_id).spec["tables"], book.run(run_id).spec["keep_days"]) == ([*TABLES, "more"], 3)
    dag_run("manual__1")
    with pytest.raises(AirflowSkipException, match="moments-1 belongs to airflow manual__2, which goes on with it"):
        dag_module.keep.function(run_id)


def test_the_task_succeeds_once_a_person_has_ended_the_run_and_is_skipped_after_that(
    book: Ledger, dag_run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = dag_module.plan.function()
    ends(monkeypatch, lambda run: book.of(run_id).end("aborted", "kim", "no longer needed"))
    assert dag_module.keep.function(run_id) == "no longer needed"
    with pytest.raises(AirflowSkipException, match="moments-1 was aborted: no longer needed"):
        dag_module.do.function(run_id, "protect")


def test_a_task_that_another_process_has_overtaken_is_skipped_and_not_tried_again(
    dag_run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def overtaken(run: KeepRun) -> None:
        raise TakenOverError("another process keeps moments-1 now: this one ends")

    run_id = dag_module.plan.function()
    ends(monkeypatch, overtaken)
    with pytest.raises(AirflowSkipException, match="another process keeps moments-1 now"):
        dag_module.keep.function(run_id)


def test_a_task_whose_run_has_failed_fails(dag_run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    run_id = dag_module.plan.function()
    ends(monkeypatch, lambda run: run.ledger.end("failed", "kim", "it was"))
    with pytest.raises(AirflowFailException, match="run moments-1 has ended"):
        dag_module.keep.function(run_id)
