"""Why a queue does not move, as far as the cluster that gets the changes can tell."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from uuid import UUID

from walferry.errors import WalferryError
from walferry.hbase.address import ClusterAddress
from walferry.hbase.client import HBaseClient
from walferry.hbase.errors import ServerGoneError, TableNotFoundError, ZooKeeperError
from walferry.hbase.quotas import exceeded_quota, exceeded_quotas
from walferry.replication.sink import open_sink


@dataclass(frozen=True)
class Sink:
    """A cluster that gets changes, as it was found."""

    address: str
    """ZooKeeper and znode; a cluster key that cannot be read as it is"""
    cluster_id: str | None = None
    servers: int | None = None
    """live region servers"""
    fault: str | None = None
    """why it takes no changes, or why that is not known"""

    @property
    def uuid(self) -> UUID | None:
        """Its id as log entries name it."""
        try:
            return None if self.cluster_id is None else UUID(self.cluster_id)
        except ValueError:
            return None


def look_at_sink(address: ClusterAddress, source_id: str) -> Sink:
    """Look whether a cluster is there and takes changes of the source: of ZooKeeper alone, within seconds."""
    place, cluster_id = address.cluster, None
    try:
        with open_sink(address) as client:
            cluster_id = client.cluster_id()
            servers = len(client.servers())
    except ServerGoneError:
        fault = f"there is no HBase below {address.znode} of ZooKeeper at {address.zookeeper}: correct the peer's key"
        return Sink(place, fault=fault)
    except ZooKeeperError as error:
        return Sink(place, cluster_id, fault=error.message)
    except WalferryError as error:
        return Sink(place, cluster_id, fault=f"it cannot be looked at: {error.message}")
    if cluster_id == source_id:
        fault = f"it is the source itself, or a copy of it: both have the cluster id {cluster_id}"
        return Sink(place, cluster_id, servers, fault)
    return Sink(place, cluster_id, servers, None if servers else "no region server of it is alive")


def refusing_tables(address: ClusterAddress, tables: Mapping[str, frozenset[str]]) -> dict[str, str]:
    """Why a cluster refuses edits of these families, given by table; without the tables whose edits it takes."""
    try:
        with open_sink(address) as client:
            quotas = exceeded_quotas(client)
            found = {table: _refusal(client, table, families, quotas) for table, families in sorted(tables.items())}
    except WalferryError as error:
        why = "perhaps the sink refuses table {}: its master cannot be asked: {}"
        return {table: why.format(table, error.message) for table in tables}
    return {table: why for table, why in found.items() if why is not None}


def _refusal(sink: HBaseClient, table: str, families: frozenset[str], quotas: Mapping[str, str]) -> str | None:
    try:
        there = sink.describe(table)
    except TableNotFoundError:
        return f"table {table} is missing at the sink: create it there, with {_families(families)}"
    if not sink.table_enabled(table):
        return f"table {table} is disabled at the sink: enable it"
    if lacking := families - there.families.keys():
        return f"table {table} of the sink lacks {_families(lacking)}: add it there"
    if there.read_only:
        return f"table {table} is READONLY at the sink: alter '{table}', READONLY => 'false'"
    if (whose := exceeded_quota(quotas, table)) is not None:
        return f"perhaps table {table} takes no writes at the sink: the {whose} is over its quota of space"
    return None


def _families(names: frozenset[str]) -> str:
    return f"the {'family' if len(names) == 1 else 'families'} {', '.join(sorted(names))}"
