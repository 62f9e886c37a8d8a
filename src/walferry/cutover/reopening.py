"""Have phases repeated whose results no longer count."""

from __future__ import annotations

from walferry.run.facts import note_opened, opened_ms
from walferry.run.run import Run


def drain_again(run: Run, *phases: str) -> None:
    """Have the next attempt repeat these phases, the drain and the phases after it. An open target stays open."""
    note_opened(run.ledger)
    for phase in (*phases, "drain"):
        run.ledger.phases.reopen(phase)
    if opened_ms(run.ledger) is None:
        run.ledger.phases.reopen("open_target")
    compare_again(run)


def compare_again(run: Run) -> None:
    """Have the next attempt repeat the comparison of each table."""
    for pair in run.tables:
        run.ledger.phases.reopen("compare", pair.source)
