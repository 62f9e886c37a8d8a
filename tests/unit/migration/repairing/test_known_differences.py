"""What becomes of rows that differ at a look: repaired, left, or looked at once more."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from unit.migration.filled_ledger import SPEC
from walferry.clock import now_ms
from walferry.ledger import Difference, Ledger, RepairedRow
from walferry.ledger.rows import DifferenceKind
from walferry.migration.explaining.explain_rows import EQUAL_NOW
from walferry.migration.repairing import known_differences, repairable
from walferry.migration.repairing.known_differences import (
    RepairMeans,
    StillDiffering,
    known_rows,
    repair_differing,
    rows_to_repair,
)
from walferry.replay.rights.standstill import Standstill
from walferry.run.run import Run
from walferry.spark.session import NoSparkError

TABLE = "shop:orders"
ROW = b"r1"


class Clusters:
    """In place of both sides and the log: the class of each row, and which rows were repaired."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.kinds: dict[bytes, DifferenceKind] = {}
        self.details: dict[bytes, str] = {}
        self.repaired: list[bytes] = []
        monkeypatch.setattr(known_differences, "log_bytes", lambda *_: 1)
        monkeypatch.setattr(known_differences, "explain", self._explain)
        monkeypatch.setattr(known_differences, "repair", self._repair)

    def _explain(self, run: Any, spark: Any, session: Any, table: str, rows: list[bytes]) -> list[Difference]:
        return [Difference(table, row, self.kinds[row], self.details.get(row, "detail"), "cells") for row in rows]

    def _repair(self, run: Any, standstill: Any, table: str, kinds: Mapping[bytes, str], **_: Any) -> list[RepairedRow]:
        self.repaired += kinds
        return [RepairedRow(table, row, kind, "sent", 1, "", now_ms()) for row, kind in kinds.items()]


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    with Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}", actor="test") as ledger:
        yield Run(ledger, ledger.open_run("move", "test", SPEC, "test").run_id)


@pytest.fixture
def clusters(monkeypatch: pytest.MonkeyPatch) -> Clusters:
    return Clusters(monkeypatch)


def look(
    run: Run, differ: dict[bytes, str], *, examined: bool = True, by_log: bool = True, ended: bool = False
) -> Mapping[bytes, str]:
    return settled(run, differ, examined=examined, by_log=by_log, ended=ended).left


def settled(
    run: Run, differ: dict[bytes, str], *, examined: bool = True, by_log: bool = True, ended: bool = False
) -> StillDiffering:
    most = 1 if examined else -1
    means = RepairMeans(
        lambda: None, Standstill(), lambda rows: differ, most, 0, lambda: ended, under_way=lambda _: by_log  # type: ignore[arg-type,return-value]
    )  # fmt: skip
    return repair_differing(run, TABLE, differ, means)


def test_a_row_with_a_reason_is_repaired_at_once_and_read_again_by_the_next_look(run: Run, clusters: Clusters) -> None:
    clusters.kinds = {ROW: "history-dependent"}
    assert look(run, {ROW: "cells"}) == {}
    assert clusters.repaired == [ROW]
    assert known_rows(run, TABLE) == [ROW]
    assert look(run, {}) == {}
    assert known_rows(run, TABLE) == []


def test_a_row_that_the_log_may_change_is_repaired_without_a_reason_only_if_the_same_cells_differ_twice(
    run: Run, clusters: Clusters
) -> None:
    clusters.kinds = {ROW: "unexplained"}
    assert look(run, {ROW: "cells"}) == {ROW: ""}
    assert look(run, {ROW: "others"}) == {ROW: ""}
    assert look(run, {ROW: "others"}, examined=False) == {ROW: ""}, "nobody has read the log"
    assert not clusters.repaired
    assert rows_to_repair(run, TABLE) == [ROW]
    assert look(run, {ROW: "others"}) == {}
    assert clusters.repaired == [ROW]


def test_a_row_that_the_log_did_not_write_is_repaired_at_once(run: Run, clusters: Clusters) -> None:
    clusters.kinds = {ROW: "unexplained"}
    assert look(run, {ROW: "cells"}, by_log=False) == {}
    assert clusters.repaired == [ROW]


def test_rows_under_way_are_left_and_those_that_a_person_accepted_stay(run: Run, clusters: Clusters) -> None:
    clusters.kinds = {b"a": "in-flight", b"b": "not-in-log"}
    run.ledger.comparisons.accept([Difference(TABLE, b"b", "not-in-log", "detail", "cells")], "a cache", "kim")
    assert look(run, {b"a": "1", b"b": "2"}) == {b"a": ""}
    assert not clusters.repaired
    assert set(known_rows(run, TABLE)) == {b"a", b"b"}
    assert rows_to_repair(run, TABLE) == [b"a"], "nobody repairs what a person decided about"


def test_nothing_is_repaired_without_a_request_if_too_many_rows_have_no_explanation(
    run: Run, clusters: Clusters, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repairable, "MOST_UNEXPLAINED", 1)
    clusters.kinds = dict.fromkeys((b"a", b"b"), "unexplained")
    left = look(run, {b"a": "1", b"b": "2"}, by_log=False)
    assert all("no row is repaired without a request" in why for why in left.values())
    assert not clusters.repaired


def test_rows_that_are_left_are_recorded_with_their_cells_until_the_next_look_that_finds_reasons(
    run: Run, clusters: Clusters, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hole: three of them were named, and none could be accepted."""
    monkeypatch.setattr(repairable, "MOST_UNEXPLAINED", 1)
    clusters.kinds = dict.fromkeys((b"a", b"b"), "unexplained")
    look(run, {b"a": "1", b"b": "2"}, by_log=False)
    found = [Difference(TABLE, row, "unexplained", "detail", "cells") for row in (b"a", b"b")]
    assert run.ledger.comparisons.looked() == found
    look(run, {b"a": "3", b"b": "4"}, examined=False)
    assert run.ledger.comparisons.looked() == found, "nobody has looked for reasons since"
    run.ledger.comparisons.accept(found[:1], "we know this row", "kim")
    assert set(look(run, {b"a": "1", b"b": "2"}, by_log=False)) == set(), "one is accepted, the other is repaired"
    assert clusters.repaired == [b"b"]
    assert run.ledger.comparisons.looked() == []


def test_a_row_that_nobody_examined_may_be_under_way_only_while_other_cells_differ_at_each_look(
    run: Run, clusters: Clusters
) -> None:
    """Hole: while the log rested from being read, a lost row counted as under way."""
    clusters.kinds = {ROW: "in-flight"}
    assert settled(run, {ROW: "1"}, examined=False) == StillDiffering({ROW: ""})
    assert settled(run, {ROW: "2"}, examined=False).unexamined == 0
    assert settled(run, {ROW: "2"}, examined=False).unexamined == 1
    assert settled(run, {ROW: "2"}) == StillDiffering({ROW: ""}), "the log holds what it lacks"


def test_what_an_earlier_look_left_stands_while_nobody_examines_it_again(run: Run, clusters: Clusters) -> None:
    run.spec.__dict__["repair"] = "ask"
    clusters.kinds = {ROW: "unexplained"}
    look(run, {ROW: "1"}, by_log=False)
    assert look(run, {ROW: "1"}, examined=False) == {ROW: "detail"}
    assert look(run, {}, examined=False) == {}


def test_of_many_rows_each_look_examines_the_next_ones_and_the_others_count_until_all_had_their_turn(
    run: Run, clusters: Clusters, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hole: of more than a thousand rows the others counted as under way, look after look."""
    monkeypatch.setattr(known_differences, "MOST_ROWS", 2)
    rows = [b"a", b"b", b"c", b"d", b"e"]
    clusters.kinds = dict.fromkeys(rows, "in-flight")
    clusters.kinds[b"e"] = "unexplained"
    differ = dict.fromkeys(rows, "")
    assert settled(run, differ, examined=False).unexamined == 5
    assert [settled(run, differ, by_log=False).unexamined for _ in range(2)] == [3, 1]
    assert settled(run, differ, examined=False).unexamined == 1
    assert not clusters.repaired
    found = settled(run, differ, by_log=False)
    assert (found.unexamined, clusters.repaired, set(found.left)) == (0, [b"e"], {b"a", b"b", b"c", b"d"})
    del differ[b"e"]
    clusters.kinds[b"a"] = "unexplained"
    look(run, differ, by_log=False)
    assert clusters.repaired == [b"e", b"a"], "it begins again"


def test_what_an_interrupted_repair_owes_is_done_by_the_next_look_although_no_row_differs(
    run: Run, clusters: Clusters, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def repair(run: Run, standstill: Any, table: str, kinds: Any, **_: Any) -> list[RepairedRow]:
        asked.append(dict(kinds))
        return []

    monkeypatch.setattr(known_differences, "repair", repair)
    look(run, {})
    assert not asked
    run.ledger.notes.keep("markers to send again", {"start": "", "end": "", "families": ["f"]}, TABLE)
    look(run, {})
    assert asked == [{}]


def test_rows_that_a_person_left_out_are_not_repaired_if_their_cells_are_not_known(
    run: Run, clusters: Clusters
) -> None:
    """Hole: of more than a thousand rows nobody knows the cells, and what was left out was written to the target."""
    clusters.kinds = {ROW: "left-out"}
    assert look(run, {ROW: ""}) == {ROW: ""}
    assert not clusters.repaired


def test_a_row_that_is_equal_by_now_is_not_left(run: Run, clusters: Clusters, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hole: the target was kept closed for it."""
    clusters.kinds = dict.fromkeys((b"a", b"b"), "history-dependent")
    monkeypatch.setattr(known_differences, "repair", lambda *_, **__: [])
    assert look(run, {b"a": "1"}) == {}
    assert look(run, {b"a": "2"}, ended=True) == {b"a": ""}, "the repair has ended before it came to this row"
    clusters.kinds = {b"b": "in-flight"}
    clusters.details = {b"b": EQUAL_NOW}
    assert look(run, {b"b": "1"}) == {}
    assert known_rows(run, TABLE) == [b"b"], "the next look reads it again"


# ---- in the write stop


def no_spark() -> SparkSession:
    raise NoSparkError("there is none here")


def settle_at_the_end(run: Run, differ: dict[bytes, str]) -> Mapping[bytes, str]:
    """As the phase `open_target` does in a task that has no Spark."""
    means = RepairMeans(no_spark, Standstill(), lambda rows: differ, 100, 0, without_reasons=True)
    return repair_differing(run, TABLE, differ, means).left


def accept_one(run: Run) -> None:
    run.ledger.comparisons.accept([Difference(TABLE, b"other", "not-in-log", "known", "1f")], "known", "kim")


def test_without_spark_a_log_that_is_small_is_read_here(run: Run, clusters: Clusters) -> None:
    clusters.kinds = {ROW: "history-dependent"}
    assert settle_at_the_end(run, {ROW: "cells"}) == {}
    assert clusters.repaired == [ROW]


@pytest.mark.parametrize("log_bytes", [101, 100], ids=["more log than is read in the stop", "too much without Spark"])
def test_a_row_whose_log_is_too_large_to_be_read_has_no_reason_and_says_so(
    run: Run, clusters: Clusters, monkeypatch: pytest.MonkeyPatch, log_bytes: int
) -> None:
    """Hole: a task without Spark ended in an assertion."""
    monkeypatch.setattr(known_differences, "log_bytes", lambda *_: log_bytes)
    if log_bytes == 100:
        monkeypatch.setattr(known_differences, "explain", lambda run, spark, *_: spark())
    accept_one(run)
    assert settle_at_the_end(run, {ROW: "cells"}) == {ROW: "no reason found: 0 MB of log would have to be read"}
    assert not clusters.repaired, "it may be one that a person left out"


def test_where_nobody_decided_about_the_table_such_a_row_is_repaired_without_a_reason(
    run: Run, clusters: Clusters, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(known_differences, "explain", lambda run, spark, *_: spark())
    assert settle_at_the_end(run, {ROW: "cells"}) == {}
    assert clusters.repaired == [ROW]
