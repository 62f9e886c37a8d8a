"""Facts that one phase records and later phases use: typed here, kept as JSON in the ledger.

All other facts of phases are only for people (the report, the board).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import BaseModel, ConfigDict
from sqlalchemy import Connection

from walferry.ledger import RunLedger
from walferry.ledger.batches import Change
from walferry.ledger.rows import FenceKind
from walferry.run.run import LogRun

_PHASES: dict[FenceKind, str] = {"start": "fence", "end": "end_fence"}
_LINES = "lines of regions"
_START = "start fence"
_OPENED = "target opened"

Lines = Mapping[str, Mapping[str, str]]
"""For each source table, the line of each region, by encoded name (`replay.log.cut`)."""
LinesOf = Literal["applied", "end fence"]
"""Which cut: the last one before which everything is applied (at first the start fence), or the end fence."""


class _Facts(BaseModel):
    model_config = ConfigDict(frozen=True)


class FenceFacts(_Facts):
    """What the phases `fence` and `end_fence` found out."""

    groups: int
    """WAL groups that the fence names"""
    at_ms: int
    """when the cut began"""


class WriteStopFacts(_Facts):
    """What the phase `write_stop` found out."""

    at_ms: int
    """when the stop began: the operator's confirmation, or the first table's READONLY"""
    how: Literal["confirm", "readonly"]
    by: str | None = None
    """who confirmed it"""


class OpenFacts(_Facts):
    """What the phase `open_target` found out."""

    at_ms: int | None
    """when clients may begin to use the target; None: at the end of `check_drain`"""
    why: tuple[str, ...] = ()
    """why clients must wait for `check_drain`"""
    rows: dict[str, int] = {}
    """for each table, how many rows were compared: those written since its last whole comparison"""
    explained: dict[str, int] = {}
    """for each table, how many of these rows differ for a known reason, such as a flush that dropped a version"""


def open_facts(ledger: RunLedger) -> OpenFacts | None:
    """Facts of `open_target`; None before it."""
    facts = ledger.phases.facts("open_target")
    return None if facts is None else OpenFacts.model_validate(facts)


def opened_ms(ledger: RunLedger) -> int | None:
    """When the target was opened to clients: by `open_target` or, if that declined, at the end of `check_drain`.

    Once noted (`note_opened`), the moment stays, even if these phases are repeated.
    """
    if (kept := ledger.notes.get(_OPENED)) is not None:
        return int(kept["at_ms"])
    facts = open_facts(ledger)
    if facts is not None and facts.at_ms is not None:
        return facts.at_ms
    checked = ledger.phases.find("check_drain")
    return checked.finished_ms if checked is not None and checked.state == "done" else None


def note_opened(ledger: RunLedger) -> None:
    """Keep the moment at which the target was opened, once `open_target` or `check_drain` has recorded it. Call this
    after each of the two phases, and before either is repeated."""
    if (at_ms := opened_ms(ledger)) is not None and ledger.notes.get(_OPENED) is None:
        ledger.notes.keep(_OPENED, {"at_ms": at_ms})


def fence_facts(run: LogRun, kind: FenceKind) -> FenceFacts:
    """Facts of a fence. Raises UsageError if the fence is not set yet."""
    return FenceFacts.model_validate(run.done(_PHASES[kind]))


def fenced_ms(ledger: RunLedger) -> int | None:
    """When the cut of the start fence began; None while the fence is not set."""
    facts = ledger.phases.facts(_PHASES["start"])
    return None if facts is None else FenceFacts.model_validate(facts).at_ms


def write_stop_facts(ledger: RunLedger) -> WriteStopFacts | None:
    """Facts of the write stop; None before it."""
    facts = ledger.phases.facts("write_stop")
    return None if facts is None else WriteStopFacts.model_validate(facts)


def keeping_start(run: LogRun, facts: FenceFacts, lines: Lines) -> Change:
    """A change that remembers what belongs to a start fence: its facts, and the lines of the regions before its cut."""
    notes = run.ledger.notes
    changes = notes.keeping(_START, facts.model_dump()), notes.keeping(_LINES, lines, "applied")

    def change(connection: Connection) -> None:
        for one in changes:
            one(connection)

    return change


def kept_start(run: LogRun) -> FenceFacts | None:
    """The facts of the start fence that `keeping_start` has remembered."""
    kept = run.ledger.notes.get(_START)
    return None if kept is None else FenceFacts.model_validate(kept)


def keep_lines(run: LogRun, of: LinesOf, lines: Lines) -> None:
    """Remember the lines of the regions before a cut."""
    run.ledger.notes.keep(_LINES, lines, of)


def kept_lines(run: LogRun, of: LinesOf) -> Lines:
    """The lines that `keep_lines` recorded for a cut; none before that cut was made."""
    return run.ledger.notes.get(_LINES, of) or {}
