"""What the ledger promises of rounds."""

from __future__ import annotations

from walferry.ledger import Ledger, Round, RunRecord


def test_rounds_come_back_by_number(ledger: Ledger, run: RunRecord) -> None:
    rounds = [Round(n, 10, 20, 1, 2, 3, 4, 5, 6) for n in (1, 2)]
    for item in (rounds[1], rounds[0], rounds[0]):
        ledger.of(run.run_id).rounds.record(item)
    assert ledger.of(run.run_id).rounds.all() == rounds
