"""Findings about the name nodes that are given: whether each of them says what HDFS has now."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from walferry.hbase.address import ClusterAddress
from walferry.migration.planning.finding import Finding
from walferry.run.name_nodes import old_states


def name_node_findings(clusters: Mapping[str, ClusterAddress]) -> Iterator[Finding]:
    """Refuse name nodes that would answer with an old state."""
    for side, address in clusters.items():
        for key, message in old_states(address):
            yield Finding("refuse", f"{side}.{key}", message)
