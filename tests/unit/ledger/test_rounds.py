"""What the ledger promises about rounds."""

from __future__ import annotations

from walferry.ledger import Ledger, Round, RoundTotals, RunRecord


def test_rounds_come_back_by_number(ledger: Ledger, run: RunRecord) -> None:
    rounds = [Round(n, 10, 20, 1, 2, 3, 4, 5, 6) for n in (1, 2)]
    for item in (rounds[1], rounds[0], rounds[0]):
        ledger.of(run.run_id).rounds.record(item)
    assert ledger.of(run.run_id).rounds.all() == rounds


def test_the_sums_of_rounds_are_those_of_all_rounds(ledger: Ledger, run: RunRecord) -> None:
    part = ledger.of(run.run_id)
    assert (part.rounds.last(), part.rounds.totals()) == (None, RoundTotals())
    made = [Round(n, 100 * n, 100 * n + 50, 1, 10, 2, 3, 20, 0) for n in range(1, 40)]
    for item in (*made, made[-1]):
        part.rounds.record(item)
    # Just before a round ended, the target was as old as the previous round's cut.
    assert part.rounds.totals() == RoundTotals(39, 390, 78, 117, 120)
    assert (part.rounds.last(), part.rounds.latest(2)) == (made[-1], made[-2:])
    assert part.rounds.since(made[5].finished_ms) == made[5:]
    assert part.rounds.since(0) == made
