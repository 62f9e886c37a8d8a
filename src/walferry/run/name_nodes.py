"""Whether each of the name nodes that are given says what HDFS has now."""

from __future__ import annotations

from collections.abc import Iterator

from walferry.errors import UsageError
from walferry.hbase.address import ClusterAddress
from walferry.ledger.rows import ClusterSide
from walferry.wal.copies import hdfs_of


def old_states(address: ClusterAddress) -> Iterator[tuple[str, str]]:
    """The name nodes that would answer with an old state, each with its key in the cluster's address and what to do."""
    places = {"webhdfs": address}
    if address.wal_webhdfs is not None:
        places["wal_webhdfs"] = address.of_log
    for key, place in places.items():
        for url, why in hdfs_of(place).behind():
            yield key, f"{url} {why}, so a log could be missing in what it lists, or be short: leave it out"


def require_no_old_states(address: ClusterAddress, side: ClusterSide) -> None:
    """Raise UsageError if a name node would answer with an old state."""
    if found := [f"{side}.{key}: {message}" for key, message in old_states(address)]:
        raise UsageError("; ".join(found), side=side)
