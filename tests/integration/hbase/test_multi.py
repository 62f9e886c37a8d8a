"""Cells sent to their regions arrive as they were, and say which clusters they come from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest

from walferry.embedded.cluster import MiniCluster
from walferry.formats.cells import encode_cell
from walferry.formats.markers import Marker
from walferry.formats.proto import hbase_pb2 as pb
from walferry.hbase.client import HBaseClient
from walferry.hbase.errors import (
    NoSuchFamilyError,
    ReadOnlyTableError,
    RegionNotServedError,
    RequestTimeoutError,
    TableNotFoundError,
)
from walferry.hbase.multi import multis, send
from walferry.spark.clients import shared_files
from walferry.wal.files import list_wals
from walferry.wal.open import Until, open_wal

pytestmark = pytest.mark.cluster

ReadCells = Callable[[Iterable[bytes]], list[tuple[Any, ...]]]
FOREVER_TAG = (8, (10**15).to_bytes(8, "big"))


def send_all(client: HBaseClient, runs: Sequence[tuple[str, Sequence[bytes]]], **how: Any) -> None:
    cells = b"".join(cell for _, run in runs for cell in run)
    for multi in multis(client, [(table, len(run)) for table, run in runs], cells, [(1, 2)]):
        send(client, multi, **how)


def test_all_types_timestamps_and_tags_arrive_as_sent(
    client: HBaseClient, make_table: Callable[..., str], cells: ReadCells
) -> None:
    one, other = make_table(), make_table(split_keys=[b"m"])
    sent = [
        encode_cell(b"a", b"f", b"", 8, 10),
        encode_cell(b"a", b"f", b"", 7, 14),
        encode_cell(b"a", b"f", b"q", 9, 4, b"value", [FOREVER_TAG, (99, b"custom")]),
        encode_cell(b"a", b"f", b"q", 6, 12),
        encode_cell(b"a", b"f", b"q", 5, 8),
    ]
    beyond = encode_cell(b"z", b"f", b"q", 5, 4)
    send_all(client, [(one, sent), (other, [sent[0], beyond])])
    assert b"".join(client.scan_raw(one)) == b"".join(sent)
    assert b"".join(client.scan_raw(other)) == sent[0] + beyond


def test_of_equal_cells_the_last_wins_within_a_request_of_more_than_a_servers_batch(
    client: HBaseClient, make_table: Callable[..., str], cells: ReadCells
) -> None:
    """HRegion.batchMutate takes 20,000 mutations at a time (`hbase.regionserver.minibatch.size`)."""
    name = make_table(split_keys=[b"0500"])
    rows = [b"%04d" % (n * 7 % 1000) for n in range(50_000)]
    # Deletes between them, so that each is a mutation of its own.
    sent = [encode_cell(row, b"f", b"q", 5, 4 if n % 3 else 8, b"%d" % n) for n, row in enumerate(rows)]
    puts = {row: b"%d" % n for n, row in enumerate(rows) if n % 3}
    send_all(client, [(name, sent)])
    # A raw scan: the marker hides every put of its timestamp, in whatever order they came.
    assert {cell[0]: cell[5] for cell in cells(client.scan_raw(name)) if cell[4] == 4} == puts


def test_the_log_says_which_clusters_an_edit_came_from(
    client: HBaseClient, source: MiniCluster, make_table: Callable[..., str]
) -> None:
    name = make_table()
    send_all(client, [(name, [encode_cell(b"r%d" % n, b"f", b"q", 5, 4) for n in range(3)])])
    for server in client.servers():
        client.roll_wal(server)
    files = shared_files(source.address)
    root = source.address.root_path
    found = [
        batch.cluster_lists[batch.clusters[entry]]
        for file in list_wals(files, root)
        for batch in open_wal(files, root, file, Until.NOW)
        for entry in range(len(batch))
        if batch.tables[batch.table[entry]] == name.encode() and batch.marker[entry] == Marker.NONE
    ]
    ids = pb.WALKey(cluster_ids=[pb.UUID(most_sig_bits=1, least_sig_bits=2)]).SerializePartialToString()
    assert set(found) == {ids}


def test_what_the_target_will_never_take_is_final(client: HBaseClient, make_table: Callable[..., str]) -> None:
    name = make_table()
    with pytest.raises(TableNotFoundError, match="no_such_table"):
        send_all(client, [("no_such_table", [encode_cell(b"r", b"f", b"q", 1, 4)])])
    for family in (b"nof", b"METAFAMILY"):
        with pytest.raises(NoSuchFamilyError, match=family.decode()):
            send_all(client, [(name, [encode_cell(b"r", family, b"q", 1, 4)])])
    client.set_read_only(name, True)
    with pytest.raises(ReadOnlyTableError):
        send_all(client, [(name, [encode_cell(b"r", b"f", b"q", 1, 4)])])


def test_a_region_that_has_moved_is_found_again_once_its_old_place_is_forgotten(
    client: HBaseClient, make_table: Callable[..., str], cells: ReadCells
) -> None:
    name = make_table()
    cell = encode_cell(b"r", b"f", b"q", 1, 4)
    send_all(client, [(name, [cell])])
    (region,) = client.located(name).regions
    with HBaseClient(client.address) as other:
        other.move_region(region, next(server for server in client.servers() if server != region.server))
    with pytest.raises(RegionNotServedError):
        send_all(client, [(name, [cell])])
    client.forget(name)
    send_all(client, [(name, [cell])])
    client.split_region(client.regions(name)[0], b"m")
    client.forget(name)
    assert len(client.located(name).regions) == 2


def test_a_time_out_leaves_the_outcome_open_and_the_request_can_be_repeated(
    client: HBaseClient, make_table: Callable[..., str], cells: ReadCells
) -> None:
    name = make_table()
    many = [encode_cell(b"%05d" % n, b"f", b"q", 5, 4, b"v" * 100) for n in range(5000)]
    with pytest.raises(RequestTimeoutError):
        send_all(client, [(name, many)], timeout_s=0.005)
    send_all(client, [(name, many)])
    assert len(cells(client.scan(name))) == len(many)
