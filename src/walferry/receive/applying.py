"""Apply the entries of a call to a target table that this process holds: what is new of them, in their order.

What is late is applied, too: it came after newer edits of its region, as it may without SERIAL when a region moves.
HBase orders cells by their timestamps, so this matters only for cells that have all but the value in common, and for
what a compaction has removed together with its delete marker. Such rows are marked as dirty (R13), and the gates stay
shut until a comparison has found them equal.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from walferry.amounts import amount
from walferry.apply.by_group import GroupTask, Part, send_entries
from walferry.apply.outcomes import Refusal
from walferry.apply.writer_protocol import RefusedError
from walferry.formats.entries import rows_of
from walferry.formats.wal import EntryBatch
from walferry.hbase.errors import RemoteError, RemoteTransientError
from walferry.ledger.received import ReceivedCall
from walferry.receive.holding import Holding, OutOfTimeError
from walferry.receive.seen import Applied

log = logging.getLogger(__name__)

MOST_REMEMBERED = 1_000_000
"""entries of a table that are remembered one by one"""
MOST_CALLS = 20_000
"""calls of a table whose entries are remembered"""
KEPT = 0.75
"""how much of that remains when the oldest is forgotten"""

Entries = npt.NDArray[np.intp]


def apply_entries(holding: Holding, batch: EntryBatch, picked: Entries, deadline: float) -> None:
    """Apply the edits `picked` of a batch, all of one table, and record them. Returns when the target has them all.

    Nobody else may apply edits of their regions meanwhile. No request begins after `deadline` (of `clock.steady_s`).
    Raises RefusedError if the target refuses edits for good: then the others of the call are recorded, except those
    that follow in the same regions. Raises NotHeldError if the lease is being given back, and the errors of
    `Writer.send`, of the guard and of the ledger: then the whole call can be repeated.
    """
    with holding.used():
        with holding.lock:
            judged = holding.seen.judge(batch, picked)
        if judged.late.any():
            _mark(holding, batch, picked[judged.late], bool(judged.forgotten.any()))
        new = ~judged.repeated
        chosen, late, prints = picked[new], judged.late[new], judged.prints[new]
        refused = _send(holding, batch, chosen, deadline)
        done = _before(batch, chosen, refused)
        applied = Applied.of(batch, chosen[done], prints[done])
        _record(holding, batch, chosen[done], applied, len(picked) - len(chosen), int(late[done].sum()))
    if refused:
        first = refused[0]
        raise RefusedError(
            f"the target refuses edit {first.sequence_number} of region {first.region} of {first.table}: "
            f"{first.reason}",
            reason=first.reason, table=first.table, region=first.region,
        )  # fmt: skip


def _send(holding: Holding, batch: EntryBatch, chosen: Entries, deadline: float) -> list[Refusal]:
    """Send edits, and wait for the answers. Returns those that are refused; of their regions nothing more was sent."""
    if not len(chosen):
        return []
    task = GroupTask(holding.route_until(deadline), (), frozenset())
    try:
        return send_entries(task, [Part("a call", batch, chosen)])
    except (OutOfTimeError, RemoteError, RemoteTransientError):
        raise  # between two attempts, or the target has answered
    except Exception:
        # The target may still carry out a request. Nothing else of these regions is sent, and the lease is not given
        # back, before that has ended.
        time.sleep(holding.route.limits.settle_seconds)
        raise


def _before(batch: EntryBatch, chosen: Entries, refused: Sequence[Refusal]) -> npt.NDArray[np.bool_]:
    """Which entries were applied: those that do not follow a refused one of their region."""
    done = np.ones(len(chosen), np.bool_)
    for refusal in refused:
        done &= ~(batch.of_regions([refusal.region])[chosen] & (batch.offset[chosen] >= refusal.start))
    return done


def _record(holding: Holding, batch: EntryBatch, done: Entries, applied: Applied, repeated: int, late: int) -> None:
    """Record what was applied, and remember it."""
    row = ReceivedCall(
        table=holding.pair.source,
        entries=len(done),
        cells=int(batch.cell_count[done].sum()),
        bytes=int((batch.end[done] - batch.cells_start[done]).sum()),
        repeated=repeated,
        late=late,
        newest_ms=int(batch.write_time[done].max()) if len(done) else None,
        content=applied.encode(),
    )
    with holding.recording:
        try:
            holding.ledger.applied([row], holding.check)
            if len(done) and not holding.stale:
                _remember(holding, applied)
        except BaseException:
            holding.stale = True  # the ledger may have the row all the same
            raise


def _remember(holding: Holding, applied: Applied) -> None:
    """Remember what was recorded, and keep what is remembered within bounds, here and in the ledger."""
    seen = holding.seen
    with holding.lock:
        seen.add(applied)
        if seen.remembered <= MOST_REMEMBERED and seen.calls <= MOST_CALLS:
            return
        while seen.remembered > KEPT * MOST_REMEMBERED or seen.calls > KEPT * MOST_CALLS:
            seen.forget(1)
        calls, floors = seen.calls, seen.floors
    holding.ledger.fold(holding.pair.source, calls, floors, holding.check)


def _mark(holding: Holding, batch: EntryBatch, late: Entries, forgotten: bool) -> None:
    rows = rows_of(batch, late).to_pylist()
    region = batch.regions[batch.region[late[0]]].decode()
    why = (
        f"old values: {amount(len(late), 'edit')}, such as number {batch.sequence_number[late[0]]} of the source's "
        f"region {region}, came after newer ones of the region"
        f"{', or once more, too long after they were applied' if forgotten else ''}"
    )
    log.warning("rows %r to %r of target table %s may hold %s", min(rows), max(rows), holding.pair.target, why)
    holding.route.guard.mark_dirty({holding.pair.target: (min(rows), max(rows))}, why)
