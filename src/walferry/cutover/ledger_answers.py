"""Conditions of the cutover that the ledger alone can answer. The board checks them, too: they need no cluster."""

from __future__ import annotations

from walferry import clock
from walferry.amounts import amount
from walferry.clock import shown_utc
from walferry.cutover.answer import Answer, Reason
from walferry.ledger import ComparedTable, RunLedger
from walferry.migration.repairing.repair import is_unfinished
from walferry.migration.report import compared_tables
from walferry.migration.report_model import TableReport
from walferry.migration.touching.equality import reread_after_flush
from walferry.migration.touching.verified import verified
from walferry.run.notes.copying_again import replaced_ms, waits_for_copying
from walferry.run.notes.failing import Failing, failing
from walferry.run.notes.last_comparison import comparisons_of_phase
from walferry.run.notes.newest import keeps_closed
from walferry.run.notes.sent_early import sent_early
from walferry.run.phases import steps
from walferry.run.progress.backlog import unapplied
from walferry.run.progress.comparing_ahead import waits_for_comparing
from walferry.run.progress.lag import caught_up, lag_of
from walferry.run.progress.missing_numbers import reasons as missing_numbers
from walferry.run.progress.next_step import accept_command
from walferry.run.recorded_spec import options_of, source_tables

SHOWN_GAPS = 10
_ROUNDS = 1_000
"""how many rounds are searched for the last one before a comparison"""


def phases_done(ledger: RunLedger) -> Answer:
    """Whether the run replays and nobody has approved the cutover yet."""
    run = ledger.record
    if run.state != "running":
        said = f"the run has ended as {run.state}"
        return Answer(said, (Reason(said, "start a new run"),))
    facts = ledger.phases.facts("approve")
    if facts is not None:
        said = f"the cutover has begun: {facts.get('by') or 'somebody'} approved it"
        return Answer(said, (Reason(said, f"`walferry status {run.name}` shows how far it is"),))
    done = {(phase.phase, phase.subject) for phase in ledger.phases.all() if phase.state == "done"}
    for phase, table in steps(run.kind, source_tables(run)):
        if phase.name == "replay":
            break
        if (phase.name, table) not in done:
            said = f"the target is not complete yet: {f'{phase.name} {table}'.strip()} is not done"
            return Answer(said, (Reason(said, "wait for it"),))
    return Answer("the snapshot is copied and checked, and the log is being replayed")


def not_paused(ledger: RunLedger) -> Answer:
    """Whether the run may send edits."""
    if not ledger.record.paused:
        return Answer("the run is not paused")
    said = "the run is paused"
    return Answer(said, (Reason(said, f"`walferry resume {ledger.record.name}`"),))


def lag_is_small(ledger: RunLedger) -> Answer:
    """How far the target is behind the source, against `max_lag`."""
    lag, most = lag_of(ledger), options_of(ledger.record).max_lag
    text = lag.unknown if lag.seconds is None else f"{lag.seconds:.1f} s; at most {most} s (`max_lag`)"
    if caught_up(ledger):
        return Answer(text)
    why = f"the lag is above {most} s" if lag.seconds else f"the lag is unknown: {lag.unknown}"
    return Answer(text, (Reason(why, f"wait; `walferry status {ledger.record.name}` shows what the lag consists of"),))


def log_is_there(ledger: RunLedger) -> Answer:
    """How much of the log is accounted for. Sealed files that wait are no reason against the cutover: the lag shows
    them."""
    waiting = unapplied(ledger)
    missing = [file.name for file in waiting if file.state == "missing"]
    size = sum(file.length for file in waiting) / 1e6
    opened = sum(file.state == "open" for file in waiting)
    logs = {0: "", 1: " and the contents of 1 open log"}.get(opened, f" and the contents of {opened} open logs")
    text = f"{size:.1f} MB{logs} wait to be applied" if waiting else "everything known of the log is applied"
    if not missing:
        return Answer(text)
    lost = f"WAL file {missing[0]} is missing at the source and was not applied"
    if len(missing) > 1:
        lost += f", and {len(missing) - 1} more files"
    advice = f"put it into the source's oldWALs if you have it, otherwise `walferry abort {ledger.record.name}`"
    return Answer(text, (Reason(lost, advice),))


def log_is_kept(ledger: RunLedger) -> Answer:
    """Whether the copying of the source's log succeeds; a peer keeps it without the run."""
    found = failing(ledger, "keeping")
    return Answer("the source's log is kept") if found is None else _is_failing(ledger, found)


def log_is_cut(ledger: RunLedger) -> Answer:
    """Whether the source's log can be cut: without a cut, nothing ends a round, nor the drain."""
    found = failing(ledger, "cut")
    return Answer("the source's log can be cut") if found is None else _is_failing(ledger, found)


def _is_failing(ledger: RunLedger, found: Failing) -> Answer:
    said = found.describe()
    return Answer(said, (Reason(said, found.to_do(ledger.record.name)),))


def newest_comparison(ledger: RunLedger) -> Answer:
    """The newest comparison of each table. A missing or old comparison is a reason only if the spec requires one."""
    run = ledger.record
    most = options_of(run).max_comparison_age
    if text := waits_for_copying(ledger):
        return Answer(text, (_copying_again(ledger, text),))
    if text := waits_for_comparing(ledger):
        return Answer(text, (Reason(text, "wait for it"),))
    newest = {made.table: made for made in ledger.comparisons.tables()}
    if not newest and most is None:
        spares = (
            f"the write stop will have to wait for a whole comparison; `walferry verify {run.name}` now avoids that"
        )
        return Answer(f"no table has been compared yet: {spares}")
    found = compared_tables(ledger) if newest else {}
    verify = f"`walferry verify {run.name}`"
    texts: list[str] = []
    reasons: list[Reason] = []
    for table in source_tables(run):
        made, result = newest.get(table), found.get(table)
        if made is None or result is None:
            texts.append(f"{table} has not been compared in this run")
            reasons += [Reason(texts[-1], verify)] if most is not None else []
        elif (replaced_ms(ledger, table) or 0) >= made.began_ms:
            texts.append(f"{table} has not been compared since it was copied again")
            reasons.append(Reason(texts[-1], f"{verify}, unless `compare_ahead` does it by itself"))
        else:
            text, faulty = _verdict(ledger, made, result)
            texts.append(text)
            if faulty:
                reasons.append(Reason(text, f"{_advice(ledger, table, result)}, {verify} compares again"))
            elif most is not None and clock.now_ms() - made.began_ms > most * 1000:
                # Not the age: that would be a new reason each time that the gate is asked.
                began = shown_utc(made.began_ms, "%Y-%m-%d at ")
                why = f"the comparison of {table} began on {began}, more than {most} s ago (`max_comparison_age`)"
                reasons.append(Reason(why, verify))
    return Answer("; ".join(texts), tuple(reasons))


def _verdict(ledger: RunLedger, made: ComparedTable, result: TableReport) -> tuple[str, bool]:
    """The finding of a comparison, and whether it is a reason against the cutover."""
    bad = [
        f"{count} {what}"
        for count, what in ((result.unexplained, "without an explanation"), (result.undecided, "without a decision"))
        if count
    ]
    unread = f"{amount(result.uncompared, 'cell')} expired while they were read" if result.uncompared else ""
    differs = f"differing rows: {', '.join(bad)}" if bad else ""
    verdict = "; ".join(filter(None, (differs, unread))) or "no unexplained difference"
    when = f"{shown_utc(made.began_ms)}{_applied(ledger, made)}"
    text = f"{made.table} at {when}: {amount(result.source_rows, 'row')}, {verdict}"
    if result.equal_since:
        return f"{text}, and equal when they were looked at again", bool(unread)
    return text, bool(bad or unread)


def _advice(ledger: RunLedger, table: str, result: TableReport) -> str:
    """What to do if a table does not count as equal after a comparison."""
    run = ledger.record
    advice = [f"`walferry report {run.name}` shows them"]
    if result.unexplained:
        advice.append(f"`walferry repair {run.name}` makes them equal")
    if result.undecided:
        advice.append(f"{accept_command(run, table)} leaves those with a known reason as they are")
    return ", ".join(advice)


def _applied(ledger: RunLedger, made: ComparedTable) -> str:
    """How far the log was applied when a comparison started."""
    rounds = ledger.rounds.latest(_ROUNDS)
    covered = [earlier.covered_ms for earlier in rounds if earlier.finished_ms <= made.began_ms]
    return f" (applied up to {shown_utc(covered[-1])})" if covered else ""


def equal_since(ledger: RunLedger) -> Answer:
    """What is known about each table since it was found equal as a whole."""
    text, reasons = verified(ledger)
    return Answer(text, tuple(Reason(why, to_do) for why, to_do in reasons))


def opening_soon(ledger: RunLedger) -> Answer:
    """When the target will open. A late opening only makes the write stop longer and is no reason against the
    cutover."""
    found = [keeps_closed(ledger, table, clock.now_ms()) for table in source_tables(ledger.record)]
    late = [why for why in found if why]
    if not late:
        again = reread_after_flush(ledger)
        text = "the target opens once the rows touched last are found equal"
        if again:
            text += f"; READONLY flushes the regions, so rows of {', '.join(again)} with delete markers that "
            text += "hide single versions are read again then"
        return Answer(text)
    more = f" (and {len(late) - 1} more tables)" if len(late) > 1 else ""
    return Answer(f"the target opens only after the whole comparison: {late[0]}{more}")


def compares_ahead(ledger: RunLedger) -> Answer:
    """Whether the tables were compared before writes stopped."""
    if options_of(ledger.record).compare_ahead:
        return Answer("tables are compared before writes stop (`compare_ahead`)")
    said = "the spec has `compare_ahead: false`"
    return Answer(said, (Reason(said, ""),))


def quarantine_empty(ledger: RunLedger) -> Answer:
    """Whether the quarantine is empty: no item waits, and no edit is held for one."""
    held = ledger.quarantine.items("held")
    if held:
        text = f"{amount(len(held), 'item')} in quarantine, the first: {held[0].reason}"
        return Answer(text, (Reason(text, f"`walferry quarantine list {ledger.run_id}` shows what to release"),))
    waiting = {hold.table for hold in ledger.quarantine.holds()}
    if waiting:
        text = f"edits of {', '.join(sorted(waiting))} held for a released quarantine item are not applied yet"
        return Answer(text, (Reason(text, "wait: they are applied next"),))
    return Answer("the quarantine is empty")


def numbers_complete(ledger: RunLedger) -> Answer:
    """Whether each log sequence number of a region has its entry, or a person has accepted that the entry is
    missing."""
    reasons = tuple(Reason(why, to_do) for why, to_do in missing_numbers(ledger))
    return Answer("numbers are missing in the log" if reasons else "no number is missing", reasons)


def no_gap(ledger: RunLedger) -> Answer:
    """Whether every byte between the fences is applied."""
    gaps = ledger.log.gaps()
    reasons = tuple(
        Reason(f"{gap.file} [{gap.start}, {gap.end}) of {gap.table}: {gap.reason}", repeat(ledger, "drain"))
        for gap in gaps[:SHOWN_GAPS]
    )
    return Answer(f"{amount(len(gaps), 'range')} of the log not applied" if gaps else "every byte is applied", reasons)


def sent_early_compared(ledger: RunLedger) -> Answer:
    """Whether edits sent from open logs were compared with these logs after they were sealed."""
    sent = sent_early(ledger)
    if not sent:
        return Answer("the sealed logs hold what was sent from open logs")
    text = (
        f"{amount(len(sent), 'log was', 'logs were')} not compared with what was sent while still open, such as "
        f"{min(sent)}"
    )
    return Answer(text, (Reason(text, repeat(ledger, "drain")),))


def not_copied_again(ledger: RunLedger) -> Answer:
    """Whether no target table is being replaced."""
    text = waits_for_copying(ledger)
    return Answer(text, (_copying_again(ledger, text),)) if text else Answer("no table is being copied again")


def compared_last(ledger: RunLedger) -> Answer:
    """Whether the phase `compare` has compared each table after the drain, for the current end fence."""
    _, missing = comparisons_of_phase(ledger)
    why = "was not compared by this run's phase `compare` after the drain and for the current end fence"
    reasons = tuple(Reason(f"{table} {why}", repeat(ledger, "compare")) for table in missing)
    return Answer(reasons[0].why if reasons else "each table is compared for the end fence", reasons)


def no_repair_owed(ledger: RunLedger) -> Answer:
    """Whether no repair is unfinished: interrupted after it compacted a region of the target, and before it sent the
    markers that it owes to other rows."""
    reasons = tuple(
        Reason(
            f"a repair of {table} was interrupted after it had compacted a region of the target",
            f"`walferry repair {ledger.record.name} --table {table}` finishes it",
        )
        for table in source_tables(ledger.record)
        if is_unfinished(ledger, table)
    )
    return Answer(reasons[0].why if reasons else "no repair is unfinished", reasons)


def repeat(ledger: RunLedger, phase: str) -> str:
    """How a person repeats a phase after the write stop and the phases that follow."""
    return f"clear `{phase}` and everything after it, or `walferry resume {ledger.record.name}`"


def _copying_again(ledger: RunLedger, text: str) -> Reason:
    if ledger.phases.facts("write_stop") is None:
        return Reason(text, "wait for it")
    return Reason(text, f"`walferry withdraw {ledger.record.name}` lets the copying go on")
