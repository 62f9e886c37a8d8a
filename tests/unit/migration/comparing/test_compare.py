"""Which of the rows that differ are looked at one by one."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession

from unit.migration.filled_ledger import SPEC
from unit.replay.memory_zookeeper import MemoryZooKeeper
from unit.spark_stand_in import SPARK
from walferry.formats.resolve import FamilyRules
from walferry.hbase.address import ClusterAddress
from walferry.ledger import ComparedTable, Difference, Ledger
from walferry.ledger.rows import DifferenceKind
from walferry.migration.comparing import compare
from walferry.migration.explaining import explain_rows
from walferry.migration.explaining.difference_classes import IN_FLIGHT, NOT_IN_LOG, RowLog
from walferry.migration.explaining.wal_lookup import RowLogs
from walferry.migration.sides.digest import NOTHING, SHOWN_ROWS, Outcome, RangePair
from walferry.migration.sides.row_sides import Bounds, Compressed, RowSides
from walferry.run.heartbeat import beating
from walferry.run.run import Run
from walferry.settings import Writing

HERE = ClusterAddress("127.0.0.1:1", rootdir="hdfs://127.0.0.1:1/hbase")


def pair(region: str) -> RangePair:
    return RangePair(HERE, HERE, "t", "t", region, b"", b"", {})


def outcome(rows: Sequence[bytes], differing: int = 0) -> Outcome:
    return replace(NOTHING, rows=tuple(rows), differing=differing or len(rows))


def named(prefix: str, count: int) -> list[bytes]:
    return [f"{prefix}{n:05d}".encode() for n in range(count)]


@pytest.fixture
def read_again(monkeypatch: pytest.MonkeyPatch) -> list[RangePair]:
    """What was read once more; there, rows b00100 on are equal by then."""
    asked: list[RangePair] = []

    def pairs(spark: SparkSession, again: Sequence[RangePair]) -> list[Outcome]:
        asked.extend(again)
        return [outcome(named("b", 450)[100:])]

    monkeypatch.setattr(compare, "compare_pairs", pairs)
    return asked


def test_a_range_in_which_more_rows_differ_than_were_named_is_read_once_more(read_again: list[RangePair]) -> None:
    """Hole: what more than 200 rows differed in was not looked at."""
    found = [outcome(named("a", 3)), outcome(named("b", SHOWN_ROWS), 450)]
    count, rows = compare._differing(SPARK, [pair("a"), pair("b")], found)
    assert (count, rows) == (453, [*named("a", 3), *named("b", 450)])
    assert [(one.region, one.named) for one in read_again] == [("b", compare.EXPLAINED_ROWS)]


def test_few_rows_and_too_many_rows_are_not_read_once_more(read_again: list[RangePair]) -> None:
    assert compare._differing(SPARK, [pair("a")], [outcome(named("a", 3))]) == (3, named("a", 3))
    many = [outcome(named(region, SHOWN_ROWS), 15_000) for region in "ab"]
    assert compare._differing(SPARK, [pair("a"), pair("b")], many) == (30_000, named("a", SHOWN_ROWS))
    assert read_again == []


def settled(
    monkeypatch: pytest.MonkeyPatch, first: Sequence[Outcome], *later: Sequence[Outcome], applied: bool = True
) -> tuple[list[Outcome], list[bytes], list[list[str]]]:
    """What is left of ranges a and b, some rows that were under way, and the ranges that were read each time."""
    reads, asked = iter(later), list[list[str]]()

    def pairs(spark: object, again: Sequence[RangePair]) -> list[Outcome]:
        assert {one.named for one in again} == {compare.NAMED_AGAIN}
        asked.append([one.region for one in again])
        return list(next(reads))

    monkeypatch.setattr(compare, "compare_pairs", pairs)
    monkeypatch.setattr(compare, "_await_applied", lambda run, moment_ms: applied)
    found, rows = compare._read_until_settled(cast(Run, None), SPARK, [pair("a"), pair("b")], first)
    return found, rows, asked


def test_of_many_rows_that_differ_while_the_logis_followed_those_are_left_that_differ_each_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lost = named("a", 3)
    first = [outcome([*lost, *named("b", 600)]), outcome(named("c", 200), 900)]
    second = [outcome([*lost, *named("d", 700)]), outcome(named("c", 500))]
    found, rows, asked = settled(monkeypatch, first, second, [outcome([*lost[:2], b"new"]), outcome(named("c", 9))])
    assert asked == [["a", "b"], ["a", "b"]], "the first time 503 rows were left, c was not all named before"
    assert [(one.differing, list(one.rows)) for one in found] == [(2, lost[:2]), (9, named("c", 9))]
    assert len(rows) == SHOWN_ROWS
    assert set(rows) <= {lost[2], *named("b", 600), *named("c", 500)[9:]}


def test_few_rows_that_differ_and_a_log_that_is_not_applied_are_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    few = [outcome(named("a", compare.MANY_ROWS)), outcome([])]
    assert settled(monkeypatch, few) == (few, [], [])
    many = [outcome(named("a", compare.MANY_ROWS + 1)), outcome([])]
    assert settled(monkeypatch, many, applied=False) == (many, [], [])


def test_a_range_that_is_equal_is_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    found, rows, asked = settled(monkeypatch, [outcome([]), outcome(named("b", 501))], [outcome([])])
    assert asked == [["b"]]
    assert [one.differing for one in found] == [0, 0]
    assert set(rows) <= set(named("b", 501))


def test_rows_are_read_again_for_ever_by_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    lost = named("a", 600)
    found, rows, asked = settled(monkeypatch, [outcome(lost), outcome([])], *[[outcome(lost)]] * compare.PASSES)
    assert len(asked) == compare.PASSES
    assert ([one.differing for one in found], rows) == ([600, 0], [])


def test_what_a_killed_process_no_longer_applies_is_not_waited_for(tmp_path: Path) -> None:
    """Hole: its phase stays recorded as running, and a comparison waited three times `max_lag`, without a word."""
    with Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}", actor="test") as ledger:
        run = Run(ledger, ledger.open_run("move", "test", SPEC, "test").run_id)
        assert not compare.is_followed(run)
        run.ledger.phases.start("replay")
        with beating(run.ledger, "replay", "test"):
            assert compare.is_followed(run)
            ledger.set_paused(run.run_id, True, "test")
            assert not compare.is_followed(run)
            ledger.set_paused(run.run_id, False, "test")
        assert not compare.is_followed(run)
        began = time.monotonic()
        assert not compare._await_applied(run, 1)
        assert time.monotonic() - began < 5


def test_however_many_ranges_differ_as_many_rows_are_named_when_they_are_read_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Hole: of a table that differs as a whole, the driver held 100,000 rows of each region."""
    asked: list[RangePair] = []

    def pairs(spark: object, again: Sequence[RangePair]) -> list[Outcome]:
        asked.extend(again)
        return [NOTHING] * len(again)

    monkeypatch.setattr(compare, "compare_pairs", pairs)
    monkeypatch.setattr(compare, "_await_applied", lambda run, moment_ms: True)
    ranges = [pair(f"r{number}") for number in range(1_000)]
    compare._read_until_settled(cast(Run, None), SPARK, ranges, [outcome([b"row"])] * len(ranges))
    assert sum(one.named for one in asked) <= compare.NAMED_TOGETHER


def test_the_log_is_asked_once_for_all_rows_of_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hole: it was read once for every 2,000 rows."""
    lost = (b"f", b"q", 2_000, 4, b"v", b"")
    sides = RowSides(frozenset({lost}), frozenset(), (lost,), (), 1, False, 9_000)
    rows = named("a", 5_000)
    read: list[int] = []
    asked: list[tuple[int, Bounds]] = []

    def read_again(spark: SparkSession, work: object, items: Sequence[Any], *, what: str) -> list[Any]:
        some = [row for item in items for part in item.parts for row in part]
        read.append(len(some))
        return [(row, None if row == rows[0] else Compressed(sides)) for row in some]

    def regions(table: str) -> list[Any]:
        return [SimpleNamespace(start=b"")]

    def look_up(
        run: Run, spark: SparkSession, table: str, questions: dict[bytes, object], applied: set[str], *rest: Any
    ) -> RowLogs:
        asked.append((len(questions), rest[-1]))
        return RowLogs(RowLog(1_000, 9_000), {})

    monkeypatch.setattr(explain_rows, "fan_out", read_again)
    monkeypatch.setattr(explain_rows, "look_up", look_up)
    monkeypatch.setattr(explain_rows, "rules_of", lambda descriptor: {b"f": FamilyRules(1, 0, None)})
    monkeypatch.setattr(compare, "_began", lambda *_: ComparedTable("t", 0, "verify", 0, 0, "", 9_000, 9_000, 0))
    monkeypatch.setattr(compare, "_both_sides", lambda *_: ([], []))
    monkeypatch.setattr(compare, "_differing", lambda *_: (len(rows), rows))
    run: Any = SimpleNamespace(
        source_address=lambda workers: HERE,
        target_address=lambda: HERE,
        writing=Writing.read(),
        source=SimpleNamespace(describe=lambda table: None, held_bytes=dict, regions=regions),
        target=SimpleNamespace(zk=MemoryZooKeeper().session(), regions=regions),
        pair=lambda table: SimpleNamespace(source=table, target=table),
        ledger=SimpleNamespace(
            record=SimpleNamespace(kind="comparison", state="running"),
            phases=SimpleNamespace(find=lambda phase: None, facts=lambda phase: None),
            comparisons=SimpleNamespace(
                record=lambda ended, *_: ended, accepted=dict, record_look=lambda table, rows: None
            ),
            notes=SimpleNamespace(keep=lambda name, facts, subject: None, get=lambda name, subject="": None),
            log=SimpleNamespace(applied_for=lambda table, verified=False: set()),
        ),
    )
    found = compare.compare(run, lambda: SPARK, "t").differences
    assert read == [2_000, 2_000, 1_000]
    assert asked == [(4_999, Bounds.of_each(5_000))]
    assert [(item.row, item.kind) for item in found[:2]] == [(rows[0], IN_FLIGHT), (rows[1], NOT_IN_LOG)]


def test_the_log_is_asked_about_what_is_applied_when_the_rows_are_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hole: what was applied while a comparison waited, and was lost, counted as under way."""
    begun: list[str] = []
    asked: list[tuple[set[str], int]] = []
    monkeypatch.setattr(explain_rows, "rules_of", lambda descriptor: {})
    monkeypatch.setattr(compare, "_began", lambda *_: ComparedTable("t", 0, "verify", 0, 0, "", 1_000, 1_000, 0))
    monkeypatch.setattr(compare, "_both_sides", lambda *_: ([pair("a")], [outcome([b"row"])]))
    monkeypatch.setattr(compare, "is_followed", lambda run: True)

    def settled(run: Run, spark: object, pairs: object, outcomes: list[Outcome]) -> tuple[list[Outcome], list[bytes]]:
        begun.append("meanwhile")
        return outcomes, []

    def look_up(
        run: Run, spark: object, table: str, rows: object, applied: set[str], until_ms: int, _: Bounds
    ) -> RowLogs:
        asked.append((applied, until_ms))
        return RowLogs(RowLog(1_000, 9_000), {})

    monkeypatch.setattr(compare, "_read_until_settled", settled)
    monkeypatch.setattr(explain_rows, "_read_again", lambda run, spark, table, rows, *_: dict.fromkeys(rows))
    monkeypatch.setattr(explain_rows, "look_up", look_up)

    def applied_for(table: str, *, verified: bool = False) -> set[str]:
        return set() if verified else {"before", *begun}

    verified: list[set[str]] = []
    run: Any = SimpleNamespace(
        writing=Writing.read(),
        source=SimpleNamespace(describe=lambda table: None, held_bytes=dict),
        target=SimpleNamespace(zk=MemoryZooKeeper().session()),
        pair=lambda table: SimpleNamespace(source=table, target=table),
        ledger=SimpleNamespace(
            record=SimpleNamespace(kind="comparison", state="running"),
            phases=SimpleNamespace(facts=lambda phase: None, find=lambda phase: None),
            comparisons=SimpleNamespace(
                record=lambda ended, *_: ended, accepted=dict, record_look=lambda table, rows: None
            ),
            notes=SimpleNamespace(keep=lambda name, facts, subject: None, get=lambda name, subject="": None),
            log=SimpleNamespace(
                applied_for=applied_for, mark_verified=lambda table, files: verified.append(set(files))
            ),
        ),
    )
    compare.compare(run, lambda: SPARK, "t")
    ((applied, until_ms),) = asked
    assert applied == {"before", "meanwhile"}
    assert until_ms > 1_000
    assert verified == [{"before"}], "only these were there when the comparison began"


@pytest.mark.parametrize(
    ("kinds", "more", "told"),
    [
        ([], 0, "t: equal, 0 regions"),
        ([IN_FLIGHT], 0, "t: 1 row differs, 0 without an explanation, 0 without a decision, 0 regions"),
        ([NOT_IN_LOG, IN_FLIGHT], 3, "t: 5 rows differ, 3 without an explanation, 1 without a decision, 0 regions"),
    ],
)
def test_a_comparison_is_told_in_a_line(kinds: list[DifferenceKind], more: int, told: str) -> None:
    made = ComparedTable("t", 1, "verify", 0, 0, "", 1, 2, len(kinds) + more)
    found = [Difference("t", bytes([number]), kind, "") for number, kind in enumerate(kinds)]
    assert compare.TableComparison(made, [], found, set()).describe() == told
