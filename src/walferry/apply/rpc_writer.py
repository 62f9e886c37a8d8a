"""Send WAL cells to the target by AdminService.ReplicateWALEntry, in order, one request at a time.

What keeps a row's edits in order (R4): a sender has one request under way, a row always goes through the same
sender, and a request holds at most 5,000 mutations, since the receiving server applies larger ones in concurrent
chunks of that size (`hbase.rpc.rows.warning.threshold`).
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

import numpy as np

from walferry.apply.writer import CellRun, Limits, RefusedError
from walferry.errors import TransientError
from walferry.formats.cells import index_cells
from walferry.formats.proto import hbase_pb2 as pb
from walferry.hbase.client import HBaseClient
from walferry.hbase.errors import AccessDeniedError, ReadOnlyTableError, RemoteError

log = logging.getLogger(__name__)

_MARKER_START = b"HBASE::"
_SWALLOWED = (b"HBASE::BULK_LOAD", b"HBASE::REPLICATION_MARKER")


@dataclass
class RpcWriter:
    """Sends requests one after the other; `guard` is called before each and raises when the lease is lost."""

    client: HBaseClient
    source_id: pb.UUID
    guard: Callable[[Collection[str]], None]
    limits: Limits = field(default_factory=Limits)

    def send(self, runs: Sequence[CellRun], cells: memoryview | bytes) -> None:
        """Send the runs' cells (in their order, each int32 length + KeyValue) and wait for the acknowledgement.

        Transient failures are repeated with the same content; after an unknown outcome it waits first.
        Raises RefusedError when the target will never take them, TransientError when attempts run out.
        """
        _refuse_swallowed(cells)
        entries = [(self._key(run), run.cells) for run in runs]
        for attempt in range(1, self.limits.attempts + 1):
            self.guard({run.table for run in runs})
            try:
                server = random.choice(self.client.servers())  # any region server takes any table's entries
                self.client.replicate(server, entries, cells, timeout_s=self.limits.request_seconds)
                return
            except (AccessDeniedError, ReadOnlyTableError):
                raise
            except RemoteError as error:
                raise RefusedError(f"the target refuses the edits: {error}", reason=str(error)) from error
            except TransientError as error:
                if attempt == self.limits.attempts:
                    raise
                # An answer may tell of a time-out within the server, whose own request then goes on.
                unknown = error.facts.get("sent", True)
                pause = self.limits.settle_seconds if unknown else min(2.0**attempt / 4, 8.0)
                log.warning("attempt %d of %d failed: %s; again in %.1f s",
                            attempt, self.limits.attempts, error, pause)  # fmt: skip
                time.sleep(pause)

    def _key(self, run: CellRun) -> bytes:
        key = pb.WALKey(
            encoded_region_name=run.region,
            table_name=run.table.encode(),
            log_sequence_number=run.sequence_number,
            write_time=run.write_time,
            cluster_ids=[self.source_id],
        )
        return bytes(key.SerializeToString()) + run.clusters


def _refuse_swallowed(cells: memoryview | bytes) -> None:
    """Raise RefusedError for a cell whose qualifier the target takes for a marker of its own, and drops or chokes on.

    ReplicationSink.replicateEntries looks at the qualifier alone, whatever the family.
    """
    if bytes(cells).find(_MARKER_START) < 0:
        return
    index = index_cells(np.frombuffer(cells, np.uint8))
    for start, length in zip(index.qualifier_start, index.qualifier_length, strict=True):
        qualifier = bytes(index.buffer[start : start + length])
        if qualifier in _SWALLOWED:
            name = qualifier.decode()
            raise RefusedError(f"the target takes the qualifier {name} for a marker and drops the cell", reason=name)
