"""What a run did and what it found: for people, for `--json`, and for the status line."""

from __future__ import annotations

import json
import time
from collections import Counter
from pathlib import Path
from typing import Any

from walferry.errors import WalferryError
from walferry.ledger import AuditHead, Ledger, Round, Run, WalFile
from walferry.migration.compare import UNEXPLAINED, equal

PHASES = (
    "plan", "protect", "fence", "snapshot", "copy", "clone", "check_copy", "replay", "approve", "write_stop",
    "end_fence", "drain", "compare", "check_drain", "release",
)  # fmt: skip
"""In the order of a run."""
BY_TABLE = ("snapshot", "copy", "clone", "compare")
"""those that are done once a table"""
APPLIED_CUT = "applied_cut"
"""kept as a phase by the replay, and no step of a run"""

WINDOW_PHASES = ("replay_window",)
"""of a run that replays a time window"""

READ_ONLY = "read-only table"
"""the kind of object that the ledger keeps for a source table that was set READONLY"""


def summary(ledger: Ledger, run: Run) -> dict[str, Any]:
    """Everything the report tells, as plain values. Times in seconds, digests as hex."""
    phases = ledger.phases(run.run_id)
    rounds = ledger.rounds(run.run_id)
    by_table: dict[str, dict[str, Any]] = {}
    for item in ledger.comparison(run.run_id):
        row = by_table.setdefault(
            item.table,
            {"regions": 0, "equal_regions": 0, "dropped": Counter()}
            | dict.fromkeys(("source_rows", "source_cells", "target_rows", "target_cells"), 0)
            | {"source_digest": 0, "target_digest": 0},
        )
        row["regions"] += 1
        row["equal_regions"] += equal(item)
        for key in ("source_rows", "source_cells", "target_rows", "target_cells"):
            row[key] += getattr(item, key)
        for side in ("source", "target"):
            digest = int(getattr(item, f"{side}_digest"), 16)
            row[f"{side}_digest"] = (row[f"{side}_digest"] + digest) % (1 << 128)
            row["dropped"].update({f"{side} {k}": v for k, v in item.dropped.get(side, {}).items()})
    classes: dict[str, Counter[str]] = {}
    for difference in ledger.differences(run.run_id):
        classes.setdefault(difference.table, Counter())[difference.kind] += 1
    for table, row in by_table.items():
        row["source_digest"], row["target_digest"] = f"{row['source_digest']:032x}", f"{row['target_digest']:032x}"
        row["differences"] = dict(classes.get(table, {}))
        row["dropped"] = dict(row["dropped"])
    cuts = [r.covered_ms for r in rounds]
    behind = [later.finished_ms - cut for cut, later in zip(cuts, rounds[1:], strict=False)]
    head = ledger.audit_head()
    stop = ledger.phase_facts(run.run_id, "write_stop")
    ended = [p.finished_ms for p in phases if p.phase == "check_drain" and p.finished_ms]
    return {
        "run": run.run_id,
        "state": run.state,
        "outcome": run.outcome,
        "tables": by_table,
        "unexplained": sum(c[UNEXPLAINED] for c in classes.values()),
        "phases": [
            {
                "phase": p.phase, "subject": p.subject, "state": p.state, "attempts": p.attempts,
                "seconds": round(((p.finished_ms or _now_ms()) - p.started_ms) / 1000, 1), "error": p.error,
            }
            for p in phases if p.phase != APPLIED_CUT
        ],
        "rounds": len(rounds),
        "edits_applied": sum(r.cells for r in rounds),
        "log_bytes": sum(r.bytes for r in rounds),
        "longest_lag_seconds": round(max([*behind, *(r.lag_ms for r in rounds[:1])], default=0) / 1000, 1),
        "write_stop_seconds": round((ended[-1] - stop["at_ms"]) / 1000, 1) if stop and ended else None,
        "read_only": [o.name for o in ledger.objects(run.run_id) if o.kind == READ_ONLY and o.state == "made"],
        "quarantine": len(ledger.quarantined(run.run_id, "held")),
        "gaps": len(ledger.gaps(run.run_id)) if ledger.fence(run.run_id, "end") else None,
        "coverage": [
            {"group": c.group, "table": c.table, "seen": c.seen, "sealed": c.sealed, "applied": c.applied,
             "verified": c.verified}
            for c in ledger.coverage(run.run_id)
        ],
        "audit_head": {"sequence": head.sequence, "hash": head.hash},
        "ledger": ledger.url,
        "data_docs": (ledger.phase_facts(run.run_id, "check_drain") or {}).get("data_docs"),
    }  # fmt: skip


def status(ledger: Ledger, run: Run) -> dict[str, Any]:
    """Where the run stands now: phase, percent, edits applied, backlog, lag, ETA (None while unknown)."""
    names = WINDOW_PHASES if run.spec.get("window") else PHASES
    phases = [p for p in ledger.phases(run.run_id) if p.phase in names]
    rounds = ledger.rounds(run.run_id)
    running = [p for p in phases if p.state == "running"]
    current = running[-1] if running else (phases[-1] if phases else None)
    tables = max(1, len(run.spec["tables"]))
    total = sum(tables if phase in BY_TABLE else 1 for phase in names)
    done = sum(1 for p in phases if p.state == "done")
    window = ledger.phase_facts(run.run_id, "replay_window") or {"cells": 0}
    drained = any(p.phase == "drain" and p.state == "done" for p in phases)
    now = _now_ms()
    waits = current is not None and current.phase in ("replay", "approve", "write_stop")  # for a person
    return {
        "run": run.run_id,
        "state": "paused" if run.paused else run.state,
        "phase": f"{current.phase} {current.subject}".strip() if current else "not started",
        "phase_state": current.state if current else None,
        "error": current.error if current and current.state == "failed" else None,
        "percent": round(100 * done / total, 1),
        "edits_applied": sum(r.cells for r in rounds) + window["cells"],
        "backlog_bytes": sum(file.length for file in unapplied(ledger, run)),
        "lag_seconds": _lag_seconds(rounds, drained, now) if run.state == "running" else None,
        "elapsed_seconds": round(((run.ended_ms or now) - run.created_ms) / 1000, 1),
        "eta_seconds": None if waits or done < 3 else round((now - run.created_ms) / 1000 * (total - done) / done),
    }


def unapplied(ledger: Ledger, run: Run) -> list[WalFile]:
    """The WAL files in front of the end fence, known by now, that some table of an unfinished run does not have yet."""
    if run.state != "running" or not run.spec["tables"]:
        return []
    end = {position.group: position.number for position in ledger.fence(run.run_id, "end") or []}
    applied = ledger.applied_files(run.run_id)
    return [
        file
        for file in ledger.files(run.run_id)
        if file.name not in applied and file.number < end.get(file.group, file.number + 1)
    ]


def _lag_seconds(rounds: list[Round], drained: bool, now_ms: int) -> float | None:
    """Seconds since the moment up to which all is applied; 0 behind the drain, where nothing is left to apply."""
    if not rounds or drained:
        return 0.0 if drained else None
    return round((now_ms - rounds[-1].covered_ms) / 1000, 1)


def status_line(facts: dict[str, Any]) -> str:
    """One line in the manner of gh-ost."""
    lag = "N/A" if facts["lag_seconds"] is None else f"{facts['lag_seconds']:.1f}s"
    eta = "N/A" if facts["eta_seconds"] is None or facts["state"] != "running" else f"{facts['eta_seconds']}s"
    return (
        f"{facts['phase']}: {facts['percent']:.1f}%; Applied: {facts['edits_applied']}; "
        f"Backlog: {facts['backlog_bytes'] / 1e6:.1f}MB; Time: {facts['elapsed_seconds']:.0f}s; "
        f"Lag: {lag}; State: {facts['state']}; ETA: {eta}"
    )


def render(facts: dict[str, Any]) -> str:
    """The report as text."""
    lines = [f"Run {facts['run']}: {facts['state']}{': ' + facts['outcome'] if facts['outcome'] else ''}", ""]
    for table, row in facts["tables"].items():
        verdict = "equal" if row["equal_regions"] == row["regions"] else "differs"
        lines += [
            f"{table}: {verdict} ({row['equal_regions']} of {row['regions']} regions)",
            f"  source  {row['source_rows']:>10} rows {row['source_cells']:>11} cells  digest {row['source_digest']}",
            f"  target  {row['target_rows']:>10} rows {row['target_cells']:>11} cells  digest {row['target_digest']}",
            f"  differences: {_counts(row['differences'])}",
        ]
    lines += ["", "Phase                          State     Seconds  Attempts"]
    for p in facts["phases"]:
        name = f"{p['phase']} {p['subject']}".strip()
        lines.append(f"{name:<30} {p['state']:<9} {p['seconds']:>7}  {p['attempts']:>8}")
    stop = facts["write_stop_seconds"]
    lines += [
        "",
        f"Log: {facts['log_bytes'] / 1e6:.1f} MB, {facts['edits_applied']} edits in {facts['rounds']} rounds; "
        f"gaps: {'not known yet' if facts['gaps'] is None else facts['gaps']}; quarantine: {facts['quarantine']}",
        f"Longest lag: {facts['longest_lag_seconds']} s; "
        + (
            "writes have not been stopped yet"
            if stop is None
            else f"writes were stopped for {stop} s until the last check"
        ),
        f"Ledger: {facts['ledger']}",
        f"Audit head: {facts['audit_head']['sequence']} {facts['audit_head']['hash']}",
    ]
    lines += [f"{table} is read-only at the source, and stays so" for table in facts["read_only"]]
    if facts["data_docs"]:
        lines.append(f"Data Docs: {facts['data_docs']}")
    return "\n".join(lines)


def write(ledger: Ledger, run: Run, folder: Path) -> Path:
    """Write the report as text and JSON into `folder`, the audit trail's head beside it; the text file's path.

    Raises WalferryError when the trail no longer holds the head that an earlier report noted there.
    """
    folder.mkdir(parents=True, exist_ok=True)
    noted = folder / "audit-head.json"
    ledger.verify_audit(_noted_head(noted) if noted.exists() else None)
    facts = summary(ledger, run)
    (folder / "report.json").write_text(json.dumps(facts, indent=2, sort_keys=True) + "\n")
    noted.write_text(json.dumps(facts["audit_head"]) + "\n")
    path = folder / "report.txt"
    path.write_text(render(facts) + "\n")
    return path


def _noted_head(path: Path) -> AuditHead:
    try:
        return AuditHead(**json.loads(path.read_text()))
    except (ValueError, TypeError):
        message = f"{path} does not hold an audit head as it was written: restore it, or move it away if you know why"
        raise WalferryError(message, file=str(path)) from None


def _counts(classes: dict[str, int]) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in sorted(classes.items())) or "none"


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
