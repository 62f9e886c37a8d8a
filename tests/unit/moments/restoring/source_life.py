"""The life of a table on servers whose clocks differ, as real WAL files: writes, moves, splits, and a base."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from unit.formats.wal_builder import TRAILER, entry, header
from walferry.formats.cells import CellType, encode_cell
from walferry.formats.proto import hbase_pb2 as pb
from walferry.moments.restoring.log_part import BaseRegion, Moment, SeenFile, TableBase, look
from walferry.storage import Local
from walferry.wal.files import Place, WalFile
from walferry.wal.open import open_wal_at

BEGIN_MS = 1_700_000_000_000
STEP_MS = 1000
CLOCKS_MS = {"A": 0, "B": 4_500, "C": -4_500}
FAR = "far"
"""a server whose clock is ahead by more than is allowed for"""


def moment(at_ms: int) -> Moment:
    """A moment with the usual allowance for the clocks."""
    return Moment(at_ms, 60_000)


@dataclass(frozen=True)
class Written:
    """An entry of the log."""

    region: str
    number: int
    write_ms: int
    is_edit: bool


@dataclass
class Region:
    """A region that is open."""

    name: str
    start: bytes
    made_ms: int
    server: str
    number: int
    """the last one that was used"""
    line: list[Written]
    """its entries and those of the regions that it came from, in order"""
    splits: int = 0
    """how often its rows were split"""


@dataclass
class Life:
    """What happens, one thing each second."""

    steps: int = 0
    regions: list[Region] = field(default_factory=list)
    logs: dict[str, bytes] = field(default_factory=lambda: defaultdict(header))
    names: int = 0
    base: TableBase | None = None
    base_lines: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for start in (b"", b"m"):
            self._open(start, "A", 1, [], [])

    @property
    def now_ms(self) -> int:
        return BEGIN_MS + self.steps * STEP_MS

    def tick(self) -> None:
        self.steps += 1

    def write(self, number: int) -> None:
        """A client writes to a region."""
        region = self._at(number)
        self._log(region, [encode_cell(region.start + b"r", b"f", b"q", 1, CellType.PUT, b"v")])

    def move(self, number: int, server: str) -> None:
        """A region closes, and opens on a server."""
        region = self._at(number)
        self._mark(region, pb.RegionEventDescriptor.REGION_CLOSE, [])
        region.server, region.number = server, region.number + 1
        self.open_again(region)

    def open_again(self, region: Region) -> None:
        """A region opens with its file."""
        self._mark(region, pb.RegionEventDescriptor.REGION_OPEN, ["abc"])

    def split(self, number: int, servers: tuple[str, str]) -> None:
        """A region gives way to two."""
        region = self._at(number)
        self._mark(region, pb.RegionEventDescriptor.REGION_CLOSE, [])
        self.regions.remove(region)
        between = region.start + b"%c" % (ord("l") - region.splits)
        # The lower daughter is without a reference, as if the parent's files had only rows of the upper one.
        for start, server, files in zip((region.start, between), servers, ([], [f"abc.{region.name}"]), strict=True):
            self._open(start, server, region.number + 1, list(region.line), files)
            self.regions[-1].splits = region.splits + 1

    def clone(self, number: int, closes: bool = True) -> None:
        """The table is dropped, and cloned from a snapshot from when the region had used this number; unless it
        `closes`, its server has died before."""
        for region in self.regions if closes else ():
            self._mark(region, pb.RegionEventDescriptor.REGION_CLOSE, [])
        self.steps += 2
        for region in self.regions:
            region.number, region.line = number, []
            self._mark(region, pb.RegionEventDescriptor.REGION_OPEN, ["abc"])

    def take_base(self) -> None:
        """Every region is flushed, as for a snapshot."""
        regions = {one.name: BaseRegion(one.start, one.made_ms, {b"f": one.number}) for one in self.regions}
        self.base = TableBase("base", self.now_ms, self.now_ms, regions)
        for one in self.regions:
            one.number += 1  # of the flush
        self.base_lines = {one.name: len(one.line) for one in self.regions}

    def seen(self, folder: Path, at_ms: int) -> list[SeenFile]:
        """What the logs show."""
        assert self.base is not None
        found = []
        for server, content in self.logs.items():
            path = folder / f"{server}%2C1%2C1.1"
            path.write_bytes(content + TRAILER)
            file = WalFile(path.name, server, server, 1, str(path), Place.ARCHIVED, len(content) + len(TRAILER))
            found.append(look(open_wal_at(Local(), str(path)), file, "t1", moment(at_ms), self.base))
        return found

    def _at(self, number: int) -> Region:
        return self.regions[number % len(self.regions)]

    def _open(self, start: bytes, server: str, number: int, line: list[Written], files: list[str]) -> None:
        self.names += 1
        region = Region(f"r{self.names:031d}", start, self.now_ms, server, number, line)
        self.regions.append(region)
        self._mark(region, pb.RegionEventDescriptor.REGION_OPEN, files)

    def _mark(self, region: Region, kind: pb.RegionEventDescriptor.EventType, files: list[str]) -> None:
        event = pb.RegionEventDescriptor(
            event_type=kind, table_name=b"t1", encoded_region_name=region.name.encode(),
            region_name=b"t1,%s,%d.%s." % (region.start, region.made_ms, region.name.encode()),
            stores=[pb.StoreDescriptor(family_name=b"f", store_home_dir="f", store_file=files)],
        )  # fmt: skip
        qualifier = b"HBASE::REGION_EVENT::" + pb.RegionEventDescriptor.EventType.Name(kind).encode()
        row = region.start or b"\0"
        self._log(
            region, [encode_cell(row, b"METAFAMILY", qualifier, 1, CellType.PUT, event.SerializeToString())], False
        )

    def _log(self, region: Region, cells: list[bytes], is_edit: bool = True) -> None:
        region.number += 1
        write_ms = self.now_ms + CLOCKS_MS.get(region.server, 100_000)
        self.logs[region.server] += entry(
            cells, region.number, encoded_region_name=region.name.encode(), write_time=write_ms
        )
        region.line.append(Written(region.name, region.number, write_ms, is_edit))
