"""The DAG hbase_verify: what it verifies, and whom it tells of rows that differ."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException

from unit.migration.filled_ledger import SPEC
from unit.migration.pair_ledger import differs, one_pass
from walferry.airflow.dags import hbase_verify, verify
from walferry.ledger import RunLedger
from walferry.migration.pairs.pair_findings import pass_facts
from walferry.migration.pairs.pair_pass import open_pair
from walferry.process import open_ledger
from walferry.run.progress.state import state_of
from walferry.run.spec import ResolvedSpec


def test_the_form_overrides_the_variable_and_no_tables_are_an_error() -> None:
    variable = {"tables": ["a"], "whole_every": 3, "max_lag": 60}
    assert verify.pair_spec({"tables": [], "whole_every": None}, variable) == (
        {"name": "verify", "tables": ["a"], "max_lag": 60}, 3.0,
    )  # fmt: skip
    assert verify.pair_spec({"tables": ["b"], "whole_every": 1}, variable)[1] == 1.0
    assert verify.pair_spec({"tables": ["b"]}, {})[1] is None
    assert verify.pair_spec({}, {"tables": ["a"], "peer": "1"})[0]["peer"] == "1"
    with pytest.raises(AirflowFailException, match="set the Variable walferry_verify"):
        verify.pair_spec({}, {})


def test_one_pass_runs_at_a_time_and_only_once_somebody_has_unpaused_the_dag() -> None:
    made = hbase_verify()
    assert (made.max_active_runs, made.is_paused_upon_creation, made.catchup) == (1, True, False)
    assert made.task_dict.keys() == {"open_pair", "compare", "judge"}
    assert made.get_task("judge").upstream_task_ids >= {"compare"}
    assert not made.get_task("judge").on_failure_callback  # the alert is its own


class Instance:
    dag_id, task_id = "hbase_verify", "judge"


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunLedger]:
    monkeypatch.setenv("WALFERRY_LEDGER", f"sqlite:///{tmp_path / 'ledger.db'}")
    monkeypatch.setattr(verify, "get_current_context", lambda: {"ti": Instance(), "run_id": "scheduled__1"})
    with open_ledger(actor="test") as ledger:
        yield ledger.of(open_pair(ledger, ResolvedSpec.model_validate(SPEC), "test", 7).run_id)


def judged(pair: RunLedger, *rows: bytes, why: str = "") -> None:
    """A pass that finds these rows, and the task after it. `why`: why the peer did not ship what was written."""
    attempt = pair.phases.start("pass")
    found = [replace(differs(row), state="under way" if why else "differs") for row in rows]
    made = one_pass(pair, *found, attempt=attempt, shipped={"peer": "east", "why": why} if why else None)
    pair.phases.finish("pass", pass_facts(made), attempt=attempt)
    verify.judge.function(pair.run_id)


def test_rows_that_differ_fail_each_run_and_alert_only_when_they_are_new(
    pair: RunLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[dict[str, Any]] = []
    accepted = [False, True, True]

    def send(message: dict[str, Any]) -> bool:
        sent.append(message)
        return accepted.pop(0)

    monkeypatch.setattr(verify, "send", send)
    judged(pair)
    assert sent == []
    for rows, alerts in (([b"a"], 1), ([b"a"], 2), ([b"a"], 2), ([b"a", b"b"], 3), ([b"b"], 3)):
        with pytest.raises(AirflowFailException, match=r"pair move: \d rows? differs?: "):
            judged(pair, *rows)
        assert len(sent) == alerts  # the webhook did not accept the first one
    judged(pair)
    assert sent[0] == {
        "event": "difference", "dag": "hbase_verify", "dag_run": "scheduled__1", "task": "judge", "run": "move-1",
        "message": "pair move: 1 row differs: a of t: only at the target: put f:q at 5",
    }  # fmt: skip


def test_the_alert_names_only_rows_that_differ(pair: RunLedger, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[dict[str, Any]] = []
    monkeypatch.setattr(verify, "send", lambda message: not sent.append(message))  # type: ignore[func-returns-value]
    attempt = pair.phases.start("pass")
    made = one_pass(pair, differs(b"a"), replace(differs(b"w"), state="under way"), attempt=attempt)
    pair.phases.finish("pass", pass_facts(made), attempt=attempt)
    with pytest.raises(AirflowFailException):
        verify.judge.function(pair.run_id)
    assert sent[0]["message"] == "pair move: 1 row differs: a of t: only at the target: put f:q at 5"


def test_rows_that_cannot_be_judged_fail_each_run_and_alert_once_until_they_are(
    pair: RunLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[dict[str, Any]] = []

    def send(message: dict[str, Any]) -> bool:
        sent.append(message)
        return len(sent) > 1  # the webhook does not accept the first one

    monkeypatch.setattr(verify, "send", send)
    for alerts in (1, 2, 2):
        with pytest.raises(
            AirflowFailException, match="pair move: 1 row differs and is not judged: not shipped in 60 s"
        ):
            judged(pair, b"a", why="not shipped in 60 s")
        assert len(sent) == alerts
        assert state_of(pair).name == "stuck"
        assert "1 row differs and is not judged: not shipped in 60 s" in state_of(pair).cause
    judged(pair, why="not shipped in 60 s")  # but the rows were equal after all
    assert state_of(pair).name == "following"
    with pytest.raises(AirflowFailException, match="not judged"):
        judged(pair, b"a", why="not shipped in 60 s")
    assert [message["event"] for message in sent] == ["replication"] * 3
