"""The cluster that a replication peer leads to."""

from __future__ import annotations

import re
from collections.abc import Sequence

from walferry.errors import UsageError, WalferryError
from walferry.hbase.address import ClusterAddress
from walferry.hbase.client import HBaseClient
from walferry.hbase.peers import PeerConfig
from walferry.hbase.quotas import exceeded_quotas
from walferry.replication.spec import ResolvedReplicateSpec

_KEY = re.compile(r"(?P<hosts>[^/]+):(?P<port>\d{1,5}):(?P<znode>/[^:]*)")
ATTEMPTS = 1
"""to call the sink's master: somebody waits for the answer, and that it does not answer is one"""


def watched_peers(spec: ResolvedReplicateSpec, there: Sequence[PeerConfig]) -> list[PeerConfig]:
    """The peers that a spec is about, of those of the source: the one that it names, or all that lead to a cluster by
    HBase's own endpoint.

    Raises UsageError for one that is not there or does not lead to a cluster.
    """
    if spec.peer is None:
        return [peer for peer in there if peer.is_hbase]
    named = next((peer for peer in there if peer.id == spec.peer), None)
    if named is None:
        ids = ", ".join(peer.id for peer in there) or "none"
        raise UsageError(f"the source has no replication peer {spec.peer}; its peers: {ids}", peer=spec.peer)
    if not named.is_hbase:
        raise UsageError(
            f"the replication peer {spec.peer} leads to no cluster: its endpoint is {named.endpoint}", peer=spec.peer
        )
    return [named]


def keyed_address(cluster_key: str, source: ClusterAddress) -> ClusterAddress:
    """Where a cluster key leads, for the source's user: "host,host:port:/znode", or with a port for each host
    (ZKConfig.transformClusterKey). Raises UsageError for any other, such as a URI of HBase 3."""
    found = _KEY.fullmatch(cluster_key)
    if found is None:
        raise UsageError(f"cannot read the cluster key {cluster_key!r}; name the `target`", key=cluster_key)
    port = found["port"]
    hosts = [host if ":" in host else f"{host}:{port}" for host in found["hosts"].split(",")]
    return ClusterAddress(
        ",".join(hosts), found["znode"], user=source.user, security=source.security,
        session_seconds=source.session_seconds,
    )  # fmt: skip


def sink_address(spec: ResolvedReplicateSpec, peer: PeerConfig) -> ClusterAddress:
    """The cluster that gets a peer's changes: the spec's target or else where the peer's key leads. Raises UsageError
    as `keyed_address`."""
    if spec.target is not None:
        return spec.target.address()
    return keyed_address(peer.cluster_key, spec.source.address())


def open_sink(address: ClusterAddress, timeout_s: float = 10) -> HBaseClient:
    """A client that does not wait long for a cluster that may be away."""
    return HBaseClient(address, timeout_s=timeout_s, master_attempts=ATTEMPTS)


def cluster_id_at(address: ClusterAddress) -> str | None:
    """The id of the cluster there; None if that cannot be told from here."""
    try:
        with open_sink(address) as client:
            return client.cluster_id()
    except WalferryError:
        return None


def known_quotas(sink: HBaseClient) -> dict[str, str]:
    """`exceeded_quotas`; none if the sink does not tell them, which only an administrator may ask for."""
    try:
        return exceeded_quotas(sink)
    except WalferryError:
        return {}
