"""Apply the edits of a call to a target table that this process holds: what is new of them, in their order.

What is late is applied, too: it came after newer edits of its region, as it may without SERIAL when a region moves.
HBase orders cells by their timestamps, so this matters only for cells that have all but the value in common, and for
what a compaction has removed together with its delete marker. Such rows are marked as dirty (R13), and the gates stay
shut until a comparison has found them equal.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

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
from walferry.receive.holding import Holding, NotHeldError, OutOfTimeError
from walferry.receive.seen import Applied, Judged, Picked
from walferry.receive.target_table import TargetTable

log = logging.getLogger(__name__)

MOST_REMEMBERED = 1_000_000
"""entries of a table that are remembered one by one"""
MOST_CALLS = 20_000
"""calls of a table whose entries are remembered"""
KEPT = 0.75
"""how much of that remains when the oldest is forgotten"""


def apply_entries(holding: TargetTable, batch: EntryBatch, picked: Picked, deadline: float) -> None:
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
            _mark(holding, batch, picked[judged.late], late_text(batch, picked, judged))
        new = ~judged.repeated
        chosen, late, prints = picked[new], judged.late[new], judged.prints[new]
        refused = _send(holding, batch, chosen, deadline)
        done = _before(batch, chosen, refused)
        applied = Applied.of(batch, chosen[done], prints[done])
        table, repeated = holding.pair.source, len(picked) - len(chosen)
        row = received_call(table, batch, chosen[done], applied, repeated, int(late[done].sum()))
        record(holding, row, applied)
    if refused:
        first = refused[0]
        raise RefusedError(
            f"the target refuses edit {first.sequence_number} of region {first.region} of {first.table}: "
            f"{first.reason}",
            reason=first.reason, table=first.table, region=first.region,
        )  # fmt: skip


def _send(holding: TargetTable, batch: EntryBatch, chosen: Picked, deadline: float) -> list[Refusal]:
    """Send edits, and wait for the answers. Returns those that are refused; of their regions nothing more was sent."""
    if not len(chosen):
        return []
    task = GroupTask(holding.route_until(deadline), (), frozenset())
    with settled(holding):
        return send_entries(task, [Part("a call", batch, chosen)])


@contextmanager
def settled(holding: TargetTable) -> Iterator[None]:
    """For what sends: after an error, wait until the target must have ended the request. Nothing else of its regions is
    to be sent, and the lease is not to be given back, before that."""
    try:
        yield
    except (OutOfTimeError, NotHeldError, RefusedError, RemoteError, RemoteTransientError):
        raise  # between two attempts, or the target has answered
    except Exception:
        time.sleep(holding.route.limits.settle_seconds)
        raise


def _before(batch: EntryBatch, chosen: Picked, refused: Sequence[Refusal]) -> npt.NDArray[np.bool_]:
    """Which entries were applied: those that do not follow a refused one of their region."""
    done = np.ones(len(chosen), np.bool_)
    for refusal in refused:
        done &= ~(batch.of_regions([refusal.region])[chosen] & (batch.offset[chosen] >= refusal.start))
    return done


def received_call(
    table: str, batch: EntryBatch, done: Picked, applied: Applied, repeated: int, late: int
) -> ReceivedCall:
    """The ledger's row for the entries `done` of a call, which are `applied`."""
    return ReceivedCall(
        table=table,
        entries=len(done),
        cells=int(batch.cell_count[done].sum()),
        bytes=int((batch.end[done] - batch.cells_start[done]).sum()),
        repeated=repeated,
        late=late,
        newest_ms=int(batch.write_time[done].max()) if len(done) else None,
        content=applied.encode(),
    )


def record(holding: Holding, row: ReceivedCall, applied: Applied) -> None:
    """Record what was applied, and remember it. Call it while the lease is kept (`Holding.used`)."""
    with holding.recording:
        try:
            holding.ledger.applied([row], holding.check)
            if row.entries and not holding.stale:
                remember(holding, applied)
        except BaseException:
            holding.stale = True  # the ledger may have the row all the same
            raise


def remember(holding: Holding, *applied: Applied) -> None:
    """Remember all that was recorded, and keep what is remembered within bounds, here and in the ledger."""
    seen = holding.seen
    with holding.lock:
        for one in applied:
            seen.add(one)
        if seen.remembered <= MOST_REMEMBERED and seen.calls <= MOST_CALLS:
            return
        while seen.remembered > KEPT * MOST_REMEMBERED or seen.calls > KEPT * MOST_CALLS:
            seen.forget(1)
        calls, floors = seen.calls, seen.floors
    holding.ledger.fold(holding.pair.source, calls, floors, holding.check)


def late_text(batch: EntryBatch, picked: Picked, judged: Judged) -> str:
    """What is told of edits that came after newer ones."""
    late = picked[judged.late]
    region = batch.regions[batch.region[late[0]]].decode()
    return (
        f"{amount(len(late), 'edit')}, such as number {batch.sequence_number[late[0]]} of the source's "
        f"region {region}, came after newer ones of the region"
        f"{', or once more, too long after they were applied' if judged.forgotten.any() else ''}"
    )


def _mark(holding: TargetTable, batch: EntryBatch, late: Picked, text: str) -> None:
    rows, why = rows_of(batch, late).to_pylist(), f"old values: {text}"
    log.warning("rows %r to %r of target table %s may hold %s", min(rows), max(rows), holding.pair.target, why)
    holding.route.guard.mark_dirty({holding.pair.target: (min(rows), max(rows))}, why)
