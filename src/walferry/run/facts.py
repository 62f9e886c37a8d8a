"""What phases found out and later ones go by: typed here, kept as JSON in the ledger.

Other facts of phases are for people (the report, the board); nothing is steered by them.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

from walferry.ledger import RunLedger
from walferry.ledger.rows import FenceKind
from walferry.run.run import Run

_PHASES: dict[FenceKind, str] = {"start": "fence", "end": "end_fence"}
_APPLIED = "applied cut"


class _Facts(BaseModel):
    model_config = ConfigDict(frozen=True)


class FenceFacts(_Facts):
    """What the phases `fence` and `end_fence` found out."""

    groups: int
    """WAL groups that the fence names"""
    before: dict[str, str]
    """fingerprint of each table's regions before the cut"""
    at_ms: int
    """when the cut began"""


class WriteStopFacts(_Facts):
    """What the phase `write_stop` found out."""

    at_ms: int
    """from when on the stop counts: the operator's confirmation, or the first table's READONLY"""
    how: Literal["confirm", "readonly"]
    by: str | None = None
    """who confirmed it"""


class _AppliedCut(_Facts):
    before: dict[str, str]


def fence_facts(run: Run, kind: FenceKind) -> FenceFacts:
    """Facts of a fence that must be set by now; UsageError if it is not."""
    return FenceFacts.model_validate(run.done(_PHASES[kind]))


def fenced_ms(ledger: RunLedger) -> int | None:
    """When the cut of the start fence began; None while it is not set."""
    facts = ledger.phases.facts(_PHASES["start"])
    return None if facts is None else FenceFacts.model_validate(facts).at_ms


def write_stop_facts(ledger: RunLedger) -> WriteStopFacts | None:
    """Facts of the write stop; None before it."""
    facts = ledger.phases.facts("write_stop")
    return None if facts is None else WriteStopFacts.model_validate(facts)


def keep_applied_cut(run: Run, before: dict[str, str]) -> None:
    """Everything up to a cut is applied; `before`: fingerprint of each table's regions before it."""
    run.ledger.notes.keep(_APPLIED, _AppliedCut(before=before).model_dump())


def applied_cut(run: Run) -> dict[str, str]:
    """Fingerprints before the last cut up to which everything is applied; before the first one, the start fence's."""
    kept = run.ledger.notes.get(_APPLIED)
    return fence_facts(run, "start").before if kept is None else _AppliedCut.model_validate(kept).before
