"""`make demo`: move two live tables between two real clusters with the DAG `hbase_migrate`, and show the report.

The demo acts as the operator: it approves through Airflow's API, and stops the writer (an ordinary client of the
source) when the DAG asks whether writes have stopped.
"""

from __future__ import annotations

import json
import shutil
import time
from contextlib import ExitStack
from pathlib import Path

from walferry.embedded import processes
from walferry.embedded.airflow import write_private
from walferry.embedded.dag_run import ENDED, DagRun
from walferry.embedded.demo_writer import ENDPOINTS, STATUS, STOP_FILE, TABLES, await_load, read_count, start_writer
from walferry.embedded.environment import RUN, Environment
from walferry.embedded.processes import ServerProcess
from walferry.errors import SidesDifferError, TransientError, WalferryError
from walferry.ledger import Ledger
from walferry.migration.report import summary
from walferry.run.progress.status import status, status_line
from walferry.settings import EmbeddedServers

ROWS = 200_000
CELLS_PER_SECOND = 2_000
RUN_SECONDS = 1_800.0
LINE_SECONDS = 5.0
NAME = "demo"


def demo(directory: Path = RUN / "demo") -> None:
    """Boot everything in `directory`, run the migration, print the report, and stop everything.

    Raises SidesDifferError if a difference is unexplained, and WalferryError if the run fails.
    """
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    began = time.monotonic()
    environment = Environment.lay_out(directory, EmbeddedServers.read())
    with ExitStack() as undo:
        undo.callback(environment.stop)
        _say("booting source and target, each with HDFS, HBase and Thrift")
        environment.start_clusters()
        write_private(directory / ENDPOINTS, json.dumps(environment.endpoints()))
        writer = start_writer(directory, ROWS, CELLS_PER_SECOND)
        undo.callback(lambda: processes.stop([writer]))
        _say(f"writer started: {ROWS} rows, then {CELLS_PER_SECOND} cells per second until writes stop at cutover")
        _say("booting Airflow: scheduler, DAG processor, API server, triggerer")
        environment.airflow.start(environment.connections())
        environment.airflow.unpause("hbase_migrate")
        await_load(directory, writer)
        _say(f"set-up took {time.monotonic() - began:.0f} s; triggering hbase_migrate")
        with environment.airflow.client() as client:
            run = DagRun.trigger(client, "hbase_migrate", {"name": NAME, "tables": list(TABLES)})
            _follow(run, environment, directory, writer)
            _print_outcome(run, environment, directory)


def _say(line: str) -> None:
    print(line, flush=True)


def _follow(run: DagRun, environment: Environment, directory: Path, writer: ServerProcess) -> None:
    """Print status lines and answer the steps that wait for a person, until the DAG run has ended."""
    deadline = time.monotonic() + RUN_SECONDS
    next_line = 0.0
    with Ledger.open(environment.ledger) as ledger:
        while run.state() not in ENDED:
            if time.monotonic() > deadline:
                raise TransientError(f"the DAG run {run.run_id} has not ended in {RUN_SECONDS:.0f} s")
            if time.monotonic() >= next_line and ledger.runs():
                _say(status_line(status(ledger.of(ledger.find(NAME).run_id))))
                next_line = time.monotonic() + LINE_SECONDS
            for task_id in run.waiting():
                if task_id == "confirm_writes_stopped":
                    _stop_writer(directory, writer)
                _say(f"answering {task_id}: Approve")
                run.answer(task_id)
            time.sleep(1.0)


def _stop_writer(directory: Path, writer: ServerProcess) -> None:
    if not writer.is_alive():
        return
    (directory / STOP_FILE).touch()
    while writer.is_alive():
        time.sleep(0.2)
    count = read_count(directory / STATUS)
    _say(f"the writer has stopped: {count.rows_loaded} rows loaded, {count.cells_written} cells written since")


def _print_outcome(run: DagRun, environment: Environment, directory: Path) -> None:
    report = environment.reports / f"{NAME}-1" / "report.txt"
    if report.exists():
        _say("\n" + report.read_text())
    if run.state() != "success":
        failed = [task for task in run.tasks() if task.state == "failed"]
        for task in failed:
            _say(f"{task.task_id} failed:\n" + run.log(task.task_id, task.map_index, task.try_number)[-3000:])
        raise WalferryError(
            f"the DAG run failed in {', '.join(t.task_id for t in failed) or 'no task'}; see {directory}"
        )
    with Ledger.open(environment.ledger) as ledger:
        found = summary(ledger.of(ledger.find(NAME).run_id))
    unequal = [t for t, row in found.tables.items() if row.equal_regions < row.regions]
    if found.unexplained or len(found.tables) < len(TABLES):
        raise SidesDifferError(f"{found.unexplained} rows differ without an explanation in {', '.join(unequal)}")
    _say(f"no unexplained differences; everything that this demo wrote stays in {directory}")
