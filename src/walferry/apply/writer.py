"""What every writer to a target keeps to, and what it is given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from walferry.errors import WalferryError

MAX_MUTATIONS = 5_000


MAX_BYTES = 4 << 20


@dataclass(frozen=True)
class Limits:
    """How long a request may take, and how often it is repeated before the run gives up."""

    request_seconds: float = 30.0
    attempts: int = 6
    settle_seconds: float = 10.0
    """Pause after a request whose outcome is unknown: by then the receiving server has ended it
    (`replication.sink.client.ops.timeout`), so that it cannot overtake what is sent next."""


@dataclass(frozen=True)
class CellRun:
    """Consecutive cells of one target table that came from the same clusters."""

    table: str
    clusters: bytes
    """raw `cluster_ids` fields of the entries' keys"""
    region: bytes
    sequence_number: int
    write_time: int
    cells: int


class RefusedError(WalferryError):
    """The target refuses the cells for good; fact `reason`."""


class Writer(Protocol):
    """Sends cells to the target in order, one request at a time.

    Implementations ask the guard of the route before each request, and refuse what they cannot carry: nothing is
    downgraded.
    """

    def send(self, runs: Sequence[CellRun], cells: memoryview | bytes) -> None:
        """Send the runs' cells (in their order, each int32 length + KeyValue) and wait for the acknowledgement.

        Raises RefusedError when the target will never take them, TransientError when attempts run out.
        """
