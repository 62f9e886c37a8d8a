"""A target with low limits for requests: what is too big goes in parts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from unit.apply.guards import Guard
from unit.formats.wal_builder import TRAILER, entry, header
from walferry.apply.by_group import requests
from walferry.apply.rpc_writer import RpcWriter
from walferry.apply.writer_protocol import CellRun, RefusedError
from walferry.embedded.cluster import MiniCluster
from walferry.formats.cells import CellType, encode_cell
from walferry.formats.proto import hbase_pb2 as pb
from walferry.formats.wal import WalReader
from walferry.hbase.client import HBaseClient
from walferry.hbase.errors import CallQueueFullError, RequestTooBigError
from walferry.hbase.multi import multis, send
from write_limits import write_limits

pytestmark = pytest.mark.cluster

MOST_BYTES, MOST_QUEUED_BYTES, MOST_MUTATIONS = 300_000, 200_000, 100
SITE = {
    "hbase.ipc.max.request.size": str(MOST_BYTES),
    "hbase.ipc.server.max.callqueue.size": str(MOST_QUEUED_BYTES),
    "hbase.rpc.rows.warning.threshold": str(MOST_MUTATIONS),
    "hbase.rpc.rows.size.threshold.reject": "true",
}


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HBaseClient]:
    """A cluster whose servers take requests of up to MOST_BYTES and queue MOST_QUEUED_BYTES, with the table `t`."""
    folder: Path = tmp_path_factory.mktemp("small")
    with MiniCluster.start(folder, thrift=False, hbase_site=SITE) as cluster, HBaseClient(cluster.address) as client:
        client.create_table("t", {"f": {"VERSIONS": "3"}})
        yield client


def writer(client: HBaseClient) -> RpcWriter:
    limits = write_limits(attempts=2, settle_seconds=0.1)
    return RpcWriter(client, pb.UUID(least_sig_bits=1, most_sig_bits=2), Guard(), limits)


def sent(client: HBaseClient, cell: bytes) -> None:
    (multi,) = multis(client, [("t", 1)], cell, [(2, 1)])
    send(client, multi)


def cells_of(prefix: bytes, count: int, size: int) -> list[bytes]:
    return [encode_cell(b"%s%03d" % (prefix, i), b"f", b"q", 7, CellType.PUT, bytes(size)) for i in range(count)]


@pytest.mark.parametrize("size", [1_000_000, 40_000_000], ids=["that is read at once", "that the server stops reading"])
def test_a_request_over_the_limit_is_refused_as_such_and_the_next_one_goes(small: HBaseClient, size: int) -> None:
    for _ in range(3):
        (cell,) = cells_of(b"large", 1, size)
        with pytest.raises(RequestTooBigError, match="greater than max allowed"):
            sent(small, cell)
        (cell,) = cells_of(b"after", 1, 10)
        sent(small, cell)
    assert b"".join(small.scan_raw("t", b"after", b"afters")) == cell


def test_what_is_over_the_limit_arrives_in_parts_and_only_a_cell_that_is_cannot(small: HBaseClient) -> None:
    cells = cells_of(b"part", 12, 50_000)
    run = CellRun("t", b"", len(cells))
    writer(small).send([run], b"".join(cells))
    assert b"".join(small.scan_raw("t", b"part", b"paru")) == b"".join(cells)
    (cell,) = cells_of(b"whole", 1, MOST_BYTES)
    with pytest.raises(RefusedError, match="a single cell is larger"):
        writer(small).send([CellRun("t", b"", 1)], cell)
    assert list(small.scan_raw("t", b"whole", b"whole~")) == []


def test_a_request_that_does_not_fit_into_the_servers_queue_is_told_as_that(small: HBaseClient) -> None:
    (cell,) = cells_of(b"queue", 1, MOST_QUEUED_BYTES)
    with pytest.raises(CallQueueFullError):
        writer(small).send([CellRun("t", b"", 1)], cell)


def test_an_entry_of_59_mib_arrives_in_requests_that_the_target_takes(target: MiniCluster) -> None:
    cells = cells_of(b"wide", 59, 1 << 20)
    content = header() + entry(cells, table_name=b"wide") + TRAILER
    (batch,) = WalReader([content], "file", batch_bytes=2 * len(content))
    made = list(requests(batch, np.arange(1), {"wide": "wide"}, write_limits()))
    assert max(len(block) for _, block in made) <= write_limits().bytes
    with HBaseClient(target.address) as client:
        client.create_table("wide", {"f": {}})
        for runs, block in made:
            writer(client).send(runs, block)
        assert b"".join(client.scan_raw("wide")) == b"".join(cells)
        client.disable_table("wide")
        client.delete_table("wide")


def test_more_mutations_than_a_server_takes_in_a_request_arrive_in_parts(small: HBaseClient) -> None:
    cells = cells_of(b"many", MOST_MUTATIONS * 3, 1)
    writer(small).send([CellRun("t", b"", len(cells))], b"".join(cells))
    assert b"".join(small.scan_raw("t", b"many", b"many~")) == b"".join(cells)
