"""Requests per second that a run's processes send to its two clusters, with what the spec allows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from walferry.ledger import RunLedger
from walferry.request_meter import Service
from walferry.run.heartbeat import requests_per_second
from walferry.run.recorded_spec import options_of, source_of, target_of
from walferry.run.spec import Cluster


@dataclass(frozen=True)
class RequestRate:
    """Requests to one service of a cluster."""

    per_second: Annotated[float, Field(description="requests per second, over the last minute")]
    limit: Annotated[float | None, Field(description="requests per second that the spec allows; null: no limit")]


def requests_of(ledger: RunLedger) -> dict[str, dict[str, RequestRate]]:
    """The rate of each service by side (source, target).

    A Spark worker's requests are added when its task ends.
    """
    run, rates = ledger.record, requests_per_second(ledger)
    clusters = {"source": source_of(run), "target": target_of(run)}
    limits = {"source": options_of(run).source_requests.model_dump(), "target": {}}
    return {
        side: {
            service.value: RequestRate(
                per_second=round(rates.get(_name(cluster), {}).get(service.value, 0.0), 2),
                limit=limits[side].get(service.value),
            )
            for service in Service
        }
        for side, cluster in clusters.items()
        if cluster is not None
    }


def _name(cluster: Cluster) -> str:
    """`ClusterAddress.cluster`, without the lookup of a user name."""
    return f"{cluster.zookeeper}{cluster.znode}"
