"""Entries that a run to which a source replicates has left out, since they are older than what it is to have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from walferry.ledger import RunLedger

_NOTE = "left out"


@dataclass(frozen=True)
class LeftOut:
    """What was left out of one source table."""

    entries: int
    """one of a call that is sent again counts again; those of a killed process's last second may not count"""
    at_ms: int
    """when the last one came"""


def leave_out(ledger: RunLedger, table: str, entries: int) -> None:
    """Add so many entries of a source table."""
    ledger.notes.change(_NOTE, partial(_with_more, entries), table)


def left_out(ledger: RunLedger) -> dict[str, LeftOut]:
    """By source table."""
    return {table: LeftOut(kept["entries"], at_ms) for table, (kept, at_ms) in ledger.notes.named(_NOTE).items()}


def _with_more(entries: int, kept: Mapping[str, Any] | None) -> dict[str, int]:
    return {"entries": entries + (0 if kept is None else kept["entries"])}
