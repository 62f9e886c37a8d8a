"""Findings about the name nodes that are given: whether each of them says what HDFS has now."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from walferry.hbase.address import ClusterAddress
from walferry.migration.planning.finding import Finding
from walferry.wal.copies import hdfs_of


def name_node_findings(clusters: Mapping[str, ClusterAddress]) -> Iterator[Finding]:
    """Refuse name nodes that would answer with an old state: a log could be missing in it, or be short."""
    for side, address in clusters.items():
        places = {"webhdfs": address}
        if address.wal_webhdfs is not None:
            places["wal_webhdfs"] = address.of_log
        for key, place in places.items():
            for url, why in hdfs_of(place).behind():
                message = f"{url} {why}, so a log could be missing in what it lists, or be short: leave it out"
                yield Finding("refuse", f"{side}.{key}", message)
