"""The right to apply: leases on a run's target tables, the claims of its executors, and pausing the run."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial

from pyspark.sql import SparkSession
from sqlalchemy import Connection

from walferry.apply.bulk_loader import staging_folder
from walferry.apply.route import Route
from walferry.apply.writers import limits_of
from walferry.errors import is_transient
from walferry.ledger import RunLedger
from walferry.ledger.batches import Change, in_one
from walferry.replay.rights import lease
from walferry.replay.rights.claims import Claims
from walferry.replay.rights.durability import give_back, make_durable
from walferry.replay.rights.throttle_share import node_of, publishing
from walferry.run.notes.waits import begin_wait, end_wait
from walferry.run.run import Run, RunEndedError
from walferry.run.spec import TablePair
from walferry.spark.clients import workers
from walferry.storage import PermissionDeniedError

log = logging.getLogger(__name__)

LEASE_WAIT_SECONDS = 90.0


Leases = Mapping[str, lease.HeldLease]
"""by target table"""


@contextmanager
def applying(run: Run) -> Iterator[Route]:
    """Hold the leases of all target tables, and provide the route that the executors use under them."""
    with leased(run, run.tables) as (route, leases):
        try:
            make_durable(run)
            yield route
        except BaseException as error:
            _give_back_at_end(run, leases, not is_transient(error))
            raise
        _give_back_at_end(run, leases, True)


@contextmanager
def leased(run: Run, pairs: Sequence[TablePair]) -> Iterator[tuple[Route, Leases]]:
    """Hold the leases of some target tables, which need not exist yet, and remove files staged for them.

    Raises FollowedTwiceError while another run follows a log into one of the tables.
    """
    verdict: Exception | None = None
    with held(run, pairs) as leases:
        remove_staged(run, pairs)
        throttle = node_of(leases[min(leases)])
        route = route_under(run, pairs, leases, throttle)
        with publishing(run, run.target.zk, throttle, closed=route.target.zookeeper_login):
            try:
                yield route, leases
            except lease.VERDICTS as error:
                verdict = error
    if verdict is not None:
        raise verdict


@contextmanager
def held(run: Run, pairs: Sequence[TablePair], wait_seconds: float = LEASE_WAIT_SECONDS) -> Iterator[Leases]:
    """Hold the leases of some target tables, and record them. Waits at most `wait_seconds` for another holder.

    Raises LeaseHeldError after that, and FollowedTwiceError while another run follows a log into one of the tables.
    """
    limits = limits_of(run.spec.writer_kind, run.writing)
    names = {pair.target: lease.resource(run.target.cluster_id(), pair.target) for pair in pairs}
    run.ledger.leases.require_alone(names.values())
    with lease.held_leases(
        run.target.zk,
        list(names),
        holder=lease.holder(run.run_id, run.actor),
        request_seconds=limits.quiet_seconds,
        wait_seconds=wait_seconds,
        newest=lambda table: run.ledger.leases.newest(names[table]),
        tell=partial(begin_wait, run.ledger),
        closed=run.target_address().zookeeper_login,
    ) as leases:
        end_wait(run.ledger)
        for table, one in leases.items():
            run.ledger.leases.take(names[table], run.actor, one.number)
        yield leases
        for table, one in leases.items():
            run.ledger.leases.release(names[table], one.number)


def route_under(run: Run, pairs: Sequence[TablePair], leases: Leases, throttle: str | None) -> Route:
    """The route to some target tables under their leases. `throttle`: the node of `replay.rights.throttle_share`."""
    limits, target, uuid = limits_of(run.spec.writer_kind, run.writing), run.target_address(), run.source_uuid
    return Route(
        source=run.source_address(workers=1),
        root=run.wal_root,
        source_id=(uuid.int & (1 << 64) - 1, uuid.int >> 64),
        target=target,
        tables={pair.source: pair.target for pair in pairs},
        guard=Claims(target, dict(leases), run.run_id, limits.claim_seconds, limits.quiet_seconds, throttle=throttle),
        limits=limits,
        writer_kind=run.spec.writer_kind,
    )


def lease_check_of(run: Run, route: Route) -> Change:
    """A check for changes of the ledger: it raises LeaseLostError once another process has taken the leases.

    A process that takes leases records their numbers before it does anything else.
    """
    cluster = run.target.cluster_id()
    names = [lease.resource(cluster, table) for table in route.tables.values()]
    numbers = {name: run.ledger.leases.newest(name) for name in names}
    route.guard(list(route.tables.values()))  # proves that these numbers are this process's own
    return check_of(run.ledger, numbers)


def check_of(ledger: RunLedger, numbers: Mapping[str, int]) -> Change:
    """The same for leases of these numbers, by the ledger's names for them."""

    def lease_check(connection: Connection) -> None:
        newer = ledger.leases.outdated(connection, numbers)
        if newer is not None:
            raise lease.LeaseLostError(
                f"the lease number {numbers[newer]} on {newer} is no longer held: another process has taken it; "
                "run it again",
                table=newer, number=numbers[newer],
            )  # fmt: skip

    return lease_check


class UntilRecorded(ExitStack):
    """Leases that are held until the block ends, and the lease check for what is recorded in the meantime."""

    def __init__(self) -> None:
        super().__init__()
        self._lease_check: Change = in_one()

    def under(self, run: Run, leases: AbstractContextManager[Route]) -> None:
        """Take these leases; without them nothing is checked."""
        self._lease_check = lease_check_of(run, self.enter_context(leases))

    def lease_check(self, connection: Connection) -> None:
        """Raise LeaseLostError, within a change of the ledger, if the leases are no longer held."""
        self._lease_check(connection)


def remove_staged(run: Run, pairs: Sequence[TablePair]) -> None:
    """Remove files staged for bulk load into target tables. Call it under the tables' leases.

    A load request that is still under way then finds no file, however late the target carries it out.
    """
    root = run.spec.target.address().root_path
    for pair in pairs:
        with suppress(PermissionDeniedError):  # then nobody can have staged files there either
            run.target_files.delete(staging_folder(root, pair.target), recursive=True)


def shared_by_workers(run: Run, route: Route, spark: SparkSession) -> Route:
    """The route with each worker's share of the requests that the spec allows, by the current number of workers."""
    return replace(route, source=run.source_address(workers(spark)))


def _give_back_at_end(run: Run, leases: Leases, ends: bool) -> None:
    """Restore DURABILITY now if no later phase will: for a window's run that `ends`, and for a run that was ended.

    Other runs keep their tables durable until their release.
    """
    if not (ends and run.record.kind == "window") and run.ledger.record.state == "running":
        return
    for held in leases.values():
        lease.check(run.target.zk, held)
    give_back(run, list(leases))


def is_paused(run: Run) -> bool:
    """Whether the run is paused. Raises RunEndedError when it was ended."""
    record = run.ledger.record
    if record.state != "running":
        raise RunEndedError(
            f"run {record.run_id} was {record.state}: {record.outcome or 'no reason given'}", run=record.run_id
        )
    return record.paused


def wait_while_paused(run: Run) -> None:
    """Wait until the run is not paused. Raises RunEndedError when the run was ended."""
    announced = False
    while is_paused(run):
        if not announced:
            log.info("paused; `walferry resume %s` continues", run.record.name)
            announced = True
        time.sleep(1.0)
