"""A target cluster as the destination of a run: its tables, each under the lease that everything in walferry takes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import partial

from kazoo.client import KazooClient

from walferry.formats.wal import EntryBatch
from walferry.receive.history import HistoryCopy
from walferry.receive.loads import Job, Loads
from walferry.receive.seen import Picked, seen_of
from walferry.receive.target_table import TargetTable
from walferry.replay.rights.applying import held, lease_check_of, route_under
from walferry.run.recorded_spec import receive_spec_of
from walferry.run.run import Run
from walferry.run.spec import TablePair

LEASE_WAIT_SECONDS = 5.0


class TargetCluster:
    """A `Destination`."""

    calls_at_once = 4

    def __init__(self, run: Run) -> None:
        self._run = run
        self._recording, self._loads = threading.Lock(), Loads(run)
        self._copying, self._looking = threading.Lock(), threading.Lock()
        """of the table whose history is copied, and of the one for which the source is looked at: one at a time"""
        self.run_id, self.pairs = run.run_id, run.tables
        self.source_id, self.sink_id = run.source.cluster_uuid(), run.target.cluster_uuid()

    @property
    def zk(self) -> KazooClient:
        """The target's ZooKeeper."""
        return self._run.target.zk

    def lease_of(self, table: str) -> str:
        """The target table itself."""
        return table

    @contextmanager
    def opened(self, pair: TablePair) -> Iterator[TargetTable]:
        """Hold a target table for a block."""
        with held(self._run, [pair], LEASE_WAIT_SECONDS) as leases:
            route, received = route_under(self._run, [pair], leases, None), self._run.ledger.received
            check, seen = lease_check_of(self._run, route), seen_of(received, pair.source)
            guard = partial(route.guard, [pair.target])
            holding = TargetTable(pair, guard, check, received, seen, self._recording, route)
            try:
                yield holding
            finally:
                self._loads.given_back(holding)

    def prepare(self, holding: TargetTable, wanted: Callable[[], bool], tell: Callable[[str], None]) -> bool:
        """Copy what the source table has already, if the spec wants that."""
        if receive_spec_of(self._run.record).receive.history is None:
            return True
        copy = HistoryCopy(self._run, holding, wanted, self._looking)
        if not copy.go(self._copying, tell):
            return False
        holding.since_ms = copy.since_ms
        return True

    def apply(self, holding: TargetTable, batch: EntryBatch, picked: Picked, deadline: float) -> Picked:
        """Apply edits to the target table, or begin bulk loads into it."""
        return self._loads.apply(holding, batch, picked, deadline)

    def under_way(self, regions: Collection[str]) -> Job | None:
        """A bulk load of these regions; one that may not end well, if there is any."""
        return min(self._loads.under_way(regions), key=lambda job: not job.fault, default=None)

    async def at_rest(self, regions: Collection[str]) -> None:
        """Wait for the bulk loads of these regions."""
        for job in self._loads.under_way(regions):
            await self._loads.ended(job)

    def close(self) -> None:
        """Begin no bulk load more."""
        self._loads.close()
