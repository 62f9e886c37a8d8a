"""Which regions a table has and where they are: hbase:meta, read and cached."""

from __future__ import annotations

import bisect
import struct
import threading
from dataclasses import dataclass
from itertools import pairwise

from walferry.formats.mutations import RowBorders
from walferry.formats.proto import hbase_pb2 as pb
from walferry.hbase.descriptors import Region, table_text
from walferry.hbase.errors import RegionNotServedError, TableNotFoundError
from walferry.hbase.rpc import ConnectionPool
from walferry.hbase.zookeeper import Server, ZooKeeper, parse_znode

META_TABLE = "hbase:meta"
_META_REGION = pb.RegionSpecifier(type=pb.RegionSpecifier.REGION_NAME, value=b"hbase:meta,,1")
_META_ROWS = 1000
_NOT_OPENED = 1
"""the open sequence number that 1.x writes for a daughter or merged region before it has opened; a region opens at 2 or
above (SplitTransactionImpl, RegionMergeTransactionImpl)"""


@dataclass(frozen=True)
class Located:
    """Where the rows of a table are: its regions without a gap, by start row."""

    regions: tuple[Region, ...]
    borders: RowBorders


class Locations:
    """Reads hbase:meta (MetaTableAccessor's layout) and caches a table's regions until `forget`.

    It does not retry: callers do.
    """

    def __init__(self, zookeeper: ZooKeeper, pool: ConnectionPool, timeout_s: float) -> None:
        self._zookeeper = zookeeper
        self._pool = pool
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._known: dict[str, list[Region]] = {}
        self._located: dict[str, Located] = {}

    def regions(self, table: str) -> list[Region]:
        """The table's regions by start row, read from hbase:meta. Raises TableNotFoundError."""
        regions = self._read(table)
        if not regions:
            raise TableNotFoundError(f"there is no table {table} at {self._zookeeper.hosts}", table=table)
        with self._lock:
            self._known[table] = regions
            self._located.pop(table, None)
        return regions

    def located(self, table: str) -> Located:
        """Where all rows of the table are, from the cache. Raises RegionNotServedError while a region splits or
        merges."""
        with self._lock:
            located, regions = self._located.get(table), self._known.get(table)
        if located is not None:
            return located
        regions = regions or self.regions(table)
        if any(one.end != next.start for one, next in pairwise(regions)) or regions[0].start or regions[-1].end:
            self.forget(table)
            raise RegionNotServedError(f"the regions of {table} do not cover all rows now", table=table)
        located = Located(tuple(regions), RowBorders.of([region.start for region in regions]))
        with self._lock:
            self._located[table] = located
        return located

    def locate(self, table: str, row: bytes) -> Region:
        """The region that holds a row. Raises RegionNotServedError if no region holds it, or no server has it open."""
        with self._lock:
            regions = self._known.get(table)
        if regions is None:
            regions = self.regions(table)
        index = bisect.bisect_right(regions, row, key=lambda region: region.start) - 1
        region = regions[index] if index >= 0 else None
        if region is None or not region.holds(row):
            self.forget(table)
            raise RegionNotServedError(f"no region of {table} holds row {row!r} now", table=table)
        if region.server is None:
            self.forget(table)
            message = f"region {region.encoded} of {table} is not open on any server now; is the table enabled?"
            raise RegionNotServedError(message, table=table, region=region.encoded)
        return region

    def forget(self, table: str) -> None:
        """The next `locate` reads hbase:meta again."""
        with self._lock:
            self._known.pop(table, None)
            self._located.pop(table, None)

    def _read(self, table: str) -> list[Region]:
        if table == META_TABLE:
            server = self._zookeeper.meta_server()
            return [Region(_META_REGION.value, "1588230740", table, b"", b"", server, 1)]
        # The table's rows lie between its name and its name with a space: MetaTableAccessor.getTableStopRowForMeta.
        rows = self._scan_meta(f"{table},,".encode(), f"{table} ,,".encode())
        regions = (_region(row) for row in rows)
        return sorted((region for region in regions if region is not None), key=lambda region: region.start)

    def _scan_meta(self, start: bytes, stop: bytes) -> list[pb.Result]:
        """All rows of the family `info` between two rows. No codec, so that results come as plain messages."""
        server = self._zookeeper.meta_server().address
        request = pb.ScanRequest(
            region=_META_REGION,
            scan=pb.Scan(start_row=start, stop_row=stop, column=[pb.Column(family=b"info")], max_result_size=4 << 20),
            number_of_rows=_META_ROWS,
            client_handles_partials=False,
        )
        rows: list[pb.Result] = []
        sequence = 0
        while True:
            response, _ = self._pool.call(
                server, "ClientService", "Scan", request, pb.ScanResponse, timeout_s=self._timeout_s
            )
            rows.extend(response.results)
            if not response.more_results or not response.more_results_in_region:
                return rows
            request = pb.ScanRequest(scanner_id=response.scanner_id, number_of_rows=_META_ROWS, next_call_seq=sequence)
            sequence += 1


def _region(row: pb.Result) -> Region | None:
    """The region of one row of hbase:meta; None for split parents, offline ones and replicas."""
    columns = {cell.qualifier: cell.value for cell in row.cell}
    if not columns.get(b"regioninfo"):
        return None
    info = parse_znode(columns[b"regioninfo"], pb.RegionInfo)
    if info.offline or info.split or info.replica_id:
        return None
    name = row.cell[0].row
    server = None
    sequence = int.from_bytes(columns.get(b"seqnumDuringOpen", b""), "big")
    # Before OPEN, and in CLOSED, `server` still names the previous server. 1.x writes no state for open regions.
    is_open = columns.get(b"state", b"OPEN") == b"OPEN" and (b"state" in columns or sequence != _NOT_OPENED)
    if columns.get(b"server") and is_open:
        host, _, port = columns[b"server"].decode().rpartition(":")
        (start_code,) = struct.unpack(">q", columns[b"serverstartcode"])
        server = Server(host, int(port), start_code)
    return Region(
        name=name,
        # "table,start,id.encoded."
        encoded=name[:-1].rpartition(b".")[2].decode(),
        table=table_text(info.table_name),
        start=info.start_key,
        end=info.end_key,
        server=server,
        region_id=info.region_id,
        open_sequence=sequence,
        may_lag=b"state" not in columns,
        changed_ms=max(cell.timestamp for cell in row.cell),
    )
