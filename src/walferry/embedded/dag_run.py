"""One run of a DAG, driven through Airflow's REST API like an operator's browser."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx

# Airflow 3.3 with the LocalExecutor may fail a task that gets its answer within about a second of asking.
ANSWER_PAUSE_S = 3.0
ENDED = ("success", "failed")


@dataclass(frozen=True)
class TaskInstance:
    """A task (map index -1: not mapped) and its state; None until it is scheduled."""

    task_id: str
    map_index: int
    state: str | None
    try_number: int


@dataclass(frozen=True)
class DagRun:
    """A run of the DAG `dag_id`, and a logged-in client."""

    client: httpx.Client
    dag_id: str
    run_id: str

    @classmethod
    def trigger(cls, client: httpx.Client, dag_id: str, conf: Mapping[str, Any]) -> DagRun:
        """Trigger the DAG. Raises httpx.HTTPStatusError if Airflow refuses the params."""
        answer = client.post(f"/api/v2/dags/{dag_id}/dagRuns", json={"conf": dict(conf), "logical_date": None})
        answer.raise_for_status()
        return cls(client, dag_id, answer.json()["dag_run_id"])

    def state(self) -> str:
        """`queued`, `running`, `success` or `failed`."""
        return str(self._get("")["state"])

    def tasks(self) -> list[TaskInstance]:
        """All task instances."""
        found = self._get("/taskInstances?limit=100")["task_instances"]
        return [TaskInstance(t["task_id"], t["map_index"], t["state"], t["try_number"]) for t in found]

    def waiting(self) -> list[str]:
        """The steps that now wait for a person."""
        return [task.task_id for task in self.tasks() if task.state == "awaiting_input"]

    def answer_if_asked(self, task_id: str) -> None:
        """Approve a step if it waits for a person. Repeat the call until the next task has started: Airflow may lose
        the try that should take the answer, and ask again."""
        if task_id in self.waiting():
            self.answer(task_id)

    def question(self, task_id: str) -> dict[str, Any]:
        """A step's question to a person: `subject`, `body`, `options`."""
        found: dict[str, Any] = self._get(f"/taskInstances/{task_id}/-1/hitlDetails")
        return found

    def answer(self, task_id: str, option: str = "Approve", fields: Mapping[str, Any] | None = None) -> None:
        """Answer a step that waits for a person, after a short pause. A step that already has an answer keeps it."""
        time.sleep(ANSWER_PAUSE_S)
        body = {"chosen_options": [option], "params_input": dict(fields or {})}
        answer = self.client.patch(f"{self._path}/taskInstances/{task_id}/-1/hitlDetails", json=body)
        if answer.status_code != httpx.codes.CONFLICT:
            answer.raise_for_status()

    def clear(self, task_id: str, *, downstream: bool = False) -> None:
        """Clear a task, like the button in the UI, so that it runs again."""
        body = {
            "dry_run": False,
            "dag_run_id": self.run_id,
            "task_ids": [task_id],
            "include_downstream": downstream,
            "only_failed": False,
            "reset_dag_runs": True,
        }
        answer = self.client.post(f"/api/v2/dags/{self.dag_id}/clearTaskInstances", json=body)
        answer.raise_for_status()

    def log(self, task_id: str, map_index: int = -1, try_number: int = 1) -> str:
        """A task's log."""
        path = f"{self._path}/taskInstances/{task_id}/logs/{try_number}?map_index={map_index}&full_content=true"
        return self.client.get(path, headers={"accept": "application/json"}).text

    @property
    def _path(self) -> str:
        return f"/api/v2/dags/{self.dag_id}/dagRuns/{self.run_id}"

    def _get(self, below: str) -> Any:
        answer = self.client.get(f"{self._path}{below}")
        answer.raise_for_status()
        return answer.json()
