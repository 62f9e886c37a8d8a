"""The cluster that a replication peer leads to."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from uuid import UUID

from walferry.errors import TransientError, UsageError, WalferryError
from walferry.hbase.address import ClusterAddress
from walferry.hbase.client import HBaseClient
from walferry.hbase.errors import ServerGoneError
from walferry.hbase.peers import PeerConfig
from walferry.hbase.zookeeper import ZooKeeper
from walferry.replication.spec import ResolvedReplicateSpec

LOOKS = 4
"""at sinks at the same time"""
_KEY = re.compile(r"(?P<hosts>[^/]+):(?P<port>\d{1,5}):(?P<znode>/[^:]*)")
ATTEMPTS = 1
"""to call the sink's master: somebody waits for the answer, and that it does not answer is one"""
PlaceOrWhy = ClusterAddress | str
"""where a peer leads, or why that cannot be told"""


@dataclass(frozen=True)
class Sink:
    """A cluster that gets changes, as it was found."""

    address: str
    """ZooKeeper and znode; a cluster key that cannot be read as it is"""
    cluster_id: str | None = None
    servers: int | None = None
    """live region servers; None: ZooKeeper does not tell them"""
    fault: str | None = None
    """why it takes no changes, or why that is not known"""
    proved: bool = True
    """whether it takes none from anybody; else only walferry cannot look at it"""
    silent: bool = False
    """whether it did not answer at all, which is why it cannot be looked at"""
    version: str | None = None
    """of HBase, by its master"""
    master_fault: str | None = None
    """why its master, if it was asked, does not tell its version"""

    @property
    def uuid(self) -> UUID | None:
        """Its id as log entries name it."""
        try:
            return None if self.cluster_id is None else UUID(self.cluster_id)
        except ValueError:
            return None


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


def address_or_why(address: Callable[[], ClusterAddress]) -> PlaceOrWhy:
    """What a function says, or the message of its UsageError."""
    try:
        return address()
    except UsageError as error:
        return error.message


def addresses_of(spec: ResolvedReplicateSpec, peers: Sequence[PeerConfig]) -> dict[str, PlaceOrWhy]:
    """Where each peer leads, or why that cannot be told.

    A target stands for the peer that the spec names. If it names none, others may lead elsewhere: it stands for those
    whose key leads to its cluster, or cannot be followed.
    """
    if spec.target is None or spec.peer is not None:
        return {peer.id: address_or_why(partial(sink_address, spec, peer)) for peer in peers}
    target, source = spec.target.address(), spec.source.address()
    keyed = {peer.id: address_or_why(partial(keyed_address, peer.cluster_key, source)) for peer in peers}
    places = {target, *(place for place in keyed.values() if isinstance(place, ClusterAddress))}
    with ThreadPoolExecutor(LOOKS, thread_name_prefix="key") as pool:
        ids: dict[PlaceOrWhy, str | None] = dict(zip(places, pool.map(cluster_id_at, places), strict=True))
    return {
        peer: place if ids[target] is not None and ids.get(place) not in (None, ids[target]) else target
        for peer, place in keyed.items()
    }


def sinks_of(peers: Sequence[PeerConfig], places: Mapping[str, PlaceOrWhy], source_id: str) -> dict[str, Sink]:
    """The sink of each peer, by the peer's id: several that are away are waited for at the same time."""
    addresses = {place for place in places.values() if isinstance(place, ClusterAddress)}
    with ThreadPoolExecutor(LOOKS, thread_name_prefix="sink") as pool:
        looks = {address: pool.submit(look_at_sink, address, source_id) for address in addresses}
    return {
        peer.id: Sink(peer.cluster_key, fault=place, proved=False)
        if isinstance(place := places[peer.id], str)
        else looks[place].result()
        for peer in peers
    }


def look_at_sink(address: ClusterAddress, source_id: str) -> Sink:
    """Look within seconds whether a cluster is there and takes changes of the source."""
    found = Sink(address.cluster)
    try:
        with open_sink(address) as client:
            found = replace(found, cluster_id=client.cluster_id())
            found = replace(found, servers=len(client.servers()))
            try:
                found = replace(found, version=client.version())
            except WalferryError as error:
                found = replace(found, master_fault=error.message)
    except ServerGoneError:
        where = f"below {address.znode} of ZooKeeper at {address.zookeeper}{_others(address)}"
        return replace(found, fault=f"there is no HBase {where}: correct the peer's key, or the `target`")
    except WalferryError as error:
        fault, silent = f"it cannot be looked at from here: {error.message}", isinstance(error, TransientError)
        return replace(found, fault=fault, proved=False, silent=silent)
    if found.cluster_id == source_id:
        same = f"it is the source itself, or a copy of it: both have the cluster id {source_id}"
        return replace(found, fault=f"{same}, and to its own id HBase ships nothing (ReplicationSource)")
    return found if found.servers else replace(found, fault="no region server of it is alive")


def _others(address: ClusterAddress) -> str:
    """Where else in this ensemble there is an HBase."""
    top = ZooKeeper.of(replace(address, znode="/"))
    try:
        found = [name for name in top.children("") if top.read(f"{name}/hbaseid") is not None]
    except WalferryError:
        return ""
    finally:
        top.close()
    return f", but there is one below {' and '.join(f'/{name}' for name in found)}" if found else ""
