"""What keeps the edits of a table from its sinks: scopes, peers that leave it out, and what is missing at a sink."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from walferry.amounts import first_of
from walferry.hbase.descriptors import Family, TableDescriptor
from walferry.hbase.peers import PeerConfig
from walferry.replication.finding import Finding, families_text
from walferry.replication.sink_tables import SinkTable

SCOPE = "REPLICATION_SCOPE"
_SEEN_BY_READERS = ("VERSIONS", "MIN_VERSIONS", "TTL", "KEEP_DELETED_CELLS", "NEW_VERSION_BEHAVIOR", "ENCRYPTION")
"""attributes of a family that decide what readers see, or who may"""
_UNTIL_THEN = "Until then, the first such edit stops all that is behind it in its log"


def is_replicated(family: Family) -> bool:
    """Whether the family's edits are shipped at all: its scope is not 0."""
    return family.attributes.get(SCOPE, "0") != "0"


def table_findings(table: TableDescriptor) -> Iterator[Finding]:
    """What is wrong with a table at the source."""
    unscoped = sorted(name for name, family in table.shown_families.items() if not is_replicated(family))
    if unscoped:
        changes = ", ".join(f"{{NAME => {_in_shell(name)}, {SCOPE} => '1'}}" for name in unscoped)
        have, them = ("has", "it") if len(unscoped) == 1 else ("have", "them")
        yield Finding(
            "stop", table.name, f"{families_text(unscoped)} {have} {SCOPE} 0, so no edit of {them} is replicated: "
            f"alter '{table.name}', {changes}. What was written before must be copied",
        )  # fmt: skip
    if table.durability == "SKIP_WAL":
        yield Finding("stop", table.name, "its DURABILITY is SKIP_WAL: what is not in the log is not replicated")


def nobody_findings(tables: Mapping[str, TableDescriptor], peers: Sequence[PeerConfig]) -> Iterator[Finding]:
    """The families that no peer replicates."""
    for name, table in tables.items():
        left = sorted(
            family for family in table.shown_families if not any(peer.replicates(name, family) for peer in peers)
        )
        if not left or not peers:
            continue
        whole = len(left) == len(table.shown_families)
        what = "it" if whole else f"family {first_of(left)}"
        who = "no peer replicates" if len(peers) > 1 else f"peer {peers[0].id} does not replicate"
        yield Finding("stop", name, f"{who} {what}: {'; '.join(_to_add(peer, name, left) for peer in peers)}")


def _to_add(peer: PeerConfig, table: str, families: Sequence[str]) -> str:
    """How a peer comes to replicate families, as a command of HBase's shell. It can name no family that is not UTF-8
    (ReplicationPeerConfig has strings), but all of a table by none."""
    listed = "" if any("\\" in family for family in families) else ", ".join(f"'{family}'" for family in families)
    if not peer.all_tables:
        return f"append_peer_tableCFs '{peer.id}', {{'{table}' => [{listed}]}}"
    if table in peer.left_out_tables:
        return f"peer {peer.id} leaves it out (set_peer_exclude_tableCFs)"
    return f"peer {peer.id} leaves its namespace out (set_peer_exclude_namespaces)"


def _in_shell(family: str) -> str:
    r"""A family's name in HBase's shell, that is in Ruby, which reads "\xff" only between double quotes."""
    return f'"{family}"' if "\\" in family else f"'{family}'"


def sink_table_findings(
    table: TableDescriptor, families: Sequence[str], peer: PeerConfig, there: SinkTable
) -> Iterator[Finding]:
    """What is wrong with a table at a sink, as far as these families go."""
    where = f"at the sink of peer {peer.id}"
    if there.unknown is not None:
        yield Finding("warn", table.name, f"it was not compared with the one {where}: {there.unknown}")
    for one in there.refusals:
        yield Finding("stop", table.name, f"it {one.what} {where}: {one.then}. {_UNTIL_THEN}")
    if there.descriptor is None:
        return
    for name in sorted(set(families) & there.descriptor.shown_families.keys()):
        ours, theirs = table.shown_families[name].effective, there.descriptor.shown_families[name].effective
        differences = [
            f"{key} is {ours.get(key, 'not set')} at the source, {theirs.get(key, 'not set')} there"
            for key in _SEEN_BY_READERS if ours.get(key) != theirs.get(key)
        ]  # fmt: skip
        if differences:
            yield Finding("warn", table.name, f"family {name} {where} differs: {'; '.join(differences)}")
