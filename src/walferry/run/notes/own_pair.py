"""Which pair a setup has opened to compare its tables: another one may have the same name."""

from __future__ import annotations

from walferry.ledger import Ledger, RunLedger, RunRecord

_BEFORE, _OWN = "pairs before the setup's own", "pair of the setup"


def unfinished_pair(ledger: Ledger, name: str) -> RunRecord | None:
    """The unfinished pair of that name."""
    return next((run for run in ledger.runs() if (run.name, run.kind, run.state) == (name, "pair", "running")), None)


def about_to_open(ledger: RunLedger, name: str) -> None:
    """Record which pairs of that name there are, before a setup opens its own."""
    if ledger.notes.get(_BEFORE) is None:
        there = [run.run_id for run in ledger.whole.runs() if (run.name, run.kind) == (name, "pair")]
        ledger.notes.keep(_BEFORE, {"runs": there})


def opened(ledger: RunLedger, run_id: str) -> None:
    """Record the pair that a setup has opened."""
    ledger.notes.keep(_OWN, {"run": run_id})


def own(ledger: RunLedger, name: str) -> RunRecord | None:
    """The unfinished pair that a setup has opened, also if its process was killed before it recorded that."""
    found, before, known = unfinished_pair(ledger.whole, name), ledger.notes.get(_BEFORE), ledger.notes.get(_OWN)
    if found is None or before is None:
        return None
    mine = found.run_id == known["run"] if known is not None else found.run_id not in before["runs"]
    return found if mine else None


def foreign(ledger: RunLedger, name: str) -> RunRecord | None:
    """The unfinished pair of that name that is not the setup's own."""
    return None if own(ledger, name) is not None else unfinished_pair(ledger.whole, name)
