"""Files that are loaded into a table, past its log."""

from __future__ import annotations

from integration.migration.moves import unique
from walferry.embedded.cluster import MiniCluster
from walferry.hbase.client import HBaseClient
from walferry.hbase.mutate import Cell
from walferry.spark.clients import shared_files


def load_file(source: MiniCluster, client: HBaseClient, table: str, row: bytes) -> set[tuple[str, str]]:
    """Load an HFile with one row into its region, which had none. Returns family and name of the store file that it
    has become."""
    donor, files = unique("donor"), shared_files(source.address)
    client.create_table(donor, {"f": {"VERSIONS": "1"}})
    client.put(donor, [Cell(row, b"f", b"loaded", b"1")])
    client.flush_table(donor)
    (theirs,), ours = client.regions(donor), client.locate(table, row)
    (stored,) = files.list(f"/hbase/data/default/{donor}/{theirs.encoded}/f")
    staged = f"/staging/{donor}/{stored.name}"
    files.write(staged, files.read(stored.path))
    assert client.bulk_load(ours, [(b"f", source.rootdir.removesuffix("/hbase") + staged)], [])
    # The region has been flushed, too, which made another file.
    there = files.list(f"/hbase/data/default/{table}/{ours.encoded}/f")
    return {("f", file.name) for file in there if "_SeqId_" in file.name}
