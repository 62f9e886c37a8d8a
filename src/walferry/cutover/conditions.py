"""The conditions of the cutover, in one table: what must hold for the approval, for the opening, and for the release.

`walferry ready`, the board, the gates and docs/cutover.md read the table. To add a condition, write a function in
`ledger_answers` or `cluster_answers`, and an entry with its test.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from walferry.cutover import cluster_answers, ledger_answers
from walferry.cutover.answer import Answer
from walferry.cutover.reopening import compare_again, drain_again
from walferry.errors import GateShutError
from walferry.ledger import RunLedger
from walferry.run.run import Run

Moment = Literal["approval", "opening", "release"]
"""a person approves the cutover; the target opens to clients (phase `open_target`); the run may end (`check_drain`)"""
Origin = Literal["ledger", "log", "clusters"]
"""where the answer comes from: the ledger; the source's log past the end fence; the clusters' masters and ZooKeeper"""


@dataclass(frozen=True)
class Condition:
    """Something that must hold. `of_ledger` checks the condition, or `of_run` if the ledger does not have the
    answer."""

    name: str
    question: str
    at: tuple[Moment, ...]
    origin: Origin
    of_ledger: Callable[[RunLedger], Answer] | None = None
    of_run: Callable[[Run], Answer] | None = None
    """for the log and the clusters: processes of the run call it, the board never does"""
    repeats: Literal["", "drain", "compare"] = ""
    """the phase that the next attempt repeats if the condition does not hold at the release"""
    state_shows: bool = True
    """whether the run's state shows the reason by itself; otherwise the gate records the reason for the state"""
    by_order: bool = False
    """whether the order of the phases already ensures the condition: people see it, but no gate checks it"""

    def ask(self, run: Run) -> Answer:
        """The answer now."""
        if self.of_run is not None:
            return self.of_run(run)
        assert self.of_ledger is not None
        return self.of_ledger(run.ledger)


DRAINED: tuple[Moment, ...] = ("opening", "release")

CONDITIONS = (
    Condition(
        "phases", "Is the target complete, and has nobody approved the cutover yet?", ("approval",), "ledger",
        ledger_answers.phases_done, by_order=True,
    ),
    Condition("pause", "May the run send edits?", ("approval",), "ledger", ledger_answers.not_paused),
    Condition("lag", "Is the target close behind the source?", ("approval",), "ledger", ledger_answers.lag_is_small),
    Condition("log", "Is every WAL file there?", ("approval",), "ledger", ledger_answers.log_is_there),
    Condition("keeping", "Is the source's log being kept?", ("approval",), "ledger", ledger_answers.log_is_kept),
    Condition("cut", "Can the source's log be cut?", ("approval",), "ledger", ledger_answers.log_is_cut),
    Condition(
        "comparison", "Did the newest comparison of each table find both sides equal?", ("approval",), "ledger",
        ledger_answers.newest_comparison, state_shows=False,
    ),
    Condition(
        "verified", "Was everything touched since then found equal?", ("approval",), "ledger",
        ledger_answers.equal_since, state_shows=False,
    ),
    Condition("opening", "When will the target open?", ("approval",), "ledger", ledger_answers.opening_soon),
    Condition(
        "compare ahead", "Were the tables compared before writes stopped?", ("opening",), "ledger",
        ledger_answers.compares_ahead,
    ),
    Condition(
        "late edits", "Was nothing written past the end fence?", DRAINED, "log",
        of_run=cluster_answers.no_late_edit,
    ),
    Condition(
        "gaps", "Is every byte of the log between the fences applied?", DRAINED, "ledger", ledger_answers.no_gap,
        repeats="drain",
    ),
    Condition(
        "quarantine", "Is the quarantine empty?", ("approval", *DRAINED), "ledger", ledger_answers.quarantine_empty,
        repeats="drain",
    ),
    Condition(
        "numbers", "Does the log have an entry for each sequence number?", ("approval", *DRAINED), "ledger",
        ledger_answers.numbers_complete, repeats="drain",
    ),
    Condition(
        "sent early", "Do the sealed logs hold what was sent from open logs?", DRAINED, "ledger",
        ledger_answers.sent_early_compared, repeats="drain",
    ),
    Condition(
        "copy", "Is no table being copied again?", DRAINED, "ledger", ledger_answers.not_copied_again,
        repeats="drain",
    ),
    Condition(
        "repairs", "Is every repair finished?", DRAINED, "ledger", ledger_answers.no_repair_owed,
        repeats="drain",
    ),
    Condition(
        "schema", "Do the families of both sides agree?", ("approval", *DRAINED), "clusters",
        of_run=cluster_answers.schemas_agree, repeats="drain", state_shows=False,
    ),
    Condition(
        "rows", "Are all rows free of old edits of a suspended process?", ("approval", "opening"), "clusters",
        of_run=cluster_answers.no_dirty_rows, state_shows=False,
    ),
    Condition(
        "compared", "Was each table compared after the drain?", ("release",), "ledger", ledger_answers.compared_last,
        repeats="compare",
    ),
    Condition(
        "rows compared", "Was each row that may hold old edits compared after it was sent?", ("release",), "clusters",
        of_run=cluster_answers.dirty_rows_compared, repeats="compare",
    ),
)  # fmt: skip
"""in the order in which people see them"""


def named(name: str) -> Condition:
    """The condition of this name."""
    (condition,) = (one for one in CONDITIONS if one.name == name)
    return condition


def asked_at(*moments: Moment) -> list[Condition]:
    """The conditions that the gates check at all these moments."""
    return [one for one in CONDITIONS if set(moments) <= set(one.at) and not one.by_order]


def ask(run: Run, conditions: Iterable[Condition]) -> list[tuple[Condition, Answer]]:
    """Check each condition now."""
    return [(condition, condition.ask(run)) for condition in conditions]


def reasons(found: Iterable[tuple[Condition, Answer]]) -> list[str]:
    """Each reason with its advice, in the order of the table."""
    return [str(reason) for _, answer in found for reason in answer.reasons]


def require(found: Sequence[tuple[Condition, Answer]]) -> None:
    """Raise GateShutError, fact `reasons`, unless every condition holds."""
    if against := reasons(found):
        raise GateShutError(f"the gate is shut: {'; '.join(against)}", reasons=against)


def require_or_repeat(run: Run, conditions: Iterable[Condition]) -> None:
    """Raise GateShutError unless every condition holds, and have the next attempt repeat the phases that the failed
    conditions name."""
    found = ask(run, conditions)
    again = {condition.repeats for condition, answer in found if answer.reasons}
    if "drain" in again:
        drain_again(run)  # applies held edits once their items are released; repeats the comparisons, too
    elif "compare" in again:
        compare_again(run)
    require(found)
