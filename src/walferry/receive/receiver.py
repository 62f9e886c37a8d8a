"""How one process of `walferry receive` handles the calls of a source's region servers.

    call -> entries, by target table -> held here: in order by region, applied under the lease, recorded, remembered
                                     -> held by another process of the run: passed on to it

A call is answered, or refused, within ANSWER_SECONDS: a source that hears nothing for a minute sends the same edits to
another receiver. Whoever gets them, a table is written by the holder of its lease alone, one call of a region after the
other, and what was applied before is left out. So what a source sends again changes nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from walferry.clock import steady_s
from walferry.errors import TransientError, WalferryError
from walferry.formats.markers import Marker
from walferry.formats.proto import hbase_pb2 as pb
from walferry.formats.wal import EntryBatch, cluster_ids
from walferry.hbase.errors import CallQueueFullError, ConnectionFailedError, RegionNotServedError
from walferry.hbase.rpc import CODEC_WITH_TAGS, ConnectionPool
from walferry.hbase.rpc_server import CallRefusedError, ReceivedCall
from walferry.hbase.zookeeper import Server
from walferry.receive.applying import Entries, apply_entries
from walferry.receive.calls import BadCallError, ReceivedEntries, entries_of
from walferry.receive.holding import HeldTables, NotHeldError, OutOfTimeError, not_held
from walferry.receive.in_order import InOrder
from walferry.receive.standing import Standing
from walferry.run.run import Run

log = logging.getLogger(__name__)

ANSWER_SECONDS = 25.0
"""within which a call that has come is answered: a 2.x source waits for 60 s, from when it begins to send"""
MOST_SECONDS = 50.0
"""the same from the call's first byte, if it comes slowly"""
AGAIN_SECONDS, SELDOM_SECONDS = 0.5, 4.0
"""after which a table whose holder was not found, or is not ready, is looked for again: at first, and at most"""
APPLYING, OF_A_TABLE = 64, 4
"""calls that are applied at once, and those of one table"""
READING, ASKING, PASSING_ON = 4, 8, 64
"""calls that are read, holders that are looked for, and calls that are passed on at once"""
AMONG_US = "walferry.Receiver"
"""the service under which receivers pass calls on: who gets such a call applies it, or says that it does not hold all
of its tables"""
SHIPMENT = ("AdminService", "ReplicateWALEntry")
NOT_SERVING = "org.apache.hadoop.hbase.NotServingRegionException"
_Edits = Mapping[str, Entries]
"""entries of a call, by target table"""
_Result = TypeVar("_Result")


@dataclass
class _UnderWay:
    """A call that is not answered yet."""

    call: ReceivedCall
    deadline: float
    """of `clock.steady_s`: nothing begins after it"""
    waits: str = ""
    """what it waits for"""

    @property
    def among_us(self) -> bool:
        """Whether another receiver has passed it on."""
        return self.call.service == AMONG_US

    def out_of_time(self) -> OutOfTimeError:
        """The error at the deadline."""
        return OutOfTimeError(f"not applied in time{f': {self.waits}' if self.waits else ''}")


class Receiver:
    """Handles the calls of one process."""

    def __init__(self, run: Run, tables: HeldTables, standing: Standing) -> None:
        self._tables, self._standing = tables, standing
        self._targets = {pair.source: pair.target for pair in run.tables}
        self._source_id, self._target_id = run.source.cluster_uuid(), run.target.cluster_uuid()
        self._order = InOrder()
        self._of_table = {pair.target: asyncio.Semaphore(OF_A_TABLE) for pair in run.tables}
        # A pool for each kind of work: what waits for another process must not keep that process's calls waiting.
        self._applying = ThreadPoolExecutor(APPLYING, "apply")
        self._reading = ThreadPoolExecutor(READING, "read")
        self._asking = ThreadPoolExecutor(ASKING, "ask")
        self._passing = ThreadPoolExecutor(PASSING_ON, "pass on")
        self._others = ConnectionPool()

    def close(self) -> None:
        """Close the connections to other receivers. Does not wait for what is under way."""
        for pool in (self._applying, self._reading, self._asking, self._passing):
            pool.shutdown(wait=False)
        self._others.close()

    async def handle(self, call: ReceivedCall) -> bytes:
        """Have all edits of a call applied, and encode the answer. Raises CallRefusedError if they are not in time:
        nothing more begins then, and what is under way ends."""
        within = min(ANSWER_SECONDS, call.timeout_s or ANSWER_SECONDS)
        one = _UnderWay(call, min(steady_s() + within, call.received_s + MOST_SECONDS))
        if not one.among_us:
            self._standing.begun()
        work = asyncio.ensure_future(self._deliver(one))
        try:
            await asyncio.wait({work}, timeout=max(0.0, one.deadline - steady_s()))
        finally:
            if not work.done():
                work.add_done_callback(_ended_later)
                work.cancel()
        try:
            if not work.done():
                raise one.out_of_time()
            work.result()
        except NotHeldError as error:
            raise CallRefusedError(str(error), java_class=NOT_SERVING) from error
        except WalferryError as error:
            if not one.among_us:
                self._standing.refused(str(error))
            log.warning("a call of %s is refused: %s", call.sender, error)
            raise CallRefusedError(str(error), until=None if work.done() else work) from error
        return b""

    async def _deliver(self, one: _UnderWay) -> None:
        """Apply the edits of a call here, or have their tables' holders do it, until all are applied.

        Raises NotHeldError for a call that was passed on to a process that does not hold all of its tables.
        """
        call = one.call
        if not one.among_us and (call.service, call.method) != SHIPMENT:
            raise BadCallError(f"{call.service}.{call.method} is no call that a receiver answers")
        received = await _in(self._reading, entries_of, call.parameter, call.cells)
        left, pause = self._edits(received.batch), AGAIN_SECONDS
        while left := await self._attempt(one, received, left):
            if one.among_us:
                raise not_held(next(iter(left)))
            if steady_s() + pause > one.deadline:
                raise one.out_of_time()
            await asyncio.sleep(pause)
            pause = min(2 * pause, SELDOM_SECONDS)

    async def _attempt(self, one: _UnderWay, received: ReceivedEntries, edits: _Edits) -> dict[str, Entries]:
        """Apply what this process holds, and pass on the rest. Returns what was not applied, since nobody was ready."""
        held = self._tables.held
        here = {table: picked for table, picked in edits.items() if table in held}
        elsewhere = edits.keys() - here.keys() if not one.among_us else set()
        by_holder: defaultdict[str, dict[str, Entries]] = defaultdict(dict)
        for table, holder in zip(elsewhere, await self._holders(one, elsewhere), strict=True):
            if holder is not None and holder != self._standing.server:
                by_holder[holder][table] = edits[table]
        ended = await asyncio.gather(
            *(self._apply(one, received.batch, table, picked) for table, picked in here.items()),
            *(self._pass_on(one, received, holder, its) for holder, its in by_holder.items()),
            return_exceptions=True,
        )
        failed = [error for error in ended if isinstance(error, BaseException)]
        if failed:
            raise min(failed, key=lambda error: isinstance(error, TransientError))
        done = {table for tables in ended if not isinstance(tables, BaseException) for table in tables}
        return {table: picked for table, picked in edits.items() if table not in done}

    async def _holders(self, one: _UnderWay, tables: Collection[str]) -> list[str | None]:
        """Which process holds each table; None: nobody of the run does."""

        def ask(table: str) -> str | None:
            try:
                return self._tables.holder(table)
            except TransientError as error:
                one.waits = str(error)
                return None

        found = list(await asyncio.gather(*(_in(self._asking, ask, table) for table in tables)))
        for table, holder in zip(tables, found, strict=True):
            if holder is None and not one.waits:
                one.waits = (
                    self._tables.trouble.get(table) or f"no receiver holds the lease on target table {table} yet"
                )
        return found

    async def _apply(self, one: _UnderWay, batch: EntryBatch, table: str, picked: Entries) -> Collection[str]:
        """Apply the edits of a table in their turn. Returns the table, or nothing if it is being given back."""
        regions = {f"{table} {batch.regions[code].decode()}" for code in np.unique(batch.region[picked]).tolist()}
        try:
            holding = self._tables.holding(table)
            async with self._order.turn(regions), self._of_table[table]:
                if steady_s() > one.deadline:
                    raise one.out_of_time()
                await _to_its_end(self._applying, apply_entries, holding, batch, picked, one.deadline)
        except NotHeldError as error:
            one.waits = str(error)
            return ()
        return (table,)

    async def _pass_on(self, one: _UnderWay, received: ReceivedEntries, holder: str, edits: _Edits) -> Collection[str]:
        """Have another process apply the edits of its tables. Returns these, or nothing if it is not ready."""
        picked = np.sort(np.concatenate(list(edits.values())))
        parameter, cells = await _in(self._reading, received.call_of, picked)
        seconds = one.deadline - steady_s()
        if seconds <= 0:
            raise one.out_of_time()
        try:
            await _in(
                self._passing,
                partial(self._others.call, codec=CODEC_WITH_TAGS, timeout_s=seconds),
                Server.parse(holder).address, AMONG_US, SHIPMENT[1], parameter, pb.ReplicateWALEntryResponse, cells,
            )  # fmt: skip
        except (RegionNotServedError, ConnectionFailedError, CallQueueFullError) as error:
            one.waits = f"{holder} is not ready for {', '.join(sorted(edits))}: {error}"
            return ()
        return edits.keys()

    def _edits(self, batch: EntryBatch) -> dict[str, Entries]:
        """The edits of a call by target table, without those that the target has had first (loops).

        Raises BadCallError for tables that the run does not have, and for data that is elsewhere.
        """
        elsewhere = np.flatnonzero(batch.data_elsewhere)
        if len(elsewhere):
            table, _ = batch.table_and_region(int(elsewhere[0]))
            what = "a bulk load" if batch.marker[elsewhere[0]] == Marker.BULK_LOAD else "a marker that is not known"
            raise BadCallError(
                f"{what} of {table}: receivers do not fetch files of bulk loads. The source sends it again until it is "
                "left out: copy what was loaded, then remove the peer and add it again, or set "
                "hbase.replication.bulkload.enabled to false at the source",
                table=table,
            )
        edits = batch.edits & ~self._had_first(batch)[batch.clusters]
        picked: dict[str, Entries] = {}
        for code in np.unique(batch.table[edits]).tolist():
            name = batch.tables[code].decode()
            if name not in self._targets:
                raise BadCallError(
                    f"table {name} is none of the run's: take it out of the peer's TABLE_CFS, or begin a run that has "
                    "it",
                    table=name,
                )
            picked[self._targets[name]] = np.flatnonzero(edits & (batch.table == code))
        return picked

    def _had_first(self, batch: EntryBatch) -> npt.NDArray[np.bool_]:
        """Whether the target has had the edits of each of the batch's lists of clusters. Raises BadCallError for edits
        of another source: a server adds its own cluster's id to what it ships (ClusterMarkingEntryFilter)."""
        lists = [cluster_ids(raw) for raw in batch.cluster_lists]
        for clusters in lists:
            if self._source_id not in clusters:
                raise BadCallError(
                    f"the call comes from cluster {clusters[-1] if clusters else '(unknown)'}, and this run receives "
                    f"from {self._source_id}: remove the peer there, or receive from it under another name",
                    clusters=[str(cluster) for cluster in clusters],
                )
        return np.array([self._target_id in clusters for clusters in lists] or [False])


def _ended_later(work: asyncio.Future[None]) -> None:
    """Of work whose call was refused in the meantime: its error is told, and nobody waits for it."""
    if not work.cancelled() and (error := work.exception()) is not None:
        log.info("a call that was refused before ended: %s", error)


async def _in(pool: ThreadPoolExecutor, work: Callable[..., _Result], *args: object) -> _Result:
    """The result of work in one of a pool's threads."""
    return await asyncio.get_running_loop().run_in_executor(pool, partial(work, *args))


async def _to_its_end(pool: ThreadPoolExecutor, work: Callable[..., _Result], *args: object) -> _Result:
    """The same; who is cancelled meanwhile waits until the thread has ended, unless it has not begun."""
    begun = pool.submit(partial(work, *args))
    ended = asyncio.wrap_future(begun)
    try:
        return await asyncio.shield(ended)
    except asyncio.CancelledError:
        begun.cancel()
        while not ended.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait({ended})
        if not ended.cancelled():
            ended.exception()  # told to nobody
        raise
