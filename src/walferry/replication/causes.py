"""Why a queue does not move, as far as the tables of its sink can tell."""

from __future__ import annotations

from collections.abc import Mapping

from walferry.hbase.address import ClusterAddress
from walferry.replication.sink_tables import sink_tables

PERHAPS = "perhaps "
"""how a cause begins that is not proved"""


def refusing_tables(address: ClusterAddress, tables: Mapping[str, frozenset[str]]) -> dict[str, list[str]]:
    """Why a cluster refuses edits of these families, given by table; without the tables whose edits it takes."""
    found = {}
    for table, there in sink_tables(address, tables).items():
        causes = [
            f"{'' if one.proved else PERHAPS}table {table} {one.what} at the sink: {one.then}"
            for one in there.refusals
        ]  # fmt: skip
        if there.unknown is not None:
            causes = [f"{PERHAPS}the sink refuses table {table}: it cannot be asked from here: {there.unknown}"]
        if causes:
            found[table] = causes
    return found
