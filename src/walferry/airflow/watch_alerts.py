"""Alerts from the watch of a source's log: lost files, items in quarantine, a growing lag. Each is sent once."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

from walferry.airflow.notifiers import send
from walferry.amounts import amount

if TYPE_CHECKING:
    from walferry.ledger import Ledger, RunRecord
    from walferry.watch.watch import RunFacts

log = logging.getLogger(__name__)

LATE_SECONDS = 300
"""A lag raises an alert when it exceeds the run's max_lag by this many seconds."""

_LOST: Mapping[str, tuple[str, str]] = {
    "migration": ("applied", "abort the run and start over with a new snapshot"),
    "stream": ("sent", "abort the run and start over with a higher epoch"),
    "keep": ("copied", "moments after that need a later base, which the run takes once it notices"),
}
"""by kind of run (other kinds as a migration): what was not done with a file that is lost, and what follows"""


def alert_once(ledger: Ledger, watch: RunRecord, source: str, facts: RunFacts) -> None:
    """Send an alert of lost files, of items in quarantine and of a lag above the run's limit: once for each of
    these."""
    from walferry.watch import watch as log_watch

    done, way_on = _LOST.get(facts.kind, _LOST["migration"])
    late = facts.lag_seconds is not None and facts.lag_seconds > facts.max_lag + LATE_SECONDS
    found: Mapping[str, tuple[list[str], str]] = {
        "gap": (
            list(facts.lost),
            f"{amount(len(facts.lost), 'WAL file no longer exists', 'WAL files no longer exist')} at the source, not "
            f"{done} by run {facts.run_id}: the log has a gap; {way_on}",
        ),
        "quarantine": (
            [str(item) for item in facts.held],
            f"{amount(len(facts.held), 'item waits', 'items wait')} in quarantine of run {facts.run_id} (walferry "
            "quarantine list)",
        ),
        "lag": (
            ["late"] if late else [],
            f"run {facts.run_id} has a lag of {facts.lag_seconds or 0:.0f} s; its max_lag is {facts.max_lag} s",
        ),
    }
    for kind, (keys, text) in found.items():
        fresh = sorted(log_watch.unannounced(ledger, watch, kind, facts.run_id, keys))
        if fresh:
            log.error("%s: %s: %s", kind, text, ", ".join(fresh[:10]))
            message = {"event": kind, "run": facts.run_id, "source": source, "message": text, "what": fresh[:100]}
            if not send(message):
                continue  # not delivered: the next look tries again
        log_watch.mark_announced(ledger, watch, kind, facts.run_id, keys)
