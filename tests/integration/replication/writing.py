"""A writer beside a test, for tables that are replicated: families `d` and `e`."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Event
from typing import Any

from walferry.errors import WalferryError
from walferry.hbase.client import HBaseClient
from walferry.hbase.mutate import Cell, delete_column, delete_row


def writer(client: HBaseClient, tables: Sequence[str], mark: bytes = b"") -> Any:
    """Writes rows all the time: puts, deletes of cells and rows, and two values in the same millisecond. Some are
    written or deleted once, so that nothing later hides that such an edit was lost."""

    def write(over: Event) -> None:
        count = 0
        while not over.is_set():
            table, row = tables[count % len(tables)], mark + b"row%d%02d" % (count % 10, count // 10 % 50)
            try:
                client.put(table, [Cell(row, b"d", b"q", b"%d" % count)])
                same = 1_000 + count // 500
                client.put(table, [Cell(row, b"e", b"same", b"first %d" % count, same)])
                client.put(table, [Cell(row, b"e", b"same", b"second %d" % count, same)])
                if count % 10 == 0:
                    client.put(tables[0], [Cell(mark + b"once%07d" % count, b"d", b"q", b"v")])
                if count % 30 == 0 and count > 300:
                    client.mutate(tables[0], [delete_row(mark + b"once%07d" % (count - 300))])
                if count % 7 == 3:
                    client.mutate(table, [delete_column(row, b"d", b"q")])
                if count % 31 == 5:
                    client.mutate(table, [delete_row(mark + b"gone%02d" % (count % 50))])
                if count % 31 == 6:
                    client.put(table, [Cell(mark + b"gone%02d" % (count % 50), b"d", b"q", b"%d" % count)])
            except WalferryError as error:  # a region opens again, or moves
                print(f"writer: {error}")
            count += 1

    return write
