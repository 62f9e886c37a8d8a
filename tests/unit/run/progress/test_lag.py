"""The lag is the time since everything before a moment was applied, by a round or from open logs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from unit.migration.filled_ledger import SPEC
from walferry import clock
from walferry.ledger import Ledger, Round, RunLedger
from walferry.run.progress.lag import (
    Ahead,
    TailProgress,
    ahead_of,
    covered_ms,
    keep_ahead,
    lag_by_group,
    lag_of,
    lag_split,
)
from walferry.run.progress.status import SLOWEST, status


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


def test_how_far_open_logs_are_followed_is_kept_for_the_next_process(ledger: RunLedger) -> None:
    assert ahead_of(ledger) is None
    kept = Ahead().having({"g": TailProgress(server="s", covered_ms=7)})
    keep_ahead(ledger, kept)
    assert ahead_of(ledger) == kept


def test_the_parts_of_a_lag_add_up_to_it_and_the_slowest_server_is_named(ledger: RunLedger) -> None:
    ledger.rounds.record(Round(1, 60_000, 70_000, 1, 1, 1, 1, lag_ms=20_000, backlog_bytes=0))
    assert (lag_by_group(ledger, lag_of(ledger)), status(ledger).lag_split) == ([], None), "rounds alone tell nothing"
    groups = {
        "g1": TailProgress(server="rs1", covered_ms=99_000, read_ms=100, apply_ms=300, shown_after_ms=250),
        "g2": TailProgress(server="rs2", covered_ms=96_000, read_ms=50, apply_ms=100, sending_since_ms=97_000),
        "g3": TailProgress(server="rs3"),
    }
    keep_ahead(ledger, Ahead().covering(95_000, 95_500).having(groups))
    lag = lag_of(ledger)
    slowest, other = lag_by_group(ledger, lag)
    assert (slowest.server, slowest.seconds, slowest.read, slowest.apply) == ("rs2", 4.0, 0.05, 3.1)
    assert slowest.discovery == pytest.approx(0.85)
    assert (other.server, other.seconds, other.discovery, other.shown_after) == ("rs1", 1.0, 0.6, 0.25)
    split = lag_split(lag, [slowest, other])
    assert split is not None
    assert split.seconds == 5.0
    assert split.discovery + split.read + split.apply == pytest.approx(5.0)
    facts = status(ledger)
    assert facts.lag_split is not None
    assert facts.lag_split.text == (
        "lag: 1.9 s until it is looked at, 0.1 s reading, 3.1 s applying; the slowest log is that of rs2"
    )
    assert [one.server for one in facts.lag_by_server] == ["rs2", "rs1"]
    ledger.end("aborted", "test", "enough")
    assert (status(ledger).lag_split, status(ledger).lag_by_server) == (None, ())


def test_of_many_servers_the_slowest_are_told(ledger: RunLedger) -> None:
    ledger.rounds.record(Round(1, 60_000, 70_000, 1, 1, 1, 1, lag_ms=20_000, backlog_bytes=0))
    groups = {f"g{number}": TailProgress(server=f"rs{number}", covered_ms=99_000 - number) for number in range(50)}
    keep_ahead(ledger, Ahead().covering(95_000, 95_500).having(groups))
    told = status(ledger).lag_by_server
    assert (len(told), told[0].server) == (SLOWEST, "rs49")
