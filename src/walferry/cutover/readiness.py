"""Whether a cutover may begin: an answer to each question, the same for the gate, `walferry ready` and the board.

Most answers come from the ledger alone. What only the clusters know, the gate finds out and notes, for the board.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from walferry import clock
from walferry.amounts import amount
from walferry.clock import shown_utc
from walferry.ledger import ComparedTable, RunLedger, source_tables
from walferry.migration.report import compared_tables
from walferry.migration.touching.claims import reread_after_flush
from walferry.migration.touching.verified import verified
from walferry.run.notes.copying_again import replaced_ms, waits_for_copying
from walferry.run.notes.newest import keeps_closed
from walferry.run.phases import steps
from walferry.run.progress.backlog import unapplied
from walferry.run.progress.comparing_ahead import waits_for_comparing
from walferry.run.progress.lag import caught_up, lag_of, max_lag
from walferry.run.progress.missing_numbers import faults
from walferry.run.progress.state import accept_command
from walferry.run.progress.write_stop import ExpectedStop, expected_write_stop
from walferry.run.spec import Spec

_NOTE = "asked of the clusters"
_AGAIN_MS = 60_000
"""after which what is still the same is kept again: it is shown with its time"""
_ROUNDS = 1_000
"""in which is looked for the one before a comparison"""


@dataclass(frozen=True)
class Answer:
    """The answer to one question about the cutover: yes, unless there are reasons against it."""

    question: str
    text: str
    """what is so now"""
    reasons: tuple[str, ...] = ()
    """each says what is wrong, and what to do about it"""
    known: bool = True
    """False: nobody has looked yet"""

    @property
    def is_yes(self) -> bool:
        """Whether nothing speaks against the cutover here."""
        return self.known and not self.reasons


@dataclass(frozen=True)
class Readiness:
    """Whether a cutover may begin, and how long writes would stand still."""

    answers: tuple[Answer, ...]
    write_stop: ExpectedStop

    @property
    def may_begin(self) -> bool:
        """Whether every answer is yes."""
        return all(answer.is_yes for answer in self.answers)

    def facts(self) -> dict[str, Any]:
        """As plain values, for `--json` and the board."""
        return {
            "may_begin": self.may_begin,
            "answers": [
                {
                    "question": answer.question,
                    "answer": "yes" if answer.is_yes else "no" if answer.known else "unknown",
                    "text": answer.text,
                    "reasons": list(answer.reasons),
                }
                for answer in self.answers
            ],
            "write_stop": asdict(self.write_stop) | {"text": self.write_stop.describe()},
        }


def readiness(ledger: RunLedger, of_gate: Sequence[Answer] | None = None) -> Readiness:
    """Every answer now: `of_gate` has those of the gate; without it, those of the clusters are what it last found."""
    gate = [*before_approval(ledger), *_noted(ledger)] if of_gate is None else of_gate
    return Readiness((_phases(ledger), *gate), expected_write_stop(ledger, reread_after_flush(ledger)))


def before_approval(ledger: RunLedger) -> list[Answer]:
    """The answers of the ledger, without those about phases, on which the phase `approve` itself depends."""
    return [
        _pause(ledger), _lag(ledger), _log(ledger), _comparison(ledger), _verified(ledger), _opening(ledger),
        quarantine(ledger), _numbers(ledger),
    ]  # fmt: skip


def note_of_clusters(ledger: RunLedger, answers: Sequence[Answer]) -> None:
    """Keep what the gate found at the clusters; asked every few seconds, so few of those are written."""
    facts = {"answers": [[a.question, a.text, list(a.reasons[:10])] for a in answers]}
    kept, at_ms = ledger.notes.named(_NOTE).get("", (None, 0))
    if kept != facts or clock.now_ms() - at_ms >= _AGAIN_MS:
        ledger.notes.keep(_NOTE, facts)


def _noted(ledger: RunLedger) -> list[Answer]:
    """What the gate last found, which may be long ago: nobody asks it while a person is asked for the approval."""
    facts, at_ms = ledger.notes.named(_NOTE).get("", (None, 0))
    if facts is None:
        text = "nobody has looked yet: the gate does once the copy is checked"
        return [Answer("schema", text, known=False), Answer("rows", text, known=False)]
    at = shown_utc(at_ms, "%Y-%m-%d at ")
    return [
        Answer(question, f"{text} (looked on {at})", tuple(reasons)) for question, text, reasons in facts["answers"]
    ]


def _phases(ledger: RunLedger) -> Answer:
    run = ledger.record
    if run.state != "running":
        return Answer("phases", f"the run has ended as {run.state}", (f"the run has ended as {run.state}",))
    facts = ledger.phases.facts("approve")
    if facts is not None:
        said = f"the cutover has begun: {facts.get('by') or 'somebody'} approved it"
        return Answer("phases", said, (said,))
    done = {(phase.phase, phase.subject) for phase in ledger.phases.all() if phase.state == "done"}
    for phase, table in steps(run.kind, source_tables(run.spec)):
        if phase.name == "replay":
            break
        if (phase.name, table) not in done:
            said = f"the target is not complete yet: {f'{phase.name} {table}'.strip()} is not done; wait for it"
            return Answer("phases", said, (said,))
    return Answer("phases", "the snapshot is copied and checked, and the log is being replayed")


def _pause(ledger: RunLedger) -> Answer:
    name = ledger.record.name
    reasons = (f"the run is paused: `walferry resume {name}`",) if ledger.record.paused else ()
    return Answer("pause", "the run is paused" if reasons else "the run is not paused", reasons)


def _lag(ledger: RunLedger) -> Answer:
    lag, most = lag_of(ledger), max_lag(ledger)
    text = lag.unknown if lag.seconds is None else f"{lag.seconds:.1f} s; at most {most} s (`max_lag`)"
    if caught_up(ledger):
        return Answer("lag", text)
    return Answer("lag", text, (f"the lag is above {most} s" if lag.seconds else f"the lag is unknown: {lag.unknown}",))


def _log(ledger: RunLedger) -> Answer:
    """How much of the log is accounted for. What is sealed and waits is no reason: the lag tells of it."""
    waiting = unapplied(ledger)
    missing = [file.name for file in waiting if file.state == "missing"]
    size = sum(file.length for file in waiting) / 1e6
    opened = sum(file.state == "open" for file in waiting)
    logs = {0: "", 1: " and what 1 open log holds"}.get(opened, f" and what {opened} open logs hold")
    text = f"{size:.1f} MB{logs} wait to be applied"
    lost = f"WAL file {missing[0]} is missing at the source and was not applied" if missing else ""
    if len(missing) > 1:
        lost += f", and {len(missing) - 1} more files"
    advice = f"put it into the source's oldWALs if you have it, otherwise `walferry abort {ledger.record.name}`"
    return Answer(
        "log", text if waiting else "all that is known of it is applied", (f"{lost}: {advice}",) if missing else ()
    )


def _comparison(ledger: RunLedger) -> Answer:
    """The newest comparison of each table. That there is none, or how old it is, is a reason only where the spec wants
    one."""
    run = ledger.record
    most = run.spec.get("max_comparison_age", Spec.model_fields["max_comparison_age"].default)
    if text := waits_for_copying(ledger) or waits_for_comparing(ledger):
        return Answer("comparison", text, (text,))
    newest = {made.table: made for made in ledger.comparisons.tables()}
    if not newest and most is None:
        spares = (
            f"the write stop will have to wait for a whole comparison; `walferry verify {run.name}` now spares that"
        )
        return Answer("comparison", f"no table has been compared yet: {spares}")
    found = compared_tables(ledger) if newest else {}
    verify = f"`walferry verify {run.name}`"
    texts, reasons = [], []
    for table in source_tables(run.spec):
        made, result = newest.get(table), found.get(table, {})
        if made is None:
            texts.append(f"{table} has not been compared in this run")
            reasons += [f"{texts[-1]}: {verify}"] if most is not None else []
            continue
        if (replaced_ms(ledger, table) or 0) >= made.began_ms:
            texts.append(f"{table} has not been compared since it was copied again")
            reasons.append(f"{texts[-1]}: {verify}, if that is not done by itself (`compare_ahead`)")
            continue
        bad = [
            f"{result[key]} {what}"
            for key, what in (("unexplained", "without an explanation"), ("undecided", "without a decision"))
            if result.get(key)
        ]
        unread = (
            f"{amount(result['uncompared'], 'cell')} expired while they were read" if result.get("uncompared") else ""
        )
        differs = f"differing rows: {', '.join(bad)}" if bad else ""
        verdict = "; ".join(filter(None, (differs, unread))) or "no unexplained difference"
        when = f"{shown_utc(made.began_ms)}{_applied(ledger, made)}"
        texts.append(f"{table} at {when}: {amount(result['source_rows'], 'row')}, {verdict}")
        if result.get("equal_since"):
            texts[-1] += ", and equal when they were looked at again"
            bad = []
        if bad or unread:
            reasons.append(f"{texts[-1]}; {_advice(ledger, table, result)}, {verify} compares again")
        elif most is not None and clock.now_ms() - made.began_ms > most * 1000:
            # Its age would be another reason each time that the gate is asked.
            reasons.append(
                f"the comparison of {table} began on {shown_utc(made.began_ms, '%Y-%m-%d at ')}, more than {most} s "
                f"ago (`max_comparison_age`): {verify}"
            )
    return Answer("comparison", "; ".join(texts), tuple(reasons))


def _advice(ledger: RunLedger, table: str, result: Mapping[str, Any]) -> str:
    """What to do about a comparison by which a table does not count as equal."""
    run = ledger.record
    advice = [f"`walferry report {run.name}` shows them"]
    if result.get("unexplained"):
        advice.append(f"`walferry repair {run.name}` makes them equal")
    if result.get("undecided"):
        advice.append(f"{accept_command(run, table)} leaves those as they are for which there is a reason")
    return ", ".join(advice)


def _verified(ledger: RunLedger) -> Answer:
    text, reasons = verified(ledger)
    return Answer("verified", text, tuple(reasons))


def _opening(ledger: RunLedger) -> Answer:
    """When the target will open. That it opens late is no reason against the cutover: the write stop tells of it."""
    found = [keeps_closed(ledger, table, clock.now_ms()) for table in source_tables(ledger.record.spec)]
    late = [why for why in found if why]
    if not late:
        again = reread_after_flush(ledger)
        text = "the target opens once what was touched last is found equal"
        if again:
            text += f"; READONLY flushes the regions, so that rows of {', '.join(again)} with delete markers that "
            text += "hide single versions are read again then"
        return Answer("opening", text)
    more = f" (and {len(late) - 1} more tables)" if len(late) > 1 else ""
    return Answer("opening", f"the target opens only after the whole comparison: {late[0]}{more}")


def _applied(ledger: RunLedger, made: ComparedTable) -> str:
    """Up to when the log was applied when a comparison began."""
    rounds = ledger.rounds.latest(_ROUNDS)
    covered = [earlier.covered_ms for earlier in rounds if earlier.finished_ms <= made.began_ms]
    return f" (applied up to {shown_utc(covered[-1])})" if covered else ""


def quarantine(ledger: RunLedger) -> Answer:
    """Whether no item, and no edit held for one, waits."""
    held = ledger.quarantine.items("held")
    if held:
        listed = f"walferry quarantine list {ledger.run_id}"
        text = f"{amount(len(held), 'item')} in quarantine, the first: {held[0].reason} ({listed})"
        return Answer("quarantine", text, (text,))
    waiting = {hold.table for hold in ledger.quarantine.holds()}
    if waiting:
        text = f"edits of {', '.join(sorted(waiting))} held for a released quarantine item are not applied yet"
        return Answer("quarantine", text, (text,))
    return Answer("quarantine", "empty")


def _numbers(ledger: RunLedger) -> Answer:
    reasons = tuple(faults(ledger))
    return Answer("numbers", "numbers are missing in the log" if reasons else "no number is missing", reasons)
