"""Late edits: edits of migrated tables past the end fence, although writes were declared stopped.

Until `release`, each late edit is an alarm, and a person decides: `apply` sets the end fence again after the edit, and
`reject` leaves the edit out for good. A client that retries may write a late edit after twenty minutes.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress

import numpy as np

from walferry.amounts import amount
from walferry.background import beside
from walferry.clock import now_ms
from walferry.cutover.reopening import drain_again
from walferry.errors import GapError, GateShutError, UsageError, WalferryError
from walferry.formats.cells import index_cells
from walferry.formats.markers import Marker
from walferry.formats.wal import EntryBatch
from walferry.hbase.rowkey import shown_row
from walferry.ledger import LateEdit, RunLedger
from walferry.replay.keeping.protect import way_of
from walferry.run.facts import note_opened
from walferry.run.run import Run
from walferry.wal.fences import Fences
from walferry.wal.files import Place, WalFile, list_wals
from walferry.wal.open import Until, Wal, open_wal

log = logging.getLogger(__name__)

LOOK_SECONDS = 2.0
SHOWN = 5


class _LateTail:
    """A tail of the log past the end fence: reads each byte once."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._fences: Fences = run.fences()
        self._tables = {pair.source for pair in run.tables}
        self._wals: dict[str, Wal] = {}
        self._archived: set[str] = set()

    def more(self) -> Iterator[LateEdit]:
        """The edits that have become visible since the last call. Raises GapError for a log that is deleted before it
        is read, unless the deletion proves that the log held no edit."""
        for file in list_wals(self._run.wal_files, self._run.wal_root):
            if self._fences.is_late(file):
                # HBase archives every log of a dead server, even one of 0 bytes. With a peer, the cleaner deletes only
                # logs that no queue names, and these hold no edit (`rounds.completeness`). Without one, it deletes any.
                with suppress(*[GapError] if way_of(self._run).NAMES_EVERY_LOG else []):
                    yield from self._of(file)

    def _of(self, file: WalFile) -> Iterator[LateEdit]:
        if file.name in self._archived:
            return
        if file.place is Place.LIVE:
            wal = self._wals.pop(file.name, None) or self._open(file)
            with suppress(FileNotFoundError):  # the file was just moved: it is read again at its new place
                yield from self._edits(file, wal.more())
                self._wals[file.name] = wal  # not if the reading stopped midway: then it starts over
                return
        yield from self._edits(file, self._open(file))
        if file.place is Place.ARCHIVED:
            self._archived.add(file.name)

    def _open(self, file: WalFile) -> Wal:
        return open_wal(self._run.wal_files, self._run.wal_root, file, Until.NOW)

    def _edits(self, file: WalFile, batches: Iterable[EntryBatch]) -> Iterator[LateEdit]:
        for batch in batches:
            for entry in np.flatnonzero(batch.holds_data & batch.of_tables(self._tables)).tolist():
                first = index_cells(batch.buffer, int(batch.cells_start[entry]), int(batch.end[entry]))
                edit = LateEdit(
                    file.name, int(batch.offset[entry]), *batch.table_and_region(entry),
                    int(batch.sequence_number[entry]), int(batch.write_time[entry]), int(batch.cell_count[entry]),
                    first.row(0), now_ms(),
                )  # fmt: skip
                if batch.marker[entry] != Marker.NONE:
                    self._run.ledger.late.note_load(edit)
                yield edit


def look(run: Run) -> list[LateEdit]:
    """Read the log past the end fence and record new edits. Returns the edits without a decision.

    Raises GapError if a log is deleted before it is read, unless the deletion proves that the log held no edit.
    """
    _record(run, _LateTail(run))
    return undecided(run.ledger)


def undecided(ledger: RunLedger) -> list[LateEdit]:
    """The recorded edits that wait for a decision."""
    return [edit for edit in ledger.late.all() if not edit.decision]


def _record(run: Run, reader: _LateTail) -> None:
    new = run.ledger.late.found(list(reader.more()))
    for edit in new[:SHOWN]:
        log.warning("LATE EDIT: %s. %s", late_edit_text(edit), verbs(run.record.name))
    if len(new) > SHOWN:
        log.warning("and %d more late edits: `walferry late %s`", len(new) - SHOWN, run.record.name)


@contextmanager
def watched(run: Run) -> Iterator[None]:
    """Look for late edits every few seconds, in another thread, from the end of the drain until the block ends."""

    def work(over: threading.Event) -> None:
        reader, drains = None, 0
        while not over.wait(LOOK_SECONDS):
            try:
                drain = run.ledger.phases.find("drain")
                if drain is None or drain.state != "done":
                    continue
                if reader is None or drains != drain.attempts:
                    reader, drains = _LateTail(run), drain.attempts
                _record(run, reader)
            except (WalferryError, OSError) as error:  # the gate reads the same log and meets the error
                log.info("the log past the end fence cannot be read now: %s", error)
                reader = None

    with beside(work, "late edits", LOOK_SECONDS):
        yield


def require_silence(run: Run) -> None:
    """Raise GateShutError if a migrated table was written past the end fence and nobody has decided about the edits."""
    late = look(run)
    if late:
        raise GateShutError(
            f"{late_edits_text(late)}. Stop the writer, then decide: {verbs(run.record.name)}",
            reasons=[late_edit_text(edit) for edit in late[:10]],
        )


def apply(run: Run, reason: str, actor: str, *, dry_run: bool = False) -> list[LateEdit]:
    """Decide to apply the edits that wait for a decision: the next attempt sets the end fence again after them. Returns
    these edits.

    An open target stays open; edits rejected earlier stay left out. Raises UsageError if no edit waits.
    """
    edits = _waiting(run)
    if not dry_run:
        run.ledger.late.decide(edits, "apply", reason, actor)
        drain_again(run, "end_fence")  # this keeps the moment of the opening
        run.ledger.phases.reopen("check_drain")
    return edits


def reject(run: Run, reason: str, actor: str, *, dry_run: bool = False) -> list[LateEdit]:
    """Decide to leave out for good the edits that wait for a decision. Returns these edits.

    Raises UsageError for an empty reason, and if no edit waits.
    """
    if not reason.strip():
        raise UsageError("give a reason for rejecting late edits: it is recorded")
    edits = _waiting(run)
    if not dry_run:
        run.ledger.late.decide(edits, "reject", reason, actor)
        note_opened(run.ledger)
        for pair in run.tables:  # the comparisons did not know that these cells are left out
            if any(edit.table == pair.source for edit in edits):
                run.ledger.phases.reopen("compare", pair.source)
        run.ledger.phases.reopen("check_drain")
    return edits


def _waiting(run: Run) -> list[LateEdit]:
    run.ledger.require_running()
    if run.ledger.phases.facts("drain") is None:
        raise UsageError(f"{run.run_id} has no late edits: its log is not drained up to an end fence")
    edits = look(run)
    if not edits:
        raise UsageError(f"no late edit of {run.run_id} waits for a decision")
    return edits


def late_edit_text(edit: LateEdit) -> str:
    """A late edit as a line."""
    row = shown_row(edit.row)
    return f"row {row} of {edit.table}, {amount(edit.cells, 'cell')}, in {edit.file} at byte {edit.start}"


def late_edits_text(edits: Sequence[LateEdit]) -> str:
    """The number of edits and the first one, as a clause."""
    return (
        f"{amount(len(edits), 'edit')} came after writes were declared stopped, the first: {late_edit_text(edits[0])}"
    )


def facts(edits: Sequence[LateEdit]) -> list[dict[str, object]]:
    """Late edits as plain values."""
    return [vars(edit) | {"row": shown_row(edit.row)} for edit in edits]


def verbs(name: str) -> str:
    """The commands with which a person decides."""
    leave = f"`walferry late {name} --reject --reason …` leaves them out"
    return f"`walferry late {name} --apply` sets the end fence again, {leave}"
