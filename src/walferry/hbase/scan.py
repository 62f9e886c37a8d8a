"""Scans that survive region moves, splits and server failures, and yield cell blocks as they arrived.

`HBaseClient` documents the functions that take the client.
"""

from __future__ import annotations

import logging
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from io import BytesIO

import numba
import numpy as np
import numpy.typing as npt

from walferry.errors import DamagedInputError, TransientError
from walferry.formats.cells import index_cells, row_at, row_starts
from walferry.formats.proto import hbase_pb2 as pb
from walferry.hbase.calls import Calls
from walferry.hbase.descriptors import Range, Region
from walferry.hbase.retry import REGION_ATTEMPTS, pause_s, repeatable
from walferry.hbase.rpc import CODEC_WITH_TAGS

ALL_VERSIONS = 2**31 - 1
MAX_RESULT_BYTES = 2 << 20
_NO_ROW_LIMIT = 2**31 - 1

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Query:
    """The request of a scan, the same for every region; each scanner adds its rows."""

    families: Sequence[str] | None
    raw: bool
    max_versions: int
    max_result_bytes: int
    rows: pb.Filter | None = None
    since_ms: int | None = None
    read_point: int | None = None
    with_stop: bool = False
    cached: bool = False
    count: Callable[[int], None] | None = None
    """is called with the bytes of each answer as it arrives; what it raises ends the scan"""


def scan_raw(
    client: Calls,
    table: str,
    start: bytes = b"",
    stop: bytes = b"",
    *,
    families: Sequence[str] | None = None,
    max_result_bytes: int = MAX_RESULT_BYTES,
    rows: Sequence[bytes | Range] = (),
    since_ms: int | None = None,
) -> Iterator[bytes]:
    query = _Query(families, True, ALL_VERSIONS, max_result_bytes, _filter_of(rows) if rows else None, since_ms)
    return _scan(client, table, start, stop, query)


def scan(
    client: Calls,
    table: str,
    start: bytes = b"",
    stop: bytes = b"",
    *,
    families: Sequence[str] | None = None,
    max_versions: int = 1,
    max_result_bytes: int = MAX_RESULT_BYTES,
) -> Iterator[bytes]:
    return _scan(client, table, start, stop, _Query(families, False, max_versions, max_result_bytes))


def rows_as_of(
    client: Calls,
    region: Region,
    rows: Sequence[bytes],
    read_point: int,
    *,
    raw: bool = False,
    count: Callable[[int], None] | None = None,
) -> Iterator[bytes]:
    """Blocks of the cells of these rows, which must be in order, that a reader with this MVCC read point sees.

    `raw`: all versions and delete markers. `count`: is called with the bytes of each answer as it arrives; what it
    raises ends the scan. The region must be at its `server`. One attempt. How far back a server can tell:
    `walferry.hbase.past_rows`.
    """
    picked = _filter_of(rows) if len(rows) > 1 else None
    # From a row to the same row, both included, is a Get to the server: it asks the Bloom filters (Scan.isGetScan).
    query = _Query(
        None, raw, ALL_VERSIONS if raw else 1, MAX_RESULT_BYTES, picked,
        read_point=read_point, with_stop=True, cached=True, count=count,
    )  # fmt: skip
    return _scan_region(client, region, rows[0], rows[-1], query)


def scan_rows(
    client: Calls,
    table: str,
    rows: Sequence[bytes],
    *,
    attempts: int = REGION_ATTEMPTS,
    count: Callable[[int], None] | None = None,
) -> Iterator[bytes]:
    """Blocks of the cells of these rows, which must be in order, that an ordinary reader sees now: of each column the
    newest version. `count`: as of `rows_as_of`. Moves, splits and failures are those of a scan, with so many attempts
    for each region."""
    query = _Query(None, False, 1, MAX_RESULT_BYTES, _filter_of(rows), cached=True, count=count)
    return _scan(client, table, rows[0], rows[-1] + b"\0", query, attempts)


def split_rows(block: bytes) -> dict[bytes, bytes]:
    """The cells of each row in a block of whole rows. Raises DamagedInputError."""
    buffer = np.frombuffer(block, np.uint8)
    cells = index_cells(buffer).position
    starts = cells[row_starts(buffer, cells)].tolist()
    ends = [*starts[1:], len(block)]
    return {row_at(buffer, start): block[start:end] for start, end in zip(starts, ends, strict=True)}


def _filter_of(rows: Sequence[bytes | Range]) -> pb.Filter:
    """HBase's MultiRowRangeFilter for single rows, and ranges of rows."""
    bounds = [(row, row, True) if isinstance(row, bytes) else (*row, False) for row in rows]
    ranges = [
        pb.RowRange(start_row=start, start_row_inclusive=True, stop_row=stop, stop_row_inclusive=with_stop)
        for start, stop, with_stop in bounds
    ]
    return pb.Filter(
        name="org.apache.hadoop.hbase.filter.MultiRowRangeFilter",
        serialized_filter=pb.MultiRowRangeFilter(row_range_list=ranges).SerializeToString(),
    )


def _scan(
    client: Calls, table: str, start: bytes, stop: bytes, query: _Query, attempts: int = REGION_ATTEMPTS
) -> Iterator[bytes]:
    failures = 0
    while True:
        try:
            region = client.locate(table, start)
            end = min(region.end, stop) if region.end and stop else region.end or stop
            for block in _scan_region(client, region, start, end, query):
                yield block
                start = last_row(block) + b"\0"
                failures = 0
                del block  # free a large row before the next is read
            if not region.end or (stop and region.end >= stop):
                return
            start = region.end
            failures = 0
        except TransientError as error:
            failures += 1
            if failures == attempts or not repeatable(error):
                raise
            client.location_failed(table, error, failures)
            _log.warning("scan of %s at row %r: attempt %d of %d: %s", table, start, failures, attempts, error)
            time.sleep(pause_s(error, failures))


def _scan_region(client: Calls, region: Region, start: bytes, stop: bytes, query: _Query) -> Iterator[bytes]:
    """Blocks of whole rows of one region, by one scanner."""
    assert region.server is not None
    server = region.server.address
    request = pb.ScanRequest(region=region.specifier, scan=_scan_of(start, stop, query))
    scanner_id: int | None = None
    pending, row = BytesIO(), b""  # the first cells of a row that the server has not sent completely, and its key
    sequence = 0
    try:
        while True:
            request.number_of_rows = _NO_ROW_LIMIT
            # Partial results and heartbeats let a server that finds nothing for long still meet the deadline.
            request.client_handles_partials = True
            request.client_handles_heartbeats = True
            response, block = client.pool.call(
                server,
                "ClientService",
                "Scan",
                request,
                pb.ScanResponse,
                codec=CODEC_WITH_TAGS,
                timeout_s=client.timeout_s,
            )
            if query.count is not None:
                query.count(len(block))
            scanner_id = response.scanner_id if response.HasField("scanner_id") else scanner_id
            more = response.more_results_in_region and response.more_results
            if pending.tell() and block and _row_at(block, 0) != row:
                yield _taken(pending)  # the server has left out the rest of that row
            unfinished = more and response.partial_flag_per_result and response.partial_flag_per_result[-1]
            border = _cell_border(block, sum(response.cells_per_result[:-1])) if unfinished else len(block)
            if border:
                pending.write(block[:border])
                yield _taken(pending)
            if border < len(block):
                row = _row_at(block, border)
                pending.write(block[border:])
            if not more:
                scanner_id = None  # closed by the server
                if pending.tell():
                    yield _taken(pending)
                return
            request = pb.ScanRequest(scanner_id=scanner_id, next_call_seq=sequence)
            sequence += 1
    finally:
        if scanner_id is not None:
            _close(client, server, scanner_id)


def _scan_of(start: bytes, stop: bytes, query: _Query) -> pb.Scan:
    scan = pb.Scan(
        start_row=start,
        stop_row=stop,
        include_stop_row=query.with_stop,
        column=[pb.Column(family=family.encode()) for family in query.families or ()],
        max_versions=query.max_versions,
        cache_blocks=query.cached,
        max_result_size=query.max_result_bytes,
        filter=query.rows,
        time_range=None if query.since_ms is None else pb.TimeRange(**{"from": query.since_ms}),
        # Bytes.toBytes(true)
        attribute=[pb.NameBytesPair(name="_raw_", value=b"\xff")] if query.raw else [],
    )
    if query.read_point is not None:
        scan.mvcc_read_point = query.read_point
    return scan


def _close(client: Calls, server: str, scanner_id: int) -> None:
    """Close a scanner at its server. If that fails, the server drops the scanner when its lease expires."""
    request = pb.ScanRequest(scanner_id=scanner_id, close_scanner=True, number_of_rows=0)
    try:
        client.pool.call(server, "ClientService", "Scan", request, pb.ScanResponse, codec=CODEC_WITH_TAGS, timeout_s=5)
    except TransientError as error:
        _log.debug("scanner %d on %s stays open until its lease expires: %s", scanner_id, server, error)


def _taken(written: BytesIO) -> bytes:
    """Empty `written` and return its content, without a copy, since a row may be large."""
    taken = written.getvalue()
    written.seek(0)
    written.truncate()
    return taken


def _cell_border(block: bytes, cells: int) -> int:
    """The position after the first `cells` cells of the block."""
    border = int(_walk(np.frombuffer(block, np.uint8), cells)[0])
    if border < 0:
        raise DamagedInputError("a scan's cell block ends inside a cell", reason="short cell block")
    return border


def last_row(block: bytes) -> bytes:
    """Row of the last cell of a block that holds one."""
    end, last = _walk(np.frombuffer(block, np.uint8), -1)
    if end < 0 or last < 0:
        raise DamagedInputError("a scan's cell block ends inside a cell", reason="short cell block")
    return _row_at(block, last)


def _row_at(block: bytes, position: int) -> bytes:
    """Row of the cell that begins at a position of a block."""
    # int32 cell length, int32 key length, int32 value length, int16 row length, row
    if len(block) - position < 14:
        raise DamagedInputError("a scan's cell block ends inside a cell", reason="short cell block")
    (length,) = struct.unpack_from(">h", block, position + 12)
    return block[position + 14 : position + 14 + length]


@numba.njit(cache=True)  # type: ignore[untyped-decorator, unused-ignore]
def _walk(block: npt.NDArray[np.uint8], cells: int) -> tuple[int, int]:
    """The position after the first `cells` cells (-1 = all), and that of the last of them; (-1, -1) if the block ends
    inside a cell."""
    position, last, size = 0, -1, len(block)
    while cells != 0 and position < size:
        if size - position < 14:
            return -1, -1
        length = 0
        for i in range(4):
            length = length << 8 | block[position + i]
        if length < 10 or length > size - position - 4:
            return -1, -1
        last = position
        position += 4 + length
        cells -= 1
    if cells > 0:
        return -1, -1
    return position, last
