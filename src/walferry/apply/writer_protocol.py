"""The protocol of writers to a target, their input and their limits. `writers` says how one is added."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from walferry.errors import WalferryError
from walferry.formats.cells import Bytes, Positions, cut_cells, row_starts


@dataclass(frozen=True)
class WriteLimits:
    """How much one request sends, how long it may take, and how often it is tried before the run gives up.

    The driver takes them from its environment (`writers.limits_of`) and sends them to the executors.
    """

    mutations: int
    """the most mutations in one request"""
    bytes: int
    """the most bytes of cells in one request; a larger cell is sent alone"""
    aim_bytes: int
    """bytes of cells with which a request is full; only the cells of one row in an entry are not cut there, but at
    `bytes`"""
    lanes: int
    """connections of a piece of a WAL group, with one request under way on each"""
    read_ahead: int
    """batches of entries that wait for each lane while the file is read on"""
    ahead_bytes: int
    """most bytes of batches in all lanes of a piece together; a larger batch waits until those before it are sent"""
    piece_bytes: int
    """the most bytes of the files, or of the cells, in one piece; a larger file is a piece of its own"""
    here_bytes: int
    """up to this many bytes of a window's files, the window's process reads and applies them itself, without Spark"""
    request_seconds: float
    settle_seconds: float
    """Pause after a request whose outcome is unknown: by then the receiving server has ended the request, so that it
    cannot overtake what is sent next. The server drops the request from its queue as soon as the connection is
    closed."""
    claim_seconds: float
    """A request is sent only if the lease was confirmed less than this long ago (R13)."""
    attempts: int = 6

    @property
    def quiet_seconds(self) -> float:
        """How long after the loss of a lease a request may still be carried out. A successor waits for this long. The
        request is sent before the claim ends, is under way until its time-out, and then has to end at the server."""
        return self.claim_seconds + self.request_seconds + self.settle_seconds

    def cut(self, buffer: Bytes, borders: Positions, begin: int, end: int) -> Iterator[tuple[int, int]]:
        """Cut the cells from number `begin` to before `end` into requests: first number, number after the last.

        `borders` are the positions in `buffer` at which the cells begin, followed by the one at which the last cell
        ends. A cell is at most one mutation. Neighbouring cells of a row are in one request if one request may hold
        them.
        """
        rows = begin + row_starts(buffer, np.asarray(borders[begin:end], np.int64))
        while begin < end:
            _, stop = next(cut_cells(borders, begin, end, self.mutations, min(self.aim_bytes, self.bytes)))
            if stop < end:
                row = int(np.searchsorted(rows, stop, side="right")) - 1
                if rows[row] > begin:
                    stop = int(rows[row])
                else:
                    after = int(rows[row + 1]) if row + 1 < len(rows) else end
                    _, stop = next(cut_cells(borders, begin, after, self.mutations, self.bytes))
            yield begin, stop
            begin = stop


@dataclass(frozen=True)
class CellRun:
    """Consecutive cells for one target table that came from the same clusters."""

    table: str
    clusters: bytes
    """raw `cluster_ids` fields of the entries' keys"""
    cells: int


class RefusedError(WalferryError):
    """The target refuses the cells for good; fact `reason`."""


Rows = Mapping[str, tuple[bytes, bytes]]
"""the first and the last row of a request, for each target table in it"""


class Guard(Protocol):
    """The right to write to target tables. Sent to the executors; each process confirms it for itself."""

    def __call__(self, tables: Collection[str]) -> None:
        """Raise a TransientError unless this process may write to these target tables now.

        After a call that returned, nobody else writes to them for `request_seconds + settle_seconds` of the
        `WriteLimits`.
        """

    def wait_turn(self, tables: Collection[str], cells: int, size: int) -> None:
        """Wait until the run's throttle lets so many cells and bytes through and the run is not paused.

        Call this before asking for a request's permit, since the wait may take long. Raises the errors of the guard,
        and the error that ends the run.
        """

    def slow_down(self) -> None:
        """Make this process send less for a while, since the target has answered that it is busy."""

    def of_attempt(self, task: str, number: int) -> Guard:
        """The guard of one attempt at a Spark task. `task`: the task's name within this replay; `number`: the
        attempt's, from 0.

        A repeated attempt first ends the right of earlier attempts, and waits until they must have noticed.
        """

    def mark_dirty(self, rows: Rows, why: str = "") -> None:
        """Record that these rows may hold wrong edits. By default, these are the edits of a request that the target may
        have carried out after the right to send it was lost; otherwise `why` says which edits."""


class Writer(Protocol):
    """Sends cells to the target in order, one request at a time.

    Implementations send each request under a `permit.Permit`: this process may be suspended at any moment. Before each
    request they wait for their turn (`Guard.wait_turn`). They refuse what they cannot express: nothing is downgraded.
    """

    def send(self, runs: Sequence[CellRun], cells: memoryview | bytes) -> None:
        """Send the runs' cells (in their order, each int32 length + KeyValue) and wait for the acknowledgement.

        All runs have the same list of clusters: a server logs what it applies together as coming from one such list.
        Raises RefusedError when the target will never accept them, TransientError when attempts run out.
        """
