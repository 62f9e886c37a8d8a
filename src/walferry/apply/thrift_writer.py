"""Send WAL cells through a target's Thrift server: ordinary puts and deletes by happybase, in order.

For targets that offer nothing else. It is slow: a call carries cells of one timestamp. Thrift cannot express `Delete`
(one version of a column), `DeleteFamilyVersion`, or tags: such cells are refused, never turned into something similar.
(HBase: ThriftHBaseServiceHandler.mutateRowsTs; a delete of "family:qualifier" covers all versions up to the timestamp,
one of "family" the whole family.)
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from happybase import Batch, Connection
from thriftpy2.thrift import TException

from walferry.apply.permit import Permit
from walferry.apply.writer_protocol import CellRun, Guard, RefusedError, Rows, WriteLimits
from walferry.errors import TransientError
from walferry.formats.cells import CellIndex, CellType, index_cells
from walferry.hbase.address import ClusterAddress
from walferry.hbase.errors import AccessDeniedError, ConnectionFailedError
from walferry.hbase.thrift import connect

log = logging.getLogger(__name__)

MAX_CELLS = 1_000
_EXPRESSIBLE = (CellType.PUT, CellType.DELETE_COLUMN, CellType.DELETE_FAMILY)
_FINAL = ("NoSuchColumnFamily", "TableNotFound", "DoNotRetry", "IllegalArgument", "FailedSanityCheck")
"""words in a Thrift error's text that make retrying pointless; the error carries no class"""
_BUSY = ("RegionTooBusy", "CallQueueTooBig", "ServerTooBusy", "CallDropped", "RpcThrottling")


@dataclass(frozen=True)
class Call:
    """Cells for one call: all puts or all deletes, all with one timestamp, and no column of a row twice."""

    is_put: bool
    timestamp: int
    cells: tuple[tuple[bytes, bytes, bytes], ...]
    """row, column as Thrift writes it, value"""


def calls(index: CellIndex) -> Iterator[Call]:
    """Cut cells into calls, in their order. Raises RefusedError for the first cell that Thrift cannot express."""
    pending: list[tuple[bytes, bytes, bytes]] = []
    columns: set[tuple[bytes, bytes]] = set()
    kind: tuple[bool, int] | None = None
    data = index.buffer.data
    for i in range(len(index)):
        cell_type = CellType(int(index.type[i]))
        if cell_type not in _EXPRESSIBLE:
            raise RefusedError(f"Thrift cannot express {cell_type.name}", reason=cell_type.name)
        if index.tags_length[i]:
            raise RefusedError("Thrift cannot express a cell's tags", reason="tags")
        row = _bytes(data, index.row_start[i], index.row_length[i])
        family = _bytes(data, index.family_start[i], index.family_length[i])
        qualifier = _bytes(data, index.qualifier_start[i], index.qualifier_length[i])
        column = family if cell_type == CellType.DELETE_FAMILY else family + b":" + qualifier
        mine = (cell_type == CellType.PUT, int(index.timestamp[i]))
        if kind is not None and (mine != kind or (row, column) in columns or len(pending) == MAX_CELLS):
            yield Call(*kind, tuple(pending))
            pending, columns = [], set()
        kind = mine
        columns.add((row, column))
        pending.append((row, column, _bytes(data, index.value_start[i], index.value_length[i])))
    if kind is not None:
        yield Call(*kind, tuple(pending))


@dataclass
class ThriftWriter:
    """Sends runs of cells one call after the other; asks `guard` before each call, as `RpcWriter` does."""

    target: ClusterAddress
    guard: Guard
    limits: WriteLimits
    _connection: Connection | None = None

    def send(self, runs: Sequence[CellRun], cells: memoryview | bytes) -> None:
        """Send the runs' cells (in their order, each int32 length + KeyValue) and wait for each answer.

        Raises RefusedError before anything is sent if Thrift cannot express a cell, or later if the target will never
        accept a cell; AccessDeniedError; TransientError when all attempts fail.
        """
        index = index_cells(np.frombuffer(cells, np.uint8))
        waiting = []
        begin = 0
        for run in runs:
            part = _part(index, begin, begin + run.cells)
            waiting += [(run.table, call) for call in calls(part)]
            begin += run.cells
        for table, call in waiting:
            self._call(table, call)

    def _call(self, table: str, call: Call) -> None:
        size = sum(len(row) + len(column) + len(value) for row, column, value in call.cells)
        for attempt in range(1, self.limits.attempts + 1):
            self.guard.wait_turn({table}, len(call.cells), size)
            try:
                batch = self._batch(table, call)
                permit = Permit(self.guard, {table}, self.limits.request_seconds)
                permit.ask()  # its errors are not caught below
                try:
                    batch.send()
                finally:
                    permit.check(lambda: _rows(table, call))
                return
            except (TException, OSError, ConnectionFailedError) as error:
                self._forget()
                text = str(getattr(error, "message", None) or error)
                if "AccessDenied" in text:
                    message = f"the target's Thrift server may not write {table}: {_line(text)}"
                    raise AccessDeniedError(message, table=table) from error
                if any(name in text for name in _FINAL):
                    raise RefusedError(f"the target refuses the edits: {_line(text)}", reason=_line(text)) from error
                if attempt == self.limits.attempts:
                    message = f"Thrift server {self.target.thrift} of the target does not accept edits: {_line(text)}"
                    raise TransientError(message, thrift=self.target.thrift) from error
                if any(name in text for name in _BUSY):
                    self.guard.slow_down()
                log.warning("attempt %d of %d failed: %s; retrying in %.0f s",
                            attempt, self.limits.attempts, _line(text), self.limits.settle_seconds)  # fmt: skip
                time.sleep(self.limits.settle_seconds)

    def _batch(self, table: str, call: Call) -> Batch:
        """The call, ready to be sent over an open connection."""
        self._connection = self._connection or connect(self.target)
        batch = self._connection.table(table).batch(timestamp=call.timestamp)
        for row, column, value in call.cells:
            if call.is_put:
                batch.put(row, {column: value})
            else:
                batch.delete(row, [column])
        return batch

    def _forget(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            try:
                connection.close()
            except (TException, OSError):
                log.debug("a broken Thrift connection could not be closed")


def _rows(table: str, call: Call) -> Rows:
    """The first and the last row of a call."""
    rows = [row for row, _, _ in call.cells]
    return {table: (min(rows), max(rows))}


def _part(index: CellIndex, begin: int, end: int) -> CellIndex:
    fields = {name: getattr(index, name)[begin:end] for name in index.__dataclass_fields__ if name != "buffer"}
    return CellIndex(index.buffer, **fields)


def _bytes(data: memoryview, start: np.int64, length: np.int64) -> bytes:
    return bytes(data[int(start) : int(start) + int(length)])


def _line(text: str) -> str:
    """The first line of an error's text: the rest is the server's stack trace."""
    return text.strip().partition("\n")[0]
