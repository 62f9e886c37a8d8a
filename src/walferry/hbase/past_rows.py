"""Rows as they were right after a past change.

A scan with `Scan.mvcc_read_point` sees what was written up to that sequence number (RegionScannerImpl; in 1.x
HRegion.RegionScannerImpl). HBase answers for any number, but it keeps what was written over only as long as an open
scanner may need it: flushes, compactions, compactions in memory, and in 1.x and 2.2 increments and appends too, drop it
otherwise, and the answer is then a wrong row (HRegion.getSmallestReadPoint and its callers). So a read point must be
held before the change is written, by an open scanner. As long as that lives, the region answers exactly for every
number from its read point on.

The scanner is opened as in `read_points` and never asked for a row: it has no block and no file. A server closes it
when its lease expires (`lease_s`) or its region closes, and knows it no longer after a restart. So the scanner is
renewed after the last answer: if the server still knows it then, in the same opening of the region, it was held all the
time. No log marker needs to be read for that.

What a held read point does not keep:

- Cells whose TTL has passed since the change.
- What HBase itself shows differently after a flush or a compaction, although nothing was written. A delete of one
  version shows the version below only until that is dropped, and a delete marker hides later puts with timestamps up to
  its own only until a major compaction drops it. A row with either is answered as HBase shows it when it is asked.
- Before 2.6, perhaps what an increment or an append has written over in a family with VERSIONS 1: of the versions up to
  the held read point only the newest is kept (MemStore.upsert). A delete of exactly that version would show the one
  below it (`Release.drops_versions`; `one_version` of `rows_at`).
- Files loaded in bulk without sequence numbers (`hbase.mapreduce.bulkload.assign.sequenceNumbers` off).

Blocks that are read go to the server's cache, as with a Get: the rows that change are those that are read again.

One scan answers for all rows of a region at one number, and a row is the same at all numbers up to its next change. So
a few numbers do for many rows (`points_of`): as many as the busiest row has changes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np

from walferry.formats.cells import index_cells
from walferry.formats.proto import hbase_pb2 as pb
from walferry.formats.resolve import marker_numbers
from walferry.hbase.calls import Calls
from walferry.hbase.descriptors import Region
from walferry.hbase.errors import ScannerLostError
from walferry.hbase.read_points import open_at_read_point, served
from walferry.hbase.retry import ATTEMPTS
from walferry.hbase.scan import rows_as_of, split_rows
from walferry.hbase.zookeeper import Server

AT_ONCE = 4
"""requests in flight for each call: reading a row may cost the server a seek in every store file"""
ROWS_AT_ONCE = 128
"""rows that one request asks for"""
_NO_FAMILIES: Mapping[str, Collection[bytes]] = {}


@dataclass(eq=False)
class HeldReadPoint:
    """A read point of a region, held by an open scanner."""

    region: Region
    """with the server that has the scanner"""
    number: int
    scanner: int
    lease_s: float
    """the server closes a scanner that it has not heard of for so long (hbase.client.scanner.timeout.period)"""
    ended: bool = False
    """`let_go` was called; a server would still accept a renewal then (RSRpcServices.closedScanners)"""


@dataclass(frozen=True)
class PastRow:
    """A row between two of its changes."""

    row: bytes
    first: int
    """the sequence number of the change"""
    last: int
    """Up to this number the row has no other change and the region no bulk load, and the region's read point is there.
    A load counts from a number below that of its marker in the log: before one, end with the number of an edit."""


def hold_read_points(
    client: Calls, asked: Sequence[tuple[str, Region]], *, attempts: int = ATTEMPTS
) -> list[HeldReadPoint | None]:
    """Hold the present read point of regions, each at one server ("host,port,startcode"), in their order.

    None if the server does not serve the region now. Errors are those of `HBaseClient.read_points`, but any process
    that has the server's address may answer.
    """

    def hold(one: tuple[str, Region]) -> HeldReadPoint | None:
        there = replace(one[1], server=Server.parse(one[0]))

        def held() -> HeldReadPoint:
            answer = open_at_read_point(client, there)
            return HeldReadPoint(there, answer.mvcc_read_point, answer.scanner_id, answer.ttl / 1000)

        return served(held, attempts)

    with _pool() as pool:
        return list(pool.map(hold, asked))


def still_held(client: Calls, held: Sequence[HeldReadPoint], *, attempts: int = ATTEMPTS) -> list[bool]:
    """Whether each of these read points has been held without a break until now; renews the leases of those."""

    def renewed(one: HeldReadPoint) -> bool:
        known = not one.ended and served(lambda: _call(client, one, pb.ScanRequest(renew=True)), attempts)
        return bool(known) and not one.ended

    with _pool() as pool:
        return list(pool.map(renewed, held))


def let_go(client: Calls, held: Sequence[HeldReadPoint]) -> None:
    """Close the scanners of these read points. One attempt; what cannot be closed now ends with its lease."""

    def close(one: HeldReadPoint) -> None:
        one.ended = True
        served(lambda: _call(client, one, pb.ScanRequest(close_scanner=True, number_of_rows=0)), 1)

    with _pool() as pool:
        list(pool.map(close, held))


def rows_at(
    client: Calls,
    asked: Sequence[tuple[HeldReadPoint, Sequence[PastRow]]],
    *,
    attempts: int = ATTEMPTS,
    one_version: Mapping[str, Collection[bytes]] = _NO_FAMILIES,
    count: Callable[[int], None] | None = None,
) -> list[list[bytes | None] | None]:
    """Past rows of regions: for each region, in the order asked, the cells of each row (a cell block, newest versions
    only, with tags; b"" if the row had no cell). `one_version`: families, by table, of which HBase may have dropped
    versions in memory; a row in which one of them has a delete of a single version is None. `count`: is called, by
    several threads, with the bytes of each answer as it arrives; what it raises ends the call.

    None for a region whose read point has been lost: the answers may be wrong, and nobody can tell any more. One error
    fails the whole call, so ask about one server at a time if one that hangs must not hold up others.
    """
    for held, past in asked:
        if any(row.first < held.number or row.last < row.first for row in past):
            raise ValueError(f"a row of {held.region.encoded} before its held read point {held.number}")
    requests = [(which, point, rows) for which, (_, past) in enumerate(asked) for point, rows in _requests(past)]

    def ask(request: tuple[int, int, dict[bytes, list[int]]]) -> dict[bytes, bytes | None] | None:
        which, point, rows = request
        region = asked[which][0].region
        families = one_version.get(region.table, ())
        return served(lambda: _rows(client, region, sorted(rows), point, families, count), attempts)

    found: list[list[bytes | None] | None] = [[b""] * len(past) for _, past in asked]
    with _pool() as pool:
        for (which, _, rows), answer in zip(requests, pool.map(ask, requests), strict=True):
            into = found[which]
            if answer is None or into is None:
                found[which] = None
                continue
            for row, places in rows.items():
                for place in places:
                    into[place] = answer.get(row, b"")
    sure = still_held(client, [held for held, _ in asked], attempts=attempts)
    return [blocks if one else None for blocks, one in zip(found, sure, strict=True)]


def points_of(asked: Sequence[PastRow]) -> dict[int, list[int]]:
    """The fewest numbers at which all these rows can be read: number -> which of the rows."""
    points: dict[int, list[int]] = {}
    point = -1
    for which in sorted(range(len(asked)), key=lambda which: asked[which].last):
        if asked[which].first > point:
            point = asked[which].last
            points[point] = []
        points[point].append(which)
    return points


def _requests(asked: Sequence[PastRow]) -> Iterator[tuple[int, dict[bytes, list[int]]]]:
    """What is asked at once: a number, and where in `asked` each of the rows is."""
    for point, found in points_of(asked).items():
        places: defaultdict[bytes, list[int]] = defaultdict(list)
        for which in found:
            places[asked[which].row].append(which)
        rows = sorted(places)
        for start in range(0, len(rows), ROWS_AT_ONCE):
            yield point, {row: places[row] for row in rows[start : start + ROWS_AT_ONCE]}


def _rows(
    client: Calls,
    region: Region,
    rows: Sequence[bytes],
    point: int,
    one_version: Collection[bytes],
    count: Callable[[int], None] | None,
) -> dict[bytes, bytes | None]:
    """The cells of those of these rows that have any, by row; None if HBase may have dropped some."""
    found: dict[bytes, bytes | None] = {}
    for block in rows_as_of(client, region, rows, point, count=count):
        found |= split_rows(block)
    if one_version:
        for block in rows_as_of(client, region, rows, point, raw=True):
            stored = split_rows(block)
            found |= {row: None for row, cells in stored.items() if _deletes_a_version(cells, one_version)}
    return found


def _deletes_a_version(cells: bytes, families: Collection[bytes]) -> bool:
    index = index_cells(np.frombuffer(cells, np.uint8))
    return any(
        cells[index.family_start[at] : index.family_start[at] + index.family_length[at]] in families
        for at in marker_numbers(index, by_version=True).tolist()
    )


def _call(client: Calls, held: HeldReadPoint, request: pb.ScanRequest) -> bool:
    """Whether the server knows the scanner, and the region has not been opened again since."""
    assert held.region.server is not None
    request.scanner_id = held.scanner
    try:
        client.pool.call(
            held.region.server.address, "ClientService", "Scan", request, pb.ScanResponse, timeout_s=client.timeout_s
        )
    except ScannerLostError:
        return False
    return True


@contextmanager
def _pool() -> Iterator[ThreadPoolExecutor]:
    pool = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="past rows")
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)  # after an error nobody waits for the other answers
