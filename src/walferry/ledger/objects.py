"""What one run creates on the clusters: recorded before it is created, so that nothing is left behind."""

from __future__ import annotations

from sqlalchemy import insert, select, update

from walferry.clock import now_ms
from walferry.errors import WalferryError
from walferry.ledger.columns import from_columns
from walferry.ledger.rows import ClusterObject, ClusterSide, ObjectKind, ObjectState
from walferry.ledger.store import Store, fetch


class Objects:
    """What one run creates on the clusters: recorded before it is created, so that nothing is left behind."""

    def __init__(self, store: Store, run_id: str) -> None:
        self._store = store
        self._run_id = run_id

    def plan(self, cluster: ClusterSide, kind: ObjectKind, name: str) -> None:
        """Record that the object is about to be created. An object that is already created stays `made`."""
        self._set(cluster, kind, name, "planned")

    def plan_again(self, cluster: ClusterSide, kind: ObjectKind, name: str) -> None:
        """Record that the object is about to be created or changed: it is `planned` until it is `made` again."""
        self._set(cluster, kind, name, "planned", again=True)

    def made(self, cluster: ClusterSide, kind: ObjectKind, name: str) -> None:
        """Record that the object was created. Raises WalferryError when it was never planned."""
        self._set(cluster, kind, name, "made")

    def removed(self, cluster: ClusterSide, kind: ObjectKind, name: str) -> None:
        """Record that the object was removed, or never created. Raises WalferryError when it was never planned."""
        self._set(cluster, kind, name, "removed")

    def all(self, state: ObjectState | None = None) -> list[ClusterObject]:
        """What the run planned, created and removed, oldest first."""
        objects = self._store.table("objects")
        conditions = [objects.c.run_id == self._run_id] + ([objects.c.state == state] if state else [])
        order = (objects.c.planned_ms, objects.c.cluster, objects.c.kind, objects.c.name)
        with self._store.database.read() as connection:
            return fetch(connection, ClusterObject, objects, *conditions, order=order)

    def left(self, *kinds: ObjectKind) -> list[ClusterObject]:
        """What of these kinds the run planned or made and has not removed, oldest first."""
        return [item for item in self.all() if item.kind in kinds and item.state != "removed"]

    def of_all_runs(self, kind: ObjectKind) -> list[tuple[str, ClusterObject]]:
        """Objects of a kind that any run planned or made and has not removed, with that run's id, oldest first."""
        objects = self._store.table("objects")
        query = select(objects).where(objects.c.kind == kind, objects.c.state != "removed")
        with self._store.database.read() as connection:
            rows = connection.execute(query.order_by(objects.c.planned_ms, objects.c.run_id, objects.c.name)).mappings()
            return [(row["run_id"], from_columns(ClusterObject, row)) for row in rows]  # type: ignore[arg-type]

    def _set(self, cluster: ClusterSide, kind: ObjectKind, name: str, state: ObjectState, again: bool = False) -> None:
        objects = self._store.table("objects")
        key = {"run_id": self._run_id, "cluster": cluster, "kind": kind, "name": name}
        same = [objects.c[column] == value for column, value in key.items()]
        at = now_ms()
        with self._store.database.write() as connection:
            self._store.run(connection, self._run_id)
            known = fetch(connection, ClusterObject, objects, *same)
            if not known:
                if state != "planned":
                    raise WalferryError(
                        f"{kind} {name} on the {cluster} of run {self._run_id} was never planned: call `plan` before "
                        "creating it",
                        **key,
                    )
                connection.execute(insert(objects).values(**key, state=state, planned_ms=at))
            elif known[0].state == state or (known[0].state == "made" and state == "planned" and not again):
                return
            else:
                connection.execute(update(objects).where(*same).values({"state": state, f"{state}_ms": at}))
            self._store.note(
                connection, f"object {state}", self._run_id, {"cluster": cluster, "kind": kind, "name": name}
            )
