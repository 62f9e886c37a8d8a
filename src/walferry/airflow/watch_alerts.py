"""Alerts from the watches of a source's log, of what it replicates by itself, and of a run that receives. Each is sent
once."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

from walferry.airflow.notifiers import send
from walferry.amounts import amount, first_of

if TYPE_CHECKING:
    from walferry.ledger import Ledger, RunRecord
    from walferry.receive.watching import Seen as SeenReceiving
    from walferry.replication.watching import Seen
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
    done, way_on = _LOST.get(facts.kind, _LOST["migration"])
    late = facts.lag_seconds is not None and facts.lag_seconds > facts.max_lag + LATE_SECONDS
    gone = (
        f"{amount(len(facts.lost), 'WAL file no longer exists', 'WAL files no longer exist')} at the source, not "
        f"{done} by run {facts.run_id}: the log has a gap; {way_on}"
    )
    waiting = (
        f"{amount(len(facts.held), 'item waits', 'items wait')} in quarantine of run {facts.run_id} (walferry "
        "quarantine list)"
    )
    lag = f"run {facts.run_id} has a lag of {facts.lag_seconds or 0:.0f} s; its max_lag is {facts.max_lag} s"
    found = {
        "gap": dict.fromkeys(facts.lost, gone),
        "quarantine": dict.fromkeys(map(str, facts.held), waiting),
        "lag": {"late": lag} if late else {},
    }
    _announce(ledger, watch, facts.run_id, found, {"source": source})


def alert_of_troubles(ledger: Ledger, watch: RunRecord, seen: Seen) -> None:
    """Send an alert of what keeps edits from being replicated: once for each trouble, as long as it lasts. A look that
    failed ends none but those of looking."""
    events = ("gap", "replication", "unwatched") if seen.looked else ("unwatched",)
    found: dict[str, dict[str, str]] = {event: {} for event in events}
    for trouble in seen.troubles:
        found[trouble.event][trouble.key] = trouble.text
    _announce(ledger, watch, watch.run_id, found, {})


def alert_of_receiving(ledger: Ledger, run: RunRecord, seen: SeenReceiving) -> None:
    """Send an alert of what keeps edits from being received: once for each trouble, as long as it lasts."""
    found: dict[str, dict[str, str]] = {"receive": {}, "lag": {}}
    for trouble in seen.troubles:
        found[trouble.event][trouble.key] = f"run {run.run_id}: {trouble.text}"
    _announce(ledger, run, run.run_id, found, {})


def _announce(
    ledger: Ledger, watch: RunRecord, run_id: str, found: Mapping[str, Mapping[str, str]], about: Mapping[str, str]
) -> None:
    """Send a message about a run for each event with keys that have not been announced. `found`: a text for each key,
    by event; `about`: more for each message."""
    from walferry.watch import watch as log_watch

    for event, texts in found.items():
        fresh = sorted(log_watch.unannounced(ledger, watch, event, run_id, texts))
        if fresh:
            text = first_of(list(dict.fromkeys(texts[key] for key in fresh)), "; ")
            log.error("%s: %s: %s", event, text, ", ".join(fresh[:10]))
            if not send({"event": event, "run": run_id, **about, "message": text, "what": fresh[:100]}):
                continue  # not delivered: the next look tries again
        log_watch.mark_announced(ledger, watch, event, run_id, list(texts))
