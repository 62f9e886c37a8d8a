"""Copy the present state of row ranges from the source, beside the log: a way out of the quarantine."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from pyspark.sql import SparkSession

from walferry.apply.route import Route
from walferry.apply.writer import MAX_BYTES, MAX_MUTATIONS, CellRun
from walferry.formats.cells import index_cells
from walferry.spark.clients import shared_client
from walferry.spark.fan_out import fan_out


def recopy_rows(spark: SparkSession, route: Route, table: str, ranges: Sequence[tuple[bytes, bytes]]) -> int:
    """Scan row ranges of the source raw (all versions, markers, tags) and send the cells; number of cells."""
    return sum(fan_out(spark, lambda span: [_reread(route, table, *span)], ranges, what=f"read {table} again"))


def _reread(route: Route, table: str, start: bytes, stop: bytes) -> int:
    sender = route.sender()
    sent = 0
    for block in shared_client(route.source).scan_raw(table, start, stop):
        positions = np.append(index_cells(np.frombuffer(block, np.uint8)).position, len(block))
        begin = 0
        while begin < len(positions) - 1:
            fitting = int(np.searchsorted(positions, positions[begin] + MAX_BYTES, side="right")) - 1
            end = max(begin + 1, min(fitting, begin + MAX_MUTATIONS, len(positions) - 1))
            run = CellRun(route.tables[table], b"", b"reread", 0, 0, end - begin)
            sender.send([run], memoryview(block)[int(positions[begin]) : int(positions[end])])
            begin = end
        sent += len(positions) - 1
    return sent
