"""HBase's own replication from source to target, while a row is measured that needs it."""

from __future__ import annotations

from bench.receivers import add_peer
from bench.side_by_side import data as data_sets
from bench.side_by_side.clusters import Clusters, in_spec

from walferry.errors import WalferryError
from walferry.hbase.client import HBaseClient
from walferry.hbase.peers import enable_peer
from walferry.replication.shipped import ship
from walferry.replication.spec import ResolvedReplicateSpec

SHIP_SECONDS = 600.0


def replicate(client: HBaseClient, table: str) -> None:
    """Have a table's edits shipped by the peers that name it."""
    described = client.describe(table)
    if described.families[data_sets.FAMILY].attributes.get("REPLICATION_SCOPE") != "1":
        client.modify_table(described.with_scopes({data_sets.FAMILY: "1"}))


def feed(clusters: Clusters, table: str) -> str:
    """Add a peer of the source that feeds the target's table. Returns its id once all that was written before is
    shipped."""
    source, peer = clusters.source_client, f"feeds_{table}"
    replicate(source, table)
    add_peer(source, peer, clusters.target.address.cluster_key, [table])
    enable_peer(source, peer)
    spec = ResolvedReplicateSpec.model_validate(
        {"source": in_spec(clusters.source.address), "target": in_spec(clusters.target.address), "peer": peer}
    )
    shipped = ship(spec, source, clusters.source_files, clusters.source.address.wal_path, SHIP_SECONDS)
    if [one.peer for one in shipped] != [peer]:
        raise WalferryError(f"peer {peer} has shipped nothing: {shipped}")
    return peer
