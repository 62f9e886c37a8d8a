"""Gauges for Airflow's metrics (StatsD, Datadog or OpenTelemetry, whichever airflow.cfg names)."""

from __future__ import annotations

from airflow.sdk.observability import stats

from walferry.watch.watch import RunFacts

PREFIX = "walferry"
GAUGES = (
    "lag_seconds",
    "backlog_bytes",
    "edits_per_second",
    "gaps",
    "quarantine",
    "time_to_loss_seconds",
    "log_kept_bytes",
)


def emit(facts: RunFacts, source: str) -> None:
    """Send a run's gauges, with the tags `run` (its id) and `source` (the connection); None is not sent.

    `requests_per_second` is sent for each `service` of the source.
    """
    tags = {"run": facts.run_id, "source": source}
    for name in GAUGES:
        value = getattr(facts, name)
        if value is not None:
            stats.gauge(f"{PREFIX}.{name}", value, tags=tags)
    for service, rate in facts.requests_per_second.items():
        stats.gauge(f"{PREFIX}.requests_per_second", rate, tags=tags | {"service": service})
