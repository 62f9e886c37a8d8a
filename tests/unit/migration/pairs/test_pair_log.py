"""What a log says since a place in it, from WAL files on this machine's disk."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from unit.formats.wal_builder import REGION, TRAILER, entry, header
from walferry.clock import now_ms
from walferry.formats.cells import CellType, encode_cell
from walferry.hbase.address import ClusterAddress
from walferry.migration.pairs import pair_log
from walferry.migration.pairs.pair_log import (
    LOADED,
    MANY,
    FileNews,
    LogTask,
    PlaceInLog,
    ReadGroup,
    gaps_since,
    listing_since,
    place_after,
    read_span,
    sealed_by,
    spans_since,
)
from walferry.storage.local import Local

SERVER, OTHER = "rs,1,2", "rs,1,3"
TTL_MS = 600_000.0
NAME = REGION.decode()


def group(server: str = SERVER) -> str:
    return server.replace(",", "%2C")


def written(*rows: bytes, table: bytes = b"t", region: bytes = REGION) -> bytes:
    return entry([encode_cell(row, b"f", b"q", 1, 4) for row in rows], table_name=table, encoded_region_name=region)


def marker(kind: bytes) -> bytes:
    return entry([encode_cell(b"", b"METAFAMILY", kind, 1, 4)], table_name=b"t")


class Log:
    """A cluster's log, and a reader that comes back to it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.address = ClusterAddress("127.0.0.1:1", rootdir=f"hdfs://127.0.0.1:1{root}", webhdfs="http://127.0.0.1:1")
        for folder in (f"WALs/{SERVER}", f"WALs/{OTHER}", "oldWALs"):
            (root / folder).mkdir(parents=True)

    def path(self, number: int, server: str = SERVER, *, archived: bool = False) -> Path:
        return self.root / ("oldWALs" if archived else f"WALs/{server}") / f"{group(server)}.{number}"

    def write(self, number: int, *parts: bytes, server: str = SERVER) -> Path:
        path = self.path(number, server)
        path.write_bytes((header() if not path.exists() else path.read_bytes()) + b"".join(parts))
        return path

    def archive(self, number: int) -> None:
        self.path(number).rename(self.path(number, archived=True))

    def read(self, *places: PlaceInLog) -> tuple[list[FileNews], PlaceInLog, dict[str, str]]:
        at_ms = now_ms()
        listing = listing_since(Local(), str(self.root), places)
        gaps = gaps_since(places[0], listing, at_ms, TTL_MS) if places else {}
        spans = spans_since(listing, places, gaps, sealed_by(Local(), str(self.root)))
        news = [one for span in spans for one in read_span(LogTask(self.address, span, ("t", "u")))]
        return news, place_after(at_ms, listing, news), gaps


@pytest.fixture
def wal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Log:
    monkeypatch.setattr(pair_log, "shared_log_files", lambda _: Local())
    return Log(tmp_path)


def rows(news: list[FileNews]) -> set[tuple[str, bytes]]:
    return {(table, row) for one in news for table, found in one.rows.items() for row in found}


def test_a_first_look_only_finds_the_ends_of_files_that_are_open(wal: Log) -> None:
    wal.write(1, written(b"old"), TRAILER)
    wal.write(2, written(b"before"))
    wal.write(7, written(b"before"), server=OTHER)
    news, place, _ = wal.read()
    assert {one.file.number for one in news} == {2, 7}
    assert rows(news) == set()
    end = wal.path(2).stat().st_size
    assert place.groups[group()] == ReadGroup(2, {2: end})
    assert PlaceInLog.from_json(place.at_ms, place.as_json()) == place


def test_the_next_look_gives_the_rows_since_across_a_roll_and_an_archived_file(wal: Log) -> None:
    wal.write(2, written(b"before"))
    _, place, _ = wal.read()
    wal.write(2, written(b"a", b"b"), written(b"x", table=b"other"), TRAILER)
    wal.archive(2)
    wal.write(3, written(b"c"), written(b"a", table=b"u", region=b"e" * 32))
    wal.write(9, written(b"d"), server=OTHER)
    news, after, gaps = wal.read(place)
    assert rows(news) == {("t", b"a"), ("t", b"b"), ("t", b"c"), ("u", b"a"), ("t", b"d")}
    assert gaps == {}
    assert set(after.groups[group()].open) == {3}
    assert rows(wal.read(after)[0]) == set()


def test_two_places_are_read_from_the_earlier_one(wal: Log) -> None:
    wal.write(2, written(b"before"))
    _, first, _ = wal.read()
    wal.write(2, written(b"a"))
    _, second, _ = wal.read(first)
    wal.write(2, written(b"b"))
    assert rows(wal.read(second)[0]) == {("t", b"b")}
    assert rows(wal.read(first, second)[0]) == {("t", b"a"), ("t", b"b")}


def test_a_file_that_was_deleted_before_it_was_read_to_its_end_is_a_gap_of_its_server(wal: Log) -> None:
    wal.write(2, written(b"before"))
    wal.write(7, written(b"before"), server=OTHER)
    _, place, _ = wal.read()
    end = wal.path(2).stat().st_size
    wal.path(2).unlink()
    wal.write(3, written(b"lost or not"))
    wal.write(7, written(b"there"), server=OTHER)
    news, after, gaps = wal.read(place)
    assert gaps == {SERVER: f"WAL file {group()}.2 no longer exists, and was read only up to byte {end}"}
    assert rows(news) == {("t", b"there")}
    assert set(after.groups[group()].open) == {3}  # the next look goes on from where this one found the end
    assert wal.read(after)[2] == {}


def test_files_that_came_and_went_are_a_gap_if_the_cleaner_may_have_deleted_any(wal: Log) -> None:
    wal.write(2, written(b"before"))
    _, place, _ = wal.read()
    wal.write(2, TRAILER)
    wal.archive(2)
    wal.write(4, written(b"a"))
    assert wal.read(place)[2] == {}  # closed just now: what was begun later is there, too
    closed = now_ms() / 1000 - TTL_MS / 1000 - 1
    os.utime(wal.path(2, archived=True), (closed, closed))
    assert "may have been deleted: the cleaner keeps them for 600 s" in wal.read(place)[2][SERVER]


def test_a_server_that_has_not_rolled_has_lost_nothing_however_long_ago_it_was(wal: Log) -> None:
    path = wal.write(2, written(b"before"))
    _, place, _ = wal.read()
    wal.write(2, written(b"a"))
    os.utime(path, (1, 1))
    news, _, gaps = wal.read(place)
    assert (gaps, rows(news)) == ({}, {("t", b"a")})


def test_a_damaged_file_says_so_after_what_could_be_read(wal: Log) -> None:
    wal.write(2, written(b"before"))
    _, place, _ = wal.read()
    wal.write(2, written(b"a"), b"\x05\xff\xff\xff\xff\xff" * 3)
    (news,), after, _ = wal.read(place)
    assert "is damaged at byte" in news.error
    assert not news.sealed
    assert set(after.groups[group()].open) == {2}


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        (b"HBASE::BULK_LOAD", LOADED),
        (b"HBASE::NEVER_HEARD_OF", LOADED),
        (b"HBASE::FLUSH", ""),
    ],
)
def test_a_marker_says_of_which_region_the_rows_are_not_all(wal: Log, kind: bytes, why: str) -> None:
    wal.write(2)
    _, place, _ = wal.read()
    wal.write(2, written(b"a"), marker(kind), written(b"b"), written(b"c", region=b"f" * 32))
    (news,), _, _ = wal.read(place)
    assert news.marks == ({("t", NAME): why} if why else {})
    assert rows([news]) == {("t", b"c")} | (set() if why else {("t", b"a"), ("t", b"b")})
    assert not news.compacted | news.fragile


def test_a_compaction_is_told_beside_the_rows(wal: Log) -> None:
    wal.write(2)
    _, place, _ = wal.read()
    wal.write(2, written(b"a"), marker(b"HBASE::COMPACTION"))
    (news,), _, _ = wal.read(place)
    assert news.compacted == {("t", NAME)}
    assert rows([news]) == {("t", b"a")}


@pytest.mark.parametrize(
    ("kind", "ttl_ms", "fragile"),
    [
        (CellType.PUT, None, False),
        (CellType.PUT, 5_000, True),
        (CellType.DELETE, None, True),
        (CellType.DELETE_FAMILY_VERSION, None, True),
        (CellType.DELETE_COLUMN, None, False),
        (CellType.DELETE_FAMILY, None, False),
    ],
)
def test_what_reveals_older_versions_makes_its_region_fragile(
    wal: Log, kind: CellType, ttl_ms: int | None, fragile: bool
) -> None:
    wal.write(2)
    _, place, _ = wal.read()
    tags = [] if ttl_ms is None else [(8, ttl_ms.to_bytes(8, "big"))]
    wal.write(2, entry([encode_cell(b"a", b"f", b"q", 1, kind, tags=tags)], table_name=b"t"))
    (news,), _, _ = wal.read(place)
    assert news.fragile == ({("t", NAME)} if fragile else set())


def test_a_region_of_which_too_many_rows_were_written_gives_none(wal: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pair_log, "ROWS_PER_REGION", 2)
    wal.write(2)
    _, place, _ = wal.read()
    wal.write(2, written(b"a", b"b", b"a"), written(b"c", region=b"f" * 32))
    assert rows(wal.read(place)[0]) == {("t", b"a"), ("t", b"b"), ("t", b"c")}
    wal.write(2, written(b"d"))
    (news,), _, _ = wal.read(place)
    assert news.marks == {("t", NAME): MANY}
    assert rows([news]) == {("t", b"c")}
