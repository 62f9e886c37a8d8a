"""The lag is the time since everything before a moment was applied, by a round or from open logs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from unit.migration.filled_ledger import SPEC
from walferry import clock
from walferry.ledger import Ledger, Round, RunLedger
from walferry.run.lag import Ahead, Visible, ahead_of, covered_ms, keep_ahead, lag_of


@pytest.fixture
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunLedger]:
    monkeypatch.setattr(clock, "now_ms", lambda: 100_000)
    with Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}", actor="test") as whole:
        yield whole.of(whole.open_run("move", "test", SPEC, "test").run_id)


def test_the_lag_counts_from_whichever_is_newer_the_last_round_or_the_last_look_at_open_logs(ledger: RunLedger) -> None:
    assert covered_ms(ledger) is None
    ledger.rounds.record(Round(1, 60_000, 70_000, 1, 1, 1, 1, lag_ms=20_000, backlog_bytes=0))
    assert covered_ms(ledger) == 50_000
    assert lag_of(ledger).seconds == 50.0
    ahead = Ahead().covering(50_000, 70_000).covering(99_000, 99_400)
    keep_ahead(ledger, ahead)
    assert covered_ms(ledger) == 99_000
    assert (lag_of(ledger).seconds, lag_of(ledger).longest) == (1.0, 49.4)
    keep_ahead(ledger, ahead.covering(98_000, 99_500))
    assert covered_ms(ledger) == 99_000, "it never goes back"
    ledger.end("aborted", "test", "enough")
    assert lag_of(ledger).longest == 49.4


def test_what_was_read_of_open_logs_is_kept_for_the_next_process(ledger: RunLedger) -> None:
    assert ahead_of(ledger) is None
    kept = Ahead().having({"f": Visible(end=7, crc=1 << 31, tables=("t",))})
    keep_ahead(ledger, kept)
    assert ahead_of(ledger) == kept
