"""Ordinary writes of every kind, read back raw."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from walferry.formats.cells import CellType, decode_tags
from walferry.formats.proto import hbase_pb2 as pb
from walferry.hbase import mutate
from walferry.hbase.client import HBaseClient
from walferry.hbase.errors import NoSuchFamilyError, RequestTimeoutError
from walferry.hbase.mutate import Cell

pytestmark = pytest.mark.cluster

ReadCells = Callable[[Iterable[bytes]], list[tuple[Any, ...]]]
P, D, DFV, DC, DF = (
    CellType.PUT,
    CellType.DELETE,
    CellType.DELETE_FAMILY_VERSION,
    CellType.DELETE_COLUMN,
    CellType.DELETE_FAMILY,
)


def test_all_kinds_of_deletes_come_back_raw_in_hbases_order(
    client: HBaseClient, make_table: Callable[..., str], cells: ReadCells
) -> None:
    name = make_table({"f": {"VERSIONS": "100"}, "g": {"VERSIONS": "100"}})
    puts = [Cell(b"r", b"f", b"q", b"v%d" % ts, ts) for ts in (10, 20, 30)]
    client.put(name, [*puts, Cell(b"r", b"f", b"", b"empty", 20), Cell(b"r", b"g", b"q", b"other", 20)])
    client.mutate(
        name,
        [
            mutate.delete_version(b"r", b"f", b"q", 20),
            mutate.delete_column(b"r", b"f", b"q", 15),
            mutate.delete_family(b"r", b"g", 25),
            mutate.delete_family_version(b"r", b"f", 30),
        ],
    )
    assert [cell[1:6] for cell in cells(client.scan_raw(name))] == [
        (b"f", b"", 30, DFV, b""),
        (b"f", b"", 20, P, b"empty"),
        (b"f", b"q", 30, P, b"v30"),
        (b"f", b"q", 20, D, b""),
        (b"f", b"q", 20, P, b"v20"),
        (b"f", b"q", 15, DC, b""),
        (b"f", b"q", 10, P, b"v10"),
        (b"g", b"", 25, DF, b""),
        (b"g", b"q", 20, P, b"other"),
    ]
    assert [cell[2:6] for cell in cells(client.scan(name, max_versions=100))] == [(b"", 20, P, b"empty")]


def test_a_deleted_row_is_one_family_delete_for_each_family(
    client: HBaseClient, make_table: Callable[..., str], cells: ReadCells
) -> None:
    name = make_table({"f": {}, "g": {}})
    client.mutate(name, [mutate.delete_row(b"r")])
    assert [(cell[1], cell[4]) for cell in cells(client.scan_raw(name))] == [(b"f", DF), (b"g", DF)]


def test_a_ttl_comes_back_as_a_tag(client: HBaseClient, make_table: Callable[..., str], cells: ReadCells) -> None:
    name = make_table()
    client.mutate(name, [mutate.put(b"r", [Cell(b"r", b"f", b"q", b"v", 10**15)], ttl_ms=86_400_000)])
    (cell,) = cells(client.scan_raw(name))
    assert decode_tags(cell[6]) == [(8, (86_400_000).to_bytes(8, "big"))]


def test_increments_and_appends_return_what_they_made(client: HBaseClient, make_table: Callable[..., str]) -> None:
    name = make_table()
    for total in (5, 10):
        (result,) = client.mutate(name, [mutate.increment(b"r", b"f", b"n", 5)])
        assert int.from_bytes(result.cell[0].value, "big") == total
    for text in (b"ab", b"abab"):
        (result,) = client.mutate(name, [mutate.append(b"r", b"f", b"s", b"ab")])
        assert result.cell[0].value == text


@pytest.mark.parametrize("change", [mutate.increment(b"r", b"f", b"q", 1), mutate.append(b"r", b"f", b"q", b"x")])
def test_a_change_whose_answer_got_lost_counts_once(
    client: HBaseClient,
    make_table: Callable[..., str],
    cells: ReadCells,
    monkeypatch: pytest.MonkeyPatch,
    change: pb.MutationProto,
) -> None:
    name = make_table()
    ordinary = client.pool.call
    sent: list[int] = []

    def call(server: str, service: str, method: str, *rest: Any, **options: Any) -> tuple[Any, bytes]:
        answer = ordinary(server, service, method, *rest, **options)
        if method == "Multi":
            sent.append(1)
            if len(sent) == 1:
                raise RequestTimeoutError("the answer got lost")
        return answer

    monkeypatch.setattr(client.pool, "call", call)
    (result,) = client.mutate(name, [change])
    assert len(sent) == 2
    expected = (1).to_bytes(8, "big") if change.mutate_type == pb.MutationProto.INCREMENT else b"x"
    assert [cell[5] for cell in cells(client.scan_raw(name))] == [expected]
    assert result.cell[0].value == expected


def test_what_one_region_refuses_does_not_keep_others_from_being_written(
    client: HBaseClient, make_table: Callable[..., str], cells: ReadCells
) -> None:
    name = make_table(split_keys=[b"m"])
    good = [Cell(row, b"f", b"q", b"v", 1) for row in (b"a", b"b", b"z")]
    with pytest.raises(NoSuchFamilyError, match="nof") as raised:
        client.put(name, [good[0], Cell(b"a2", b"nof", b"q", b"v", 1), *good[1:]])
    assert raised.value.failed == 1
    assert [cell[0] for cell in cells(client.scan_raw(name))] == [b"a", b"b", b"z"]


def test_writes_go_on_while_a_region_splits_and_moves(
    client: HBaseClient, make_table: Callable[..., str], cells: ReadCells
) -> None:
    name = make_table()
    rows = [b"%05d" % i for i in range(6000)]
    client.put(name, [Cell(row, b"f", b"q", b"v", 1) for row in rows[::2]])
    began = threading.Event()

    def write() -> None:
        for start in range(1, len(rows), 200):
            client.put(name, [Cell(row, b"f", b"q", b"v", 1) for row in rows[start : start + 200 : 2]])
            began.set()

    writer = threading.Thread(target=write)
    writer.start()
    began.wait(10)
    client.split_region(client.regions(name)[0], b"03000")
    first = client.regions(name)[0]
    client.move_region(first, next(server for server in client.servers() if server != first.server))
    writer.join()
    assert [cell[0] for cell in cells(client.scan_raw(name))] == rows
