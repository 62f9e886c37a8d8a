"""The class of a row with hand-made cells on both sides."""

from __future__ import annotations

from collections.abc import Mapping

from walferry.formats.cells import CellType, decode_tags, encode_cell
from walferry.formats.resolve import FamilyRules
from walferry.migration.explaining.difference_classes import (
    Clients,
    Explanation,
    RowLog,
    classify,
)
from walferry.migration.sides.row_sides import Bounds, Cell, row_sides

SINCE = 1_000
"""the start fence; smaller timestamps came with the snapshot"""
UNTIL = 900_000
"""when the comparison began"""
NOW = 1_000_000
WIDE = Bounds(100, 100_000)


def put(timestamp: int, value: bytes = b"v", qualifier: bytes = b"q", ttl: int | None = None) -> Cell:
    tags = b"" if ttl is None else b"\0\x09\x08" + ttl.to_bytes(8, "big")
    return (b"f", qualifier, timestamp, CellType.PUT, value, tags)


def marker(timestamp: int, kind: CellType = CellType.DELETE_COLUMN) -> Cell:
    whole_family = kind in (CellType.DELETE_FAMILY, CellType.DELETE_FAMILY_VERSION)
    return (b"f", b"" if whole_family else b"q", timestamp, kind, b"", b"")


def why(
    source: list[Cell],
    target: list[Cell],
    applied: Mapping[Cell, int] | None = None,
    pending: set[Cell] | None = None,
    versions: int = 1,
    left_out: set[Cell] | None = None,
    clients: Clients | None = None,
) -> str | None:
    """The class of a row with these raw cells on both sides; `applied` are the log's, with sequence numbers."""
    log = RowLog(SINCE, UNTIL, dict(applied or {}), pending or set(), left_out or set())
    found = explained(source, target, log, versions, clients=clients)
    return found.kind if found else None


def explained(
    source: list[Cell],
    target: list[Cell],
    log: RowLog,
    versions: int = 1,
    bounds: Bounds = WIDE,
    clients: Clients | None = None,
) -> Explanation | None:
    rules = {b"f": FamilyRules(versions, 0, None)}
    sides = row_sides(block(source), block(target), rules, NOW, bounds)
    return classify(sides, log, rules, clients) if sides else None


def block(cells: list[Cell]) -> bytes:
    # HBase's order within a row: column, newest first, then the higher type first.
    ordered = sorted(cells, key=lambda cell: (cell[1], -cell[2], -cell[3]))
    return b"".join(encode_cell(b"row", *cell[:5], decode_tags(cell[5])) for cell in ordered)
