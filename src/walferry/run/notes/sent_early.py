"""What was sent of logs while they were being written, until it is known that they were sealed with the same bytes.

Bytes past the last acknowledgement may be taken back when HDFS recovers the file of a dead server. So each log of which
something was sent has a note, before anything is sent, which stays until somebody has compared it with the sealed file
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
"""the length of a file's beginning, and the CRC-32 of the entries there"""


class SentEarly(BaseModel):
    """What was, or may have been, sent of one log."""

    model_config = ConfigDict(frozen=True)

    shown: tuple[Shown, ...]
    """how the file began whenever somebody read it from its beginning: once for each process, or more often"""
    tables: tuple[str, ...]
    """the source tables that had edits there"""


def sent_early(ledger: RunLedger) -> dict[str, SentEarly]:
    """By file, what is still to be compared."""
    return {name: SentEarly.model_validate(kept) for name, (kept, _) in ledger.notes.named(_NOTE).items()}


def note_sent(ledger: RunLedger, files: Mapping[str, SentEarly], fence: Change) -> None:
    """Keep what is about to be sent, in place of what was kept of these files. Raises what `fence` raises."""
    facts: dict[str, Mapping[str, Any]] = {name: one.model_dump() for name, one in files.items()}
    if facts:
        ledger.notes.keep_each(_NOTE, facts, fence)


def compared(ledger: RunLedger, files: Collection[str]) -> None:
    """These files were compared, and what was found is recorded."""
    if files:
        ledger.notes.drop_each(_NOTE, files)
