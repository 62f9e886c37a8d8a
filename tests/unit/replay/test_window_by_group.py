"""Which of a window's edits go by group: those of regions that have stood still since, unless later ones are there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession

from unit.formats.wal_builder import REGION, TRAILER, entry, header
from walferry.apply.by_group import GroupTask
from walferry.apply.by_row import RowsApplied, RowTask, Settled, WriteTimes, _chosen, _in_window
from walferry.apply.index import NONE, FileIndex, InWindow, index_file
from walferry.apply.outcomes import FileReport, Refusal, Withheld
from walferry.apply.route import Route
from walferry.errors import WalferryError
from walferry.formats.cells import encode_cell
from walferry.formats.wal import WalReader
from walferry.hbase.descriptors import Region
from walferry.hbase.zookeeper import Server
from walferry.refusals import RefusalKind
from walferry.replay import window
from walferry.run.run import Run
from walferry.wal.files import Place, WalFile
from walferry.wal.open import Wal

T = "t1"
HOME = Server("rs", 1, 2)
SPARK = cast(SparkSession, None)
FILES = tuple(WalFile(f"{g}.{n}", g, g, n, f"/{g}.{n}", Place.ARCHIVED, 10) for g, n in (("a", 2), ("b", 1), ("a", 1)))
SPAN = WriteTimes(10, 20)


@dataclass
class Source:
    """One table's regions, as hbase:meta has them."""

    now: list[Region]
    alive: list[Server] = field(default_factory=lambda: [HOME])

    def regions(self, table: str) -> list[Region]:
        return self.now

    def servers(self) -> list[Server]:
        return self.alive

    def table_enabled(self, table: str) -> bool:
        return True


def region(name: str, open_sequence: int) -> Region:
    return Region(b"", name, T, b"", b"", HOME, 1, open_sequence)


@dataclass
class Applied:
    """What went by group and by row."""

    order: list[str] = field(default_factory=list)
    reports: list[FileReport] = field(default_factory=list)
    groups: list[GroupTask] = field(default_factory=list)
    rows: list[RowTask] = field(default_factory=list)

    def apply_groups(self, spark: SparkSession, tasks: Sequence[GroupTask]) -> list[FileReport]:
        self.order.append("groups")
        self.groups += tasks
        return self.reports

    def apply_by_row(self, spark: SparkSession, task: RowTask) -> RowsApplied:
        self.order.append("rows")
        self.rows.append(task)
        return RowsApplied(5, (), 1)


@pytest.fixture
def applied(monkeypatch: pytest.MonkeyPatch) -> Applied:
    made = Applied()
    monkeypatch.setattr(window, "apply_groups", made.apply_groups)
    monkeypatch.setattr(window, "apply_by_row", made.apply_by_row)
    return made


def apply(source: Source, *found: dict[str, InWindow], cut_off: Mapping[str, int] | None = None) -> tuple[int, int]:
    """How many cells were applied, and how many left out; `found`: what each file holds, by region."""
    run = cast(Run, SimpleNamespace(source=source))
    report = FileReport("a.1", 10, True, (), (), ())
    indexes = [FileIndex(report, {(T, name): edits for name, edits in one.items()}) for one in found]
    route = cast(Route, SimpleNamespace(tables={T: T}))
    cells, outranked, refused = window._apply_edits(
        run,
        SPARK,
        RowTask(route, FILES, window=SPAN, cut_off=cut_off or {}),
        indexes,
    )
    assert refused == []
    return cells, outranked


def test_regions_that_are_open_as_they_were_go_by_group_each_file_in_its_order(applied: Applied) -> None:
    source = Source([region("r", 7), region("s", 7)])
    assert apply(source, {"r": InWindow(2, 9, -1)}, {"s": InWindow(3, 8, 7), "r": InWindow(1, 20, -1)}) == (6, 0)
    assert [[file.name for file in task.files] for task in applied.groups] == [["a.1", "a.2"], ["b.1"]]
    assert {task.standing for task in applied.groups} == {frozenset({"r", "s"})}
    assert {task.window for task in applied.groups} == {SPAN}
    assert applied.rows == []


@pytest.mark.parametrize(
    ("source", "edits"),
    [
        (Source([region("r", 10)]), InWindow(1, 9, -1)),
        (Source([region("daughter", 7)]), InWindow(1, 9, -1)),
        (Source([region("r", 7)], alive=[]), InWindow(1, 9, -1)),
        (Source([region("r", 7)]), InWindow(1, 9, 9)),
    ],
    ids=["opened since", "split since", "its server died", "later edits are there"],
)
def test_every_other_region_goes_by_row(source: Source, edits: InWindow, applied: Applied) -> None:
    assert apply(source, {"r": edits}) == (5, 1)
    assert applied.groups == []
    (task,) = applied.rows
    assert task.held == frozenset()


def test_each_region_goes_its_own_way(applied: Applied) -> None:
    assert apply(Source([region("r", 7), region("s", 10)]), {"r": InWindow(2, 9, -1), "s": InWindow(2, 9, -1)}) == (
        7,
        1,
    )
    assert {task.standing for task in applied.groups} == {frozenset({"r"})}
    assert [task.by_group for task in applied.rows] == [frozenset({"r"})]
    assert applied.order == ["rows", "groups"], "a parent's edits are older than its daughter's opening"


def test_a_region_that_goes_by_group_still_outranks_what_goes_by_row() -> None:
    """Of a daughter, what the target has of other times is later than its parent's edits in the window."""
    cell = encode_cell(b"r", b"f", b"q", 1, 4)
    content = header() + b"".join(entry([cell], n, write_time=at) for n, at in ((5, 9), (6, 15))) + TRAILER
    (batch,) = WalReader([content], "a.1")
    settled = {("a.1", T): (Settled(WriteTimes(0, 25)),)}
    route = cast(Route, SimpleNamespace(tables={T: T}))
    task = RowTask(route, FILES, window=SPAN, settled=settled, by_group=frozenset({REGION.decode()}))
    assert batch.write_time[_chosen(task, "a.1", batch)].tolist() == [9]


def test_edits_that_are_left_without_a_reason_are_an_error(applied: Applied) -> None:
    applied.reports = [FileReport("a.1", 10, True, (), (), (Withheld("a.1", T, "r", 0),))]
    with pytest.raises(WalferryError, match=r"a\.1 were not applied"):
        apply(Source([region("r", 7)]), {"r": InWindow(2, 9, -1)})


@pytest.mark.parametrize(
    ("task", "concerned"),
    [
        ({}, True),
        ({"window": WriteTimes(0, 9)}, False),
        ({"window": WriteTimes(9, 10)}, True),
        ({"skipped": frozenset({("a.1", 3)})}, False),
    ],
)
def test_a_marker_of_other_times_or_one_that_was_released_holds_nothing(task: dict[str, Any], concerned: bool) -> None:
    refusal = Refusal("a.1", 3, 4, T, "r", 1, "a bulk load", b"", RefusalKind.NOT_IN_LOG, write_time=9)
    assert GroupTask(cast(Route, None), (), frozenset(), **task).concerns(refusal) is concerned


def test_where_damage_was_accepted_nothing_goes_by_group(applied: Applied) -> None:
    apply(Source([region("r", 7)]), {"r": InWindow(2, 9, -1)}, cut_off={"a.1": 5})
    assert applied.groups == []
    assert len(applied.rows) == 1


def test_a_window_without_edits_sends_nothing(applied: Applied) -> None:
    assert apply(Source([region("r", 7)]), {"r": InWindow(0, NONE, 8)}) == (0, 0)
    assert applied.groups == []
    assert applied.rows == []


def test_a_files_edits_are_told_apart_by_time_and_by_what_the_target_has() -> None:
    cell = encode_cell(b"r", b"f", b"q", 1, 4)
    entries = [entry([cell, cell], n, write_time=at) for n, at in ((5, 9), (6, 10), (7, 19), (8, 20), (9, 25))]
    wal = WalReader([header() + b"".join(entries) + TRAILER], "a.1")
    settled = {("a.1", T): (Settled(WriteTimes(0, 25)),)}
    task = RowTask(cast(Route, SimpleNamespace(tables={T: T})), FILES, window=SPAN, settled=settled)
    index = index_file(cast(Wal, Whole(wal)), FILES[2], [T], lambda batch: _in_window(task, "a.1", batch))
    ((_, found),) = index.in_window.items()
    assert found == InWindow(cells=4, lowest=6, settled=8)


@dataclass
class Whole:
    """A log that has been read to its end."""

    batches: WalReader
    length: int = 1

    def __iter__(self) -> object:
        return iter(self.batches)
