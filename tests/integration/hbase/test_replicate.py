"""Edits sent as HBase's own replication sends them arrive as they were."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest

from walferry.formats.cells import encode_cell
from walferry.formats.proto import hbase_pb2 as pb
from walferry.hbase.client import HBaseClient
from walferry.hbase.errors import (
    NoSuchFamilyError,
    ReadOnlyTableError,
    RequestTimeoutError,
    TableNotFoundError,
)

pytestmark = pytest.mark.cluster

ReadCells = Callable[[Iterable[bytes]], list[tuple[Any, ...]]]
FOREVER_TAG = (8, (10**15).to_bytes(8, "big"))


def entry(table: str, count: int) -> tuple[bytes, int]:
    key = pb.WALKey(
        encoded_region_name=b"x",
        table_name=table.encode(),
        log_sequence_number=1,
        write_time=1,
        cluster_ids=[pb.UUID(least_sig_bits=1, most_sig_bits=2)],
    )
    return key.SerializeToString(), count


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
    for server in client.servers():  # any server takes any table's entries
        client.replicate(server, [entry(one, 2), entry(other, 1), entry(one, 3)], [*sent[:2], sent[0], *sent[2:]])
    assert b"".join(client.scan_raw(one)) == b"".join(sent)
    assert b"".join(client.scan_raw(other)) == sent[0]


def test_within_a_request_the_later_of_two_equal_cells_wins(
    client: HBaseClient, make_table: Callable[..., str], cells: ReadCells
) -> None:
    name = make_table()
    client.replicate(
        client.servers()[0],
        [entry(name, 1), entry(name, 1)],
        [encode_cell(b"r", b"f", b"q", 5, 4, value) for value in (b"old", b"new")],
    )
    assert [cell[5] for cell in cells(client.scan(name))] == [b"new"]


def test_what_the_target_will_never_take_is_final(client: HBaseClient, make_table: Callable[..., str]) -> None:
    name, server = make_table(), client.servers()[0]
    with pytest.raises(TableNotFoundError, match="no_such_table"):
        client.replicate(server, [entry("no_such_table", 1)], encode_cell(b"r", b"f", b"q", 1, 4))
    for family in (b"nof", b"METAFAMILY"):
        with pytest.raises(NoSuchFamilyError, match=family.decode()):
            client.replicate(server, [entry(name, 1)], encode_cell(b"r", family, b"q", 1, 4))
    client.set_read_only(name, True)
    with pytest.raises(ReadOnlyTableError):
        client.replicate(server, [entry(name, 1)], encode_cell(b"r", b"f", b"q", 1, 4))


def test_a_time_out_leaves_the_outcome_open_and_the_request_can_be_repeated(
    client: HBaseClient, make_table: Callable[..., str], cells: ReadCells
) -> None:
    name = make_table()
    many = [encode_cell(b"%05d" % n, b"f", b"q", 5, 4, b"v" * 100) for n in range(5000)]
    with pytest.raises(RequestTimeoutError):
        client.replicate(client.servers()[0], [entry(name, len(many))], many, timeout_s=0.005)
    client.replicate(client.servers()[0], [entry(name, len(many))], many)
    assert len(cells(client.scan(name))) == len(many)
