"""The leases on target tables that one run took."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from sqlalchemy import Connection, func, insert, select, update

from walferry.clock import now_ms
from walferry.errors import WalferryError
from walferry.ledger.rows import Lease, to_columns
from walferry.ledger.store import Store, fetch


class Leases:
    """The leases on target tables that one run took."""

    def __init__(self, store: Store, run_id: str) -> None:
        self._store = store
        self._run_id = run_id

    def newest(self, resource: str) -> int:
        """The highest number that any run's lease on `resource` had; 0 before the first."""
        leases = self._store.table("leases")
        with self._store.database.read() as connection:
            query = select(func.max(leases.c.fencing_number)).where(leases.c.resource == resource)
            return int(connection.execute(query).scalar_one() or 0)

    def outdated(self, connection: Connection, numbers: Mapping[str, int]) -> str | None:
        """The first of these resources of which any run has taken a newer lease than the one of this number."""
        leases = self._store.table("leases")
        for resource, number in numbers.items():
            query = select(func.max(leases.c.fencing_number)).where(leases.c.resource == resource)
            if int(connection.execute(query).scalar_one() or 0) > number:
                return resource
        return None

    def take(self, resource: str, holder: str, fencing_number: int) -> None:
        """Record that `holder` has the lease on `resource`. Raises WalferryError unless its number is the highest so
        far. Recording one's own newest lease again changes nothing.
        """
        leases = self._store.table("leases")
        with self._store.database.write() as connection:
            self._store.run(connection, self._run_id)
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
