"""How one process of `walferry receive` handles the calls of a source's region servers.

    call -> entries, by target table -> held here: in order by region, applied under the lease, recorded, remembered
                                     -> held by another process of the run: passed on to it

A call is answered, or refused, within ANSWER_SECONDS: a source that hears nothing for a minute sends the same edits to
another receiver. Whoever gets them, a table is written by the holder of its lease alone, one call of a region after the
other, and what was applied before is left out. So what a source sends again changes nothing. A bulk load is applied
beside its call (`loads`).
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

from walferry.clock import steady_s
from walferry.errors import TransientError, WalferryError
from walferry.formats.markers import Marker
from walferry.formats.proto import hbase_pb2 as pb
from walferry.formats.wal import EntryBatch, cluster_ids
from walferry.hbase.authentication import Sasl
from walferry.hbase.errors import (
    CallQueueFullError,
    ConnectionFailedError,
    RegionNotServedError,
    RemoteError,
    RemoteTransientError,
)
from walferry.hbase.rpc import CODEC_WITH_TAGS, ConnectionPool
from walferry.hbase.rpc_server import CallRefusedError, ReceivedCall
from walferry.hbase.zookeeper import Server
from walferry.receive.calls import BadCallError, ReceivedEntries, entries_of
from walferry.receive.holding import (
    Destination,
    H,
    HeldTables,
    NotHeldError,
    OutOfTimeError,
    StillAtWorkError,
    not_held,
)
from walferry.receive.in_order import InOrder
from walferry.receive.loaded_files import loads_for
from walferry.receive.loads import regions_of
from walferry.receive.seen import Picked
from walferry.receive.standing import Standing
from walferry.security import Security
from walferry.security.accepting import Service
from walferry.security.accepting_tls import ServerTls
from walferry.security.handed import Purpose
from walferry.security.tls import TlsError

log = logging.getLogger(__name__)

ANSWER_SECONDS = 25.0
"""within which a call that has come is answered: a 2.x source waits for 60 s, from when it begins to send"""
MOST_SECONDS = 50.0
"""the same from the call's first byte, if it comes slowly"""
AGAIN_SECONDS, SELDOM_SECONDS = 0.5, 4.0
"""after which a table whose holder was not found, or is not ready, is looked for again: at first, and at most"""
APPLYING = 64
"""calls that are applied at once"""
READING, ASKING, PASSING_ON = 4, 8, 64
"""calls that are read, holders that are looked for, and calls that are passed on at once"""
PASSED_ON_SECONDS = 1.0
"""that a process has less for a call which was passed on to it: its reason for a refusal is to arrive"""
LEAST_SECONDS = 2.0
"""that another attempt must have: with less, a holder would only say that there is no time, and not why it cannot"""
AMONG_US = "walferry.Receiver"
"""the service under which receivers pass calls on: who gets such a call applies it, or says that it does not hold all
of its tables"""
SHIPMENT = ("AdminService", "ReplicateWALEntry")
AT_WORK = "walferry.StillAtWorkException"
"""to another receiver: what the message says is no fault"""
NOT_SERVING = "org.apache.hadoop.hbase.NotServingRegionException"
_Edits = Mapping[str, Picked]
"""entries of a call, by target table"""
_Result = TypeVar("_Result")


@dataclass
class _UnderWay:
    """A call that is not answered yet."""

    call: ReceivedCall
    deadline: float
    """of `clock.steady_s`: nothing begins after it"""
    waits: dict[str, str] = field(default_factory=dict)
    """by target table that is not applied yet, what it waits for; "" if that is not known"""
    regions: dict[str, Collection[str]] = field(default_factory=dict)
    """of those that this process applies"""
    left_out: Counter[str] = field(default_factory=Counter)
    """by source table, the entries that are older than what the run is to have"""
    at_work: set[str] = field(default_factory=set)
    """those of which another process says that they wait for work that goes on"""
    failed: list[Exception] = field(default_factory=list)
    """what has ended its last attempt for some tables, while others are still applied"""

    @property
    def among_us(self) -> bool:
        """Whether another receiver has passed it on."""
        return self.call.service == AMONG_US

    async def keep_error_of(self, work: Awaitable[None]) -> None:
        """Wait for work for some of its tables, and keep its error."""
        try:
            await work
        except Exception as error:
            self.failed.append(error)


class Receiver(Generic[H]):
    """Handles the calls of one process."""

    def __init__(
        self, to: Destination[H], tables: HeldTables[H], standing: Standing, start_ms: int | None = None,
        service: Service | None = None, tls: ServerTls | None = None,
    ) -> None:  # fmt: skip
        """`start_ms`: edits that were written before it are left out. `service`: what processes of the run log in to
        when they call each other; `tls`: what they show to each other then."""
        self._to, self._tables, self._standing = to, tables, standing
        self._targets = {pair.source: pair.target for pair in to.pairs}
        self._start_ms = start_ms
        self._order = InOrder()
        self._of_table = {pair.target: asyncio.Semaphore(to.calls_at_once) for pair in to.pairs}
        # A pool for each kind of work: what waits for another process must not keep that process's calls waiting.
        self._applying = ThreadPoolExecutor(APPLYING, "apply")
        self._reading = ThreadPoolExecutor(READING, "read")
        self._asking = ThreadPoolExecutor(ASKING, "ask")
        self._passing = ThreadPoolExecutor(PASSING_ON, "pass on")
        login = None
        if service is not None:
            login = Sasl(Purpose("receivers of the run", Security(service.as_client())))
        self._others = ConnectionPool(login, tls=None if tls is None else tls.as_client())

    def close(self) -> None:
        """Close the connections to other receivers. Does not wait for what is under way."""
        for pool in (self._applying, self._reading, self._asking, self._passing):
            pool.shutdown(wait=False)
        self._to.close()
        self._others.close()

    def shut_out(self, reason: str) -> None:
        """Note that a client was not let in."""
        self._standing.shut_out(reason)

    async def handle(self, call: ReceivedCall) -> bytes:
        """Have all edits of a call applied, and encode the answer. Raises CallRefusedError if they are not in time:
        nothing more begins then, and what is under way ends."""
        within = min(ANSWER_SECONDS, call.timeout_s or ANSWER_SECONDS)
        one = _UnderWay(call, min(steady_s() + within, call.received_s + MOST_SECONDS))
        if one.among_us:  # who has passed it on waits from when it began to send
            one.deadline = call.received_s + within - PASSED_ON_SECONDS
        else:
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
                raise _gravest([*one.failed, self._out_of_time(one)])
            work.result()
        except NotHeldError as error:
            raise CallRefusedError(str(error), java_class=NOT_SERVING) from error
        except StillAtWorkError as error:
            log.info("a call of %s is refused: %s", call.sender, error)
            raise CallRefusedError(str(error), java_class=AT_WORK, until=None if work.done() else work) from error
        except Exception as error:
            if not one.among_us:
                self._standing.refused(str(error) or repr(error))
            if not isinstance(error, WalferryError):
                raise
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
        left, pause = self._edits(one, received.batch), AGAIN_SECONDS
        one.waits = dict.fromkeys(left, "")
        while left := await self._attempt(one, received, left):
            if one.among_us:
                table = next(iter(left))
                raise not_held(table, self._tables.trouble.get(table, ""))
            if steady_s() + pause + LEAST_SECONDS > one.deadline:
                raise self._out_of_time(one)
            await asyncio.sleep(pause)
            pause = min(2 * pause, SELDOM_SECONDS)
        if one.left_out:
            self._standing.left_out(one.left_out)

    async def _attempt(self, one: _UnderWay, received: ReceivedEntries, edits: _Edits) -> dict[str, Picked]:
        """Apply what this process holds, and pass on the rest. Returns what was not applied, since nobody was ready."""
        for table in edits:
            self._tables.require_prepared(table)
        held, one.at_work, one.failed = self._tables.held, set(), []
        here = {table: picked for table, picked in edits.items() if table in held}
        elsewhere = edits.keys() - here.keys() if not one.among_us else set()
        by_holder: defaultdict[str, dict[str, Picked]] = defaultdict(dict)
        for table, holder in zip(elsewhere, await self._holders(one, elsewhere), strict=True):
            if holder is not None and holder != self._standing.server:
                by_holder[holder][table] = edits[table]
        parts = [
            *(self._apply(one, received.batch, table, picked) for table, picked in here.items()),
            *(self._pass_on(one, received, holder, its) for holder, its in by_holder.items()),
        ]
        await asyncio.gather(*map(one.keep_error_of, parts), return_exceptions=True)  # it waits for those it cancels
        if one.failed:
            gravest = _gravest(one.failed)
            if not isinstance(gravest, StillAtWorkError) or one.waits.keys() <= one.at_work:
                raise gravest
        return {table: picked for table, picked in edits.items() if table in one.waits}

    def _out_of_time(self, one: _UnderWay) -> OutOfTimeError | StillAtWorkError:
        """The error at the deadline: no fault only if each table that is left waits for work on it that goes on."""
        beside = {table: self._to.under_way(regions) for table, regions in one.regions.items() if table in one.waits}
        told = {str(beside.get(table) or what): None for table, what in one.waits.items()}
        told.pop("", None)
        going_on = one.at_work | {table for table, work in beside.items() if work is not None and not work.fault}
        kind = StillAtWorkError if one.waits and one.waits.keys() <= going_on else OutOfTimeError
        return kind(f"not applied in time{': ' if told else ''}{'; '.join(told)}")

    async def _holders(self, one: _UnderWay, tables: Collection[str]) -> list[str | None]:
        """Which process holds each table; None: nobody of the run does.

        A holder that cannot use a table gives its lease back for moments, and only it knows why. So what the call's
        attempt before waited for stays, unless something else is known.
        """

        unknown: dict[str, str] = {}

        def ask(table: str) -> str | None:
            try:
                return self._tables.holder(table)
            except TransientError as error:
                unknown[table] = str(error)
                return None

        found = list(await asyncio.gather(*(_in(self._asking, ask, table) for table in tables)))
        for table, holder in zip(tables, found, strict=True):
            if holder in (None, self._standing.server):
                new = (
                    f"table {table} is being opened" if holder else f"no receiver holds the lease on table {table} yet"
                )
                known = unknown.get(table) or self._tables.trouble.get(table)
                one.waits[table] = known or one.waits[table] or new
        return found

    async def _apply(self, one: _UnderWay, batch: EntryBatch, table: str, picked: Picked) -> None:
        """Apply the edits of a table in their turn, unless it is being given back."""
        one.regions[table] = regions = regions_of(table, batch, picked)
        one.waits[table] = ""
        try:
            holding = self._tables.holding(table)
            left = picked[batch.write_time[picked] >= holding.since_ms]
            older = len(picked) - len(left)
            async with self._order.turn(regions):
                await self._to.at_rest(regions)
                while len(left):
                    async with self._of_table[table]:
                        if steady_s() > one.deadline:
                            raise self._out_of_time(one)
                        left = await _to_its_end(self._applying, self._to.apply, holding, batch, left, one.deadline)
                    await self._to.at_rest(regions)
            if older:
                one.left_out[holding.pair.source] += older
            del one.waits[table]
        except NotHeldError as error:
            one.waits[table] = str(error)
        finally:
            del one.regions[table]

    async def _pass_on(self, one: _UnderWay, received: ReceivedEntries, holder: str, edits: _Edits) -> None:
        """Have another process apply the edits of its tables, unless it is not ready."""
        picked = np.sort(np.concatenate(list(edits.values())))
        parameter, cells = await _in(self._reading, received.call_of, picked)
        one.waits |= dict.fromkeys(edits, f"{holder} has not answered")
        seconds = one.deadline - steady_s()
        if seconds <= 0:
            raise self._out_of_time(one)
        try:
            await _in(
                self._passing,
                partial(self._others.call, codec=CODEC_WITH_TAGS, timeout_s=seconds),
                Server.parse(holder).address, AMONG_US, SHIPMENT[1], parameter, pb.ReplicateWALEntryResponse, cells,
            )  # fmt: skip
            for table in edits:
                del one.waits[table]
        except (RemoteError, RemoteTransientError, ConnectionFailedError) as error:
            if error.facts.get("exception_class") == AT_WORK:
                one.at_work |= edits.keys()
                one.waits |= dict.fromkeys(edits, error.facts["reason"])
                raise StillAtWorkError(error.facts["reason"]) from error
            if not isinstance(error, (RegionNotServedError, CallQueueFullError, ConnectionFailedError)):
                raise
            not_ready = f"{holder} is not ready for {', '.join(sorted(edits))}: {error}"
            one.waits |= dict.fromkeys(edits, not_ready)
        except TlsError as error:
            raise TlsError(
                f"nothing can be passed on to {holder} by TLS: {error.facts['reason']}; give all processes of the run "
                "a `receive.tls` of the same authorities",
                **error.facts,
            ) from error

    def _edits(self, one: _UnderWay, batch: EntryBatch) -> dict[str, Picked]:
        """The edits of a call by target table, but for those that the sink has had first (loops) and those before the
        run's start, which are counted; with the markers of bulk loads.

        Raises BadCallError for tables that the run does not have, however old their edits are, and for markers that are
        not known.
        """
        unknown = np.flatnonzero(batch.of_kinds([Marker.UNKNOWN]))
        if len(unknown):
            table, _ = batch.table_and_region(int(unknown[0]))
            raise BadCallError(
                f"a marker of {table} is of no known kind. The source sends it again until it is left out: copy the "
                "table, then remove the peer and add it again",
                table=table,
            )
        edits = batch.edits | loads_for(batch, self._to.sink_id)
        edits &= ~self._had_first(batch)[batch.clusters]
        older = np.zeros_like(edits) if self._start_ms is None else batch.write_time < self._start_ms
        picked: dict[str, Picked] = {}
        for code in np.unique(batch.table[edits]).tolist():
            name = batch.tables[code].decode()
            if name not in self._targets:
                raise BadCallError(
                    f"table {name} is none of the run's: take it out of the peer's TABLE_CFS, or begin a run that has "
                    "it",
                    table=name,
                )
            of_table = edits & (batch.table == code)
            if left_out := int((of_table & older).sum()):
                one.left_out[name] += left_out
            if len(left := np.flatnonzero(of_table & ~older)):
                picked[self._targets[name]] = left
        return picked

    def _had_first(self, batch: EntryBatch) -> npt.NDArray[np.bool_]:
        """Whether the sink has had the edits of each of the batch's lists of clusters. Raises BadCallError for edits
        of another source: a server adds its own cluster's id to what it ships (ClusterMarkingEntryFilter)."""
        lists = [cluster_ids(raw) for raw in batch.cluster_lists]
        for clusters in lists:
            if self._to.source_id not in clusters:
                raise BadCallError(
                    f"the call comes from cluster {clusters[-1] if clusters else '(unknown)'}, and this run receives "
                    f"from {self._to.source_id}: remove the peer there, or receive from it under another name",
                    clusters=[str(cluster) for cluster in clusters],
                )
        return np.array([self._to.sink_id in clusters for clusters in lists] or [False])


def _gravest(errors: Iterable[Exception]) -> Exception:
    """What cannot pass by itself comes first, what is no fault last."""
    return min(errors, key=lambda error: (isinstance(error, StillAtWorkError), isinstance(error, TransientError)))


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
