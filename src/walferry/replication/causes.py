"""Why a queue does not move, as far as the cluster that gets the changes can tell."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from uuid import UUID

from walferry.errors import TransientError, WalferryError
from walferry.hbase.address import ClusterAddress
from walferry.hbase.client import HBaseClient
from walferry.hbase.descriptors import name_text
from walferry.hbase.errors import RemoteTransientError, ServerGoneError, TableNotFoundError
from walferry.hbase.quotas import exceeded_quota
from walferry.replication.sink import known_quotas, open_sink

PERHAPS = "perhaps "
"""how a cause begins that is not proved"""


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
    proved: bool = True
    """whether it takes none from anybody; else only walferry cannot look at it"""

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
    except WalferryError as error:
        return Sink(place, cluster_id, fault=f"it cannot be looked at from here: {error.message}", proved=False)
    if cluster_id == source_id:
        fault = f"it is the source itself, or a copy of it: both have the cluster id {cluster_id}"
        return Sink(place, cluster_id, servers, fault)
    return Sink(place, cluster_id, servers, None if servers else "no region server of it is alive")


def refusing_tables(address: ClusterAddress, tables: Mapping[str, frozenset[str]]) -> dict[str, str]:
    """Why a cluster refuses edits of these families, given by table; without the tables whose edits it takes."""
    found: dict[str, str | None] = {}
    away: WalferryError | None = None
    try:
        sink = open_sink(address)
    except WalferryError as error:
        return {table: _not_asked(table, error) for table in tables}
    with sink as client:
        quotas = known_quotas(client)
        for table, families in sorted(tables.items()):
            try:
                if away is not None:  # do not wait for it again
                    raise away
                found[table] = _refusal(client, table, families, quotas)
            except WalferryError as error:
                found[table] = _not_asked(table, error)
                if isinstance(error, TransientError) and not isinstance(error, RemoteTransientError):
                    away = error
    return {table: why for table, why in found.items() if why is not None}


def _not_asked(table: str, error: WalferryError) -> str:
    return f"{PERHAPS}the sink refuses table {table}: it cannot be asked from here: {error.message}"


def _refusal(sink: HBaseClient, table: str, families: frozenset[str], quotas: Mapping[str, str]) -> str | None:
    try:
        there = sink.describe(table)
    except TableNotFoundError:
        return f"table {table} is missing at the sink: create it there, with {_families(families)}"
    if not sink.table_enabled(table):
        return f"table {table} is disabled at the sink: enable it"
    if lacking := families - {name_text(family.name) for family in there.schema.column_families}:
        return f"table {table} of the sink lacks {_families(lacking)}: add it there"
    if there.read_only:
        return f"table {table} is READONLY at the sink: alter '{table}', READONLY => 'false'"
    if (whose := exceeded_quota(quotas, table)) is not None:
        return f"{PERHAPS}table {table} takes no writes at the sink: the {whose} is over its quota of space"
    return None


def _families(names: frozenset[str]) -> str:
    return f"the {'family' if len(names) == 1 else 'families'} {', '.join(sorted(names))}"
