"""A made-up region server that holds read points, and what Holds and RowImages ask it."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from walferry.formats.cells import encode_cell
from walferry.formats.proto import hbase_pb2 as pb
from walferry.hbase.descriptors import Region, TableDescriptor, new_table
from walferry.hbase.errors import RegionNotServedError, ScannerLostError
from walferry.hbase.versions import release_of
from walferry.hbase.zookeeper import Server

HERE, THERE = Server("rs", 1, 2), Server("rs", 2, 2)
REGION = "a" * 32


class Source:
    """One region of table t1, with the rows that were written, each with its number."""

    timeout_s = 1.0

    def __init__(self) -> None:
        self.server = HERE
        self.read_point = 10
        self.files = ["1"]
        self.scanners: dict[int, int] = {}
        self.requests: list[str] = []
        self.versions: dict[bytes, list[tuple[int, bytes]]] = {}
        self.pool = SimpleNamespace(call=self._call)
        self.table: TableDescriptor | None = new_table("t1", {"f": {}})
        self.enabled = True
        self.release = release_of("2.6.3")
        self.single_deletes: set[bytes] = set()
        """rows with a delete of one version, which a raw scan shows"""
        self._last = 0

    def write(self, number: int, row: bytes, value: bytes | None) -> None:
        """Write a row, or with None delete it."""
        cells = b"" if value is None else encode_cell(row, b"f", b"q", number, 4, value)
        self.versions.setdefault(row, []).append((number, cells))
        self.read_point = number

    def move(self) -> None:
        self.server = THERE
        self.scanners.clear()

    def region(self) -> Region:
        return Region(b"t1," + REGION.encode(), REGION, "t1", b"", b"", self.server, 1)

    def table_enabled(self, table: str) -> bool:
        return self.enabled

    def location_failed(self, table: str, error: Exception, attempt: int) -> None:
        self.requests.append("failed")

    def regions(self, table: str) -> list[Region]:
        self.requests.append("regions")
        return [self.region()]

    def locate(self, table: str, row: bytes) -> Region:
        return self.region()

    def store_files(self, region: Region, *families: bytes) -> list[str]:
        self._require(region.server)
        assert families == (b"f",)
        self.requests.append("files")
        return list(self.files)

    def read_points(self, asked: Sequence[tuple[str, Region]]) -> list[int | None]:
        self.requests.append("read points")
        return [self.read_point if server == self.server.name else None for server, _ in asked]

    def _require(self, server: Server | None) -> None:
        if server != self.server:
            raise RegionNotServedError("it is elsewhere")

    def _call(self, address: str, service: str, method: str, request: Any, *_: Any, **__: Any) -> tuple[Any, bytes]:
        assert method == "Scan"
        if request.HasField("scanner_id"):
            self.requests.append("close" if request.close_scanner else "renew")
            if request.scanner_id not in self.scanners:
                raise ScannerLostError("unknown scanner")
            if request.close_scanner:
                del self.scanners[request.scanner_id]
            return pb.ScanResponse(), b""
        if address != self.server.address:
            raise RegionNotServedError("it is elsewhere")
        if request.number_of_rows == 0:
            self.requests.append("hold")
            self._last += 1
            self.scanners[self._last] = self.read_point
            return pb.ScanResponse(scanner_id=self._last, mvcc_read_point=self.read_point, ttl=60_000), b""
        if request.scan.attribute:
            self.requests.append("raw")
            found = [encode_cell(row, b"f", b"q", 1, 8, b"") for row in sorted(self.single_deletes)]
            return pb.ScanResponse(cells_per_result=[1 for _ in found], more_results_in_region=False), b"".join(found)
        past = request.scan.HasField("mvcc_read_point")
        self.requests.append("past" if past else "now")
        point = request.scan.mvcc_read_point if past else self.read_point
        wanted = pb.MultiRowRangeFilter.FromString(request.scan.filter.serialized_filter).row_range_list
        rows = {one.start_row for one in wanted} or {request.scan.start_row}
        found = [self._shown(row, point) for row in sorted(rows & self.versions.keys())]
        cells = b"".join(found)
        return pb.ScanResponse(cells_per_result=[1 for one in found if one], more_results_in_region=False), cells

    def _shown(self, row: bytes, point: int) -> bytes:
        return ([b""] + [cells for number, cells in self.versions[row] if number <= point])[-1]
