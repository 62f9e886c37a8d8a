"""The second proof that the log is complete (R1), beside the lists of files: the entries' own numbers.

HBase numbers the entries of a region without holes, markers included (MultiVersionConcurrencyControl.begin; seen on
2.6.3, 2.2.3 and 1.7.2, also through moves, splits and a crash), with few exceptions. So if a file that no list knows
was deleted, a region's first number in one file does not follow its last number in the file before. Only these borders
are checked, since a file cannot lose its middle. Numbers without an entry come from

- the flush of a region: one before the flush's first marker. The flush of an empty region takes a number but writes no
  marker (and so does a snapshot of an idle region: HRegion.internalPrepareFlushCache). After an edit a region is not
  empty; after a marker it may be. How often it was flushed while empty is unknown: one number per minute is allowed,
  and EMPTY_FLUSHES more.
- an opening, or a bulk load: one before its marker.
- edits that are not logged (SKIP_WAL): any number. A person must confirm this (`walferry accept-numbers`).
- before 2.0, an increment, an append, or a check with the write it guards: HRegion first takes a number to wait for
  earlier writes (MultiVersionConcurrencyControl.await in branch-1). A check that fails, or an increment by 0, writes no
  entry, and handlers that wait at the same time take their numbers before any of them writes. So any count of numbers
  may be unused and proves nothing: such gaps are counted and shown, but shut no gate.

Numbers that go back show a new history, which `lineage` judges. Numbers before the first entry that a run sees of a
region, and after its last entry, prove nothing.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Iterable, Sequence

from walferry.amounts import amount
from walferry.apply.number_spans import NumberSpan, in_order
from walferry.apply.outcomes import FileReport
from walferry.clock import now_ms
from walferry.errors import UsageError
from walferry.ledger import NumberGap, RegionNumber, RunLedger
from walferry.ledger.batches import Change
from walferry.run.progress.missing_numbers import number_gap_text
from walferry.run.recorded_spec import source_tables
from walferry.run.run import Run
from walferry.wal.files import parse_wal_name

log = logging.getLogger(__name__)

EMPTY_FLUSHES = 3
"""flushes allowed for a region without edits since its last marker, in addition to one per minute"""


def number_change(run: Run, reports: Sequence[FileReport], tables: Collection[str]) -> Change:
    """The change that records each region's last number and gaps, according to these reports on `tables`, together with
    the files themselves.

    If a file could not be read to its end, or was left out, its tables' numbers start over: quarantine accounts for the
    file.
    """
    broken = {tally.table for report in reports if not report.complete for tally in report.tallies}
    spans = [s for report in reports if report.complete for s in report.numbers if s.table in set(tables) - broken]
    known = run.ledger.numbers.last({span.region for span in spans})
    last, gaps = chain(known.values(), spans)
    skipped = bool(gaps) and run.source.release.skips_numbers
    _tell(run.ledger, gaps, skipped)
    return run.ledger.numbers.change(last, gaps, broken, only_count=skipped)


def _tell(ledger: RunLedger, gaps: Sequence[NumberGap], skipped: bool) -> None:
    decided = {row.table for row in ledger.numbers.counted() if row.accepted_by} if gaps else set()
    known = Counter(gap.table for gap in gaps if skipped or gap.table in decided)
    for table, places in known.items():
        log.info(
            "sequence numbers of %s are missing from the log at %s; they are only counted",
            table,
            amount(places, "more place"),
        )
    for gap in gaps:
        if gap.table not in known:
            log.error("%s", number_gap_text(gap))


def chain(known: Iterable[RegionNumber], spans: Iterable[NumberSpan]) -> tuple[list[RegionNumber], list[NumberGap]]:
    """The last number of each region after these spans, and the gaps before the spans."""
    last = {number.region: number for number in known}
    gaps = []
    for span in in_order(spans):
        before = last.get(span.region)
        if before is not None and span.first - before.number - 1 > _allowed(before, span):
            first, end = before.number + 1, span.first - 1
            gaps.append(NumberGap(span.table, span.region, first, end, before.file, span.file, now_ms()))
        if before is None or span.last > before.number:
            last[span.region] = RegionNumber(span.table, span.region, span.last, span.file, span.ends_with_edit)
    seen = {span.region for span in spans}
    return [number for region, number in last.items() if region in seen], gaps


def _allowed(before: RegionNumber, span: NumberSpan) -> int:
    """How many numbers between two files of a region may have no entry."""
    most = int(not span.begins_with_edit)
    if not before.edit:
        begun = parse_wal_name(before.file)
        minutes = (span.begins_ms - begun.number) / 60_000 if begun else 0
        most += EMPTY_FLUSHES + max(0, int(minutes))
    return most


def accept(ledger: RunLedger, table: str, reason: str, actor: str, *, dry_run: bool = False) -> list[NumberGap]:
    """Record, for the rest of the run, a person's decision that a table's number gaps lose nothing.

    Returns the gaps found so far that had no decision; later gaps are only counted. Raises UsageError for a table that
    the run does not have, for a run that has ended, and for an empty reason.
    """
    if not reason.strip():
        raise UsageError("give a reason why nothing was lost: it is recorded")
    table, tables = table.removeprefix("default:"), source_tables(ledger.record)
    if table not in tables:
        raise UsageError(f"run {ledger.run_id} has no source table {table!r}, only {', '.join(tables)}", table=table)
    found = [gap for gap in ledger.numbers.gaps(accepted=False) if gap.table == table]
    if not dry_run:
        ledger.numbers.accept(table, reason, actor)
    return found
