"""A DAG run as demo and tests drive it."""

from __future__ import annotations

import json

import httpx
import pytest

from walferry.embedded import dag_run
from walferry.embedded.dag_run import DagRun


def test_a_question_that_is_asked_again_is_answered_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hole: Airflow lost the try that was to take the answer, and the next one waited for ever."""
    monkeypatch.setattr(dag_run, "ANSWER_PAUSE_S", 0.0)
    states = iter(["running", "awaiting_input", "awaiting_input", "up_for_retry", "awaiting_input"])
    statuses = iter([200, 409, 200])  # the second time the answer is there, and the task is about to go on
    answers: list[dict[str, object]] = []

    def airflow(request: httpx.Request) -> httpx.Response:
        if request.method == "PATCH":
            answers.append(json.loads(request.content))
            return httpx.Response(next(statuses))
        asked = {"task_id": "approve_cutover", "map_index": -1, "state": next(states), "try_number": 1}
        return httpx.Response(200, json={"task_instances": [asked]})

    with httpx.Client(transport=httpx.MockTransport(airflow), base_url="http://airflow") as client:
        run = DagRun(client, "hbase_migrate", "manual__1")
        for _ in range(5):
            run.answer_if_asked("approve_cutover")
    assert answers == [{"chosen_options": ["Approve"], "params_input": {}}] * 3
