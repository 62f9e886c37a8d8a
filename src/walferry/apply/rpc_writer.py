"""Send WAL cells to the target's regions by ClientService.Multi, in order, one request at a time.

A row's edits stay in order (R4). A row always goes through the same writer. A writer has one request under way, which
may go to several servers at once, and sends the next one only after all of them have answered. A region applies the
mutations of a request in their order. What failed is sent again with all that came after it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from itertools import count

import numpy as np

from walferry.apply.permit import Permit
from walferry.apply.writer_protocol import CellRun, Guard, RefusedError, Rows, WriteLimits
from walferry.clock import steady_s
from walferry.errors import TransientError, WalferryError
from walferry.formats.cells import index_cells
from walferry.formats.proto import hbase_pb2 as pb
from walferry.hbase.client import HBaseClient
from walferry.hbase.errors import (
    AccessDeniedError,
    CallQueueFullError,
    ConnectionFailedError,
    ReadOnlyTableError,
    RemoteError,
    RemoteTransientError,
    RequestTimeoutError,
    RequestTooBigError,
    ServerBusyError,
)
from walferry.hbase.multi import Multi, multis, send
from walferry.hbase.retry import REGION_ATTEMPTS, pause_s
from walferry.security.handed import WorkerLoginError

log = logging.getLogger(__name__)

SENDERS = 32
"""if requests go to several servers: how many of their parts one process has under way at once"""
_PASSING = (RemoteTransientError, ConnectionFailedError, RequestTimeoutError)


@dataclass
class RpcWriter:
    """Sends requests one after the other. `guard` makes each request wait for its turn. It is also asked before each
    part of the request, and raises if the lease is lost.

    A request and its answer take at most `limits.request_seconds`, counted from just before the guard is asked.
    """

    client: HBaseClient
    source_id: pb.UUID
    guard: Guard
    limits: WriteLimits

    def send(self, runs: Sequence[CellRun], cells: memoryview | bytes) -> None:
        """Send the runs' cells (in their order, each int32 length + KeyValue) and wait for the acknowledgements.

        After a transient failure the same request is sent again; if its outcome is unknown, only after
        `limits.settle_seconds`. A request that exceeds the server's own limits is halved, down to single cells. Raises
        RefusedError if the target will never accept the cells, TransientError if attempts run out.
        """
        try:
            self._send(runs, cells)
        except (RequestTooBigError, CallQueueFullError) as error:
            if sum(run.cells for run in runs) == 1:
                if isinstance(error, CallQueueFullError):
                    raise  # other requests may fill the queue
                message = f"a single cell is larger than the target accepts in a request: {error}"
                raise RefusedError(message, reason=str(error)) from error
            log.info("a request of %d bytes is too large for the target; sending it in two: %s", len(cells), error)
            for part, part_cells in _halves(runs, cells):
                self.send(part, part_cells)

    def _send(self, runs: Sequence[CellRun], cells: memoryview | bytes) -> None:
        counts, clusters = [(run.table, run.cells) for run in runs], self._clusters(runs[0].clusters)
        for attempt in count(1):
            # Wait before locations are looked up, since the wait may take long.
            self.guard.wait_turn({run.table for run in runs}, sum(run.cells for run in runs), len(cells))
            try:
                self._send_to_servers(multis(self.client, counts, cells, clusters), runs, cells)
                return
            except (AccessDeniedError, ReadOnlyTableError, RequestTooBigError):
                raise
            except RemoteError as error:
                raise RefusedError(f"the target refuses the edits: {error}", reason=str(error)) from error
            except _PASSING as error:  # errors of the guard are final
                self._pause(error, attempt, runs)

    def _send_to_servers(self, parts: Sequence[Multi], runs: Sequence[CellRun], cells: memoryview | bytes) -> None:
        """Send to all servers at once: a request's rows may be spread over many. Waits for every answer."""
        if len(parts) == 1:
            self._send_to_server(parts[0], runs, cells)
            return
        begun = [_senders().submit(self._send_to_server, part, runs, cells) for part in parts]
        failures = [failure for sent in begun if (failure := sent.exception()) is not None]
        if failures:
            raise min(failures, key=_rank)

    def _send_to_server(self, multi: Multi, runs: Sequence[CellRun], cells: memoryview | bytes) -> None:
        permit = Permit(self.guard, {run.table for run in runs}, self.limits.request_seconds)
        begun = steady_s()  # before the guard: a process that is suspended in between sends nothing long after it
        permit.ask()
        try:
            send(self.client, multi, timeout_s=self.limits.request_seconds, since=begun, may_send=permit.ask)
        except WalferryError as error:
            if error.facts.get("sent", True):
                permit.check(lambda: _rows(runs, cells))
            raise
        permit.check(lambda: _rows(runs, cells))

    def _pause(self, error: TransientError, attempt: int, runs: Sequence[CellRun]) -> None:
        """Wait before the next attempt; raises the error if there is no next attempt."""
        unknown = error.facts.get("sent", False)
        if isinstance(error, ServerBusyError):
            self.guard.slow_down()
        # A region that moves, or whose server has crashed, is soon elsewhere; a server that hangs takes long each time.
        most = self.limits.attempts if unknown or isinstance(error, CallQueueFullError) else REGION_ATTEMPTS
        if attempt >= most:
            raise error
        seconds = self.limits.settle_seconds if unknown else pause_s(error, attempt)
        log.warning("attempt %d of %d failed: %s; retrying in %.1f s", attempt, most, error, seconds)
        for table in {run.table for run in runs}:
            self.client.location_failed(table, error, attempt)
        time.sleep(seconds)

    def _clusters(self, fields: bytes) -> list[tuple[int, int]]:
        """The source, and the clusters from which the source received the edits."""
        key = pb.WALKey(cluster_ids=[self.source_id])
        key.MergeFromString(fields)
        ids = ((cluster.most_sig_bits, cluster.least_sig_bits) for cluster in key.cluster_ids)
        return list(dict.fromkeys(ids))  # what a source ships names the source already


@cache
def _senders() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(SENDERS, "multi")


def _rank(failure: BaseException) -> int:
    """Which of several servers' failures decides: first those that end everything, then those that need a wait."""
    if not isinstance(failure, (RemoteError, WorkerLoginError, *_PASSING)):
        return 0  # an error of the guard
    unknown = failure.facts.get("sent", False)
    return 1 if unknown else 2 if isinstance(failure, RemoteError) else 3


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
