"""When the first unread WAL may be lost, and how it is told in time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from unit.migration.filled_ledger import SPEC
from walferry import clock
from walferry.ledger import Ledger, RunLedger
from walferry.run.progress.exposure import Exposure, exposure_of, note_exposure
from walferry.run.progress.status import status

AT = 1_000_000_000
COPIES = Exposure("copies in file:///copies/move-1", 2, 3_400_000, False, None, None, 600, False, AT)
PEER = Exposure("peer walferry_move_1", 1, 1_000, True, None, None, 600, False, AT)


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[RunLedger]:
    with Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}", actor="test") as ledger:
        yield ledger.of(ledger.open_run("move", "test", SPEC, "test").run_id)


@pytest.mark.parametrize(
    ("exposure", "after_s", "seconds", "late"),
    [
        (COPIES, 0, 600, False),  # what is closed from now on
        (COPIES, 200, 400, False),
        (COPIES, 301, 299, True),  # nobody has looked for five minutes
        (COPIES, 700, 0, True),
        (replace(COPIES, file="a", lost_ms=AT + 350_000), 10, 340, False),
        (replace(COPIES, file="a", lost_ms=AT + 350_000), 60, 290, True),  # a log that cannot be copied
        (replace(COPIES, file="a", lost_ms=AT + 900_000), 0, 600, False),
        (PEER, 9_000, None, False),
    ],
)
def test_the_time_to_loss(exposure: Exposure, after_s: int, seconds: float | None, late: bool) -> None:
    now = AT + after_s * 1000
    assert exposure.seconds_to_loss(now) == seconds
    assert exposure.is_late(now) is late


def test_it_is_told_in_a_sentence() -> None:
    assert PEER.describe(AT) == (
        "the log is kept by peer walferry_move_1: 1 file, 0.0 MB older than the time to live of 10 min 00 s"
    )
    assert COPIES.describe(AT + 1000) == (
        "the log is kept by copies in file:///copies/move-1: 2 files, 3.4 MB; a WAL closed from now on may be lost "
        "in 9 min 59 s (time to live 10 min 00 s)"
    )
    first = replace(COPIES, file="rs.7", lost_ms=AT + 5000, ttl_assumed=True)
    assert first.describe(AT).endswith("; rs.7 may be lost in 5 s (time to live 10 min 00 s, assumed)")


def test_the_status_of_a_run_has_it_until_nothing_is_read_any_more(
    ledger: RunLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clock, "now_ms", lambda: AT + 400_000)
    assert status(ledger).log is None
    note_exposure(ledger, COPIES)
    assert exposure_of(ledger) == COPIES
    facts = status(ledger).log
    assert facts is not None
    assert (facts.kept_bytes, facts.time_to_loss_seconds, facts.late) == (3_400_000, 200.0, True)
    assert facts.first_to_be_lost is None
    ledger.phases.start("check_drain")
    ledger.phases.finish("check_drain", {})
    assert status(ledger).log is None
