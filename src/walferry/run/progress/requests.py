"""Requests per second that a run's processes send to its two clusters, with what the spec allows."""

from __future__ import annotations

from walferry.ledger import RunLedger
from walferry.load import Service
from walferry.run.heartbeat import requests_per_second
from walferry.run.spec import SourceRequests

Requests = dict[str, dict[str, dict[str, float | None]]]


def requests_of(ledger: RunLedger) -> Requests:
    """Side (source, target) to service to `per_second`, over the last minute, and `limit`; None: there is no limit.

    A Spark worker's requests are added when its task ends.
    """
    spec, rates = ledger.record.spec, requests_per_second(ledger)
    limits = {"source": SourceRequests.model_validate(spec.get("source_requests") or {}).model_dump(), "target": {}}
    return {
        side: {
            service.value: {
                "per_second": round(rates.get(_cluster(spec[side]), {}).get(service.value, 0.0), 2),
                "limit": limits[side].get(service.value),
            }
            for service in Service
        }
        for side in limits
        if isinstance(spec.get(side), dict)
    }


def _cluster(recorded: dict[str, object]) -> str:
    """`ClusterAddress.cluster`, without the lookup of a user name."""
    return f"{recorded['zookeeper']}{recorded.get('znode', '/hbase')}"
