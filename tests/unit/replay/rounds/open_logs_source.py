"""The logs of three servers, for the tests of what is sent of open logs: each writes, rolls, and is cut."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from unit.apply.guards import Guard
from unit.formats.wal_builder import TRAILER, entry, header
from walferry.apply.route import Route
from walferry.formats.cells import encode_cell
from walferry.hbase.address import ClusterAddress
from walferry.ledger import Hold, QuarantineItem
from walferry.refusals import ANY_REGION
from walferry.replay.log.cut import Cut
from walferry.replay.rounds.open_logs import OpenLogs
from walferry.replay.rounds.sent_before_batch import Early
from walferry.run.progress.lag import TailProgress, ahead_of
from walferry.run.run import Run
from walferry.storage import FileStatus, Local
from walferry.wal.files import WalFile, list_live
from write_limits import write_limits

TABLE = "shop:orders"
SERVERS = ("rs,1,1", "rs,1,2", "rs,1,3")
NOW = 1_790_000_000_000
HERE = ClusterAddress("127.0.0.1:1")
ROUTE = Route(HERE, "/hbase", (1, 2), HERE, {TABLE: TABLE}, Guard(), write_limits())
LINES = {TABLE: {f"region of {server}": f"{server} 1" for server in SERVERS}}
ALL = frozenset(LINES[TABLE])
WALS = Path(__file__).parents[3] / "fixtures" / "wal"


class Counting(Local):
    """Counts what is asked of it."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()

    def list(self, path: str) -> list[FileStatus]:
        self.asked["list"] += 1
        return super().list(path)

    def status(self, path: str) -> FileStatus | None:
        self.asked["status"] += 1
        return super().status(path)

    def read(self, path: str, offset: int = 0, length: int | None = None) -> Iterator[bytes]:
        self.asked["read"] += 1
        return super().read(path, offset, length)


def group_of(server: str) -> str:
    return server.replace(",", "%2C")


def path_of(run: Run, server: str) -> Path:
    """The log that a server writes to."""
    folder = Path(f"{run.wal_root}/WALs/{server}")
    return max(folder.glob("*"), default=folder / f"{group_of(server)}.{NOW - 10_000}")


def roll(run: Run, server: str, *, closed: bool = True) -> Path:
    """Begin a server's next log, and close the one before; returns that."""
    path = path_of(run, server)
    if closed:
        with path.open("ab") as log:
            log.write(TRAILER)
    path.with_suffix(f".{int(path.suffix[1:]) + 1_000}").write_bytes(header())
    return path


def cut_of(run: Run, at_ms: int = NOW, lines: dict[str, str] | None = None) -> Cut:
    """A cut, before which everything is sealed that is not a server's newest log. `lines`: of regions that are not
    where they were at first."""
    files = list_live(run.wal_files, run.wal_root)
    now = {TABLE: {region_of(server): f"{server} 1" for server in SERVERS} | (lines or {})}
    return Cut(at_ms, now, now, files, {file.group: file.number for file in files}, {})


def below(cut: Cut) -> list[WalFile]:
    return [file for file in cut.files if file.number < cut.current[file.group]]


def region_of(server: str) -> str:
    return f"region of {server}"


def write(run: Run, server: str, age_ms: int, sequence_number: int = 1, region: str | None = None) -> None:
    """Append an edit that is so old by now to a server's open log."""
    append(run, server, encode_cell(b"r", b"f", b"q", 1, 4), age_ms, sequence_number, region)


def mark(run: Run, server: str, what: str, sequence_number: int, region: str | None = None) -> None:
    """Append the marker of an opening or a closing."""
    cell = encode_cell(b"r", b"METAFAMILY", f"HBASE::REGION_EVENT::REGION_{what}".encode(), 1, 4)
    append(run, server, cell, 0, sequence_number, region)


def append(run: Run, server: str, cell: bytes, age_ms: int, sequence_number: int, region: str | None) -> None:
    fields = {"encoded_region_name": (region or region_of(server)).encode(), "write_time": NOW - age_ms}
    with path_of(run, server).open("ab") as log:
        log.write(entry([cell], sequence_number, table_name=TABLE.encode(), **fields))


Follow = Callable[[], OpenLogs]


def settle(run: Run, open_logs: OpenLogs, cut: Cut | None = None) -> Early:
    """What of a batch of all sealed logs was sent."""
    cut = cut or cut_of(run)
    return open_logs.settle(cut, below(cut), LINES, ROUTE)


def measured(run: Run) -> dict[str, TailProgress]:
    kept = ahead_of(run.ledger)
    assert kept is not None
    return {one.server: one.model_copy(update={"read_ms": 0}) for one in kept.groups.values()}


def hold(run: Run, table: str, region: str = ANY_REGION) -> int:
    item = QuarantineItem("earlier", 5, 7, table, region, 4, "refused", b"")
    (number,) = run.ledger.quarantine.put([item], lambda ids: [Hold("earlier", table, region, 0, ids[0])])
    return number
