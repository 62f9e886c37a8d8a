"""What a run did and what it found, as text and for `--json`."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from walferry.amounts import amount
from walferry.clock import now_ms
from walferry.errors import WalferryError
from walferry.ledger import AcceptedDifference, AuditHead, ComparedTable, PhaseRecord, RangeComparison, RunLedger
from walferry.ledger.comparisons import Decision, lacks_explanation, needs_decision
from walferry.migration.explaining.accept import DifferenceShown, difference_facts
from walferry.migration.explaining.difference_classes import WORST_FIRST
from walferry.migration.report_model import (
    CopiedAgain,
    CoverageReport,
    MissingNumbers,
    PhaseReport,
    Report,
    TableReport,
    TrailHead,
)
from walferry.migration.touching.verified import unseen
from walferry.run.notes.copying_again import copied
from walferry.run.notes.last_comparison import AFTER_THE_RUN, counts_as_equal, is_after_the_run
from walferry.run.notes.spot_check import only_second, spot_check_of
from walferry.run.progress.missing_numbers import number_gap_text
from walferry.run.progress.status import status
from walferry.run.progress.status_model import RunShown
from walferry.run.recorded_spec import options_of, topics_of

SHOWN_ROWS = 20
"""the most differing rows that the text names, the worst first"""
_SUMMED = ("source_rows", "source_cells", "target_rows", "target_cells", "expiring", "uncompared")


def summary(ledger: RunLedger) -> Report:
    """Everything in the report."""
    run = ledger.record
    rounds = ledger.rounds.totals()
    by_table = compared_tables(ledger)
    head = ledger.whole.audit_head()
    now = status(ledger)
    return Report(
        version=1,
        **{name: getattr(now, name) for name in RunShown.model_fields},
        outcome=run.outcome,
        topics=topics_of(run),
        tables=by_table,
        unexplained=sum(row.unexplained for row in by_table.values()),
        undecided=sum(row.undecided for row in by_table.values()),
        uncompared=sum(row.uncompared for row in by_table.values()),
        phases=tuple(_phase(phase) for phase in ledger.phases.all()),
        rounds=rounds.rounds,
        edits_applied=rounds.cells,
        log_bytes=rounds.bytes,
        read_only=tuple(o.name for o in ledger.objects.all() if o.kind == "read-only table" and o.state == "made"),
        quarantine=len(ledger.quarantine.items("held")),
        copied_again={table: CopiedAgain(**asdict(one), text=one.describe()) for table, one in copied(ledger).items()},
        repaired={table: dict(kinds) for table, kinds in ledger.repairs.counts().items()},
        late_edits=dict(Counter(edit.decision or "undecided" for edit in ledger.late.all())),
        gaps=len(ledger.log.gaps()) if ledger.log.fence("end") else None,
        unseen=tuple(_unseen(ledger)),
        missing_numbers=tuple(MissingNumbers(**vars(gap), text=number_gap_text(gap)) for gap in ledger.numbers.gaps()),
        coverage=tuple(CoverageReport(**vars(item)) for item in ledger.log.coverage()),
        audit_head=TrailHead(sequence=head.sequence, hash=head.hash),
        ledger=ledger.whole.url,
        data_docs=(ledger.phases.facts("check_drain") or {}).get("data_docs"),
    )


def _phase(phase: PhaseRecord) -> PhaseReport:
    return PhaseReport(
        phase=phase.phase,
        subject=phase.subject,
        state=phase.state,
        attempts=phase.attempts,
        seconds=round(((phase.finished_ms or now_ms()) - phase.started_ms) / 1000, 1),
        error=phase.message,
        error_class=phase.error_class,
    )


def _unseen(ledger: RunLedger) -> list[str]:
    """What a migration does not see until its last whole comparison is done."""
    looks = ledger.record.kind == "migration" and options_of(ledger.record).compare_ahead
    return unseen(ledger) if looks and ledger.phases.facts("check_drain") is None else []


def compared_tables(ledger: RunLedger) -> dict[str, TableReport]:
    """What each table's newest comparison found."""
    newest = {made.table: made for made in ledger.comparisons.tables()}
    decided = ledger.comparisons.accepted()
    regions: dict[str, list[RangeComparison]] = {}
    for item in ledger.comparisons.ranges():
        regions.setdefault(item.table, []).append(item)
    return {table: _compared(ledger, table, newest.get(table), found, decided) for table, found in regions.items()}


def _compared(
    ledger: RunLedger,
    table: str,
    made: ComparedTable | None,
    regions: Sequence[RangeComparison],
    decided: Mapping[Decision, AcceptedDifference],
) -> TableReport:
    found = sorted(ledger.comparisons.differences(None, table), key=lambda item: WORST_FIRST.index(item.kind))
    differing = made.differing_rows if made else 0  # not all are named
    unexplained = differing - sum(not lacks_explanation(item, decided) for item in found)
    undecided = sum(needs_decision(item, decided) for item in found)
    check = spot_check_of(ledger, made) if made else None
    return TableReport(
        made_by=made.purpose if made else None,
        regions=len(regions),
        equal_regions=sum(item.equal for item in regions),
        **{name: sum(getattr(item, name) for item in regions) for name in _SUMMED},
        source_digest=_added(item.source_digest for item in regions),
        target_digest=_added(item.target_digest for item in regions),
        dropped=_dropped(regions),
        differences=dict(Counter(item.kind for item in found)),
        unexplained=unexplained,
        undecided=undecided,
        second_reader=check.describe() if check else None,
        rows=tuple(difference_facts(item, decided) for item in found),
        rows_since=tuple(difference_facts(item, decided) for item in ledger.comparisons.looked(table)),
        after_the_run=made is not None and is_after_the_run(ledger, made),
        equal_since=made is not None
        and bool(unexplained or undecided)
        and counts_as_equal(ledger, table)
        and not only_second(ledger, made),  # looks are the first reader's
    )


def _added(digests: Iterable[str]) -> str:
    return f"{sum(int(digest, 16) for digest in digests) % (1 << 128):032x}"


def _dropped(regions: Sequence[RangeComparison]) -> dict[str, int]:
    found: Counter[str] = Counter()
    for item in regions:
        for side in ("source", "target"):
            found.update({f"{side} {fate}": count for fate, count in item.dropped.get(side, {}).items() if count})
    return dict(found)


def render(report: Report) -> str:
    """The report as text."""
    lines = [f"Run {report.run}: {report.state}: {report.cause}"]
    if report.state != "done":
        lines.append(f"Next step: {report.next_step}")
    lines.append("")
    lines += [f"{table} -> topic {topic}" for table, topic in report.topics.items()]
    for table, row in report.tables.items():
        lines += _table(report, table, row)
    if report.receiving is not None:
        lines += report.receiving.lines()
    if report.phases:
        lines += ["", "Phase                          State     Seconds  Attempts"]
    for phase in report.phases:
        name = f"{phase.phase} {phase.subject}".strip()
        lines.append(f"{name:<30} {phase.state:<9} {phase.seconds:>7}  {phase.attempts:>8}")
    follows = report.kind not in ("keep", "restore", "replication", "setup", "receive")
    lines += ["", *_applied(report)] if follows else [""] if report.phases or report.receiving else []
    lines += [
        f"Ledger: {report.ledger}",
        f"Audit head: {report.audit_head.sequence} {report.audit_head.hash}",
    ]
    for decision, count in sorted(report.late_edits.items()):
        said = {"apply": "applied", "reject": "REJECTED: they are not at the target"}.get(decision, "undecided")
        lines.append(f"WARNING: {amount(count, 'edit')} came after writes were declared stopped: {said}")
    lines += [f"Until the last whole comparison: {text}" for text in report.unseen]
    lines += _numbers(report.missing_numbers)
    lines += [f"WARNING: {standstill.text}" for standstill in report.standstills]
    lines += [f"{'' if row.accepted_by else 'WARNING: '}{row.text}" for row in report.counted_numbers]
    lines += [f"{table} is read-only at the source, and stays so" for table in report.read_only]
    if report.data_docs:
        lines.append(f"Data Docs: {report.data_docs}")
    return "\n".join(lines)


def _applied(report: Report) -> list[str]:
    longest = report.longest_lag_seconds
    gaps = stopped = ""
    if report.kind != "stream":  # which has neither an end fence nor a write stop
        gaps = f"gaps: {'not known yet' if report.gaps is None else report.gaps}; "
        stopped = f"; {_write_stop(report)}"
    return [
        f"Log: {report.log_bytes / 1e6:.1f} MB, {amount(report.edits_applied, 'edit')} in "
        f"{amount(report.rounds, 'round')}; {gaps}quarantine: {report.quarantine}",
        f"Longest lag while following: {'N/A' if longest is None else f'{longest:.1f} s'}{stopped}",
    ]


def _table(report: Report, table: str, row: TableReport) -> list[str]:
    verdict = "equal" if row.equal_regions == row.regions else "differs"
    unread = f"  {amount(row.uncompared, 'cell')} expired while they were read, and only one side held them"
    return [
        f"{table}: {verdict} ({row.equal_regions} of {amount(row.regions, 'region')})",
        f"  source  {row.source_rows:>10} rows {row.source_cells:>11} cells  digest {row.source_digest}",
        f"  target  {row.target_rows:>10} rows {row.target_cells:>11} cells  digest {row.target_digest}",
        f"  differences: {_counts(row.differences)}",
        *_rows(row.rows),
        *([f"  second reader: {row.second_reader}"] if row.second_reader else []),
        *([f"  {AFTER_THE_RUN}"] if row.after_the_run and row.differences else []),
        *(["  equal when they were looked at again"] if row.equal_since else []),
        *(["  touched since, and differ:"] if row.rows_since else []),
        *_rows(row.rows_since),
        *_repaired(report.repaired.get(table, {})),
        *([f"  {report.copied_again[table].text}"] if table in report.copied_again else []),
        *([unread] if row.uncompared else []),
    ]


def _write_stop(report: Report) -> str:
    if report.write_stop_seconds is None:
        return "writes have not been stopped"
    quiet = report.seconds_since_last_edit
    edit = "" if quiet is None else f" ({quiet} s from the log's last edit)"
    if report.write_stop_over:
        return f"writes were stopped for {report.write_stop_seconds} s until the target was open{edit}"
    return f"writes have been stopped for {report.write_stop_seconds} s so far{edit}"


def write(ledger: RunLedger, folder: Path) -> Path:
    """Write the report as text and JSON into `folder`, with the audit trail's head. Returns the text file's path.

    Raises WalferryError when the trail no longer has the head that an earlier report wrote there.
    """
    folder.mkdir(parents=True, exist_ok=True)
    noted = folder / "audit-head.json"
    ledger.whole.verify_audit(_noted_head(noted) if noted.exists() else None)
    report = summary(ledger)
    (folder / "report.json").write_text(json.dumps(report.model_dump(), indent=2, sort_keys=True) + "\n")
    noted.write_text(json.dumps(report.audit_head.model_dump()) + "\n")
    path = folder / "report.txt"
    path.write_text(render(report) + "\n")
    return path


def _noted_head(path: Path) -> AuditHead:
    try:
        return AuditHead(**json.loads(path.read_text()))
    except (ValueError, TypeError):
        message = f"{path} does not hold an audit head: restore the file, or move it away if you know why it changed"
        raise WalferryError(message, file=str(path)) from None


def _rows(rows: Sequence[DifferenceShown]) -> list[str]:
    lines = []
    for row in rows[:SHOWN_ROWS]:
        decision = f"; accepted by {row.accepted_by}: {row.reason}" if row.accepted_by else ""
        lines.append(f"    {row.kind:<21} {row.row}: {row.detail}{decision}")
    if len(rows) > SHOWN_ROWS:
        lines.append(f"    and {len(rows) - SHOWN_ROWS} more rows, all of them in `walferry report --json`")
    return lines


def _repaired(kinds: Mapping[str, int]) -> list[str]:
    if not kinds:
        return []
    named = {kind or "without a class": count for kind, count in kinds.items()}
    return [f"  repaired during the run: {_counts(named)}"]


def _numbers(gaps: Sequence[MissingNumbers]) -> list[str]:
    lines = []
    for gap in gaps[:SHOWN_ROWS]:
        made = f"accepted by {gap.accepted_by}: {gap.reason}" if gap.accepted_by else "not accepted"
        lines.append(f"Missing numbers: {gap.text}; {made}")
    if len(gaps) > SHOWN_ROWS:
        lines.append(f"and {len(gaps) - SHOWN_ROWS} more such places, all of them in `walferry report --json`")
    return lines


def _counts(classes: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in sorted(classes.items())) or "none"
