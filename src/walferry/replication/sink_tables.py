"""Why a sink refuses edits of a table."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from walferry.errors import TransientError, WalferryError
from walferry.hbase.address import ClusterAddress
from walferry.hbase.client import HBaseClient
from walferry.hbase.descriptors import TableDescriptor
from walferry.hbase.errors import RemoteTransientError, TableNotFoundError
from walferry.hbase.quotas import exceeded_quota, exceeded_quotas
from walferry.replication.finding import families_text
from walferry.replication.sink import open_sink


@dataclass(frozen=True)
class Refusal:
    """Why edits of a table are refused."""

    what: str
    """is wrong, as a predicate of the table: "is missing" """
    then: str
    """what to do about it"""
    proved: bool = True
    """whether every edit is refused"""


@dataclass(frozen=True)
class SinkTable:
    """A table as it is at a sink. Without a descriptor it is missing, or could not be looked at: `unknown` says why."""

    descriptor: TableDescriptor | None = None
    refusals: tuple[Refusal, ...] = ()
    unknown: str | None = None


def sink_tables(address: ClusterAddress, tables: Mapping[str, Collection[str]]) -> dict[str, SinkTable]:
    """What a cluster has of these tables, and why it refuses edits of their families that are named."""
    found: dict[str, SinkTable] = {}
    away: WalferryError | None = None
    try:
        sink = open_sink(address)
    except WalferryError as error:
        return {table: SinkTable(unknown=error.message) for table in tables}
    with sink:
        quotas = _known_quotas(sink)
        for table, families in sorted(tables.items()):
            try:
                if away is not None:  # do not wait for it again
                    raise away
                found[table] = _sink_table(sink, table, families, quotas)
            except WalferryError as error:
                found[table] = SinkTable(unknown=error.message)
                if isinstance(error, TransientError) and not isinstance(error, RemoteTransientError):
                    away = error
    return found


def _known_quotas(sink: HBaseClient) -> dict[str, str]:
    """`exceeded_quotas`; none if the sink does not tell them, which only an administrator may ask for."""
    try:
        return exceeded_quotas(sink)
    except WalferryError:
        return {}


def _sink_table(sink: HBaseClient, table: str, families: Collection[str], quotas: Mapping[str, str]) -> SinkTable:
    try:
        there = sink.describe(table)
        enabled = sink.table_enabled(table)
    except TableNotFoundError:
        return SinkTable(None, (Refusal("is missing", f"create it there, with the {families_text(families)}"),))
    found = []
    if not enabled:
        found.append(Refusal("is disabled", "enable it"))
    if lacking := set(families) - there.shown_families.keys():
        found.append(
            Refusal(f"lacks the {families_text(lacking)}", f"add {'it' if len(lacking) == 1 else 'them'} there")
        )
    if there.read_only:
        found.append(Refusal("is READONLY", f"alter '{table}', READONLY => 'false'"))
    if (whose := exceeded_quota(quotas, table)) is not None:
        full = f"the {whose} is over its quota of space ({quotas[whose]}); raise it"
        found.append(Refusal("takes no writes", full, proved=False))
    return SinkTable(there, tuple(found))
