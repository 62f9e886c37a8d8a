"""When the target opens before its whole comparison, and why it does not."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
from pyspark.sql import SparkSession

from unit.migration.filled_ledger import SPEC
from walferry.cutover import open_target
from walferry.cutover.conditions import named
from walferry.ledger import Difference, Ledger
from walferry.ledger.batches import in_one
from walferry.migration.comparing.written_rows import TouchedRows
from walferry.migration.repairing import known_differences
from walferry.migration.repairing.known_differences import StillDiffering
from walferry.migration.sides.fragile_rows import RowSpan, RowSpans
from walferry.migration.sides.store_files import NO_STORES, RegionFiles
from walferry.migration.touching.equality import Equality
from walferry.replay.rights import applying
from walferry.replay.rights.lease import LeaseHeldError, LeaseLostError
from walferry.replay.rights.standstill import Standstill
from walferry.run.facts import opened_ms
from walferry.run.run import Run
from walferry.spark.session import NoSparkError

TABLE = "shop:orders"
ROW = b"r1"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    """A run after its drain; one row that was written last differs."""
    monkeypatch.setattr(open_target, "asked_at", lambda moment: [named("compare ahead")])
    monkeypatch.setattr(open_target, "_look", lambda run: ())
    monkeypatch.setattr(Standstill, "kept", lambda self, run: nullcontext())
    monkeypatch.setattr(applying, "lease_check_of", lambda run, route: in_one())
    monkeypatch.setattr(open_target, "whole_comparison", lambda ledger, table: SimpleNamespace())
    found = TouchedRows(frozenset(), rows=1, differing={ROW: "cells"})
    monkeypatch.setattr(open_target, "compare_written", lambda run, table, since, watched: found)
    monkeypatch.setattr(open_target, "differing", lambda run, table, rows: dict.fromkeys(rows, "cells"))
    monkeypatch.setattr(open_target, "keeps_closed", lambda *_: "")
    monkeypatch.setattr(open_target, "store_files", lambda *_: ())
    with Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}", actor="test") as ledger:
        run = Run(ledger, ledger.open_run("move", "test", SPEC, "test").run_id)
        run.ledger.phases.start("drain")
        run.ledger.phases.finish("drain", {})
        yield run


def no_spark() -> SparkSession:
    raise NoSparkError("there is none here")


def test_in_a_task_without_spark_a_row_with_a_large_log_keeps_clients_waiting_and_is_told(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(known_differences, "log_bytes", lambda run, table: 200_000_000)
    monkeypatch.setattr(known_differences, "explain", lambda run, spark, *_: spark())
    run.ledger.comparisons.accept([Difference(TABLE, b"other", "not-in-log", "known", "1f")], "known", "kim")
    opened = open_target.open_target(run, no_spark)
    assert opened.at_ms is None
    (why,) = opened.why
    assert why.startswith(f"1 row differs among those of {TABLE} touched last")
    assert "no reason found: 200 MB of log would have to be read" in why


MARKED = RowSpans((RowSpan(b"a", b"g", marked=True),))


class Readings:
    """The rows that differ at each reading, and the store files before and after it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, differ: list[dict[bytes, str]], files: list[str]) -> None:
        self.made, self.fragile = 0, MARKED
        self._differ, self._files = differ, iter(files)
        monkeypatch.setattr(open_target, "compare_written", self._read)
        monkeypatch.setattr(open_target, "differing", lambda *_: {})
        monkeypatch.setattr(open_target, "repair_differing", lambda *_: StillDiffering({}))
        monkeypatch.setattr(open_target, "store_files", lambda *_: self._stored())

    def _stored(self) -> list[RegionFiles]:
        names = next(self._files).split()
        low = RegionFiles((b"", b"m"), "low", {"f": frozenset(names)} if names else None)
        return [low, RegionFiles((b"m", b""), "high", {"f": frozenset("x")})]

    def _read(self, run: Run, table: str, since: object, watched: bool) -> TouchedRows:
        found = self._differ[min(self.made, len(self._differ) - 1)]
        self.made += 1
        equal = Equality(TABLE, 1, self.fragile, NO_STORES, "")
        return TouchedRows(frozenset(), rows=3, differing=found, equal=equal, before=[self._stored()])


@pytest.mark.parametrize(
    ("differ", "files", "readings"),
    [
        ([{}], ["1", "1"], 1),
        ([{ROW: "cells"}, {}], ["1", "2", "2", "2"], 2),
        ([{}], ["1", "2", "2", "2"], 2),
        ([{}], ["1", "", "2", "2"], 2),
    ],
    ids=["nothing came in between", "a row was repaired", "a region was compacted", "a region was moved"],
)
def test_the_target_opens_after_a_reading_that_nothing_has_voided(
    run: Run, monkeypatch: pytest.MonkeyPatch, differ: list[dict[bytes, str]], files: list[str], readings: int
) -> None:
    """Hole: while rows were repaired, the source compacted, and showed a put that its marker had hidden."""
    made = Readings(monkeypatch, differ, files)
    opened = open_target.open_target(run, no_spark)
    assert opened.at_ms is not None
    assert made.made == readings


def test_a_table_that_does_not_come_to_rest_keeps_the_target_closed(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    Readings(monkeypatch, [{}], [str(number) for number in range(100)])
    opened = open_target.open_target(run, no_spark)
    assert opened.at_ms is None
    assert "were flushed or compacted meanwhile" in opened.why[0]


@pytest.mark.parametrize(("by_version", "readings"), [(False, 1), (True, 2)], ids=["a column", "a single version"])
def test_a_flush_meanwhile_voids_a_reading_only_of_markers_that_hide_a_single_version(
    run: Run, monkeypatch: pytest.MonkeyPatch, by_version: bool, readings: int
) -> None:
    made = Readings(monkeypatch, [{}], ["1", "1 2", "1 2", "1 2"])
    made.fragile = RowSpans((RowSpan(b"a", b"g", marked=True, by_version=by_version),))
    assert open_target.open_target(run, no_spark).at_ms is not None
    assert made.made == readings


def test_regions_without_markers_may_be_compacted_meanwhile(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Readings(monkeypatch, [{}], ["1", "1"])
    names = iter("abcdef")
    same = RegionFiles((b"", b"m"), "low", {"f": frozenset("1")})
    files = lambda *_: [same, RegionFiles((b"m", b""), "high", {"f": frozenset(next(names))})]  # noqa: E731
    monkeypatch.setattr(open_target, "store_files", files)
    assert open_target.open_target(run, no_spark).at_ms is not None
    assert made.made == 1


def test_while_another_process_has_the_leases_the_target_opens_after_the_whole_comparison(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hole: a `walferry repair` in another shell could delete what a client had just written."""

    def held(self: object, run: Run) -> object:
        raise LeaseHeldError("run move-1 (kim) applies to shop:orders", table=TABLE, holder="kim")

    monkeypatch.setattr(Standstill, "kept", held)
    opened = open_target.open_target(run, no_spark)
    assert opened.at_ms is None
    assert opened.why == ("another process writes to the target: run move-1 (kim) applies to shop:orders",)


def test_a_target_whose_spec_asks_for_the_whole_comparison_first_stays_closed(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hole: a comparison that a person had asked for opened it early all the same."""
    Readings(monkeypatch, [{}], ["1", "1"])
    run = Run(
        run.ledger.whole, run.ledger.whole.open_run("whole", "test", SPEC | {"compare_ahead": False}, "kim").run_id
    )
    run.ledger.phases.start("drain")
    run.ledger.phases.finish("drain", {})
    opened = open_target.open_target(run, no_spark)
    assert opened.at_ms is None
    assert opened.why == ("the spec has `compare_ahead: false`",)


def test_an_opening_is_not_recorded_once_another_process_has_taken_the_leases(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(connection: object) -> None:
        raise LeaseLostError("the lease is no longer held", table=TABLE, number=3)

    monkeypatch.setattr(applying, "lease_check_of", lambda run, route: lost)
    Readings(monkeypatch, [{}], ["1", "1"])
    with pytest.raises(LeaseLostError):
        open_target.open_target(run, no_spark)
    assert opened_ms(run.ledger) is None
    (phase,) = [phase for phase in run.ledger.phases.all() if phase.phase == "open_target"]
    assert (phase.state, phase.transient) == ("failed", True)
