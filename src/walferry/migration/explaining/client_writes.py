"""Which rows that differ were written by clients of the open target, according to the target's own log."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from walferry.clock import CLOCKS_APART_MS
from walferry.errors import WalferryError, is_transient
from walferry.migration.explaining.difference_classes import Clients
from walferry.migration.sides.row_sides import Bounds, Cell, cells_of
from walferry.migration.touching.touched import Seen
from walferry.run.facts import opened_ms
from walferry.run.notes.newest import clients_from
from walferry.run.run import Run
from walferry.wal.others import cells_by_others

log = logging.getLogger(__name__)


def edits_of_clients(run: Run, table: str, rows: Sequence[bytes], bounds: Bounds) -> Callable[[bytes], Clients | None]:
    """Look up the clients' edits to each of these rows of a source table. The result returns None while the target is
    not open, and after the run has ended.

    This reads the target's log, starting where the last look before the opening ended (`touched.look`). If that log
    cannot be read, only timestamps say what clients wrote. `bounds`: how much is kept of each row.
    """
    since, first = opened_ms(run.ledger), clients_from(run.ledger, table)
    late = clients_from(run.ledger, table, late_ms=CLOCKS_APART_MS)
    if since is None or first is None or late is None or not rows or run.ledger.record.state != "running":
        return lambda _: None
    wrote: dict[bytes, list[Cell]] = {row: [] for row in rows}
    rooms = {row: bounds.room() for row in rows}
    unread = ""
    try:
        start = Seen.of(run.ledger).offset
        if start is None:
            raise WalferryError("the target's log was not followed before the target was opened")
        target, known = run.pair(table).target, run.source.cluster_uuid()
        for batch in cells_by_others(run.target_wal_files, run.target_wal_root, start, target, rows, known):
            for row, cell in zip(batch["row"].to_pylist(), cells_of(batch), strict=True):
                if rooms[row].takes(cell):
                    wrote[row].append(cell)
    except (WalferryError, OSError) as error:
        if is_transient(error):
            raise
        unread = f"the target's log cannot be read: {error}"
        log.warning("cannot determine what clients wrote to differing rows of %s: %s", table, unread)

    def of(row: bytes) -> Clients:
        full = row in rooms and rooms[row].exhausted
        why = unread or ("clients have written too much to the row to examine it" if full else "")
        return Clients(since, first, frozenset() if why else frozenset(wrote.get(row, ())), why, late)

    return of
