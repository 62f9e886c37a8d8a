"""A window's edits: which go by group and which by row, and what a process that continues a window repeats."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession

from unit.apply.guards import Guard
from unit.formats.wal_builder import REGION, TRAILER, entry, header
from unit.migration.filled_ledger import SPEC
from walferry.apply.by_group import GroupTask
from walferry.apply.by_row import RowsApplied, RowTask, _in_window, chosen_entries
from walferry.apply.index import NONE, FileIndex, InWindow, index_file
from walferry.apply.outcomes import SAMPLE_BYTES, FileReport, MovedEdits, Refusal, TableTally, Withheld
from walferry.apply.route import Route
from walferry.apply.window_rows import SettledEdits, WindowRows, WriteTimes
from walferry.apply.writer_protocol import WriteLimits
from walferry.errors import TransientError, WalferryError
from walferry.formats.cells import encode_cell
from walferry.formats.wal import WalReader
from walferry.hbase.address import ClusterAddress
from walferry.hbase.descriptors import Region
from walferry.hbase.zookeeper import Server
from walferry.ledger import Ledger
from walferry.refusals import ANY_REGION, RefusalKind
from walferry.replay.pieces import group_pieces
from walferry.replay.rights.lease import LeaseLostError, resource
from walferry.replay.windows import window_pieces
from walferry.replay.windows.window_pieces import WindowApplied, apply_in_pieces
from walferry.run.run import Run
from walferry.wal.files import Place, WalFile
from walferry.wal.open import Wal
from write_limits import write_limits

T = "t1"
HOME = Server("rs", 1, 2)
SPARK = cast(
    SparkSession, SimpleNamespace(sparkContext=SimpleNamespace(defaultParallelism=1, cancelAllJobs=lambda: None))
)
FILES = tuple(WalFile(f"{g}.{n}", g, g, n, f"/{g}.{n}", Place.ARCHIVED, 10) for g, n in (("a", 2), ("b", 1), ("a", 1)))
SPAN = WriteTimes(10, 20)
HERE = ClusterAddress("127.0.0.1:1", rootdir="hdfs://127.0.0.1:1/hbase")
TASK = RowTask(
    Route(HERE, "/hbase", (1, 2), HERE, {T: T}, Guard(), write_limits(piece_bytes=10, here_bytes=1)),
    FILES,
    window=WindowRows(SPAN),
)


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

    def close(self) -> None:
        """Nothing is open."""


def region(name: str, open_sequence: int) -> Region:
    return Region(b"", name, T, b"", b"", HOME, 1, open_sequence)


@dataclass
class Executors:
    """What the executors find and do."""

    found: dict[str, dict[str, InWindow]]
    """by file and region"""
    index_refusals: tuple[Refusal, ...] = ()
    reads: int = 0
    order: list[str] = field(default_factory=list)
    groups: list[GroupTask] = field(default_factory=list)
    rows: list[RowTask] = field(default_factory=list)
    lost: set[str] = field(default_factory=set)
    """of `order`: where an executor is lost"""
    refused: dict[str, Refusal] = field(default_factory=dict)
    """by file"""
    withheld: tuple[Withheld, ...] = ()
    incomplete: set[str] = field(default_factory=set)
    """files that cannot be read to their end"""
    with_spark: set[str] = field(default_factory=set)
    """what was done in executors, not in this process"""

    def index_files(
        self, spark: SparkSession | None, route: Route, files: Sequence[WalFile], window: RowTask | None = None
    ) -> list[FileIndex]:
        self.with_spark |= {"index"} if spark else set()
        self.reads += 1
        return [self._index(file) for file in files]

    def _index(self, file: WalFile) -> FileIndex:
        found = self.found.get(file.name, {})
        tally = TableTally(T, len(found), sum(one.cells for one in found.values()), 10, 19)
        return FileIndex(
            FileReport(file.name, 10, True, (tally,), self.index_refusals if file.name == "a.1" else (), ()),
            {(T, name): one for name, one in found.items()},
            tuple(MovedEdits(T, name, 2 * SAMPLE_BYTES, (b"j", b"k")) for name, one in found.items() if one.cells),
            tuple(MovedEdits(T, name, 2 * SAMPLE_BYTES, (b"x", b"y")) for name, one in found.items()
                  if one.settled > 0),
        )  # fmt: skip

    def apply_groups(self, spark: SparkSession | None, tasks: Sequence[GroupTask], what: str) -> list[FileReport]:
        self.with_spark |= {"groups"} if spark else set()
        (task,) = tasks
        self.groups.append(task)
        return [self._applied(file.name) for file in task.files]

    def _applied(self, file: str) -> FileReport:
        self._done(file)
        refusals = (self.refused[file],) if file in self.refused else ()
        return FileReport(file, 10, file not in self.incomplete, (), refusals, self.withheld)

    def place_rows(self, spark: SparkSession | None, task: RowTask) -> Callable[[int, str], RowsApplied]:
        self.with_spark |= {"rows"}
        self.rows.append(task)

        def apply(number: int, what: str) -> RowsApplied:
            self._done(f"rows {number}")
            return RowsApplied(5, (), 1)

        return apply

    def _done(self, what: str) -> None:
        if what in self.lost:
            raise TransientError("an executor was lost")
        self.order.append(what)


MAKE = Callable[..., Executors]


@pytest.fixture
def executors(monkeypatch: pytest.MonkeyPatch) -> MAKE:
    def make(*found: dict[str, InWindow], **more: Any) -> Executors:
        """`found`: what each file holds, the oldest first."""
        names = sorted((file.name for file in FILES), key=lambda name: (name[-1], name))
        made = Executors(dict(zip(names, found, strict=False)), **more)
        for name in ("index_files", "place_rows"):
            monkeypatch.setattr(window_pieces, name, getattr(made, name))
        monkeypatch.setattr(group_pieces, "apply_groups", made.apply_groups)
        return made

    return make


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    window = {"from": "2026-01-01T00:00:00Z", "to": "2026-01-02T00:00:00Z"}
    spec = SPEC | {"tables": [{"source": T, "target": T}], "window": window}
    with Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}", actor="test") as ledger:
        run = Run(ledger, ledger.open_run("window", "window", spec, "test", "window").run_id)
        regions = [region("there", 1), region("also there", 1)]
        run.__dict__.update(
            target=SimpleNamespace(cluster_id=lambda: "there", regions=lambda table: regions, close=lambda: None)
        )
        take_lease(run)
        yield run


def take_lease(run: Run, number: int | None = None) -> None:
    name = resource("there", T)
    run.ledger.leases.take(name, "test", number or run.ledger.leases.newest(name) + 1)


def apply(run: Run, *regions: Region, task: RowTask = TASK, alive: Sequence[Server] = (HOME,),
          released: frozenset[tuple[int, str | None]] = frozenset()) -> WindowApplied:  # fmt: skip
    run.__dict__["source"] = Source(list(regions), list(alive))
    return apply_in_pieces(run, lambda: SPARK, task, len(FILES), released, lambda indexes: None)


def refusal(file: str, name: str = "r", kind: RefusalKind = RefusalKind.REFUSED) -> Refusal:
    return Refusal(file, 3, 4, T, name, 1, "too large", b"\xff", kind, write_time=15)


# ------------------------------------------------------------------ what goes which way


def test_regions_that_are_open_as_they_were_go_by_group_each_file_in_its_order(run: Run, executors: MAKE) -> None:
    made = executors({"r": InWindow(2, 9, -1)}, {"s": InWindow(3, 8, 7), "r": InWindow(1, 20, -1)}, {})
    done = apply(run, region("r", 7), region("s", 7))
    assert (done.cells, done.outranked, done.pieces, done.refusals) == (6, 0, 2, ())
    assert made.order == ["a.1", "b.1"], "the third file holds nothing of the window"
    assert {task.standing for task in made.groups} == {frozenset({"r", "s"})}
    assert {task.window for task in made.groups} == {SPAN}
    assert made.rows == []


@pytest.mark.parametrize(
    ("now", "alive", "edits"),
    [
        (region("r", 10), [HOME], InWindow(1, 9, -1)),
        (region("daughter", 7), [HOME], InWindow(1, 9, -1)),
        (region("r", 7), [], InWindow(1, 9, -1)),
        (region("r", 7), [HOME], InWindow(1, 9, 9)),
    ],
    ids=["opened since", "split since", "its server died", "later edits are there"],
)
def test_every_other_region_goes_by_row(
    now: Region, alive: list[Server], edits: InWindow, run: Run, executors: MAKE
) -> None:
    made = executors({"r": edits})
    done = apply(run, now, alive=alive)
    assert (done.cells, done.outranked) == (5 * done.pieces, done.pieces)
    assert made.groups == []
    (task,) = made.rows
    assert (task.held, task.window.by_group) == (frozenset(), frozenset())


@pytest.mark.parametrize(
    ("limits", "small"),
    [
        (write_limits(piece_bytes=10, here_bytes=30), True),
        (write_limits(piece_bytes=10, here_bytes=29), False),
    ],
    ids=["small", "large"],
)
def test_a_small_window_needs_spark_only_to_sort_rows(
    limits: WriteLimits, small: bool, run: Run, executors: MAKE
) -> None:
    made = executors({"r": InWindow(2, 9, -1), "s": InWindow(2, 9, -1)})
    task = replace(TASK, route=replace(TASK.route, limits=limits))
    apply(run, region("r", 7), region("s", 10), task=task)
    mine = set() if small else {"index", "groups"}
    assert made.with_spark == mine | {"rows"}


def test_a_small_window_of_which_nothing_is_to_be_sorted_starts_no_spark(run: Run, executors: MAKE) -> None:
    made = executors({"r": InWindow(2, 9, -1)})
    run.__dict__["source"] = Source([region("r", 7)])

    def spark() -> SparkSession:
        raise AssertionError("Spark was started")

    small = replace(TASK, route=replace(TASK.route, limits=write_limits(piece_bytes=10)))
    apply_in_pieces(run, spark, small, len(FILES), frozenset(), lambda indexes: None)
    assert made.order == ["a.1"]


def test_each_region_goes_its_own_way_rows_first(run: Run, executors: MAKE) -> None:
    made = executors({"r": InWindow(2, 9, -1), "s": InWindow(2, 9, -1)})
    assert apply(run, region("r", 7), region("s", 10)).cells == 12
    assert {task.standing for task in made.groups} == {frozenset({"r"})}
    assert [task.window.by_group for task in made.rows] == [frozenset({"r"})]
    assert made.order == ["rows 0", "rows 1", "a.1"], "a parent's edits are older than its daughter's opening"


def test_pieces_by_row_are_cut_by_what_is_applied_and_by_what_the_target_has(run: Run, executors: MAKE) -> None:
    made = executors({"r": InWindow(2, 9, 30)})
    apply(run, region("r", 7))
    assert made.rows[0].borders == ((T, b"k"), (T, b"x"), (T, b"y"))


def test_a_region_that_goes_by_group_still_outranks_what_goes_by_row() -> None:
    """Of a daughter, what the target has of other times is later than its parent's edits in the window."""
    cell = encode_cell(b"r", b"f", b"q", 1, 4)
    content = header() + b"".join(entry([cell], n, write_time=at) for n, at in ((5, 9), (6, 15))) + TRAILER
    (batch,) = WalReader([content], "a.1")
    settled = {("a.1", T): (SettledEdits(WriteTimes(0, 25)),)}
    task = replace(TASK, window=WindowRows(SPAN, settled, by_group=frozenset({REGION.decode()})))
    assert batch.write_time[chosen_entries(task, "a.1", batch)].tolist() == [9]


def test_edits_that_are_left_without_a_reason_are_an_error(run: Run, executors: MAKE) -> None:
    executors({"r": InWindow(2, 9, -1)}, withheld=(Withheld("a.1", T, "r", 0),))
    with pytest.raises(WalferryError, match=r"a\.1 were not applied"):
        apply(run, region("r", 7))


def test_after_a_refused_edit_nothing_of_its_region_is_applied_and_what_was_refused_is_told(
    run: Run, executors: MAKE
) -> None:
    made = executors({"r": InWindow(2, 9, -1)}, {}, {"r": InWindow(2, 20, -1)}, refused={"a.1": refusal("a.1")})
    assert apply(run, region("r", 7)).refusals == (refusal("a.1"),)
    assert [task.held for task in made.groups] == [frozenset(), frozenset({"r"})]


def test_a_file_of_which_only_a_marker_counts_is_read_in_its_group_so_that_its_region_is_held(
    run: Run, executors: MAKE
) -> None:
    marker = refusal("a.1", kind=RefusalKind.NOT_IN_LOG)
    made = executors({}, {}, {"r": InWindow(2, 20, -1)}, index_refusals=(marker,), refused={"a.1": marker})
    assert apply(run, region("r", 7)).refusals == (marker,)
    assert made.order == ["a.1", "a.2"]
    assert made.groups[-1].held == {"r"}


def test_nothing_of_a_group_goes_past_a_file_that_has_become_damaged(run: Run, executors: MAKE) -> None:
    damage = refusal("a.1", name=ANY_REGION, kind=RefusalKind.DAMAGE)
    made = executors(
        {"r": InWindow(2, 9, -1)}, {}, {"r": InWindow(2, 20, -1), "s": InWindow(1, 9, -1)},
        refused={"a.1": damage}, incomplete={"a.1"},
    )  # fmt: skip
    apply(run, region("r", 7), region("s", 7))
    assert made.groups[-1].held >= {"r", "s"}


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


def test_where_damage_was_accepted_nothing_goes_by_group(run: Run, executors: MAKE) -> None:
    made = executors({"r": InWindow(2, 9, -1)})
    apply(run, region("r", 7), task=replace(TASK, cut_off={"a.1": 5}))
    assert made.groups == []
    assert len(made.rows) == 1


def test_nothing_is_applied_while_a_file_is_damaged(run: Run, executors: MAKE) -> None:
    damage = refusal("a.1", kind=RefusalKind.DAMAGE)
    made = executors({"r": InWindow(2, 9, -1)}, index_refusals=(damage,))
    assert apply(run, region("r", 7)).refusals == (damage,)
    assert made.order == []
    assert run.ledger.batches.now() is None


def test_a_window_without_edits_sends_nothing(run: Run, executors: MAKE) -> None:
    made = executors({"r": InWindow(0, NONE, 8)})
    assert apply(run, region("r", 7)).cells == 0
    assert made.order == []


def test_a_files_edits_are_told_apart_by_time_and_by_what_the_target_has() -> None:
    cell = encode_cell(b"r", b"f", b"q", 1, 4)
    entries = [entry([cell, cell], n, write_time=at) for n, at in ((5, 9), (6, 10), (7, 19), (8, 20), (9, 25))]
    wal = WalReader([header() + b"".join(entries) + TRAILER], "a.1")
    task = replace(TASK, window=WindowRows(SPAN, {("a.1", T): (SettledEdits(WriteTimes(0, 25)),)}))
    index = index_file(cast(Wal, Whole(wal)), FILES[2], [T], lambda batch: _in_window(task, "a.1", batch))
    ((_, found),) = index.in_window.items()
    assert found == InWindow(cells=4, lowest=6, settled=8)
    assert [edits.size for edits in (*index.inside, *index.settled)] == [4 * len(cell), 4 * len(cell)]


@dataclass
class Whole:
    """A log that has been read to its end."""

    batches: WalReader
    length: int = 1

    def __iter__(self) -> object:
        return iter(self.batches)


# ------------------------------------------------------------------ what is repeated

BOTH_WAYS: list[dict[str, InWindow]] = [
    {"r": InWindow(2, 9, -1), "s": InWindow(2, 9, -1)}, {"r": InWindow(1, 9, -1)}, {"r": InWindow(4, 20, -1)},
]  # fmt: skip


def interrupted(run: Run, made: Executors, at: str) -> None:
    """An attempt that ends there, and the lease of the next one."""
    made.lost = {at}
    with pytest.raises(TransientError):
        apply(run, region("r", 7), region("s", 10))
    made.lost = set()
    take_lease(run)


@pytest.mark.parametrize(
    ("at", "again"), [("rows 1", ["rows 1", "a.1", "b.1", "a.2"]), ("b.1", ["b.1", "a.2"]), ("a.2", ["a.2"])]
)
def test_what_is_done_is_not_repeated_after_an_executor_was_lost(
    at: str, again: list[str], run: Run, executors: MAKE
) -> None:
    made = executors(*BOTH_WAYS)
    interrupted(run, made, at)
    before = len(made.order)
    done = apply(run, region("r", 7), region("s", 10))
    assert made.order[before:] == again
    assert made.reads == 1, "what the files hold is known"
    assert (done.cells, done.outranked, done.pieces, done.repeated) == (7 + 10, 2, 5, 1)
    assert {r.file for r in done.ranges} == {file.name for file in FILES}
    if at == "rows 1":
        assert made.rows[-1].pieces == frozenset({1}), "rows that were applied are not sorted again"


def test_a_region_that_has_moved_since_still_goes_as_it_was_decided(run: Run, executors: MAKE) -> None:
    made = executors(*BOTH_WAYS)
    interrupted(run, made, "b.1")
    apply(run, region("r", 99), region("s", 99))
    assert made.order.count("a.1") == 1
    assert made.order[-1] == "a.2"


def test_what_was_refused_before_the_loss_is_still_told_and_holds_its_region(run: Run, executors: MAKE) -> None:
    made = executors(*BOTH_WAYS, refused={"a.1": refusal("a.1")})
    interrupted(run, made, "a.2")
    assert apply(run, region("r", 7), region("s", 10)).refusals == (refusal("a.1"),)
    assert made.groups[-1].held == {"r"}


def test_the_window_starts_over_if_another_run_had_the_lease_since(run: Run, executors: MAKE) -> None:
    """It may have applied older edits over those of pieces that are done."""
    made = executors(*BOTH_WAYS)
    interrupted(run, made, "a.2")
    other = run.ledger.whole.open_run("other", "window", run.record.spec, "test", "window")
    run.ledger.whole.of(other.run_id).leases.take(resource("there", T), "test", 3)
    take_lease(run)
    before = len(made.order)
    apply(run, region("r", 7), region("s", 10))
    assert made.order[before:] == ["rows 0", "rows 1", "a.1", "b.1", "a.2"]
    assert made.reads == 2


@pytest.mark.parametrize(("now", "reads"), [(["there", "daughter"], 1), (["anew", "anew too"], 2)])
def test_the_window_starts_over_if_its_target_was_emptied_since(
    now: list[str], reads: int, run: Run, executors: MAKE
) -> None:
    made = executors(*BOTH_WAYS)
    interrupted(run, made, "a.2")
    run.target.__dict__["regions"] = lambda table: [region(name, 1) for name in now]
    apply(run, region("r", 7), region("s", 10))
    assert made.reads == reads


def test_the_window_starts_over_if_somebody_unknown_had_the_lease_since(run: Run, executors: MAKE) -> None:
    made = executors(*BOTH_WAYS)
    interrupted(run, made, "a.2")
    take_lease(run, 5)
    apply(run, region("r", 7), region("s", 10))
    assert made.reads == 2


@pytest.mark.parametrize(
    "change",
    [
        {"task": replace(TASK, window=WindowRows(SPAN, {("a.1", T): (SettledEdits(SPAN),)}))},
        {"task": replace(TASK, window=WindowRows(SPAN, absent_at_target=frozenset({("a.1", 3)})))},
        {"task": replace(TASK, files=FILES[:2])},
        {"released": frozenset({(1, "retry")})},
    ],
    ids=["more is there", "less is there", "other files", "a release"],
)
def test_the_window_starts_over_if_what_it_was_planned_from_has_changed(
    change: dict[str, Any], run: Run, executors: MAKE
) -> None:
    made = executors(*BOTH_WAYS)
    interrupted(run, made, "a.2")
    apply(run, region("r", 7), region("s", 10), **change)
    assert made.reads == 2


def test_a_process_that_was_succeeded_records_nothing_more(run: Run, executors: MAKE) -> None:
    made = executors(*BOTH_WAYS)
    place_rows = made.place_rows

    def succeeded(spark: SparkSession | None, task: RowTask) -> Callable[[int, str], RowsApplied]:
        take_lease(run)
        return place_rows(spark, task)

    window_pieces.place_rows = succeeded  # type: ignore[attr-defined]
    with pytest.raises(LeaseLostError, match="no longer held"):
        apply(run, region("r", 7), region("s", 10))
    assert made.order == []
