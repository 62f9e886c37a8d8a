"""The choices of a person when a check after the write stop has not passed."""

from __future__ import annotations

from typing import Literal, get_args

from walferry.ledger import RunLedger
from walferry.run.facts import opened_ms

Way = Literal["Check again", "Repair, check again", "Accept, check again", "Withdraw", "Abort"]


def ways_out(ledger: RunLedger) -> tuple[Way, ...]:
    """The choices of a person; none before writes have stopped, and none once the run is over.

    Once the target is open, clients may have written to it, so writers cannot go back to the source.
    """
    if ledger.record.state != "running" or ledger.phases.facts("write_stop") is None:
        return ()
    return get_args(Way) if opened_ms(ledger) is None else get_args(Way)[:3]
