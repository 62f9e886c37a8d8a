"""Asks region servers for the MVCC read points of their regions: up to which sequence number writes are acknowledged.

A region takes sequence numbers from its MultiVersionConcurrencyControl, and the read point passes a write's number once
that write and all before it are complete: after the append to the log and the wait for its sync, right before the
server answers (HRegion.doMiniBatchMutate; in 1.x doMiniBatchMutation). With ASYNC_WAL nothing waits for the sync. A
write whose sync fails completes too, although its entry may be in the log. Most servers then abort, and what recovers
their log applies the entry, but 2.2 only fails the write (HRegion.doWALAppend). `HBaseClient.read_points` tells what
follows.

The request opens a scanner and closes it at once, asking for no rows: the answer names the read point that the scanner
got (RSRpcServices.newRegionScanner; since 1.4, HBASE-17167). Its time range is empty, so the server leaves out all
store files and reads no block; its range of one row keeps it out of the count of full scans.

Which process answered: a request goes to an address, where a server that restarted may answer for the one before it. So
after the answers, the address is asked for its server's name, start code included (GetServerInfo). Nothing needs to be
asked before: the name came from a log or from hbase:meta, and a server has one only after it has bound its port
(HRegionServer's constructor). If the named server has the port after the answers, it had the port all the time, and
the answers are its own. The one check covers all regions of the server.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TypeVar

from walferry.errors import TransientError
from walferry.formats.proto import hbase_pb2 as pb
from walferry.hbase.calls import Calls
from walferry.hbase.descriptors import Region
from walferry.hbase.errors import RegionNotServedError, RemoteError, ServerGoneError
from walferry.hbase.retry import ATTEMPTS, retry_call
from walferry.hbase.zookeeper import Server

AT_ONCE = 8
"""requests in flight for each call"""
_LATEST_MS = 2**63 - 1
_NO_TIME = pb.TimeRange(**{"from": _LATEST_MS, "to": _LATEST_MS})
T = TypeVar("T")


def read_points(client: Calls, asked: Sequence[tuple[str, Region]], *, attempts: int = ATTEMPTS) -> list[int | None]:
    named = [(Server.parse(name), region) for name, region in asked]

    def point(one: tuple[Server, Region]) -> int | None:
        there = replace(one[1], server=one[0])
        answer = served(lambda: open_at_read_point(client, there, close=True), attempts)
        return None if answer is None else answer.mvcc_read_point

    def runs(server: Server) -> bool:
        return served(lambda: _running(client, server), attempts) == server

    pool = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="read point")
    try:
        points = list(pool.map(point, named))
        answered = {server for (server, _), found in zip(named, points, strict=True) if found is not None}
        running = {server for server, does in zip(answered, pool.map(runs, answered), strict=True) if does}
    finally:
        pool.shutdown(cancel_futures=True)  # after an error nobody waits for the other answers
    return [found if server in running else None for (server, _), found in zip(named, points, strict=True)]


def served(ask: Callable[[], T], attempts: int) -> T | None:
    """The answer to a question about a region at a certain server; None if the region, or any server, is not there."""

    def call() -> T | None:
        try:
            return ask()
        except TransientError as error:
            refused = isinstance(error.__cause__, ConnectionRefusedError)  # no process listens on the port
            if refused or isinstance(error, (RegionNotServedError, ServerGoneError)):
                return None
            raise

    return retry_call(call, attempts=attempts)


def open_at_read_point(client: Calls, region: Region, *, close: bool = False) -> pb.ScanResponse:
    """Open a scanner of a region, at its `server`, that is not asked for rows, and close it at once if wanted. The
    answer has its read point, its id and its lease (`ttl`, ms). Raises RemoteError if the server tells no read point.
    """
    assert region.server is not None
    row = region.start
    request = pb.ScanRequest(
        region=region.specifier,
        scan=pb.Scan(start_row=row, stop_row=row + b"\0", time_range=_NO_TIME, cache_blocks=False),
        number_of_rows=0,
        close_scanner=close,
    )
    answer, _ = client.pool.call(
        region.server.address, "ClientService", "Scan", request, pb.ScanResponse, timeout_s=client.timeout_s
    )
    if not answer.HasField("mvcc_read_point"):
        raise RemoteError(
            f"{region.server.name} does not tell the read point of region {region.encoded} of {region.table}; "
            "HBase does so since 1.4: upgrade it",
            server=region.server.address, method="ClientService.Scan", region=region.encoded,
        )  # fmt: skip
    return answer


def _running(client: Calls, server: Server) -> Server:
    """The server that has the address now."""
    answer, _ = client.pool.call(
        server.address, "AdminService", "GetServerInfo", pb.GetServerInfoRequest(), pb.GetServerInfoResponse,
        timeout_s=client.timeout_s,
    )  # fmt: skip
    return Server.of(answer.server_info.server_name)
