from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal
from unittest.mock import patch

import pytest
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from unit.airflow.board_ledger import spec
from walferry import pipeline
from walferry.airflow import example_dags
from walferry.airflow.dags import hbase_migrate
from walferry.airflow.links import SparkLink
from walferry.airflow.operators import (
    HBaseCompareOperator,
    HBaseCopyOperator,
    HBaseCutoverOperator,
    HBaseSnapshotOperator,
    WalferrySparkOperator,
    answered_ms,
    approved_by,
    do_phase,
    finish,
    record_trigger,
    step,
)
from walferry.airflow.spark_submit import SparkHook, app_page, cluster_conf
from walferry.cutover import gates
from walferry.errors import UsageError
from walferry.ledger import Ledger
from walferry.pipeline import PhaseContext
from walferry.replay.keeping import by_copies
from walferry.run.phases import phases_of
from walferry.run.run import Run
from walferry.spark.session import NoSparkError

EXAMPLES = Path(str(example_dags.__file__)).parent
OWN_DAGS = Path(__file__).parents[3] / "dags"
READ_DAGS = """
import inspect, json, sys
from airflow.dag_processing.dagbag import DagBag
from airflow.sdk.definitions.context import Context

def read(folder):
    bag = DagBag(folder)
    tasks = [task for dag in bag.dags.values() for task in dag.tasks]
    # Airflow passes what is named like an entry of the context by itself, and refuses to run a task that is given it.
    reserved = [(task.task_id, name) for task in tasks if hasattr(task, "python_callable")
                for name in inspect.signature(task.python_callable).parameters if name in Context.__annotations__]
    return {"dags": {name: dag.fileloc for name, dag in bag.dags.items()}, "errors": bag.import_errors,
            "operators": sorted({task.task_type for task in tasks}), "reserved": reserved}

print(json.dumps([read(folder) for folder in sys.argv[1:]]))
"""
CLUSTER = {"zookeeper": "127.0.0.1:1", "webhdfs": "http://127.0.0.1:1", "rootdir": "hdfs://127.0.0.1:1/hbase"}
TABLES = [{"source": "orders", "target": "orders"}]


@pytest.fixture
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ledger]:
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    monkeypatch.setenv("WALFERRY_LEDGER", url)
    with Ledger.open(url, actor="tester") as opened:
        yield opened


def open_run(ledger: Ledger, **keys: Any) -> str:
    spec = {"name": "move", "source": CLUSTER, "target": CLUSTER, "tables": TABLES} | keys
    return ledger.open_run("move", "tester", spec, "tester").run_id


def done(ledger: Ledger, run: str, *phases: str) -> None:
    for phase in phases:
        ledger.of(run).phases.start(phase)
        ledger.of(run).phases.finish(phase, {})


def answer(option: str = "Approve") -> dict[str, Any]:
    return {"chosen_options": [option], "responded_by_user": {"id": "1", "name": "ann"}}


def spark_connection(monkeypatch: pytest.MonkeyPatch, host: str, **extra: Any) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_SPARK", json.dumps({"conn_type": "spark", "host": host, "extra": extra}))


def spark_task(**keys: Any) -> WalferrySparkOperator:
    fields: dict[str, Any] = {"run": "move-1", "phase": "replay", "conn_id": "spark"} | keys
    return WalferrySparkOperator(task_id="t", **fields)


def due_task(ledger: Ledger) -> WalferrySparkOperator:
    """A task whose phase may start."""
    run = open_run(ledger)
    done(ledger, run, "check_copy")
    return spark_task(run=run)


def command(operator: WalferrySparkOperator) -> str:
    """What would be run."""
    return " ".join(operator.command(SparkHook("spark")))


def test_airflow_reads_every_dag_and_each_belongs_to_its_file(tmp_path: Path) -> None:
    answer = subprocess.run(
        [sys.executable, "-c", READ_DAGS, str(OWN_DAGS), str(EXAMPLES)],
        capture_output=True, text=True, check=True, env={"AIRFLOW_HOME": str(tmp_path), "PATH": "/usr/bin:/bin"},
    )  # fmt: skip
    own, examples = json.loads(answer.stdout.splitlines()[-1])
    assert own["errors"] == examples["errors"] == {}
    assert own["reserved"] == examples["reserved"] == []
    assert own["dags"] == {file.stem: str(file) for file in OWN_DAGS.glob("*.py")}
    assert examples["dags"] == {file.stem: str(file) for file in EXAMPLES.glob("example_*.py")}
    for part in ("Snapshot", "Copy", "Replay", "Compare", "Cutover"):
        assert f"HBase{part}Operator" in examples["operators"]


@pytest.mark.parametrize("file", sorted(OWN_DAGS.glob("*.py")), ids=lambda file: file.stem)
def test_a_dag_is_made_by_a_file_of_two_lines(file: Path) -> None:
    lines = [line for line in file.read_text().splitlines() if line]
    assert lines == [f"from walferry.airflow.dags import {file.stem}", f"{file.stem}()"]


def test_a_task_of_the_migration_comes_after_those_of_the_phases_that_its_own_needs() -> None:
    dag = hbase_migrate()
    task_of = {phase.name: phase.name for phase in phases_of("migration")}
    task_of |= {"approve": "how_to_stop_writes", "write_stop": "stop_writes"}
    for phase in phases_of("migration"):
        before = dag.get_task(task_of[phase.name]).get_flat_relative_ids(upstream=True)
        assert {task_of[name] for name in phase.needs} <= before, phase.name
    assert "approve_cutover" in dag.get_task("confirm_writes_stopped").get_flat_relative_ids(upstream=True)
    # Whether the confirmation is asked for depends on the spec; replay goes on meanwhile.
    assert dag.get_task("stop_writes").upstream_task_ids == {"plan", "how_to_stop_writes", "confirm_writes_stopped"}
    assert "replay" not in dag.get_task("stop_writes").get_flat_relative_ids(upstream=True)
    assert dag.get_task("end_fence").upstream_task_ids >= {"replay", "stop_writes"}
    assert dag.get_task("stage_log").upstream_task_ids == {"plan", "protect"}, "it begins before the fence"
    assert dag.get_task("stage_log").downstream_task_ids == set(), "nothing waits for it"


def test_in_one_process_nothing_is_asked_of_a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    spark_connection(monkeypatch, "local[*]")
    line = command(spark_task())
    assert "--master local[*]" in line
    assert "spark.executor" not in line
    assert "--archives" not in line


def test_on_a_cluster_apps_are_bounded_and_bring_their_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    extra = {"archives": "/x/env.tar.gz", "conf": {"spark.cores.max": 8}, "deploy-mode": "client"}
    spark_connection(monkeypatch, "spark://master.example:7077", **extra)
    line = command(spark_task())
    for part in (
        "--master spark://master.example:7077", "--archives /x/env.tar.gz#environment", "spark.executor.cores=1",
        "spark.executor.memory=1g", "spark.cores.max=8", "spark.pyspark.python=./environment/bin/python",
        f"spark.pyspark.driver.python={sys.executable}",
    ):  # fmt: skip
        assert part in line


def test_an_operators_own_conf_wins_over_the_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    spark_connection(monkeypatch, "spark://master.example:7077", conf={"spark.cores.max": 8})
    assert "spark.cores.max=3" in command(spark_task(conf={"spark.cores.max": "3"}))
    assert cluster_conf({}) == {
        "spark.executor.cores": "1", "spark.executor.memory": "1g", "spark.cores.max": "2",
    }  # fmt: skip


def test_a_driver_away_from_its_task_is_refused(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    spark_connection(monkeypatch, "spark://master.example:7077", **{"deploy-mode": "cluster"})
    with pytest.raises(AirflowFailException, match="set deploy-mode to client"):
        due_task(ledger).execute({})


@pytest.mark.parametrize(
    ("connection", "master"),
    [
        ({"conn_type": "spark", "host": "local[2]"}, "local[2]"),
        ({"conn_type": "spark", "host": "spark://master.example", "port": 7077}, "spark://master.example:7077"),
        ({"conn_type": "spark", "host": "yarn"}, "yarn"),
        ({"conn_type": "spark", "host": "k8s://https://api.example:6443"}, "k8s://https://api.example:6443"),
        ("spark://master.example:7077", "spark://master.example:7077"),
    ],
)
def test_the_master_is_read_as_airflows_own_spark_provider_reads_it(
    monkeypatch: pytest.MonkeyPatch, connection: Any, master: str
) -> None:
    text = connection if isinstance(connection, str) else json.dumps(connection)
    monkeypatch.setenv("AIRFLOW_CONN_SPARK", text)
    assert SparkHook("spark").get_conn()[0] == master


def test_a_connection_without_a_master_is_refused(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    spark_connection(monkeypatch, "")
    with pytest.raises(AirflowFailException, match=r"connection spark: set its host to the master"):
        due_task(ledger).execute({})


SUBMIT = """#!/bin/sh
echo "INFO starting with $PYTHONSAFEPATH"
echo "INFO Connected to Spark cluster with app ID app-20260101120000-0007"
echo "app-20260101120001-0008"
echo "error: the disk is full"
exit 1
"""


def test_the_task_that_copies_logs_ends_at_once_with_a_peer_and_at_the_last_gate_without(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy: Any = hbase_migrate().get_task("stage_log")
    copy = copy.python_callable
    copy(open_run(ledger))
    ledger.of("move-1").end("done", "tester")
    asked: list[str] = []

    def tend(run: Run) -> float | None:
        asked.append(run.run_id)
        return 0.0 if len(asked) < 3 else None

    monkeypatch.setattr(by_copies, "tend", tend)
    copy(open_run(ledger, protect="stage", stage="/copies"))
    assert asked == ["move-2"] * 3


@pytest.fixture
def spark_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A spark-submit that prints what the real one may, and fails."""
    submit = tmp_path / "spark" / "bin" / "spark-submit"
    submit.parent.mkdir(parents=True)
    submit.write_text(SUBMIT)
    submit.chmod(0o755)
    monkeypatch.setenv("SPARK_HOME", str(tmp_path / "spark"))
    return tmp_path / "spark"


def test_the_apps_page_is_told_once_its_id_is_read(
    spark_home: Path, ledger: Ledger, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    spark_connection(monkeypatch, "spark://m:7077", ui="http://m:8080/")
    operator = due_task(ledger)
    caplog.set_level("INFO")
    with (
        patch("walferry.airflow.operators.get_current_context") as context,
        pytest.raises(AirflowException, match=r"^the disk is full$") as failed,
    ):
        operator.execute({})
    assert not isinstance(failed.value, AirflowFailException)  # nothing final is recorded: worth another try
    assert "INFO starting with 1" in caplog.messages
    page = "http://m:8080/app/?appId=app-20260101120000-0007"
    context()["ti"].xcom_push.assert_called_once_with(key=SparkLink().xcom_key, value=page)
    assert SparkLink().get_link(operator, ti_key=None) == page
    assert app_page("http://rm:8088", "yarn", "application_1_2") == "http://rm:8088/cluster/app/application_1_2"


def test_the_trail_names_who_triggered_a_dag_run_once(ledger: Ledger) -> None:
    run = ledger.open_run("moved", "airflow manual_1", spec("moved"), "airflow manual_1").run_id
    for dag_run, person in (("manual_1", "kim"), ("manual_1", "kim"), ("scheduled_2", None), ("manual_3", "lee")):
        context = {"run_id": dag_run, "dag_run": SimpleNamespace(triggering_user_name=person)}
        record_trigger(ledger, run, context)
    told = [(line.actor, line.inputs) for line in ledger.of(run).audit_trail() if line.action == "trigger"]
    assert told == [("airflow kim", {"dag_run": "manual_1"}), ("airflow lee", {"dag_run": "manual_3"})]


Attempt = Literal["final", "transient", "killed"]


def record(ledger: Ledger, run: str, attempts: Sequence[Attempt]) -> None:
    """Let the ledger have these attempts at the replay, with errors of classes that this process has not loaded."""
    for outcome in attempts:
        number = ledger.of(run).phases.start("replay")
        if outcome != "killed":
            error = f"ErrorOfTheApp: {outcome} error of attempt {number}"
            ledger.of(run).phases.fail("replay", error, "", number, transient=outcome == "transient")


@pytest.mark.parametrize(
    ("before", "meanwhile", "final", "message"),
    [
        ([], ["final"], True, "final error of attempt 1"),
        ([], ["transient"], False, "transient error of attempt 1"),
        (["transient"], ["final"], True, "final error of attempt 2"),
        # Nothing is recorded of the attempt of this task: an older one's error, or another process's, is not its own.
        (["final"], [], False, "the disk is full"),
        (["final"], ["killed"], False, "the disk is full"),
        (["final"], ["killed", "final"], False, "the disk is full"),
    ],
)
def test_a_task_fails_for_good_only_by_what_the_attempt_of_its_own_app_recorded(
    before: Sequence[Attempt],
    meanwhile: Sequence[Attempt],
    final: bool,
    message: str,
    ledger: Ledger,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spark_connection(monkeypatch, "local[1]")
    operator = due_task(ledger)
    record(ledger, operator.run, before)

    def submit(hook: SparkHook, command: object, show: object) -> tuple[int, str]:
        record(ledger, operator.run, meanwhile)
        return 1, "the disk is full"

    monkeypatch.setattr(SparkHook, "run", submit)
    with pytest.raises(AirflowException, match=f"^{message}$") as failed:
        operator.execute({})
    assert isinstance(failed.value, AirflowFailException) == final


def test_no_app_is_submitted_for_a_phase_that_is_done_or_may_not_start_or_whose_run_has_ended(
    spark_home: Path, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    spark_connection(monkeypatch, "local[1]")
    run = open_run(ledger)
    with pytest.raises(AirflowFailException, match="check_copy is not done"):
        spark_task(run=run).execute({})
    done(ledger, run, "check_copy", "replay")
    spark_task(run=run).execute({})  # the spark-submit of this test fails whenever it is called
    other = ledger.open_run("other", "tester", ledger.run(run).spec, "tester").run_id
    done(ledger, other, "check_copy")
    ledger.of(other).end("aborted", "ann", "not today")
    with pytest.raises(AirflowFailException, match=r"has ended \(aborted: not today\)"):
        spark_task(run=other).execute({})


def test_what_airflow_does_is_signed_as_that_in_the_audit_trail(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    spark_connection(monkeypatch, "local[1]")
    run_id = open_run(ledger)
    with step(run_id) as run:
        run.once("plan", dict)
    assert {line.actor for line in ledger.of(run_id).audit_trail()[1:]} == {"airflow"}
    assert command(spark_task()).endswith(" --actor airflow")


def test_nothing_but_a_persons_approval_approves() -> None:
    assert approved_by(answer()) == "ann"
    with pytest.raises(UsageError, match="ann answered Reject"):
        approved_by(answer("Reject"))
    for nothing in (None, True, {}, {"chosen_options": ["Approve"], "responded_by_user": None}):
        with pytest.raises(UsageError, match="no person's answer"):
            approved_by(nothing)


def test_the_write_stop_counts_from_the_persons_answer_not_from_the_task_that_records_it(ledger: Ledger) -> None:
    run_id = open_run(ledger, write_stop="confirm")
    done(ledger, run_id, "check_copy", "approve")
    word = datetime(2026, 11, 21, 8, 0, 0, tzinfo=UTC)
    assert answered_ms(None) is None
    assert answered_ms(answer()) is None
    for at in (word, word.isoformat()):  # as Airflow hands it on, and as JSON has it
        assert answered_ms(answer() | {"responded_at": at}) == 1_795_248_000_000
    with Run(ledger, run_id) as run:
        do_phase(run, "write_stop", by="airflow ann", said_ms=answered_ms(answer() | {"responded_at": word}))
        assert run.done("write_stop")["at_ms"] == 1_795_248_000_000


def test_a_cutover_by_confirmation_needs_the_second_answer_and_records_nothing_without(ledger: Ledger) -> None:
    run = open_run(ledger, write_stop="confirm")
    operator = HBaseCutoverOperator(task_id="t", run=run, approval=answer())
    with pytest.raises(AirflowFailException, match="no person's answer"):
        operator.execute({})
    assert ledger.of(run).phases.all() == []


def test_operators_do_their_phases_by_the_one_function_that_does_them_everywhere(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, str, str | None]] = []

    def do(run: Run, phase: str, subject: str, means: PhaseContext) -> None:
        asked.append((phase, subject, means.by or means.outcome))
        run.ledger.phases.start(phase, subject)
        run.ledger.phases.finish(phase, {}, subject)

    def submit(operator: WalferrySparkOperator, table: str = "") -> None:
        asked.append((operator.phase, table, "Spark"))
        done(ledger, operator.run, operator.phase)

    monkeypatch.setattr(pipeline, "do", do)
    monkeypatch.setattr(gates, "before_cutover", lambda run: None)
    monkeypatch.setattr(WalferrySparkOperator, "submit", submit)
    run = open_run(ledger, write_stop="readonly")
    HBaseSnapshotOperator(task_id="s", run=run).execute({})
    HBaseCopyOperator(task_id="c", run=run).execute({})
    done(ledger, run, "replay")
    HBaseCutoverOperator(task_id="t", run=run, approval=answer()).execute({})
    HBaseCompareOperator(task_id="v", run=run).execute({})
    finish(run, "moved")
    assert asked == [
        ("plan", "", None), ("protect", "", None), ("fence", "", None), ("snapshot", "orders", None),
        ("copy", "orders", "Spark"), ("clone", "orders", None), ("check_copy", "", None),
        ("approve", "", "airflow ann"), ("write_stop", "", None), ("end_fence", "", None), ("drain", "", "Spark"),
        ("open_target", "", None), ("compare", "orders", "Spark"), ("check_drain", "", None), ("release", "", "moved"),
    ]  # fmt: skip


def test_a_task_without_spark_is_told_so_by_an_error_that_its_phase_can_heed(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "do", lambda run, phase, subject, means: means.spark())
    with Run(ledger, open_run(ledger)) as run, pytest.raises(NoSparkError, match="open_target needs Spark"):
        do_phase(run, "open_target")


def test_a_run_that_still_replays_is_not_compared(ledger: Ledger) -> None:
    run = open_run(ledger)
    done(ledger, run, "plan", "protect", "fence")
    with pytest.raises(AirflowFailException, match="still replays"):
        HBaseCompareOperator(task_id="t", run=run).execute({})
    assert ledger.of(run).phases.facts("compare", "orders") is None
