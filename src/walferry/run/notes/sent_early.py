"""Which edits of open logs were sent: noted until the sealed logs are known to have the same bytes.

HDFS may drop bytes past the last acknowledgement when it recovers the file of a dead server. So a note is written for
each log before anything of the log is sent. The note stays until it was compared with the sealed file
(`replay.log.taken_back`). Nothing else drops it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict

from walferry.ledger import RunLedger
from walferry.ledger.batches import Change

_NOTE = "sent early"

Shown = tuple[int, int]
"""length of a file's beginning, and the CRC-32 of its entries"""


class SentEarly(BaseModel):
    """The part of one log that was sent, or may have been sent."""

    model_config = ConfigDict(frozen=True)

    shown: tuple[Shown, ...]
    """the file's beginning, as seen by each reader that read from the file's start: at least one for each process"""
    tables: tuple[str, ...]
    """source tables that have edits in that part"""


def sent_early(ledger: RunLedger) -> dict[str, SentEarly]:
    """The notes that are still to be compared, by file."""
    return {name: SentEarly.model_validate(kept) for name, (kept, _) in ledger.notes.named(_NOTE).items()}


def note_sent(ledger: RunLedger, files: Mapping[str, SentEarly], lease_check: Change) -> None:
    """Note what is about to be sent, replacing older notes of these files. Raises what `lease_check` raises."""
    facts: dict[str, Mapping[str, Any]] = {name: one.model_dump() for name, one in files.items()}
    if facts:
        ledger.notes.keep_each(_NOTE, facts, lease_check)


def compared(ledger: RunLedger, files: Collection[str]) -> None:
    """Drop the notes of files that were compared and whose result is recorded."""
    if files:
        ledger.notes.drop_each(_NOTE, files)
