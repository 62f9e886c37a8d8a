"""That replication which a run has set up is torn down, or somebody has begun to."""

from __future__ import annotations

from typing import Any

from walferry.clock import now_ms, shown_utc
from walferry.ledger import RunLedger

_BEGUN, _TORN_DOWN = "teardown begun", "torn down"


def begin_teardown(ledger: RunLedger, actor: str, reason: str) -> None:
    """Record that a setup is being torn down."""
    if ledger.notes.get(_BEGUN) is None:
        ledger.notes.keep(_BEGUN, {"by": actor, "reason": reason, "at_ms": now_ms()})
        ledger.audit(actor, "tear down replication", {"run": ledger.run_id, "reason": reason})


def end_teardown(ledger: RunLedger, actor: str) -> None:
    """Record that a setup is torn down."""
    if torn_down(ledger) is None:
        ledger.notes.keep(_TORN_DOWN, {"by": actor, "at_ms": now_ms()})
        ledger.audit(actor, "replication torn down", {"run": ledger.run_id})


def teardown_begun(ledger: RunLedger) -> bool:
    """Whether somebody has begun to tear a setup down."""
    return ledger.notes.get(_BEGUN) is not None


def torn_down(ledger: RunLedger) -> dict[str, Any] | None:
    """By whom and when a setup was torn down; None if it was not."""
    return ledger.notes.get(_TORN_DOWN)


def torn_down_text(ledger: RunLedger) -> str:
    """The same for people, or that a teardown has begun; "" if none has."""
    if (down := torn_down(ledger)) is not None:
        return f"torn down by {down['by']} at {shown_utc(down['at_ms'], '%Y-%m-%d ')}"
    if (begun := ledger.notes.get(_BEGUN)) is not None:
        return f"{begun['by']} has begun to tear it down: `walferry replicate teardown {ledger.record.name}` goes on"
    return ""
