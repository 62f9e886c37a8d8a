"""How far a run has come: lag, backlog and ETA, in this one place."""

from __future__ import annotations

import time
from typing import Any

from walferry.ledger import Round, RunLedger, WalFile
from walferry.run.fences import fences_of
from walferry.run.phases import phases_of


def status(ledger: RunLedger) -> dict[str, Any]:
    """Where the run stands now: phase, percent, edits applied, backlog, lag, ETA (None while unknown)."""
    run = ledger.record
    kinds = {phase.name: phase for phase in phases_of(run.kind)}
    phases = ledger.phases.all()
    rounds = ledger.rounds.all()
    running = [p for p in phases if p.state == "running"]
    current = running[-1] if running else (phases[-1] if phases else None)
    tables = max(1, len(run.spec["tables"]))
    total = sum(tables if phase.by_table else 1 for phase in kinds.values())
    done = sum(1 for p in phases if p.state == "done")
    window = ledger.phases.facts("replay_window") or {"cells": 0}
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
        "backlog_bytes": sum(file.length for file in unapplied(ledger)),
        "lag_seconds": _lag_seconds(rounds, drained, now) if run.state == "running" else None,
        "elapsed_seconds": round(((run.ended_ms or now) - run.created_ms) / 1000, 1),
        "eta_seconds": None if waits or done < 3 else round((now - run.created_ms) / 1000 * (total - done) / done),
    }


def unapplied(ledger: RunLedger) -> list[WalFile]:
    """The WAL files between the fences, known by now, that some table of an unfinished run does not have yet."""
    run = ledger.record
    if run.state != "running" or not run.spec["tables"]:
        return []
    applied = ledger.log.applied_files()
    return [file for file in fences_of(ledger).within(ledger.log.files()) if file.name not in applied]


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


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
