"""Files that are loaded into a table, past its log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from integration.migration.moves import unique
from walferry.clock import now_ms
from walferry.embedded.cluster import MiniCluster
from walferry.formats.cells import cell_starts
from walferry.formats.hfile_writer import StoreFormat, WrittenFile, hfile_chunks
from walferry.formats.order import store_order
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


def load_cells(
    source: MiniCluster, client: HBaseClient, table: str, row: bytes, cells: Mapping[str, Sequence[bytes]]
) -> list[str]:
    """Load a file of cells into each of these families of a row's region. Returns the paths of the files there."""
    files, staged = shared_files(source.address), []
    for family, those in cells.items():
        buffer = np.frombuffer(b"".join(those), np.uint8)
        starts = cell_starts(buffer)
        sorted_ = starts[store_order(buffer, starts, np.arange(len(starts)))]
        path = f"/staging/{unique('load')}"
        files.write(path, hfile_chunks([(buffer, sorted_)], StoreFormat(), now_ms(), WrittenFile()))
        staged.append((family.encode(), source.rootdir.removesuffix("/hbase") + path))
    region = client.locate(table, row)
    folders = [f"/hbase/data/default/{table}/{region.encoded}/{family}" for family in cells]
    before = {file.path for folder in folders for file in files.list(folder)}
    assert client.bulk_load(region, staged, [])
    there = {file.path for folder in folders for file in files.list(folder)}
    return sorted(path for path in there - before if "_SeqId_" in path)
