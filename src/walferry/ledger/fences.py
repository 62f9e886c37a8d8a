"""The fences of one run: rows of `fences`."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, delete, insert

from walferry.errors import WalferryError
from walferry.ledger.batches import Change
from walferry.ledger.columns import to_columns
from walferry.ledger.forward import check_advance
from walferry.ledger.rows import FenceKind, LogPosition
from walferry.ledger.store import Store, fetch


def set_fence(
    store: Store, run_id: str, kind: FenceKind, positions: Sequence[LogPosition], also: Change
) -> list[LogPosition]:
    """What `Log.set_fence` does."""
    fences = store.table("fences")
    if not positions:
        raise WalferryError(f"the {kind} fence of run {run_id} has no position: list the WAL groups first")
    if len({position.group for position in positions}) < len(positions):
        raise WalferryError(f"the {kind} fence of run {run_id} has two positions in one WAL group")
    with store.database.write() as connection:
        store.run(connection, run_id)
        recorded = fence_of(store, connection, run_id, kind)
        if recorded and kind == "start":
            return recorded
        check_advance(run_id, recorded, positions)
        connection.execute(delete(fences).where(fences.c.run_id == run_id, fences.c.kind == kind))
        rows = [to_columns(position) | {"run_id": run_id, "kind": kind} for position in positions]
        connection.execute(insert(fences), rows)
        also(connection)
        inputs = {"positions": {p.group: f"{p.file}@{p.offset}" for p in positions}}
        store.note(connection, f"set {kind} fence", run_id, inputs)
        return fence_of(store, connection, run_id, kind)


def fence_of(store: Store, connection: Connection, run_id: str, kind: FenceKind) -> list[LogPosition]:
    """The positions of a fence by WAL group; [] while it is not set."""
    fences = store.table("fences")
    same = (fences.c.run_id == run_id, fences.c.kind == kind)
    return fetch(connection, LogPosition, fences, *same, order=(fences.c.wal_group,))
