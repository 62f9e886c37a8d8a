"""The newest timestamp of each table, from everything that was read on both sides before the target was open.

A cell with a later timestamp at the open target was written there by a client. So a table whose cells have timestamps
in the future does not open early: nothing would distinguish clients' cells from such cells.
"""

from __future__ import annotations

from datetime import UTC, datetime

from walferry.clock import CLOCKS_APART_MS, now_ms
from walferry.ledger import RunLedger
from walferry.run.facts import opened_ms

_NOTE = "newest timestamp"
_LAST_SHOWN_MS = 253_402_300_799_000  # the year 9999


def note_newest(ledger: RunLedger, table: str, timestamp: int, began_ms: int, *, whole: bool) -> None:
    """Keep the newest timestamp that a reading found. Does nothing once the target is open.

    A reading of the `whole` table replaces what was kept before the reading began (`began_ms`).
    """
    if opened_ms(ledger) is not None:
        return
    kept = ledger.notes.get(_NOTE, table)
    if kept is not None and not (whole and kept["at_ms"] < began_ms):
        timestamp = max(timestamp, kept["timestamp"])
    ledger.notes.keep(_NOTE, {"timestamp": timestamp, "at_ms": now_ms()}, table)


def newest_of(ledger: RunLedger, table: str) -> int | None:
    """The newest timestamp of a table; None before the table was read."""
    kept = ledger.notes.get(_NOTE, table)
    return None if kept is None else int(kept["timestamp"])


def clients_from(ledger: RunLedger, table: str, late_ms: int = 0) -> int | None:
    """From this timestamp on, cells that only the open target holds were written by its clients; None while it is not
    open.

    Late edits are applied to the target after the opening, with the timestamps of their own time. `late_ms`: by how
    much the clock of a target server may be late.
    """
    if (opened := opened_ms(ledger)) is None:
        return None
    newest = newest_of(ledger, table)
    applied = [edit.write_ms for edit in ledger.late.all() if edit.table == table and edit.decision == "apply"]
    before = opened if newest is None else newest + 1
    return max(opened - late_ms, before, *(at_ms + CLOCKS_APART_MS + 1 for at_ms in applied))


def keeps_closed(ledger: RunLedger, table: str, at_ms: int) -> str:
    """Why a table may open only after a whole comparison while the source stands still; "" if it may open earlier."""
    newest = newest_of(ledger, table)
    if newest is None:
        return f"the newest timestamp of {table} is unknown: compare the table again"
    if newest <= at_ms + CLOCKS_APART_MS:
        return ""
    shown = f"{newest}"
    if newest <= _LAST_SHOWN_MS:
        shown += f" ({datetime.fromtimestamp(newest / 1000, UTC).strftime('%Y-%m-%d')})"
    return (
        f"{table} has cells with timestamps in the future, up to {shown}: clients' writes to the open target could "
        "not be distinguished from them"
    )
