"""Stream every change of HBase tables to Kafka, one message per row that was written, in order and exactly once.

Trigger it with the form; each run is one stream, and several streams run side by side. The first task examines the
source and the topics, then a disabled replication peer keeps the source's WALs, and the log is cut: the stream begins
there. The task `stream` then sends what is written, until `walferry abort NAME` ends it. It takes a worker's slot all
that time and needs no Spark. It may be killed, retried or cleared at any time: the next attempt goes on where Kafka's
last transaction ended. `walferry pause` and `walferry resume` work as with a migration. To give the stream more
tables, mark its DAG run as failed and trigger the DAG with the same name: the new DAG run goes on with it.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from airflow.sdk import DAG, get_current_context, task

from walferry.airflow.dag_parts import (
    FOR_EVER,
    MOST_RUNS,
    TASK_DEFAULTS,
    owned_step,
    retried_while_busy,
    spec_params,
    until_ended,
)
from walferry.airflow.hook import airflow_connection
from walferry.airflow.links import BoardLink, ReportLink, add_links
from walferry.airflow.operators import ACTOR, final_errors, record_trigger
from walferry.airflow.secret_connection import secret_connection
from walferry.errors import UsageError
from walferry.ledger import Ledger
from walferry.process import open_ledger
from walferry.run.phases import phase_of
from walferry.streams.stream_spec import StreamSpec

if TYPE_CHECKING:
    from walferry.streams.stream_run import StreamRun

KEYS = (
    "name", "source", "kafka", "tables", "topic", "create_topics", "snapshot", "image", "upsert_topic", "bytes_as",
    "families", "columns", "rows", "decode", "large_messages", "resolved", "max_lag", "positions", "epoch", "throttle",
    "source_requests",
)  # fmt: skip
PARAMS = spec_params(model=StreamSpec, keys=KEYS, defaults={"name": "stream", "tables": []})


def stream_step(run_id: str) -> AbstractContextManager[StreamRun]:
    """Open a stream for a task; see `owned_step`."""

    def opened(ledger: Ledger) -> StreamRun:
        from walferry.streams.stream_run import StreamRun

        return StreamRun(ledger, run_id, ACTOR, secret_connection)

    return owned_step(run_id, _owner(), opened)


@task
def plan() -> str:
    """Open the run in the ledger, examine the source and the topics, refuse what cannot be streamed."""
    from walferry.streams.start import start_stream

    with final_errors(), open_ledger() as ledger:
        params = dict(get_current_context()["params"])
        if "parquet" not in params:
            _require_client()
        elif not params["parquet"]:
            raise UsageError("parquet: give a folder, as {folder: …}")
        with retried_while_busy():
            run_id = start_stream(ledger, params, airflow_connection, _owner())
        record_trigger(ledger, run_id, get_current_context())
    _do(run_id, "plan")
    return run_id


@task
def do(run: str, phase: str) -> str:
    """Do a phase. Returns the run's id."""
    _do(run, phase)
    return run


@task(retries=FOR_EVER)
def stream(run: str) -> str:
    """Send every change until a person ends the run. Returns how it ended.

    The task is skipped if another process takes the stream over, and not tried again.
    """
    from walferry.streams.stream import follow

    with stream_step(run) as opened:
        return until_ended(opened, follow)


def _do(run_id: str, phase: str) -> None:
    with stream_step(run_id) as run:
        from walferry.streams.stream import WORK

        WORK[phase](run)


def _owner() -> str:
    return f"airflow {get_current_context()['run_id']}"


def _require_client() -> None:
    try:
        import confluent_kafka  # noqa: F401
    except ImportError:
        raise UsageError("Kafka's client is not installed: install walferry with its extra kafka") from None


def hbase_stream() -> DAG:
    """The DAG that streams changes to Kafka: one task for each phase of a stream (`run.phases`)."""
    return stream_dag("hbase_stream", PARAMS, "kafka", __doc__ or "")


def stream_dag(dag_id: str, params: dict[str, Any], tag: str, about: str) -> DAG:
    """A DAG of streams with a form of its own; `about` is shown in Airflow."""
    with DAG(
        dag_id,
        schedule=None,
        catchup=False,
        max_active_runs=MOST_RUNS,
        max_active_tasks=MOST_RUNS,
        params=params,
        tags=["walferry", "hbase", tag],
        doc_md=about,
        default_args=TASK_DEFAULTS,
    ) as made:
        run: Any = plan()
        for phase in ("protect", "fence"):
            run = do.override(task_id=phase, doc_md=phase_of("stream", phase).what)(run, phase)
        stream.override(doc_md=phase_of("stream", "stream").what)(run)
    add_links(made, {name: [BoardLink()] for name in ("protect", "fence")} | {"stream": [BoardLink(), ReportLink()]})
    return made
