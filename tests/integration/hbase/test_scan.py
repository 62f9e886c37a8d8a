"""A raw scan sees every row once, whatever happens to the regions meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from typing import Any

import pytest

from walferry.formats.proto import hbase_pb2 as pb
from walferry.hbase import mutate
from walferry.hbase.client import HBaseClient
from walferry.hbase.errors import ScannerLostError, TableNotFoundError
from walferry.hbase.mutate import Cell

pytestmark = pytest.mark.cluster

ReadCells = Callable[[Iterable[bytes]], list[tuple[Any, ...]]]
ROWS = [b"%05d" % i for i in range(3000)]


@pytest.fixture
def table(client: HBaseClient, make_table: Callable[..., str]) -> str:
    """3,000 rows of two cells in three regions."""
    name = make_table(split_keys=[b"01000", b"02000"])
    client.put(name, [Cell(row, b"f", b"q%d" % n, b"v" * 40, 1) for row in ROWS for n in range(2)])
    return name


def rows_of(found: list[tuple[Any, ...]]) -> list[bytes]:
    return [cell[0] for cell in found[::2]]


def test_blocks_hold_whole_rows_in_order(client: HBaseClient, table: str, cells: ReadCells) -> None:
    blocks = list(client.scan_raw(table, max_result_bytes=20_000))
    assert len(blocks) > 10
    assert all(len(cells([block])) % 2 == 0 for block in blocks)
    assert rows_of(cells(blocks)) == ROWS


@pytest.mark.parametrize(
    ("start", "stop"), [(b"00500", b"00700"), (b"00900", b"02100"), (b"01000", b"02000"), (b"02999", b""), (b"9", b"")]
)
def test_a_range_holds_its_start_and_not_its_stop(
    client: HBaseClient, table: str, cells: ReadCells, start: bytes, stop: bytes
) -> None:
    expected = [row for row in ROWS if row >= start and (not stop or row < stop)]
    assert rows_of(cells(client.scan_raw(table, start, stop))) == expected


def test_a_row_larger_than_the_limit_comes_in_one_block(
    client: HBaseClient, make_table: Callable[..., str], cells: ReadCells
) -> None:
    name = make_table()
    wide = [Cell(b"m", b"f", b"%05d" % n, b"v" * 100, 1) for n in range(2000)]
    client.put(name, [Cell(b"a", b"f", b"q", b"v", 1), *wide, Cell(b"z", b"f", b"q", b"v", 1)])
    blocks = list(client.scan_raw(name, max_result_bytes=10_000))
    holding = [block for block in blocks if any(cell[0] == b"m" for cell in cells([block]))]
    assert len(holding) == 1
    assert [cell[2] for cell in cells(blocks)] == [b"q", *(cell.qualifier for cell in wide), b"q"]


def test_rows_whose_last_cell_was_written_twice_come_in_blocks_of_their_own(
    client: HBaseClient, make_table: Callable[..., str], cells: ReadCells
) -> None:
    name = make_table()
    rows = [b"r%d" % n for n in range(5)]
    # At the limit, the server takes a row for unfinished if anything of it is left, even what it will leave out.
    for _ in range(2):
        client.put(name, [Cell(row, b"f", b"q%d" % n, b"v" * 2000, 1) for row in rows for n in range(2)])
    blocks = list(client.scan_raw(name, max_result_bytes=1000))
    assert [rows_of(cells([block])) for block in blocks] == [[row] for row in rows]


def test_only_the_families_asked_for_come_back(
    client: HBaseClient, make_table: Callable[..., str], cells: ReadCells
) -> None:
    name = make_table({"f": {}, "g": {}})
    client.put(name, [Cell(b"r", b"f", b"q", b"1"), Cell(b"r", b"g", b"q", b"2")])
    assert [cell[5] for cell in cells(client.scan_raw(name, families=["g"]))] == [b"2"]


def test_a_raw_scan_shows_what_its_familys_ttl_hides_but_not_what_its_own_ttl_does(
    client: HBaseClient, make_table: Callable[..., str], cells: ReadCells
) -> None:
    name = make_table({"f": {"TTL": "1"}, "g": {}})
    client.put(name, [Cell(b"family", b"f", b"q", b"v"), Cell(b"none", b"g", b"q", b"v")])
    client.mutate(name, [mutate.put(b"own", [Cell(b"own", b"g", b"q", b"v")], ttl_ms=1000)])
    deadline = time.monotonic() + 20
    while len(cells(client.scan(name))) > 1:
        assert time.monotonic() < deadline
        time.sleep(0.2)
    assert [cell[0] for cell in cells(client.scan_raw(name))] == [b"family", b"none"]


def disturbed(blocks: Iterator[bytes], at: int, disturb: Callable[[], None]) -> Iterator[bytes]:
    for number, block in enumerate(blocks):
        if number == at:
            disturb()
        yield block


@pytest.mark.parametrize("at", [0, 2, 7])
def test_a_region_that_moves_during_the_scan_loses_and_repeats_nothing(
    client: HBaseClient, table: str, cells: ReadCells, at: int
) -> None:
    def move() -> None:
        for region in client.regions(table):
            client.move_region(region, next(server for server in client.servers() if server != region.server))

    blocks = disturbed(client.scan_raw(table, max_result_bytes=20_000), at, move)
    assert rows_of(cells(blocks)) == ROWS


def test_a_region_that_splits_during_the_scan_loses_and_repeats_nothing(
    client: HBaseClient, table: str, cells: ReadCells
) -> None:
    def split() -> None:
        client.split_region(client.regions(table)[0], b"00500")
        client.split_region(client.regions(table)[2], b"01010")

    blocks = disturbed(client.scan_raw(table, max_result_bytes=20_000), 1, split)
    assert rows_of(cells(blocks)) == ROWS
    assert len(client.regions(table)) == 5


@pytest.fixture
def scanners(client: HBaseClient, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """(server, scanner id) of every answer to a scan, in order."""
    seen: list[tuple[str, int]] = []
    ordinary = client.pool.call

    def call(server: str, service: str, method: str, *rest: Any, **options: Any) -> tuple[Any, bytes]:
        answer, block = ordinary(server, service, method, *rest, **options)
        if method == "Scan" and answer.HasField("scanner_id"):
            seen.append((server, answer.scanner_id))
        return answer, block

    monkeypatch.setattr(client.pool, "call", call)
    return seen


def test_a_scanner_that_the_server_forgot_is_replaced(
    client: HBaseClient, table: str, cells: ReadCells, scanners: list[tuple[str, int]]
) -> None:
    def forget() -> None:
        server, scanner = scanners[-1]
        request = pb.ScanRequest(scanner_id=scanner, close_scanner=True, number_of_rows=0)
        client.pool.call(server, "ClientService", "Scan", request, pb.ScanResponse)

    blocks = disturbed(client.scan_raw(table, max_result_bytes=20_000), 1, forget)
    assert rows_of(cells(blocks)) == ROWS
    assert len(set(scanners)) > 3  # one for each region, and another


def test_a_scan_that_is_not_read_to_its_end_closes_its_scanner(
    client: HBaseClient, table: str, scanners: list[tuple[str, int]]
) -> None:
    with closing(client.scan_raw(table, max_result_bytes=5_000)) as blocks:  # type: ignore[type-var]
        next(blocks)
    server, scanner = scanners[-1]
    request = pb.ScanRequest(scanner_id=scanner, number_of_rows=1, next_call_seq=0)
    with pytest.raises(ScannerLostError, match="closed"):
        client.pool.call(server, "ClientService", "Scan", request, pb.ScanResponse)


def test_a_missing_table_is_not_found(client: HBaseClient) -> None:
    with pytest.raises(TableNotFoundError):
        list(client.scan_raw("no_such_table"))


def test_a_raw_scan_of_some_rows_shows_all_that_is_stored_of_these_and_of_no_others(
    client: HBaseClient, table: str, cells: ReadCells
) -> None:
    client.mutate(table, [mutate.delete_column(b"00007", b"f", b"q0"), mutate.delete_column(b"00008", b"f", b"q0")])
    wanted = [b"00000", b"00007", b"009", b"00999", b"01000", b"01999", b"02000", b"02999", b"9"]
    found = cells(client.scan_raw(table, rows=wanted))
    assert [cell[0] for cell in found] == sorted(
        [row for row in wanted if row in ROWS for _ in range(2)] + [b"00007"]  # and its marker
    )


def test_a_raw_scan_of_rows_and_ranges_across_regions_shows_these_only(
    client: HBaseClient, table: str, cells: ReadCells
) -> None:
    ranges = [(b"00003", b"00006"), (b"01998", b"02002"), (b"02998", b"")]
    found = cells(client.scan_raw(table, rows=[ranges[0], b"00999", ranges[1], b"02500", ranges[2]]))
    inside = [row for row in sorted(ROWS) if any(start <= row and (not stop or row < stop) for start, stop in ranges)]
    inside = sorted([*inside, *({b"00999", b"02500"} & set(ROWS))])
    assert len(inside) > 8
    assert [cell[0] for cell in found] == [row for row in inside for _ in range(2)]


def test_a_raw_scan_since_a_timestamp_shows_newer_cells_and_markers_only(
    client: HBaseClient, table: str, cells: ReadCells
) -> None:
    client.flush_table(table)
    client.put(table, [Cell(b"00007", b"f", b"q0", b"new", 9), Cell(b"01500", b"f", b"q9", b"older", 8)])
    client.mutate(table, [mutate.delete_column(b"02000", b"f", b"q0", 9), mutate.delete_family(b"02001", b"f", 9)])
    found = [(cell[0], cell[3]) for cell in cells(client.scan_raw(table, since_ms=9))]
    assert found == [(b"00007", 9), (b"02000", 9), (b"02001", 9)]
    assert [cell[0] for cell in cells(client.scan_raw(table, rows=[b"00007", b"02000", b"02002"], since_ms=9))] == [
        b"00007", b"02000",
    ]  # fmt: skip
