"""Send WAL cells to the target by AdminService.ReplicateWALEntry, in order, one request at a time.

A row's edits stay in order (R4) because a writer has one request under way, a row always goes through the same writer,
and a request holds no more mutations than the receiving server applies one after the other (`Limits`).
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from walferry.apply.permit import Permit
from walferry.apply.writer_protocol import CellRun, Guard, Limits, RefusedError, Rows
from walferry.clock import steady_s
from walferry.errors import TransientError, WalferryError
from walferry.formats.cells import index_cells
from walferry.formats.proto import hbase_pb2 as pb
from walferry.hbase.client import HBaseClient
from walferry.hbase.errors import (
    AccessDeniedError,
    CallQueueFullError,
    ReadOnlyTableError,
    RemoteError,
    RequestTooBigError,
)
from walferry.hbase.zookeeper import Server

log = logging.getLogger(__name__)

SERVERS_SECONDS = 10.0
"""how long a writer goes by the region servers that it looked up; after a failure it looks again"""
_MARKER_START = b"HBASE::"
_SWALLOWED = (b"HBASE::BULK_LOAD", b"HBASE::REPLICATION_MARKER")


@dataclass
class RpcWriter:
    """Sends requests one after the other; `guard` is asked before each part of one, and raises when the lease is lost.

    A request and its answer take at most `limits.request_seconds`, counted from before its guard.
    """

    client: HBaseClient
    source_id: pb.UUID
    guard: Guard
    limits: Limits = field(default_factory=Limits)
    _servers: Sequence[Server] = ()
    _looked_up: float = 0.0

    def send(self, runs: Sequence[CellRun], cells: memoryview | bytes) -> None:
        """Send the runs' cells (in their order, each int32 length + KeyValue) and wait for the acknowledgement.

        After a transient failure the same request is sent again; after an unknown outcome it waits first. A request
        that exceeds the server's own limits is halved, down to single cells. Raises RefusedError when the target will
        never accept the cells, TransientError when attempts run out.
        """
        _refuse_swallowed(cells)
        try:
            self._send(runs, cells)
        except (RequestTooBigError, CallQueueFullError) as error:
            if sum(run.cells for run in runs) == 1:
                if isinstance(error, CallQueueFullError):
                    raise  # other requests may fill the queue
                message = f"one cell alone is larger than the target accepts in a request: {error}"
                raise RefusedError(message, reason=str(error)) from error
            if isinstance(error, CallQueueFullError):
                # The refused one may be the sink's own client, when part of the request is already under way.
                time.sleep(self.limits.settle_seconds)
            log.info("a request of %d bytes is too large for the target; sending it in two: %s", len(cells), error)
            for part, part_cells in _halves(runs, cells):
                self.send(part, part_cells)

    def _send(self, runs: Sequence[CellRun], cells: memoryview | bytes) -> None:
        entries = [(self._key(run), run.cells) for run in runs]
        for attempt in range(1, self.limits.attempts + 1):
            server = self._server()
            permit = Permit(self.guard, {run.table for run in runs}, self.limits.request_seconds)
            begun = steady_s()  # before the guard: a process that is suspended in between sends nothing long after it
            permit.ask()
            try:
                self._replicate(server, entries, cells, begun, permit, runs)
                return
            except (AccessDeniedError, ReadOnlyTableError, RequestTooBigError):
                raise
            except RemoteError as error:
                raise RefusedError(f"the target refuses the edits: {error}", reason=str(error)) from error
            except TransientError as error:
                if attempt == self.limits.attempts:
                    raise
                self._servers = ()
                # An answer may report a time-out inside the server, whose own request may still be running.
                unknown = error.facts.get("sent", True)
                pause = self.limits.settle_seconds if unknown else min(2.0**attempt / 4, 8.0)
                log.warning("attempt %d of %d failed: %s; retrying in %.1f s",
                            attempt, self.limits.attempts, error, pause)  # fmt: skip
                time.sleep(pause)

    def _replicate(
        self, server: Server, entries: Sequence[tuple[bytes, int]], cells: memoryview | bytes, begun: float,
        permit: Permit, runs: Sequence[CellRun],
    ) -> None:  # fmt: skip
        try:
            self.client.replicate(
                server, entries, cells, timeout_s=self.limits.request_seconds, since=begun, may_send=permit.ask
            )
        except WalferryError as error:
            if error.facts.get("sent", True):
                permit.check(lambda: _rows(runs, cells))
            raise
        permit.check(lambda: _rows(runs, cells))

    def _server(self) -> Server:
        """Any region server takes any table's entries."""
        now = steady_s()
        if not self._servers or now - self._looked_up >= SERVERS_SECONDS:
            self._servers, self._looked_up = self.client.servers(), now
        if not self._servers:
            raise TransientError(f"no region server is up at {self.client.address.zookeeper}; start one")
        return random.choice(self._servers)

    def _key(self, run: CellRun) -> bytes:
        key = pb.WALKey(
            encoded_region_name=run.region,
            table_name=run.table.encode(),
            log_sequence_number=run.sequence_number,
            write_time=run.write_time,
            cluster_ids=[self.source_id],
        )
        return bytes(key.SerializeToString()) + run.clusters


def _halves(runs: Sequence[CellRun], cells: memoryview | bytes) -> Iterator[tuple[list[CellRun], memoryview | bytes]]:
    """The same cells in two requests, to send one after the other."""
    borders = index_cells(np.frombuffer(cells, np.uint8)).position
    middle = len(borders) // 2
    first: list[CellRun] = []
    second: list[CellRun] = []
    begin = 0
    for run in runs:
        before = min(max(middle - begin, 0), run.cells)
        if before:
            first.append(replace(run, cells=before))
        if before < run.cells:
            second.append(replace(run, cells=run.cells - before))
        begin += run.cells
    view = memoryview(cells)
    yield first, view[: int(borders[middle])]
    yield second, view[int(borders[middle]) :]


def _rows(runs: Sequence[CellRun], cells: memoryview | bytes) -> Rows:
    """The first and the last row of each table in a request."""
    index = index_cells(np.frombuffer(cells, np.uint8))
    rows: dict[str, tuple[bytes, bytes]] = {}
    begin = 0
    for run in runs:
        for i in range(begin, begin + run.cells):
            row = bytes(index.buffer[index.row_start[i] : index.row_start[i] + index.row_length[i]])
            first, last = rows.get(run.table, (row, row))
            rows[run.table] = min(first, row), max(last, row)
        begin += run.cells
    return rows


def _refuse_swallowed(cells: memoryview | bytes) -> None:
    """Raise RefusedError for a cell whose qualifier makes the target treat it as a marker, and drop it or fail.

    ReplicationSink.replicateEntries checks only the qualifier, whatever the family.
    """
    if bytes(cells).find(_MARKER_START) < 0:
        return
    index = index_cells(np.frombuffer(cells, np.uint8))
    for start, length in zip(index.qualifier_start, index.qualifier_length, strict=True):
        qualifier = bytes(index.buffer[start : start + length])
        if qualifier in _SWALLOWED:
            name = qualifier.decode()
            raise RefusedError(f"the target takes the qualifier {name} for a marker and drops the cell", reason=name)
