"""Write every change of HBase tables into Parquet files, one row per cell, in the order of each row, exactly once.

Trigger it with the form; each run is one stream, and several streams run side by side. Its tasks are those of
`hbase_stream`, with a folder in place of Kafka: they may be killed, retried or cleared at any time, and `walferry
pause`, `resume` and `abort NAME` work as with a stream to Kafka. docs/history.md describes the files and has queries.
"""

from __future__ import annotations

from typing import Any

from airflow.sdk import DAG

from walferry.airflow.dag_parts import spec_params
from walferry.airflow.dags.stream import stream_dag
from walferry.streams.stream_spec import StreamSpec

KEYS = (
    "name", "source", "parquet", "tables", "snapshot", "families", "columns", "rows", "max_lag", "epoch", "throttle",
    "source_requests",
)  # fmt: skip


def params() -> dict[str, Any]:
    """The form, in which the folder must be given."""
    made = spec_params(model=StreamSpec, keys=KEYS, defaults={"name": "history", "tables": []})
    made["parquet"].schema["type"] = "object"
    return made


def hbase_history() -> DAG:
    """The DAG that writes changes into Parquet files: one task for each phase of a stream (`run.phases`)."""
    return stream_dag("hbase_history", params(), "parquet", __doc__ or "")
