"""REPLICATION_SCOPE of the families of a table: how it was before is recorded, and from then on it is set.

HBase stamps each edit with the scopes that its region had when it opened. So a change counts once every region has
opened since.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping

from walferry.clock import steady_s
from walferry.errors import TransientError
from walferry.hbase.client import HBaseClient
from walferry.hbase.descriptors import TableDescriptor
from walferry.hbase.procedures import DEADLINE_S
from walferry.ledger import RunLedger
from walferry.ledger.rows import ClusterObject, ClusterSide
from walferry.replication.table_findings import SCOPE, is_replicated

log = logging.getLogger(__name__)

LOOK_SECONDS = 0.5
_SCHEMA_SECONDS = 30.0
"""after which a change that does not show is asked for again"""
_REGION_SECONDS = 10.0
"""for each region that is to open again"""
Scopes = Mapping[str, str]
"""by family"""


def scopes_of(table: TableDescriptor) -> dict[str, str]:
    """The scopes of all families."""
    return {name: family.attributes.get(SCOPE, "0") for name, family in table.shown_families.items()}


def object_name(table: str, before: Scopes) -> str:
    """How the ledger names the change of a table's scopes."""
    return f"{table}={json.dumps(dict(before), sort_keys=True)}"


def parsed(name: str) -> tuple[str, dict[str, str]]:
    """Table and previous scopes of such a name."""
    table, _, before = name.partition("=")
    return table, dict(json.loads(before))


def changed_tables(ledger: RunLedger, side: ClusterSide) -> dict[str, ClusterObject]:
    """The recorded changes of scopes at a side that were not put back, by table."""
    return {parsed(item.name)[0]: item for item in ledger.objects.left("scope") if item.cluster == side}


def unscoped(table: TableDescriptor, before: Scopes) -> list[str]:
    """The families of a recorded change that the table has, and whose edits are not replicated."""
    families = table.shown_families
    return sorted(name for name in before if name in families and not is_replicated(families[name]))


def reopening_s(client: HBaseClient, table: str) -> float:
    """How long a change of a table may take: HBase reopens its regions one after the other."""
    return DEADLINE_S + _REGION_SECONDS * len(client.regions(table))


def alter(client: HBaseClient, table: str, scopes: Scopes) -> None:
    """Set scopes by one change of the table, also if it has them already: a change that was cut off shows in the schema
    before the regions have opened again. Returns once all of them have."""
    within = reopening_s(client, table)
    if client.release.changes_are_procedures:
        client.modify_table(client.describe(table).with_scopes(scopes), within)
        return
    # 1.x answers before its procedure has changed the schema, and tells too early that regions have opened again.
    while not scopes.items() <= scopes_of(client.describe(table)).items():
        client.modify_table(client.describe(table).with_scopes(scopes), within)
        await_schema(client, table, scopes)
    before = {region.encoded: region.open_sequence for region in client.regions(table)}
    client.modify_table(client.describe(table).with_scopes(scopes), within)
    _await_opened(client, table, before, within)


def await_schema(client: HBaseClient, table: str, scopes: Scopes) -> bool:
    """Wait some seconds until the table's schema has these scopes. Returns whether it has."""
    deadline = steady_s() + _SCHEMA_SECONDS
    while not scopes.items() <= scopes_of(client.describe(table)).items():
        if steady_s() > deadline:
            return False
        time.sleep(LOOK_SECONDS)
    return True


def _await_opened(client: HBaseClient, table: str, before: Mapping[str, int], within: float) -> None:
    """Wait until each region that there was has opened since, or is gone. Others have opened since in any case."""
    deadline = steady_s() + within
    while True:
        waiting = [
            region.encoded for region in client.regions(table)
            if region.server is None or region.open_sequence <= before.get(region.encoded, -1)
        ]  # fmt: skip
        if not waiting:
            return
        if steady_s() > deadline:
            raise TransientError(
                f"region {waiting[0]} of {table} has not opened again with its new {SCOPE}",
                table=table,
                regions=waiting,
            )
        time.sleep(LOOK_SECONDS)
