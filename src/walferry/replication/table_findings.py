"""What keeps the edits of a table from its sinks: scopes, peers that leave it out, and what is missing at a sink."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from walferry.amounts import first_of
from walferry.errors import WalferryError
from walferry.hbase.client import HBaseClient
from walferry.hbase.descriptors import Family, TableDescriptor
from walferry.hbase.errors import TableNotFoundError
from walferry.hbase.peers import PeerConfig
from walferry.hbase.quotas import exceeded_quota
from walferry.replication.finding import Finding

SCOPE = "REPLICATION_SCOPE"
_SEEN_BY_READERS = ("VERSIONS", "MIN_VERSIONS", "TTL", "KEEP_DELETED_CELLS", "NEW_VERSION_BEHAVIOR", "ENCRYPTION")
"""attributes of a family that decide what readers see, or who may"""
_BLOCKS = "the first such edit stops all that is behind it in its log"


def is_replicated(family: Family) -> bool:
    """Whether the family's edits are shipped at all: its scope is not 0."""
    return family.attributes.get(SCOPE, "0") != "0"


def table_findings(table: TableDescriptor) -> Iterator[Finding]:
    """What is wrong with a table at the source."""
    unscoped = sorted(name for name, family in table.families.items() if not is_replicated(family))
    if unscoped:
        changes = ", ".join(f"{{NAME => '{name}', {SCOPE} => '1'}}" for name in unscoped)
        yield Finding(
            "stop", table.name, f"{_families(unscoped)} {SCOPE} 0, so no edit of {_these(unscoped)} is replicated: "
            f"alter '{table.name}', {changes}. What was written before must be copied",
        )  # fmt: skip
    if table.durability == "SKIP_WAL":
        yield Finding("stop", table.name, "its DURABILITY is SKIP_WAL: what is not in the log is not replicated")


def nobody_findings(tables: Mapping[str, TableDescriptor], peers: Sequence[PeerConfig]) -> Iterator[Finding]:
    """The families that no peer replicates."""
    for name, table in tables.items():
        left = sorted(family for family in table.families if not any(peer.replicates(name, family) for peer in peers))
        if not left or not peers:
            continue
        whole = len(left) == len(table.families)
        what = "it" if whole else f"family {first_of(left)}"
        who = "no peer replicates" if len(peers) > 1 else f"peer {peers[0].id} does not replicate"
        yield Finding("stop", name, f"{who} {what}: {'; '.join(_to_add(peer, name, left) for peer in peers)}")


def _to_add(peer: PeerConfig, table: str, families: Sequence[str]) -> str:
    """How a peer comes to replicate families, as a command of HBase's shell."""
    listed = ", ".join(f"'{family}'" for family in families)
    if not peer.all_tables:
        return f"append_peer_tableCFs '{peer.id}', {{'{table}' => [{listed}]}}"
    if table in peer.left_out_tables:
        return f"peer {peer.id} leaves it out (set_peer_exclude_tableCFs)"
    return f"peer {peer.id} leaves its namespace out (set_peer_exclude_namespaces)"


def sink_table_findings(
    table: TableDescriptor, families: Sequence[str], peer: PeerConfig, sink: HBaseClient, quotas: Mapping[str, str]
) -> Iterator[Finding]:
    """What is wrong with a table at a sink, as far as these families go. `quotas`: `exceeded_quotas` there."""
    where = f"at the sink of peer {peer.id}"
    try:
        there = sink.describe(table.name)
        enabled = sink.table_enabled(table.name)
    except TableNotFoundError:
        yield Finding("stop", table.name, f"there is no such table {where}: {_BLOCKS}. Create it there")
        return
    except WalferryError as error:
        yield Finding("warn", table.name, f"it was not compared with the one {where}: {error}")
        return
    if whose := exceeded_quota(quotas, table.name):
        yield Finding(
            "stop", table.name, f"{where} the {whose} is over its quota of space ({quotas[whose]}): {_BLOCKS}"
        )
    if not enabled:
        yield Finding("stop", table.name, f"it is disabled {where}: {_BLOCKS}")
    if there.read_only:
        yield Finding("stop", table.name, f"it is READONLY {where}: {_BLOCKS}")
    missing = sorted(name for name in families if name not in there.families)
    if missing:
        yield Finding("stop", table.name, f"it has no family {first_of(missing)} {where}: {_BLOCKS}. Add it there")
    for name in sorted(set(families) - set(missing)):
        ours, theirs = table.families[name].effective, there.families[name].effective
        differences = [
            f"{key} is {ours.get(key, 'not set')} at the source, {theirs.get(key, 'not set')} there"
            for key in _SEEN_BY_READERS if ours.get(key) != theirs.get(key)
        ]  # fmt: skip
        if differences:
            yield Finding("warn", table.name, f"family {name} {where} differs: {'; '.join(differences)}")


def _families(names: Sequence[str]) -> str:
    return f"family {names[0]} has" if len(names) == 1 else f"families {first_of(names)} have"


def _these(names: Sequence[str]) -> str:
    return "it" if len(names) == 1 else "them"
