"""The second proof that the log is complete (R1), beside the lists of files: the entries' own numbers.

HBase numbers the entries of a region without holes, markers included (MultiVersionConcurrencyControl.begin; seen on
2.6.3, 2.2.3 and 1.7.2, also through moves, splits and a crash), with few exceptions. So if a file was deleted that no
list knows, the number after the last one of a region in one file is not the first one in its next file. Only these
borders are looked at: a file cannot lose its middle. Numbers without an entry come from

- the flush of a region: one before its first marker. Of an empty region no marker follows (so does a snapshot of an
  idle region: HRegion.internalPrepareFlushCache). After an edit a region is not empty, after a marker it may be. How
  often it was flushed then is unknown: a number per minute is let pass, and EMPTY_FLUSHES more.
- an opening, or a bulk load: one before its marker.
- an increment or an append before 2.0: one after its entry.
- edits that are not logged (SKIP_WAL): any number. A person must say so (`walferry accept-numbers`).

Numbers that go back begin a new history, which `lineage` judges. Nothing is known before the first entry that a run
sees of a region, nor after its last.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Sequence

from walferry.apply.numbers import NumberSpan, in_order
from walferry.apply.outcomes import FileReport
from walferry.clock import now_ms
from walferry.errors import UsageError
from walferry.ledger import NumberGap, RegionNumber, RunLedger
from walferry.ledger.batches import Change
from walferry.run.run import Run
from walferry.wal.files import parse_wal_name

log = logging.getLogger(__name__)

EMPTY_FLUSHES = 3
"""of a region to which nothing was written since its last marker, besides one per minute"""


def follow(run: Run, reports: Sequence[FileReport], tables: Collection[str]) -> Change:
    """What to record of these reports on these tables, with the files themselves: how far each region goes, and gaps.

    A table of which a file could not be read to its end, or was left out, begins anew: quarantine accounts for that.
    """
    broken = {tally.table for report in reports if not report.complete for tally in report.tallies}
    spans = [s for report in reports if report.complete for s in report.numbers if s.table in set(tables) - broken]
    known = run.ledger.numbers.last({span.region for span in spans})
    last, gaps = chain(known.values(), spans, skips=run.source.release.skips_numbers if spans else False)
    for gap in gaps:
        log.error("%s", describe(gap))
    return run.ledger.numbers.change(last, gaps, broken)


def chain(
    known: Iterable[RegionNumber], spans: Iterable[NumberSpan], *, skips: bool
) -> tuple[list[RegionNumber], list[NumberGap]]:
    """The last entry of each region after these spans, and the numbers that are missing before them.

    `skips`: whether an increment takes a second number (before 2.0).
    """
    last = {number.region: number for number in known}
    gaps = []
    for span in in_order(spans):
        before = last.get(span.region)
        if before is not None and span.first - before.number - 1 > _allowed(before, span, skips):
            first, end = before.number + 1, span.first - 1
            gaps.append(NumberGap(span.table, span.region, first, end, before.file, span.file, now_ms()))
        if before is None or span.last > before.number:
            last[span.region] = RegionNumber(span.table, span.region, span.last, span.file, span.ends_with_edit)
    seen = {span.region for span in spans}
    return [number for region, number in last.items() if region in seen], gaps


def _allowed(before: RegionNumber, span: NumberSpan, skips: bool) -> int:
    """How many numbers may have no entry between two files of a region."""
    most = int(skips) + int(not span.begins_with_edit)
    if not before.edit:
        begun = parse_wal_name(before.file)
        minutes = (span.begins_ms - begun.number) / 60_000 if begun else 0
        most += EMPTY_FLUSHES + max(0, int(minutes))
    return most


def describe(gap: NumberGap) -> str:
    """A gap in a sentence."""
    count = gap.last - gap.first + 1
    return (
        f"region {gap.region} of {gap.table} has no entries {gap.first} to {gap.last} ({count}) between the WAL files "
        f"{gap.file_before} and {gap.file_after}: a WAL that no list has was lost, or edits skipped the log (SKIP_WAL)"
    )


def faults(ledger: RunLedger) -> list[str]:
    """What is missing and not accepted, for a gate: a sentence per table."""
    found = ledger.numbers.gaps(accepted=False)
    told = []
    for table in sorted({gap.table for gap in found}):
        mine = [gap for gap in found if gap.table == table]
        more = f" ({len(mine)} such places)" if len(mine) > 1 else ""
        how = f"`walferry accept-numbers {ledger.run_id} --table {table} --reason …`"
        told.append(f"{describe(mine[0])}{more}. Abort and start over; if writers skip the log: {how}")
    return told


def accept(ledger: RunLedger, table: str, reason: str, actor: str, *, dry_run: bool = False) -> list[NumberGap]:
    """Record that nothing was lost where numbers of a table are missing. Returns what the decision covers.

    Raises UsageError when nothing waits for it, and for an empty reason.
    """
    if not reason.strip():
        raise UsageError("give a reason why nothing was lost: it is recorded")
    found = [gap for gap in ledger.numbers.gaps(accepted=False) if gap.table == table]
    if not found:
        raise UsageError(f"no missing numbers of {table!r} wait for a decision in run {ledger.run_id}", table=table)
    if not dry_run:
        ledger.numbers.accept(table, reason, actor)
    return found
