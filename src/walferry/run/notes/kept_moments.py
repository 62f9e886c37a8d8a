"""How far a run of kind `keep` is: noted by its process at each pass, for status, board and metrics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict

from walferry.clock import now_ms
from walferry.ledger import RunLedger

_ENDS, _LOST, _TROUBLE = "ends of open logs", "lost end", "no base"
_FOLDER, _GIVEN = "folder of the moments", "base of the restore"
LOSS_SECONDS = 60.0
"""a loss of the source that costs more than this is too much, or three times `tail_seconds` if that is longer"""


class CopiedEnds(BaseModel):
    """The last pass over the ends of open logs. Times in ms since 1970, by the machine of that process."""

    model_config = ConfigDict(frozen=True)

    covered_ms: int
    """everything that was visible in the log at this moment is in the folder"""
    at_ms: int
    """when the pass began"""
    ended_ms: int = 0
    """when the pass ended; 0 in a note of an older walferry"""
    files: int
    """logs that have only pieces"""
    bytes: int
    """of these pieces"""

    def loss_seconds(self, now: int) -> float:
        """How many seconds of changes a loss of the source would cost now."""
        return max(0.0, (now - self.covered_ms) / 1000)


def note_ends(ledger: RunLedger, ends: CopiedEnds) -> None:
    """Record a pass over the ends of open logs."""
    ledger.notes.keep(_ENDS, ends.model_dump())


def copied_ends(ledger: RunLedger) -> CopiedEnds | None:
    """The last pass over the ends of open logs; None before the first."""
    kept = ledger.notes.get(_ENDS)
    return None if kept is None else CopiedEnds.model_validate(kept)


class LostEnd(BaseModel):
    """A log that is gone at the source without a closed copy: what it had past its pieces, if any, is lost."""

    model_config = ConfigDict(frozen=True)

    kept_bytes: int
    """of its beginning"""
    covered_ms: int = 0
    """what was visible in it at this moment is kept; 0 in a note of an older walferry"""
    noticed_ms: int


def note_lost_end(ledger: RunLedger, name: str, kept_bytes: int, covered_ms: int) -> None:
    """Record that the end of a log is lost."""
    lost = LostEnd(kept_bytes=kept_bytes, covered_ms=covered_ms, noticed_ms=now_ms())
    ledger.notes.keep(_LOST, lost.model_dump(), name)


def lost_ends(ledger: RunLedger) -> dict[str, LostEnd]:
    """The logs whose ends are lost, by name. No base before `noticed_ms` leads to a later moment with certainty."""
    return {name: LostEnd.model_validate(facts) for name, (facts, _) in ledger.notes.named(_LOST).items()}


class Trouble(BaseModel):
    """Why a table has no new base."""

    model_config = ConfigDict(frozen=True)

    why: str
    since_ms: int
    gone: bool
    """the table does not exist"""


def note_trouble(ledger: RunLedger, table: str, why: str, *, gone: bool) -> None:
    """Record that a table's base could not be taken; the first such moment is kept."""

    def change(before: dict[str, Any] | None) -> Mapping[str, Any]:
        known = None if before is None else Trouble.model_validate(before)
        since = known.since_ms if known is not None and known.gone == gone else now_ms()
        return Trouble(why=why, since_ms=since, gone=gone).model_dump()

    ledger.notes.change(_TROUBLE, change, table)


def end_trouble(ledger: RunLedger, table: str) -> None:
    """Record that a table has a new base."""
    ledger.notes.drop(_TROUBLE, table)


def troubles_of(ledger: RunLedger) -> dict[str, Trouble]:
    """Why tables have no new base, by table."""
    return {table: Trouble.model_validate(facts) for table, (facts, _) in ledger.notes.named(_TROUBLE).items()}


class BaseOfRestore(BaseModel):
    """The base from which a restore begins."""

    model_config = ConfigDict(frozen=True)

    keeper: str
    """id of the run that keeps it"""
    snapshot: str
    alone: bool = False
    """whether base and log are read in that run's folder alone: the source is lost"""
    latest: bool = False
    """whether all of the log in the folder is applied, also what may lack edits of other logs"""

    @property
    def described(self) -> str:
        """For people."""
        read = "" if not self.alone else " in the folder, latest" if self.latest else " in the folder"
        return f"base {self.snapshot} of {self.keeper}{read}"


def note_base_of_restore(ledger: RunLedger, given: BaseOfRestore) -> None:
    """Record the base from which a restore (`ledger`) begins."""
    ledger.notes.keep(_GIVEN, given.model_dump())


def base_of_restore(ledger: RunLedger) -> BaseOfRestore | None:
    """What `note_base_of_restore` has recorded."""
    found = ledger.notes.get(_GIVEN)
    return None if found is None else BaseOfRestore.model_validate(found)


def bases_in_use(ledger: RunLedger) -> set[str]:
    """The bases of a run of kind `keep` from which unfinished restores begin, by their snapshots."""
    restores = [run for run in ledger.whole.runs() if (run.kind, run.state) == ("restore", "running")]
    given = [base_of_restore(ledger.whole.of(run.run_id)) for run in restores]
    return {found.snapshot for found in given if found is not None and found.keeper == ledger.run_id}


def note_folder_bytes(ledger: RunLedger, size: int) -> None:
    """Record how many bytes the run's folder has."""
    ledger.notes.keep(_FOLDER, {"bytes": size})


def folder_bytes(ledger: RunLedger) -> int | None:
    """How many bytes the run's folder had when that was last counted; None before."""
    kept = ledger.notes.get(_FOLDER)
    return None if kept is None else int(kept["bytes"])
