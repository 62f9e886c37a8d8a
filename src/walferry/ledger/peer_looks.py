"""How far the replication peers of a source were at each look of a run of kind `replication`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import delete, insert

from walferry.ledger.columns import to_columns
from walferry.ledger.store import Store, fetch

KEPT_MS = 30 * 86_400_000
"""before the newest look"""


@dataclass(frozen=True)
class PeerLook:
    """How far one peer was at one moment."""

    peer: str
    looked_ms: int
    oldest_age_ms: int | None
    """of the oldest edit that was not shipped; 0: none waited; None: it could not be told"""
    unshipped_bytes: int
    pinned_bytes: int
    """of logs that only this peer kept"""
    waiting_files: int
    """of bulk loads"""
    lost_logs: int
    stuck_queues: int


class PeerLooks:
    """The looks of one run. The audit trail has no line about them."""

    def __init__(self, store: Store, run_id: str) -> None:
        self._store = store
        self._run_id = run_id

    def record(self, looks: Sequence[PeerLook]) -> None:
        """Record what one look has seen of each peer, and forget looks that are older than KEPT_MS."""
        table = self._store.table("peer_looks")
        with self._store.database.write() as connection:
            self._store.unfinished(connection, self._run_id)
            for look in looks:
                connection.execute(insert(table).values(to_columns(look) | {"run_id": self._run_id}))
            if looks:
                oldest = max(look.looked_ms for look in looks) - KEPT_MS
                old = (table.c.run_id == self._run_id, table.c.looked_ms < oldest)
                connection.execute(delete(table).where(*old))

    def since(self, moment_ms: int) -> list[PeerLook]:
        """The looks from a moment on, oldest first, and of one moment by peer."""
        table = self._store.table("peer_looks")
        same = (table.c.run_id == self._run_id, table.c.looked_ms >= moment_ms)
        with self._store.database.read() as connection:
            return fetch(connection, PeerLook, table, *same, order=(table.c.looked_ms, table.c.peer))
