"""Watch the WALs of the source: record new, grown, sealed and moved files in the ledger, announce sealed edits.

A run waits in the triggerer, without a worker, until logs that hold edits are sealed. It then emits an event of the
asset `hbase_wal_hbase_source`, and the next run begins. At least every minute it sends the metrics of all unfinished
runs on this source, and alerts for gaps, quarantine and lag (docs/platform.md). Each DAG watches one cluster.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from airflow.sdk import DAG, Param

from walferry.airflow.notifiers import WalferryNotifier
from walferry.airflow.sensors import CLEANER_TTL_SECONDS, WalWatchSensor

PARAMS = {
    "poll": Param(5, type="integer", minimum=1, maximum=600, title="Seconds between two listings"),
    "cleaner_ttl": Param(
        CLEANER_TTL_SECONDS, type="integer", minimum=1, title="hbase.master.logcleaner.ttl of the source, in seconds",
        description="For the time to loss of a run whose WALs no replication peer keeps.",
    ),
}  # fmt: skip


def hbase_wal_watch(source: str = "hbase_source", dag_id: str = "hbase_wal_watch") -> DAG:
    """The DAG that watches the cluster of the connection `source`; a DAG for another cluster needs its own id."""
    with DAG(
        dag_id,
        schedule="@continuous",
        # Without a start in the past, the first interval is empty, and Airflow 3.3 never starts a second run.
        start_date=datetime(2025, 1, 1, tzinfo=UTC),
        catchup=False,
        max_active_runs=1,
        params=PARAMS,
        tags=["walferry", "hbase"],
        doc_md=__doc__,
        default_args={
            "retries": 5,
            "retry_delay": timedelta(seconds=20),
            "retry_exponential_backoff": True,
            "on_failure_callback": WalferryNotifier(),
        },
    ) as made:
        WalWatchSensor(
            task_id="watch",
            source=source,
            poll_seconds="{{ params.poll }}",
            cleaner_ttl="{{ params.cleaner_ttl }}",
        )
    return made
