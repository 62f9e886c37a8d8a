"""The rows that a source table has already: read from the source, and written before any edit of the table is applied.

They are read once a peer of the source that leads to the run keeps the log: what is written later is in its queues, and
comes as edits, some of them of changes that the rows show already. Such edits bring a row back to where it was for a
moment, and then on: applied in their order, they end at the same. Raw scans give every version and delete marker that a
region has; of cells that have all but their value in common, only the newest.

A new peer also ships what the current logs had before, but not what older logs of other servers had: of a row whose
region has moved, it may ship a put without the delete that followed. So edits of before a moment `since` are left out.
All queues are there one clock skew before it, and rows are read one clock skew after it. So whatever a server's clock
says, an edit that is left out is in the rows, and from the first one that is not, all are in the queues.

Whoever holds the lease of a table copies it, and goes on where the last holder has stopped.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import wait
from dataclasses import dataclass, replace
from functools import partial

from walferry.amounts import first_of
from walferry.apply.recopy import send_cells
from walferry.apply.writers import writer_to
from walferry.background import begun
from walferry.clock import duration, now_ms, steady_s
from walferry.errors import TransientError, WalferryError
from walferry.hbase.descriptors import Range, TableDescriptor
from walferry.hbase.peers import PeerConfig, peer_created
from walferry.hbase.replication_queues import queue_nodes
from walferry.hbase.scan import last_row
from walferry.receive.applying import settled
from walferry.receive.receive_plan import peers_here
from walferry.receive.target_table import TargetTable
from walferry.replay.rights.lease import LeaseLostError
from walferry.replication.table_findings import nobody_findings, table_findings
from walferry.run.notes.history import History, history_of
from walferry.run.recorded_spec import receive_spec_of
from walferry.run.run import Run

log = logging.getLogger(__name__)

LANES = 4
"""ranges of rows that a process copies at once"""
SAVE_SECONDS = 2.0
"""how often the ledger is told how far copying is"""
AGAIN_SECONDS = 2.0
"""after which a source that is not ready, or does not answer, is asked again, and a copy that has failed goes on"""
LOOK_SECONDS = 0.2
"""for all tables of a process, between two looks at a source that is not ready"""
PEER_SECONDS = 20.0
"""how often the peer is looked at while rows are copied"""
STANDS_SECONDS = 5.0
"""for how long a peer's queues are there, at least: a server with several logs adds them one after the other"""


class NotReadyError(TransientError):
    """The rows of a table cannot be read yet; fact `table`."""


class PeerReplacedError(WalferryError):
    """The peer that kept the log while rows were copied does not any more, or has not all the time; fact `table`."""


@dataclass(frozen=True)
class _Peer:
    """A peer of the source that leads to the run."""

    id: str
    created: int | None
    """as in `History`"""
    since_ms: int = 0
    """as in `History`, once its queues are there"""

    def is_same(self, other: _Peer | None) -> bool:
        """Whether it is that peer, and was not added again."""
        return other is not None and (self.id, self.created) == (other.id, other.created)


@dataclass
class _Lane:
    """What one thread copies: from the next row to read to the end of its range."""

    rows: Range | None = None
    """None: it has none"""
    cells: int = 0
    size: int = 0
    trouble: str = ""
    """why its range is not read at the moment"""


class HistoryCopy:
    """Copies what one table has already, in threads of its own, under the table's lease."""

    def __init__(self, run: Run, holding: TargetTable, wanted: Callable[[], bool], looking: threading.Lock) -> None:
        """`wanted`: whether this process is to go on holding the table. `looking`: of all tables of the process."""
        self._run, self._holding, self._wanted, self._looking = run, holding, wanted, looking
        self._table, self._target = holding.pair.source, holding.pair.target
        self._kept = history_of(run.ledger, self._table)
        self._todo: deque[Range] = deque()
        self._taking = threading.Lock()
        """for what is left, in `_todo` and in the lanes"""
        self._over = threading.Event()

    @property
    def since_ms(self) -> int:
        """Edits that were written before are to be left out."""
        return self._kept.since_ms

    def go(self, turn: threading.Lock, tell: Callable[[str], None]) -> bool:
        """Copy all that is left. Returns whether it is done; else it is no longer wanted. Tables are copied one after
        the other: while another one has `turn`, this one waits. `tell` gets how far it is, every few seconds.

        What is in the way is recorded, and tried again. Raises LeaseLostError and the ledger's errors.
        """
        peer: _Peer | None = None
        while not self._kept.is_done and self._goes_on():
            try:
                if peer is None and (peer := self._ready(tell)) is None:
                    return False
                tell(f"{self._table}: {self._kept.describe()}")
                if not turn.acquire(timeout=AGAIN_SECONDS):
                    continue
                try:
                    self._begin(peer)
                    self._copy(tell)
                finally:
                    turn.release()
            except LeaseLostError:
                raise
            except Exception as error:  # whatever it is, it must be seen
                self._wait_for(str(error) or repr(error), tell)
                if not isinstance(error, WalferryError):
                    raise
                peer = None
        return self._kept.is_done

    def _goes_on(self) -> bool:
        """Whether to go on. Raises LeaseLostError if the lease is lost."""
        self._holding.guard()
        return self._wanted()

    def _keep(self, now: History) -> None:
        now.keep(self._run.ledger, self._table, self._holding.check)
        self._kept = now

    def _wait_for(self, why: str, tell: Callable[[str], None]) -> None:
        if why != self._kept.waits:
            log.warning("%s: what it has already cannot be copied now: %s", self._table, why)
            self._keep(replace(self._kept, waits=why, waits_ms=self._kept.waits_ms or now_ms()))
        tell(f"{self._table}: {self._kept.describe()}")
        time.sleep(AGAIN_SECONDS)

    # ------------------------------------------------------------------ before

    def _ready(self, tell: Callable[[str], None]) -> _Peer | None:
        """The peer that keeps the log, once rows can be read; None if copying is no longer wanted."""
        skew_s = self._run.log_times.clock_skew_seconds
        seen, stood_s = None, 0.0
        while self._goes_on():
            try:
                if not self._looking.acquire(timeout=AGAIN_SECONDS):
                    continue
                try:
                    found = self._peer()
                finally:
                    time.sleep(LOOK_SECONDS)
                    self._looking.release()
                if self._kept.peer:
                    return found
                if seen is None or not found.is_same(seen):
                    seen, stood_s = replace(found, since_ms=now_ms() + round(skew_s * 1000)), steady_s()
                left_s = stood_s + max(STANDS_SECONDS, 2 * skew_s) - steady_s()
                if left_s <= 0:
                    self._require_empty()
                    return seen
            except WalferryError as error:
                self._wait_for(str(error), tell)
                seen = None
                continue
            if self._kept.waits:  # which is mended
                self._keep(replace(self._kept, waits="", waits_ms=0))
            tell(f"{self._table}: what it has already is copied in {duration(left_s)}")
            time.sleep(min(AGAIN_SECONDS, left_s))
        return None

    def _peer(self) -> _Peer:
        """The peer that keeps all edits of the table. Raises NotReadyError unless one does, at every server, and
        PeerReplacedError if it is not the one that did when copying began."""
        source = self._run.source
        described = source.describe(self._table)
        for finding in table_findings(described):
            raise self._not_ready(finding.message)
        here = peers_here(source, receive_spec_of(self._run.record))
        if self._kept.peer:
            return self._peer_as_before(described, here)
        if not here:
            raise self._not_ready("the source has no peer that leads here; add it, enabled or not")
        peer = next((one for one in here if _has_all(one, described)), None)
        if peer is None:
            nobody = next(nobody_findings({self._table: described}, here), None)
            raise self._not_ready(
                "no peer that leads here replicates all of its families" if nobody is None else nobody.message
            )
        kept = {one.holder for one in queue_nodes(source, [peer.id]) if one.logs and one.writer == one.holder}
        if lacking := sorted(server.name for server in source.servers() if server.name not in kept):
            raise self._not_ready(f"no log of {first_of(lacking)} is in a queue of peer {peer.id} yet")
        return _Peer(peer.id, peer_created(source, peer.id))

    def _peer_as_before(self, described: TableDescriptor, here: Sequence[PeerConfig]) -> _Peer:
        peer = next((one for one in here if one.id == self._kept.peer), None)
        created = None if peer is None else peer_created(self._run.source, peer.id)
        if peer is None or created != self._kept.created or not _has_all(peer, described):
            raise PeerReplacedError(
                f"peer {self._kept.peer}, which kept the log while rows were copied, was removed, added again, or no "
                f"longer replicates all of the table: edits of that time are in no queue. Abort the run, truncate "
                f"{self._target} there, and begin again",
                table=self._table,
            )
        return _Peer(peer.id, created, self._kept.since_ms)

    def _require_empty(self) -> None:
        """Raise NotReadyError if the target table has anything."""
        if next(self._run.target.scan_raw(self._target), None) is not None:
            raise self._not_ready(
                f"target table {self._target} is not empty: truncate it, or receive without `history`"
            )

    def _not_ready(self, why: str) -> NotReadyError:
        return NotReadyError(why, table=self._table)

    def _begin(self, peer: _Peer) -> None:
        """Record what is to be copied, unless that is recorded. Raises PeerReplacedError, NotReadyError."""
        if self._kept.peer:
            return
        if not self._peer().is_same(peer):  # it may have waited for its turn
            raise self._not_ready(f"peer {peer.id} was added again")
        self._require_empty()
        regions = tuple((region.start, region.end) for region in self._run.source.regions(self._table))
        self._keep(History(peer.id, peer.created, peer.since_ms, regions, len(regions)))
        log.info("%s: what it has already is copied to %s", self._table, self._target)

    # ------------------------------------------------------------------ copying

    def _copy(self, tell: Callable[[str], None]) -> None:
        """Copy what is left, until it is no longer wanted. Raises the first error of a lane, and PeerReplacedError."""
        before, began_s, looked_s = self._kept, steady_s(), steady_s()
        self._over.clear()
        self._todo = deque(before.left)
        lanes = [_Lane() for _ in range(min(LANES, len(self._todo)))]
        threads = [begun(partial(self._work, lane), f"copy {self._table}") for lane in lanes]
        try:
            while wait(threads, SAVE_SECONDS).not_done and not self._over.is_set() and self._goes_on():
                if steady_s() - looked_s >= PEER_SECONDS:
                    looked_s = steady_s()
                    self._require_same_peer()
                self._save(before, lanes, steady_s() - began_s, self._left(lanes))
                tell(f"{self._table}: {self._kept.describe()}")
        finally:
            self._over.set()
            wait(threads)
        left = self._left(lanes)
        self._save(before, lanes, steady_s() - began_s, left)
        for thread in threads:
            thread.result()
        if not left:
            self._peer()  # it has kept the log to the end
            self._keep(replace(self._kept, left=(), waits="", waits_ms=0))
            log.info("%s: %s", self._table, self._kept.describe())

    def _require_same_peer(self) -> None:
        """Raise PeerReplacedError if it is not; a source that does not answer now is asked later."""
        try:
            self._peer()
        except PeerReplacedError:
            raise
        except WalferryError as error:
            log.warning("%s: the peer cannot be looked at now: %s", self._table, error)

    def _left(self, lanes: Sequence[_Lane]) -> list[Range]:
        """The ranges that are not copied."""
        with self._taking:
            return sorted([*(lane.rows for lane in lanes if lane.rows is not None), *self._todo])

    def _save(self, before: History, lanes: Sequence[_Lane], seconds: float, left: Sequence[Range]) -> None:
        """Record how far the lanes are, but not that nothing is left. What was in the way is over once something was
        copied since."""
        trouble = next((lane.trouble for lane in lanes if lane.trouble), "")
        cells = before.cells + sum(lane.cells for lane in lanes)
        waits = trouble or ("" if cells > before.cells else self._kept.waits)
        now = replace(
            before,
            left=tuple(left) or self._kept.left,
            cells=cells,
            size=before.size + sum(lane.size for lane in lanes),
            seconds=round(before.seconds + seconds, 1),
            waits=waits,
            waits_ms=(self._kept.waits_ms or now_ms()) if waits else 0,
        )
        self._keep(now)

    def _work(self, lane: _Lane) -> None:
        """Copy one range after the other until none is left, or it is over. An error ends all lanes."""
        try:
            writer = writer_to(self._holding.route)
            while self._take(lane):
                for block in self._blocks(lane):
                    with settled(self._holding):
                        lane.cells += send_cells(writer, self._holding.route, self._table, block)
                    lane.size += len(block)
                    lane.rows = (last_row(block) + b"\0", lane.rows[1])  # type: ignore[index]
                    lane.trouble = ""
                    if self._over.is_set():
                        return
                if self._over.is_set():  # whether the range has come to its end is not known
                    return
        except BaseException:
            self._over.set()
            raise

    def _take(self, lane: _Lane) -> bool:
        """Give a lane whose range is copied the next one, unless it is over."""
        with self._taking:
            lane.rows, lane.trouble = None, ""
            if self._todo and not self._over.is_set():
                lane.rows = self._todo.popleft()
        return lane.rows is not None

    def _blocks(self, lane: _Lane) -> Iterator[bytes]:
        """What the lane's range has from its next row on. A source that fails is asked again until it answers, or it is
        over."""
        while lane.rows is not None and not self._over.is_set():
            try:
                yield from self._run.source.scan_raw(self._table, *lane.rows)
            except TransientError as error:
                lane.trouble = str(error)
                log.warning("%s from row %r on: %s", self._table, lane.rows[0], error)
                self._over.wait(AGAIN_SECONDS)
            else:
                return


def _has_all(peer: PeerConfig, table: TableDescriptor) -> bool:
    """Whether a peer replicates all families of a table."""
    return all(peer.replicates(table.name, family) for family in table.shown_families)
