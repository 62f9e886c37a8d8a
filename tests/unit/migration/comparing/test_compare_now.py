"""What `walferry verify` makes of a comparison and of the second reader after it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from unit.migration.filled_ledger import SPEC, compared
from walferry.ledger import Difference, Ledger, RangeComparison
from walferry.migration.comparing import compare_now as module
from walferry.migration.comparing.compare import TableComparison
from walferry.migration.comparing.compare_now import Verified, compare_now
from walferry.migration.comparing.spot_check import ONLY_SECOND
from walferry.run.notes.spot_check import SpotCheck
from walferry.run.run import Run

TABLE = "shop:orders"


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    with Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}", actor="test") as ledger:
        yield Run(ledger, ledger.open_run("move", "test", SPEC, "test").run_id)


def verified(run: Run, monkeypatch: pytest.MonkeyPatch, *faults: bytes) -> Verified:
    """Our own reader finds that row a is under way, the second one that these rows differ."""
    part = RangeComparison(TABLE, "r1", b"", b"", 2, 4, "01", 2, 4, "01", {})
    known = [Difference(TABLE, b"a", "in-flight", "d")]
    made = run.ledger.comparisons.record(compared(TABLE, 1), [part], known)
    decided = run.ledger.comparisons.accepted().keys()
    monkeypatch.setattr(module, "compare", lambda *_: TableComparison(made, [part], known, decided))

    def second(*_: object) -> SpotCheck:
        found = [Difference(TABLE, row, "unexplained", ONLY_SECOND, row.hex()) for row in faults]
        run.ledger.comparisons.add(made, found)
        return SpotCheck(comparison=made.attempt, rows=9, differing=tuple(row.hex() for row in faults))

    monkeypatch.setattr(module, "spot_check", second)
    return compare_now(run, lambda: None, TABLE)  # type: ignore[arg-type,return-value]


def test_rows_that_only_the_second_reader_finds_count_as_differing_rows_without_an_explanation(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = verified(run, monkeypatch, b"b", b"c")
    assert made.result.shuts_the_gate
    facts = made.facts()
    assert (facts["differing_rows"], facts["unexplained"]) == (3, 2)
    assert (facts["second_reader"]["rows"], facts["second_reader"]["differing"]) == (9, 2)
    run.ledger.comparisons.accept(
        [item for item in run.ledger.comparisons.differences() if item.kind == "unexplained"], "known", "kim"
    )
    assert not verified(run, monkeypatch, b"b", b"c").result.shuts_the_gate, "a person has accepted exactly these"


def test_without_such_rows_the_comparison_is_as_it_was(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    made = verified(run, monkeypatch)
    assert not made.result.shuts_the_gate
    assert (made.facts()["differing_rows"], made.facts()["unexplained"]) == (1, 0)
    assert made.facts()["second_reader"]["text"].endswith("all equal")
