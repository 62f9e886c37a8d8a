"""Whether a cutover may start: the conditions of the approval, for `walferry ready` and the board.

The board asks no cluster: for conditions that need one, it shows the gate's last answer and its time.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from walferry import clock
from walferry.cutover.answer import Answer, Reason
from walferry.cutover.conditions import CONDITIONS, Condition, Origin
from walferry.ledger import RunLedger
from walferry.migration.touching.equality import reread_after_flush
from walferry.run.progress.write_stop import expected_write_stop

_NOTE = "answers of the clusters"
_AGAIN_MS = 60_000
"""the time after which unchanged answers are recorded again, since they are shown with their time"""
_MOST_REASONS = 10


class ConditionNow(BaseModel):
    """A condition of the cutover, and whether it holds."""

    model_config = ConfigDict(frozen=True)

    name: str = Field(description="stable; the conditions are listed in docs/cutover.md")
    question: str
    answer: Literal["yes", "no", "unknown"] = Field(description="unknown: nobody has looked yet")
    text: str = Field(description="the present state, in words")
    reasons: tuple[Reason, ...] = Field(description="why the answer is `no`; empty for other answers")
    origin: Origin = Field(description="who knows the answer")
    looked_ms: int | None = Field(description="when somebody looked, in ms since 1970 (UTC); null if nobody has")


class ExpectedWriteStop(BaseModel):
    """How long writes will stand still."""

    model_config = ConfigDict(frozen=True)

    seconds: float | None = Field(description="null while unknown, like `least` and `most`")
    least: float | None
    most: float | None
    unknown: str = Field(description="why there is no number; empty if there is one")
    text: str


class Readiness(BaseModel):
    """Whether a cutover may begin: what `walferry ready --json` prints, and the board shows."""

    model_config = ConfigDict(frozen=True)

    version: Literal[1] = Field(description="rises when a field is removed or changes its meaning")
    run: str
    may_begin: bool = Field(description="whether the answer to every condition is `yes`")
    conditions: tuple[ConditionNow, ...]
    write_stop: ExpectedWriteStop


def readiness(ledger: RunLedger, found: Iterable[tuple[Condition, Answer]] = ()) -> Readiness:
    """The conditions of the approval now.

    `found`: answers that a gate has just found. For conditions of the clusters that `found` lacks, this uses the answer
    that a gate recorded last.
    """
    known = {condition.name: answer for condition, answer in found}
    noted, noted_ms = ledger.notes.named(_NOTE).get("", (None, 0))
    shown = []
    for condition in CONDITIONS:
        if "approval" not in condition.at:
            continue
        if condition.name in known:
            shown.append(_now(condition, known[condition.name], clock.now_ms()))
        elif condition.of_ledger is not None:
            shown.append(_now(condition, condition.of_ledger(ledger), clock.now_ms()))
        elif noted is not None and condition.name in noted:
            shown.append(_now(condition, _from_note(noted[condition.name]), noted_ms))
        else:
            shown.append(_now(condition, Answer("not known yet: the gate looks once the copy is checked"), None))
    stop = expected_write_stop(ledger, reread_after_flush(ledger))
    return Readiness(
        version=1,
        run=ledger.run_id,
        may_begin=all(one.answer == "yes" for one in shown),
        conditions=tuple(shown),
        write_stop=ExpectedWriteStop(**asdict(stop), text=stop.describe()),
    )


def note_answers(ledger: RunLedger, found: Iterable[tuple[Condition, Answer]]) -> None:
    """Record the answers from the log and the clusters for the board. A gate asks every few seconds, so unchanged
    answers are rarely written."""
    facts = {
        condition.name: [answer.text, [[one.why, one.to_do] for one in answer.reasons[:_MOST_REASONS]]]
        for condition, answer in found
        if condition.of_run is not None
    }
    kept, at_ms = ledger.notes.named(_NOTE).get("", (None, 0))
    if kept != facts or clock.now_ms() - at_ms >= _AGAIN_MS:
        ledger.notes.keep(_NOTE, facts)


def _from_note(kept: tuple[str, list[tuple[str, str]]]) -> Answer:
    text, reasons = kept
    return Answer(text, tuple(Reason(why, to_do) for why, to_do in reasons))


def _now(condition: Condition, answer: Answer, looked_ms: int | None) -> ConditionNow:
    holds: Literal["yes", "no", "unknown"] = "unknown" if looked_ms is None else "no" if answer.reasons else "yes"
    return ConditionNow(
        name=condition.name,
        question=condition.question,
        answer=holds,
        text=answer.text,
        reasons=answer.reasons,
        origin=condition.origin,
        looked_ms=looked_ms,
    )
