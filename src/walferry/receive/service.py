"""One process of `walferry receive`, from its port to its place in ZooKeeper, until it is told to end."""

from __future__ import annotations

import asyncio
import logging
import threading
from contextlib import suppress
from functools import partial
from typing import Any

from walferry.errors import WalferryError
from walferry.hbase.rpc_server import ReceivedCall, RpcServer
from walferry.receive.given import AnyReceiveSpec
from walferry.receive.holding import Destination, HeldTables
from walferry.receive.into_cluster import TargetCluster
from walferry.receive.place import AnyReceiveRun, place_of, side_of, sink_id_of
from walferry.receive.presence import Presence
from walferry.receive.receiver import AMONG_US, Receiver
from walferry.receive.standing import Standing
from walferry.run.notes.left_out import leave_out
from walferry.run.run import Run, RunEndedError

log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
"""how often the ledger is asked whether the run has ended, and told how this process is doing"""
READ_SECONDS = 20.0
"""within which there must be room for a call in memory"""


def serve(run: AnyReceiveRun, spec: AnyReceiveSpec, stop: threading.Event) -> None:
    """Receive until `stop` is set.

    The spec's host is the name by which the source's region servers reach this process, and the address that it listens
    at. Raises RunEndedError once the run has ended, and UsageError if its place in ZooKeeper is another sink's, or the
    port is taken.
    """
    asyncio.run(_serve(run, spec, stop))


def destination_of(run: AnyReceiveRun) -> Destination[Any]:
    """Where the edits of a run go."""
    if isinstance(run, Run):
        return TargetCluster(run)
    from walferry.receive.into_kafka import Topics  # here: Kafka's client is an extra

    return Topics(run)


async def _serve(given: AnyReceiveRun, spec: AnyReceiveSpec, stop: threading.Event) -> None:
    receiver: asyncio.Future[Receiver[Any]] = asyncio.get_running_loop().create_future()

    async def handle(call: ReceivedCall) -> bytes:
        return await (await asyncio.shield(receiver)).handle(call)

    def shut_out(reason: str) -> None:
        if receiver.done():
            receiver.result().shut_out(reason)

    # The plan has checked both.
    service = None if spec.receive.login is None else spec.receive.login.service(spec.host)
    tls = None if spec.receive.tls is None else spec.receive.tls.server()
    server = RpcServer(
        handle,
        host=spec.host,
        port=spec.port,
        memory_bytes=spec.receive.memory,
        read_seconds=READ_SECONDS,
        apart={AMONG_US: spec.receive.memory},
        login=service,
        tls=tls,
        shut_out=shut_out,
    )
    bound = await server.start()
    try:
        with (
            Presence(place_of(given), spec.path, sink_id_of(given), spec.host, bound) as presence,
            type(given)(given.ledger.whole, given.run_id, presence.server) as run,  # whose leases name this process
        ):
            run.ledger.objects.made(side_of(spec), "sink", spec.path)
            standing, to = Standing(presence.server), destination_of(run)
            tables = HeldTables(to, lambda: [presence.server, *presence.others()], presence.server)
            handler = Receiver(to, tables, standing, spec.receive.start_ms, service, tls)
            receiver.set_result(handler)
            presence.show()
            tables.begin()
            try:
                await _until_ended(run, server, standing, tables, stop)
            finally:
                with suppress(WalferryError):  # then the node goes with the session
                    await asyncio.to_thread(presence.hide)
                await server.close()
                await asyncio.to_thread(tables.end)
                handler.close()
                with suppress(WalferryError):  # then it counts as gone after a minute
                    await asyncio.to_thread(standing.record_left_out, partial(leave_out, run.ledger))
                    await asyncio.to_thread(run.ledger.received.beat, standing.row("left", (), 0))
    finally:
        await server.close()


async def _until_ended(
    run: AnyReceiveRun, server: RpcServer, standing: Standing, tables: HeldTables[Any], stop: threading.Event
) -> None:
    """Wait, and tell the ledger how this process is doing. Raises RunEndedError once the run has ended."""
    while not stop.is_set():
        told = asyncio.ensure_future(asyncio.to_thread(_tell, run, standing, tables, server.held_bytes))
        while not (stop.is_set() or told.done()):  # the ledger may hang
            await asyncio.wait({told}, timeout=LOOK_SECONDS)
        if told.done():
            told.result()
        await asyncio.sleep(LOOK_SECONDS)


def _tell(run: AnyReceiveRun, standing: Standing, tables: HeldTables[Any], held_bytes: int) -> None:
    """Tell the ledger how this process is doing. Raises RunEndedError once the run has ended."""
    try:
        record = run.ledger.record
        if record.state == "running":
            standing.record_left_out(partial(leave_out, run.ledger))
            run.ledger.received.beat(standing.row("serving", tables.held, held_bytes))
            return
    except WalferryError as error:  # also of a run that ends at this moment, which the next look finds
        log.warning("the ledger is not told how this process is doing: %s", error)
        return
    raise RunEndedError(f"{run.run_id} was {record.state}: {record.outcome or 'no reason given'}", run=run.run_id)
