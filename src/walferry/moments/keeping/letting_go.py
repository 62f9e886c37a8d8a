"""Deletes bases and copies of the log that no promised moment needs (`retention`)."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from walferry.clock import now_ms
from walferry.ledger.rows import Base
from walferry.moments.keeping.base_files import BasesInFolder
from walferry.moments.keeping.ends import kept_ends
from walferry.moments.keeping.keep_run import KeepRun
from walferry.moments.keeping.retention import DAY_MS, KeptLog, expired, too_large, unneeded
from walferry.replay.keeping.by_copies import Stage
from walferry.replay.keeping.objects import drop_snapshot
from walferry.run.notes.kept_moments import bases_in_use, note_folder_bytes, troubles_of
from walferry.wal.files import parse_wal_name
from walferry.wal.pieces import folder_of

log = logging.getLogger(__name__)


def let_go(run: KeepRun, stage: Stage, copied: BasesInFolder) -> None:
    """Drop the bases that are no longer needed, then the log before the remaining ones. Idempotent.

    Raises the errors of the folder's file system.
    """
    bases, closed, ends = run.ledger.bases.there(), _closed(run), kept_ends(stage)
    names = {file.name for file in closed}
    logs = [*closed, *(file for file in ends if file.name not in names)]
    gone = {table: trouble.since_ms for table, trouble in troubles_of(run.ledger).items() if trouble.gone}
    used = bases_in_use(run.ledger)
    over = [base for base in expired(bases, gone, now_ms() - round(run.spec.keep_days * DAY_MS))
            if base.snapshot not in used]  # fmt: skip
    left = [base for base in bases if base not in over]
    early = []
    if run.spec.keep_bytes is not None:
        early = too_large(left, logs, copied.alone(left), run.spec.keep_bytes)
        early = [base for base in early if base.snapshot not in used]
        _warn(run, early)
        left = [base for base in left if base not in early]
    for base in [*over, *early]:
        # First in the ledger: nobody may choose it any more. A process that is killed here leaves the rest to the next.
        run.ledger.bases.dropped(base.snapshot)
        drop_snapshot(run, run.source, "source", base.snapshot)
        log.info("base %s dropped", base.snapshot)
    copied.sweep(left)
    old = unneeded(left, logs)
    for name in sorted(old):
        if name in names:
            stage.files.delete(f"{stage.path}/{name}")
        stage.files.delete(folder_of(stage.path, name), recursive=True)
    if closed_and_old := sorted(old & names):
        run.ledger.staged.removed(closed_and_old)
    size = sum(file.bytes for file in logs if file.name not in old) + sum(copied.alone(left).values())
    note_folder_bytes(run.ledger, size)


def _closed(run: KeepRun) -> list[KeptLog]:
    found = []
    for file in run.ledger.staged.there():
        if (parsed := parse_wal_name(file.name)) is not None:
            found.append(KeptLog(file.name, parsed.group, parsed.number, file.bytes, file.staged_ms))
    return found


def _warn(run: KeepRun, early: Iterable[Base]) -> None:
    """Say which bases go before their time."""
    for base in early:
        log.warning(
            "base %s goes before its %g days are over, since the folder has more than keep_bytes: earlier moments of "
            "%s can no longer be restored", base.snapshot, run.spec.keep_days, base.table,
        )  # fmt: skip
        facts = {"snapshot": base.snapshot, "table": base.table, "keep_bytes": run.spec.keep_bytes}
        run.ledger.audit(run.actor, "base dropped early", facts)
