"""How long a repair takes, and copying a table again: by what the run has measured, and otherwise unknown."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from unit.migration.filled_ledger import SPEC
from walferry.ledger import Ledger, RunLedger
from walferry.run.notes.copying_again import Copying, end_copying
from walferry.run.progress.repair_times import (
    Expected,
    Repaired,
    expected_copy_again,
    expected_repair,
    note_repaired,
    repaired,
)
from walferry.run.progress.write_stop import note_comparing

TABLE = "shop:orders"


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[RunLedger]:
    with Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}", actor="test") as book:
        yield book.of(book.open_run("move", "test", SPEC, "test").run_id)


def copied_first(
    ledger: RunLedger, monkeypatch: pytest.MonkeyPatch, *, size: int = 100_000_000, attempts: int = 1
) -> None:
    """The first copy took ten seconds."""
    for _ in range(attempts):
        monkeypatch.setattr("walferry.ledger.phases.now_ms", lambda: 1_000)
        attempt = ledger.phases.start("copy", TABLE)
    monkeypatch.setattr("walferry.ledger.phases.now_ms", lambda: 11_000)
    ledger.phases.finish("copy", {"bytes": size}, TABLE, attempt)


def test_what_was_never_measured_is_unknown(ledger: RunLedger) -> None:
    for found in (expected_repair(ledger, TABLE, 3, 1, 5), expected_copy_again(ledger, TABLE, 5)):
        assert found.seconds is None
        assert found.describe().startswith("time unknown (")
    assert expected_repair(ledger, TABLE, 0, 0, 0).seconds == 0.0


def test_rows_take_as_long_as_the_runs_repairs_did(ledger: RunLedger) -> None:
    note_repaired(ledger, Repaired())
    note_repaired(ledger, Repaired(rows=10, row_seconds=1.0))
    more = Repaired(rows=30, row_seconds=3.0, regions=1, region_bytes=100_000_000, region_seconds=5.0)
    note_repaired(ledger, more)
    assert repaired(ledger) == Repaired(40, 4.0, 1, 100_000_000, 5.0)
    assert expected_repair(ledger, TABLE, 100, 0, 0).seconds == 10.0
    assert expected_repair(ledger, TABLE, 100, 2, 400_000_000).seconds == 10.0 + 20.0


def test_small_regions_go_by_their_number_and_tell_nothing_of_large_ones(ledger: RunLedger) -> None:
    note_repaired(ledger, Repaired(rows=1, row_seconds=0.0, regions=2, region_bytes=2_000_000, region_seconds=4.0))
    assert expected_repair(ledger, TABLE, 1, 3, 9_000_000).seconds == 6.0
    assert expected_repair(ledger, TABLE, 1, 3, 6_000_000_000).seconds is None


def test_before_the_first_compaction_regions_go_by_the_first_copy(
    ledger: RunLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    note_repaired(ledger, Repaired(rows=1, row_seconds=1.0))
    assert expected_repair(ledger, TABLE, 1, 1, 50_000_000).seconds is None
    copied_first(ledger, monkeypatch)
    found = expected_repair(ledger, TABLE, 1, 1, 50_000_000)
    basis = "estimated from this run's repairs; compactions at the 10 MB/s of the table's first copy"
    assert found == Expected(6.0, basis)


def test_before_the_first_row_was_repaired_regions_tell_what_it_takes_at_least(
    ledger: RunLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied_first(ledger, monkeypatch)
    assert expected_repair(ledger, TABLE, 9, 0, 0).seconds is None
    found = expected_repair(ledger, TABLE, 9, 1, 50_000_000)
    assert found.seconds == 5.0
    assert found.basis.endswith("of the table's first copy; the additional time for the rows is unknown")


def test_copying_again_takes_the_longer_of_what_the_first_copy_and_the_last_comparison_say(
    ledger: RunLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied_first(ledger, monkeypatch)
    assert expected_copy_again(ledger, TABLE, 200_000_000) == Expected(20.0, "at the 10 MB/s of its first copy")
    note_comparing(ledger, TABLE, 65.0)
    found = expected_copy_again(ledger, TABLE, 200_000_000)
    assert found.describe() == "about 1 min 05 s (at least as long as its last comparison took to read it)"


@pytest.mark.parametrize("copy", [{"attempts": 2}, {"size": 5_000}])
def test_a_copy_that_was_interrupted_or_is_tiny_tells_no_rate(
    ledger: RunLedger, monkeypatch: pytest.MonkeyPatch, copy: dict[str, int]
) -> None:
    """Hole: of a first copy of some kilobytes, three megabytes were to take 24 minutes."""
    copied_first(ledger, monkeypatch, **copy)
    assert expected_copy_again(ledger, TABLE, 3_000_000).seconds is None


def test_a_table_that_was_copied_again_takes_as_long_the_next_time(ledger: RunLedger) -> None:
    done = Copying("kim", "", 1, (1, 2), True, rest=None, cells=7, size=9, seconds=12.34)
    done.begin(ledger, TABLE)
    end_copying(ledger, TABLE, done, lambda connection: None)
    assert expected_copy_again(ledger, TABLE, 5) == Expected(12.3, "as long as the last time")
