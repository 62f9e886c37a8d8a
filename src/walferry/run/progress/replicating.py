"""The state of a run that watches what a source replicates by itself. It has no phases: a look is over in seconds."""

from __future__ import annotations

from walferry.clock import now_ms, shown_utc
from walferry.ledger import RunLedger, RunRecord
from walferry.run.heartbeat import alive
from walferry.run.notes.watched_replication import WATCH, unseen, watched
from walferry.run.progress.states import State, meaning, state_at


def replication_state(ledger: RunLedger, run: RunRecord) -> State:
    """What the newest look has found, unless looks fail or nobody looks any more."""
    if run.paused:
        return state_at("paused", meaning("paused", run).cause, None, run)
    now, failing = watched(ledger), unseen(ledger)
    if failing is not None:
        step = meaning("failed", run).next_step
        return State("failed", failing.describe(), step, "", failing.since_ms, error=failing.reason)
    if now is None:
        return state_at("not started", meaning("not started", run).cause, None, run)
    if now.overdue_ms < now_ms() and WATCH not in alive(ledger):
        cause = f"nobody has looked since {shown_utc(now.looked_ms, '%Y-%m-%d ')}"
        return State("interrupted", cause, meaning("interrupted", run).next_step, "", now.looked_ms)
    step = meaning(now.state, run).next_step.replace("NAME", run.name)
    return State(now.state, now.cause, step, "", now.since_ms)
