"""Copy the current state of row ranges from the source, bypassing the log: this is how `reread` releases quarantined
items."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from pyspark.sql import SparkSession

from walferry.apply.route import Route
from walferry.apply.writer_protocol import CellRun, Writer
from walferry.apply.writers import writer_to
from walferry.formats.cells import index_cells
from walferry.spark.clients import shared_client
from walferry.spark.fan_out import fan_out


def recopy_rows(spark: SparkSession, route: Route, table: str, ranges: Sequence[tuple[bytes, bytes]]) -> int:
    """Scan row ranges of the source raw (all versions, markers, tags) and send the cells. Returns the cells' number."""
    return sum(fan_out(spark, lambda rows: [_recopy(route, table, *rows)], ranges, what=f"read {table} again"))


def _recopy(route: Route, table: str, start: bytes, stop: bytes) -> int:
    writer = writer_to(route)
    sent = 0
    for block in shared_client(route.source).scan_raw(table, start, stop):
        sent += send_cells(writer, route, table, block)
    return sent


def send_cells(writer: Writer, route: Route, table: str, cells: bytes | memoryview, clusters: bytes = b"") -> int:
    """Send cells to the copy of a source table, one request of the usual size after the other. `clusters`: those of
    `CellRun`. Returns the number of cells. Raises the writer's errors."""
    buffer = np.frombuffer(cells, np.uint8)
    borders = np.append(index_cells(buffer).position, len(cells))
    for begin, end in route.limits.cut(buffer, borders, 0, len(borders) - 1):
        run = CellRun(route.tables[table], clusters, end - begin)
        writer.send([run], memoryview(cells)[int(borders[begin]) : int(borders[end])])
    return len(borders) - 1
