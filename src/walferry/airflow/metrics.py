"""Gauges for Airflow's metrics (StatsD, Datadog or OpenTelemetry, whichever airflow.cfg names)."""

from __future__ import annotations

from airflow.sdk.observability import stats

from walferry.receive.watching import Seen as SeenReceiving
from walferry.replication.watching import Seen
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
    "loss_seconds",
)
GAUGES_OF_PEER = ("unshipped_bytes", "pinned_bytes", "waiting_files", "lost_logs", "stuck_queues")


def emit(facts: RunFacts, source: str) -> None:
    """Send a run's gauges, with the tags `run` (its id) and `source` (the connection); None is not sent.

    `requests_per_second` is sent for each `service` of the source, `lag_part_seconds` for each `part` of the lag, and
    `server_lag_seconds` for each `server` (HOST_PORT) whose log is followed: the longest of its WAL groups.
    """
    tags = {"run": facts.run_id, "source": source}
    for name in GAUGES:
        value = getattr(facts, name)
        if value is not None:
            stats.gauge(f"{PREFIX}.{name}", value, tags=tags)
    if (split := facts.lag_split) is not None:
        for part, seconds in (("discovery", split.discovery), ("read", split.read), ("apply", split.apply)):
            stats.gauge(f"{PREFIX}.lag_part_seconds", seconds, tags=tags | {"part": part})
    by_server = {_as_tag(one.server): one.seconds for one in reversed(facts.lag_by_server)}
    for server, seconds in by_server.items():
        stats.gauge(f"{PREFIX}.server_lag_seconds", seconds, tags=tags | {"server": server})
    for service, rate in facts.requests_per_second.items():
        stats.gauge(f"{PREFIX}.requests_per_second", rate, tags=tags | {"service": service})


def emit_replication(run_id: str, seen: Seen) -> None:
    """Send the gauges of a look at what a source replicates by itself, with the tag `run`, and `peer` for those of one
    peer; None is not sent."""
    tags = {"run": run_id}
    if seen.stops is not None:
        stats.gauge(f"{PREFIX}.replication_stops", seen.stops, tags=tags)
    if seen.canary_seconds is not None:
        stats.gauge(f"{PREFIX}.replication_canary_seconds", seen.canary_seconds, tags=tags)
    for look in seen.looks:
        of_peer = tags | {"peer": look.peer}
        if look.oldest_age_ms is not None:
            stats.gauge(f"{PREFIX}.replication_lag_seconds", look.oldest_age_ms / 1000, tags=of_peer)
        for name in GAUGES_OF_PEER:
            stats.gauge(f"{PREFIX}.replication_{name}", getattr(look, name), tags=of_peer)


def emit_receiving(run_id: str, seen: SeenReceiving) -> None:
    """Send the gauges of a look at a run that receives, with the tag `run`; a lag that is not known is not sent."""
    tags = {"run": run_id}
    stats.gauge(f"{PREFIX}.receive_processes", seen.processes, tags=tags)
    stats.gauge(f"{PREFIX}.receive_refused", seen.refused, tags=tags)
    if seen.lag_seconds is not None:
        stats.gauge(f"{PREFIX}.receive_lag_seconds", seen.lag_seconds, tags=tags)


def _as_tag(server: str) -> str:
    """A server as a tag: without commas, without colons, and without the start code, which a restart changes."""
    return "_".join(server.split(",")[:2])
