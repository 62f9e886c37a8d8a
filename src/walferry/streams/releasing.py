"""Releases entries that could not be sent: their region then goes on, first with what waited behind them."""

from __future__ import annotations

from walferry.errors import UsageError
from walferry.ledger import Quarantined, RunLedger
from walferry.ledger.rows import Resolution

RESOLUTIONS: tuple[Resolution, ...] = ("retry", "accept")
"""retry: send the entry again (after somebody has changed its topic, or the decoder). accept: leave it out, for the
recorded reason"""


def check_release(ledger: RunLedger, quarantine_id: int, resolution: Resolution) -> None:
    """Raise UsageError for another run's item, and for a resolution that a stream does not have."""
    if resolution not in RESOLUTIONS:
        raise UsageError(f"a stream has no target: release item {quarantine_id} with {' or '.join(RESOLUTIONS)}")
    if quarantine_id not in {item.quarantine_id for item in ledger.quarantine.items()}:
        raise UsageError(
            f"run {ledger.run_id} has no quarantine item {quarantine_id}: `walferry quarantine list {ledger.run_id}` "
            "shows its items",
            item=quarantine_id,
        )


def release(ledger: RunLedger, quarantine_id: int, resolution: Resolution, reason: str, actor: str) -> Quarantined:
    """Record an operator's decision, which the stream follows within seconds. Raises UsageError as `check_release`."""
    check_release(ledger, quarantine_id, resolution)
    released = ledger.quarantine.release(quarantine_id, resolution, reason, actor)
    ledger.quarantine.drop_holds(quarantine_id)
    return released
