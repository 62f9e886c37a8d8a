"""Requests per second that a run's processes send to its two clusters, with what the spec allows."""

from __future__ import annotations

from walferry.ledger import RunLedger
from walferry.load import Service
from walferry.run.heartbeat import requests_per_second
from walferry.run.recorded_spec import options_of, source_of, target_of
from walferry.run.spec import Cluster

Requests = dict[str, dict[str, dict[str, float | None]]]


def requests_of(ledger: RunLedger) -> Requests:
    """Side (source, target) to service to `per_second`, over the last minute, and `limit`; None: there is no limit.

    A Spark worker's requests are added when its task ends.
    """
    run, rates = ledger.record, requests_per_second(ledger)
    clusters = {"source": source_of(run), "target": target_of(run)}
    limits = {"source": options_of(run).source_requests.model_dump(), "target": {}}
    return {
        side: {
            service.value: {
                "per_second": round(rates.get(_name(cluster), {}).get(service.value, 0.0), 2),
                "limit": limits[side].get(service.value),
            }
            for service in Service
        }
        for side, cluster in clusters.items()
        if cluster is not None
    }


def _name(cluster: Cluster) -> str:
    """`ClusterAddress.cluster`, without the lookup of a user name."""
    return f"{cluster.zookeeper}{cluster.znode}"
