"""What tests of past rows need: a row with a history of every kind of change, as a reader saw it after each of them."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from integration.hbase.read_points import point
from walferry.formats.proto import hbase_pb2 as pb
from walferry.hbase.client import HBaseClient
from walferry.hbase.descriptors import Region
from walferry.hbase.mutate import (
    Cell,
    append,
    delete_column,
    delete_family,
    delete_family_version,
    delete_row,
    delete_version,
    increment,
    put,
)
from walferry.hbase.past_rows import HeldReadPoint, PastRow, hold_read_points

FAMILIES = {"f": {"VERSIONS": "1"}, "g": {"VERSIONS": "3"}}
ROW = b"row"


@dataclass(frozen=True)
class Written:
    """A row after each of its changes, and what a reader saw then."""

    past: list[PastRow]
    seen: list[bytes]


def changes(row: bytes) -> list[pb.MutationProto]:
    """Every kind of change, so that each changes what a reader sees."""

    def value(family: bytes, qualifier: bytes, content: bytes, timestamp: int | None = None) -> pb.MutationProto:
        return put(row, [Cell(row, family, qualifier, content, timestamp)])

    counted = [change(row, family, b"n") for family in (b"f", b"g") for change in [increment] * 3]
    joined = [append(row, family, b"a", b"x") for family in (b"f", b"g") for _ in range(3)]
    return [
        value(b"f", b"q", b"1"), value(b"f", b"q", b"2"), value(b"f", b"q", b"3"),
        put(row, [Cell(row, b"f", b"both", b"4"), Cell(row, b"g", b"both", b"4")]),
        *counted, *joined,
        value(b"f", b"tie", b"5", 1000), value(b"f", b"tie", b"6", 1000), value(b"g", b"tie", b"7", 1000),
        value(b"g", b"q", b"8", 2000), value(b"g", b"q", b"9", 3000),
        delete_version(row, b"g", b"q", 3000), delete_family_version(row, b"g", 2000),
        delete_column(row, b"f", b"q"), value(b"f", b"later", b"10"), delete_family(row, b"f"), delete_row(row),
        value(b"f", b"again", b"11"),
    ]  # fmt: skip


def write_history(client: HBaseClient, table: str, region: Region) -> Written:
    """Change a row step by step."""
    numbers: list[int] = []
    seen: list[bytes] = []
    for change in changes(ROW):
        client.mutate(table, [change])
        number = point(client, region)
        assert number is not None
        numbers.append(number)
        seen.append(b"".join(client.scan(table, ROW, ROW + b"\0")))
    assert all(one != other for one, other in pairwise(seen)), "a change that nobody sees"
    ends = [*(number - 1 for number in numbers[1:]), numbers[-1]]
    return Written([PastRow(ROW, *span) for span in zip(numbers, ends, strict=True)], seen)


def hold(client: HBaseClient, region: Region) -> HeldReadPoint:
    assert region.server is not None
    (held,) = hold_read_points(client, [(region.server.name, region)])
    assert held is not None
    return held


def drop_what_was_written_over(client: HBaseClient, table: str) -> None:
    """Flush the table twice and compact it: only what readers may still need is left."""
    client.flush_table(table)
    client.put(table, [Cell(b"other", family, b"q", b"v") for family in (b"f", b"g")])
    client.compact_region(table, ROW, [b"f", b"g"])
