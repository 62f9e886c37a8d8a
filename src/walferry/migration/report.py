"""What a run did and what it found, as text and for `--json`."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from walferry.amounts import amount
from walferry.clock import now_ms
from walferry.errors import WalferryError
from walferry.ledger import AuditHead, RunLedger
from walferry.ledger.comparisons import lacks_explanation, needs_decision
from walferry.migration.explaining.accept import difference_facts
from walferry.migration.explaining.explain import WORST_FIRST
from walferry.migration.touching.verified import unseen
from walferry.run.notes.copying_again import copied
from walferry.run.notes.last_comparison import AFTER_THE_RUN, counts_as_equal, is_after_the_run
from walferry.run.notes.spot_check import only_second, spot_check_of
from walferry.run.progress.missing_numbers import number_gap_text
from walferry.run.progress.status import status
from walferry.run.recorded_spec import options_of

SHOWN_ROWS = 20
"""of those that differ, in the text, the worst first"""
OF_STATUS = (
    "run", "state", "colour", "cause", "next_step", "waits_for", "whom", "longest_lag_seconds", "write_stop_seconds",
    "seconds_since_last_edit", "write_stop_over", "standstills", "counted_numbers",
)  # fmt: skip
"""what the report has in common with `walferry status`"""


def summary(ledger: RunLedger) -> dict[str, Any]:
    """Everything in the report, as plain values. Times are in seconds, digests in hex."""
    run = ledger.record
    phases = ledger.phases.all()
    rounds = ledger.rounds.totals()
    by_table = compared_tables(ledger)
    head = ledger.whole.audit_head()
    now = status(ledger)
    return {key: now[key] for key in OF_STATUS} | {
        "outcome": run.outcome,
        "tables": by_table,
        **{key: sum(row[key] for row in by_table.values()) for key in ("unexplained", "undecided", "uncompared")},
        "phases": [
            {
                "phase": p.phase, "subject": p.subject, "state": p.state, "attempts": p.attempts,
                "seconds": round(((p.finished_ms or now_ms()) - p.started_ms) / 1000, 1), "error": p.message,
                "error_class": p.error_class,
            }
            for p in phases
        ],
        "rounds": rounds.rounds,
        "edits_applied": rounds.cells,
        "log_bytes": rounds.bytes,
        "read_only": [o.name for o in ledger.objects.all() if o.kind == "read-only table" and o.state == "made"],
        "quarantine": len(ledger.quarantine.items("held")),
        "copied_again": {table: asdict(one) | {"text": one.describe()} for table, one in copied(ledger).items()},
        "repaired": {table: dict(kinds) for table, kinds in ledger.repairs.counts().items()},
        "late_edits": dict(Counter(edit.decision or "undecided" for edit in ledger.late.all())),
        "gaps": len(ledger.log.gaps()) if ledger.log.fence("end") else None,
        "unseen": _unseen(ledger),
        "missing_numbers": [asdict(gap) | {"text": number_gap_text(gap)} for gap in ledger.numbers.gaps()],
        "coverage": [
            {"group": c.group, "table": c.table, "seen": c.seen, "sealed": c.sealed, "applied": c.applied,
             "verified": c.verified}
            for c in ledger.log.coverage()
        ],
        "audit_head": {"sequence": head.sequence, "hash": head.hash},
        "ledger": ledger.whole.url,
        "data_docs": (ledger.phases.facts("check_drain") or {}).get("data_docs"),
    }  # fmt: skip


def _unseen(ledger: RunLedger) -> list[str]:
    """What a migration does not see until its last whole comparison is done."""
    looks = ledger.record.kind == "migration" and options_of(ledger.record).compare_ahead
    return unseen(ledger) if looks and ledger.phases.facts("check_drain") is None else []


def compared_tables(ledger: RunLedger) -> dict[str, dict[str, Any]]:
    """What each table's newest comparison found, worst rows first; digests in hex."""
    by_table: dict[str, dict[str, Any]] = {}
    newest = {made.table: made for made in ledger.comparisons.tables()}
    purposes = {table: made.purpose for table, made in newest.items()}
    differing = {table: made.differing_rows for table, made in newest.items()}  # not all are named
    checks = {table: spot_check_of(ledger, made) for table, made in newest.items()}
    summed = ("source_rows", "source_cells", "target_rows", "target_cells", "expiring", "uncompared")
    for item in ledger.comparisons.ranges():
        row = by_table.setdefault(
            item.table,
            {"regions": 0, "equal_regions": 0, "dropped": Counter(), "made_by": purposes.get(item.table)}
            | dict.fromkeys((*summed, "source_digest", "target_digest"), 0),
        )
        row["regions"] += 1
        row["equal_regions"] += item.equal
        for key in summed:
            row[key] += getattr(item, key)
        for side in ("source", "target"):
            digest = int(getattr(item, f"{side}_digest"), 16)
            row[f"{side}_digest"] = (row[f"{side}_digest"] + digest) % (1 << 128)
            row["dropped"].update({f"{side} {k}": v for k, v in item.dropped.get(side, {}).items() if v})
    decided = ledger.comparisons.accepted()
    for table, row in by_table.items():
        found = sorted(ledger.comparisons.differences(None, table), key=lambda item: WORST_FIRST.index(item.kind))
        row |= {
            "source_digest": f"{row['source_digest']:032x}", "target_digest": f"{row['target_digest']:032x}",
            "dropped": dict(row["dropped"]), "differences": dict(Counter(item.kind for item in found)),
            "unexplained": differing.get(table, 0) - sum(not lacks_explanation(item, decided) for item in found),
            "undecided": sum(needs_decision(item, decided) for item in found),
            "second_reader": check.describe() if (check := checks.get(table)) else None,
            "rows": [difference_facts(item, decided) for item in found],
            "rows_since": [difference_facts(item, decided) for item in ledger.comparisons.looked(table)],
        }  # fmt: skip
        row["after_the_run"] = table in newest and is_after_the_run(ledger, newest[table])
        row["equal_since"] = (
            bool(row["unexplained"] or row["undecided"])
            and counts_as_equal(ledger, table)
            and not only_second(ledger, newest[table])  # looks are the first reader's
        )
    return by_table


def render(facts: dict[str, Any]) -> str:
    """The report as text."""
    lines = [f"Run {facts['run']}: {facts['state']}: {facts['cause']}"]
    if facts["state"] != "done":
        lines.append(f"Next step: {facts['next_step']}")
    lines.append("")
    for table, row in facts["tables"].items():
        verdict = "equal" if row["equal_regions"] == row["regions"] else "differs"
        lines += [
            f"{table}: {verdict} ({row['equal_regions']} of {amount(row['regions'], 'region')})",
            f"  source  {row['source_rows']:>10} rows {row['source_cells']:>11} cells  digest {row['source_digest']}",
            f"  target  {row['target_rows']:>10} rows {row['target_cells']:>11} cells  digest {row['target_digest']}",
            f"  differences: {_counts(row['differences'])}",
            *_rows(row["rows"]),
            *([f"  second reader: {row['second_reader']}"] if row["second_reader"] else []),
            *([f"  {AFTER_THE_RUN}"] if row["after_the_run"] and row["differences"] else []),
            *(["  equal when they were looked at again"] if row["equal_since"] else []),
            *(["  touched since, and differ:"] if row["rows_since"] else []),
            *_rows(row["rows_since"]),
            *_repaired(facts["repaired"].get(table, {})),
            *([f"  {facts['copied_again'][table]['text']}"] if table in facts["copied_again"] else []),
        ]
        if row["uncompared"]:
            lines.append(
                f"  {amount(row['uncompared'], 'cell')} expired while they were read, and only one side held them"
            )
    lines += ["", "Phase                          State     Seconds  Attempts"]
    for p in facts["phases"]:
        name = f"{p['phase']} {p['subject']}".strip()
        lines.append(f"{name:<30} {p['state']:<9} {p['seconds']:>7}  {p['attempts']:>8}")
    longest = facts["longest_lag_seconds"]
    lines += [
        "",
        f"Log: {facts['log_bytes'] / 1e6:.1f} MB, {amount(facts['edits_applied'], 'edit')} in "
        f"{amount(facts['rounds'], 'round')}; "
        f"gaps: {'not known yet' if facts['gaps'] is None else facts['gaps']}; quarantine: {facts['quarantine']}",
        f"Longest lag while following: {'N/A' if longest is None else f'{longest:.1f} s'}; {_write_stop(facts)}",
        f"Ledger: {facts['ledger']}",
        f"Audit head: {facts['audit_head']['sequence']} {facts['audit_head']['hash']}",
    ]
    for decision, count in sorted(facts["late_edits"].items()):
        said = {"apply": "applied", "reject": "REJECTED: they are not at the target"}.get(decision, "undecided")
        lines.append(f"WARNING: {amount(count, 'edit')} came after writes were declared stopped: {said}")
    lines += [f"Until the last whole comparison: {text}" for text in facts["unseen"]]
    lines += _numbers(facts["missing_numbers"])
    lines += [f"WARNING: {standstill['text']}" for standstill in facts["standstills"]]
    lines += [f"{'' if r['accepted_by'] else 'WARNING: '}{r['text']}" for r in facts["counted_numbers"]]
    lines += [f"{table} is read-only at the source, and stays so" for table in facts["read_only"]]
    if facts["data_docs"]:
        lines.append(f"Data Docs: {facts['data_docs']}")
    return "\n".join(lines)


def _write_stop(facts: dict[str, Any]) -> str:
    if facts["write_stop_seconds"] is None:
        return "writes have not been stopped"
    quiet = facts["seconds_since_last_edit"]
    edit = "" if quiet is None else f" ({quiet} s from the log's last edit)"
    if facts["write_stop_over"]:
        return f"writes were stopped for {facts['write_stop_seconds']} s until the target was open{edit}"
    return f"writes have been stopped for {facts['write_stop_seconds']} s so far{edit}"


def write(ledger: RunLedger, folder: Path) -> Path:
    """Write the report as text and JSON into `folder`, with the audit trail's head. Returns the text file's path.

    Raises WalferryError when the trail no longer has the head that an earlier report wrote there.
    """
    folder.mkdir(parents=True, exist_ok=True)
    noted = folder / "audit-head.json"
    ledger.whole.verify_audit(_noted_head(noted) if noted.exists() else None)
    facts = summary(ledger)
    (folder / "report.json").write_text(json.dumps(facts, indent=2, sort_keys=True) + "\n")
    noted.write_text(json.dumps(facts["audit_head"]) + "\n")
    path = folder / "report.txt"
    path.write_text(render(facts) + "\n")
    return path


def _noted_head(path: Path) -> AuditHead:
    try:
        return AuditHead(**json.loads(path.read_text()))
    except (ValueError, TypeError):
        message = f"{path} does not hold an audit head: restore it, or move it away if you know why it changed"
        raise WalferryError(message, file=str(path)) from None


def _rows(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    lines = []
    for row in rows[:SHOWN_ROWS]:
        decision = f"; accepted by {row['accepted_by']}: {row['reason']}" if row["accepted_by"] else ""
        lines.append(f"    {row['kind']:<21} {row['row']}: {row['detail']}{decision}")
    if len(rows) > SHOWN_ROWS:
        lines.append(f"    and {len(rows) - SHOWN_ROWS} more rows, all of them in `walferry report --json`")
    return lines


def _repaired(kinds: Mapping[str, int]) -> list[str]:
    if not kinds:
        return []
    named = {kind or "without a class": count for kind, count in kinds.items()}
    return [f"  repaired during the run: {_counts(named)}"]


def _numbers(gaps: Sequence[Mapping[str, Any]]) -> list[str]:
    lines = []
    for gap in gaps[:SHOWN_ROWS]:
        made = f"accepted by {gap['accepted_by']}: {gap['reason']}" if gap["accepted_by"] else "not accepted"
        lines.append(f"Missing numbers: {gap['text']}; {made}")
    if len(gaps) > SHOWN_ROWS:
        lines.append(f"and {len(gaps) - SHOWN_ROWS} more such places, all of them in `walferry report --json`")
    return lines


def _counts(classes: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in sorted(classes.items())) or "none"
