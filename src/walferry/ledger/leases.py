"""The leases that one run took on target tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from sqlalchemy import Connection, func, insert, select, update

from walferry.clock import now_ms
from walferry.errors import UsageError, WalferryError
from walferry.ledger.columns import to_columns
from walferry.ledger.rows import Lease, RunKind
from walferry.ledger.store import Store, fetch

FOLLOWING: tuple[RunKind, ...] = ("migration", "standby", "drain", "receive")
"""kinds of runs that apply a log as it grows"""
_BESIDE_NONE: tuple[RunKind, ...] = (*FOLLOWING, "pair")
"""kinds of runs that must not write to a table while another run applies a growing log to it"""


class FollowedTwiceError(UsageError):
    """Another unfinished run applies a growing log to the same target table; facts `resource`, `run`."""


class Leases:
    """The leases that one run took on target tables."""

    def __init__(self, store: Store, run_id: str) -> None:
        self._store = store
        self._run_id = run_id

    def newest(self, resource: str) -> int:
        """The highest fencing number of any run's lease on `resource`; 0 before the first lease."""
        leases = self._store.table("leases")
        with self._store.database.read() as connection:
            query = select(func.max(leases.c.fencing_number)).where(leases.c.resource == resource)
            return int(connection.execute(query).scalar_one() or 0)

    def outdated(self, connection: Connection, numbers: Mapping[str, int]) -> str | None:
        """The first resource on which some run took a lease with a number higher than in `numbers`; None if none."""
        leases = self._store.table("leases")
        query = select(leases.c.resource, func.max(leases.c.fencing_number)).group_by(leases.c.resource)
        newest = dict(connection.execute(query.where(leases.c.resource.in_(numbers))).all())
        return next((resource for resource, number in numbers.items() if newest.get(resource, 0) > number), None)

    def require_alone(self, resources: Iterable[str]) -> None:
        """Raise FollowedTwiceError if another unfinished run applies a growing log to one of these target tables, and
        this run does so, too, or repairs rows of a pair.

        The order of the two runs' edits would be unknown (R3), whichever run holds the lease.
        """
        with self._store.database.read() as connection:
            for resource in resources:
                self._require_alone(connection, resource)

    def take(self, resource: str, holder: str, fencing_number: int) -> None:
        """Record that `holder` has the lease on `resource`. Recording the same newest lease again changes nothing.

        Raises WalferryError unless `fencing_number` is the highest so far, and FollowedTwiceError as `require_alone`.
        """
        leases = self._store.table("leases")
        with self._store.database.write() as connection:
            self._require_alone(connection, resource)
            known = fetch(connection, Lease, leases, leases.c.resource == resource, order=(leases.c.fencing_number,))
            newest = known[-1] if known else None
            lease = Lease(resource, fencing_number, self._run_id, holder, now_ms(), None)
            if newest and newest.fencing_number >= fencing_number:
                if replace(newest, taken_ms=lease.taken_ms) == lease:
                    return
                raise WalferryError(
                    f"the lease {fencing_number} on {resource} is stale: run {newest.run_id} ({newest.holder}) took "
                    f"{newest.fencing_number}; stop writing to {resource}",
                    resource=resource,
                    fencing_number=fencing_number,
                    newest=newest.fencing_number,
                )
            connection.execute(insert(leases).values(to_columns(lease)))
            inputs = {"resource": resource, "holder": holder, "fencing_number": fencing_number}
            self._store.note(connection, "take lease", self._run_id, inputs)

    def _require_alone(self, connection: Connection, resource: str) -> None:
        if self._store.run(connection, self._run_id).kind not in _BESIDE_NONE:
            return
        leases, runs = self._store.table("leases"), self._store.table("runs")
        query = (
            select(runs.c.run_id)
            .join(leases, leases.c.run_id == runs.c.run_id)
            .where(leases.c.resource == resource, runs.c.run_id != self._run_id)
            .where(runs.c.state == "running", runs.c.kind.in_(FOLLOWING))
            .order_by(leases.c.fencing_number)
        )
        other = connection.execute(query).scalars().first()
        if other is not None:
            raise FollowedTwiceError(
                f"run {other} follows a log into target table {resource.rpartition(' ')[2]}, and it would be unknown "
                f"which of two edits is newer: wait until {other} has ended, or end it by `walferry abort "
                f"{other}`",
                resource=resource, run=other,
            )  # fmt: skip

    def release(self, resource: str, fencing_number: int) -> None:
        """Record that the lease was released."""
        leases = self._store.table("leases")
        own = (
            leases.c.run_id == self._run_id,
            leases.c.resource == resource,
            leases.c.fencing_number == fencing_number,
        )
        statement = update(leases).where(*own, leases.c.released_ms.is_(None)).values(released_ms=now_ms())
        with self._store.database.write() as connection:
            if connection.execute(statement).rowcount:
                inputs = {"resource": resource, "fencing_number": fencing_number}
                self._store.note(connection, "release lease", self._run_id, inputs)
