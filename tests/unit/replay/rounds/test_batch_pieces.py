"""A batch is recorded piece by piece: a process that continues it repeats the pieces that were running."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from pyspark.sql import SparkSession

from unit.apply.guards import Guard
from unit.migration.filled_ledger import SPEC
from walferry.apply.by_group import GroupTask
from walferry.apply.by_row import RowsApplied, RowTask
from walferry.apply.outcomes import SAMPLE_BYTES, FileReport, MovedEdits, Refusal, TableTally
from walferry.apply.prefix import Sent
from walferry.apply.route import Route
from walferry.errors import DamagedInputError, GapError, TransientError
from walferry.hbase.address import ClusterAddress
from walferry.hbase.descriptors import Region
from walferry.hbase.versions import release_of
from walferry.hbase.zookeeper import Server
from walferry.ledger import Hold, Ledger, Piece, QuarantineItem, Round, SeenFile
from walferry.refusals import ANY_REGION, RefusalKind
from walferry.replay.log import lineage
from walferry.replay.pieces import group_pieces
from walferry.replay.rights.applying import lease_check_of
from walferry.replay.rights.lease import LeaseLostError
from walferry.replay.rounds import batch as applying
from walferry.replay.rounds.batch import begin_batch, continue_batch
from walferry.replay.rounds.batch_work import Batch
from walferry.run.facts import kept_lines
from walferry.run.notes.sent_early import SentEarly, note_sent, sent_early
from walferry.run.progress.batch_progress import batch_progress
from walferry.run.run import Run
from walferry.wal.files import Place, WalFile
from write_limits import write_limits

CALM, MOVING = "shop:users", "shop:orders"
TABLES = {CALM: CALM, MOVING: MOVING}
STILL, MOVED = "a" * 32, "b" * 32
HERE = ClusterAddress("127.0.0.1:1", rootdir="hdfs://127.0.0.1:1/hbase")
ROUTE = Route(HERE, "/hbase", (1, 2), HERE, TABLES, Guard(), write_limits(piece_bytes=100))
SPARK = cast(
    SparkSession, SimpleNamespace(sparkContext=SimpleNamespace(defaultParallelism=1, cancelAllJobs=lambda: None))
)
BEFORE = {MOVING: {STILL: "rs 1", MOVED: "rs 2"}}


class Source:
    """Both tables' regions; all of them are open."""

    release = release_of("2.6.3")

    def regions(self, table: str) -> list[Region]:
        names = [STILL, MOVED] if table == MOVING else ["c" * 32]
        return [Region(b"", name, table, b"", b"", Server("rs", 1, 2), 1, 50) for name in names]

    def describe(self, table: str) -> SimpleNamespace:
        return SimpleNamespace(families={"f": None})

    def close(self) -> None:
        """Nothing is open."""


@dataclass
class Executors:
    """What the executors were given, and what they answer."""

    files: list[str] = field(default_factory=list)
    tasks: list[GroupTask] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    task: RowTask | None = None
    lost: set[str | int] = field(default_factory=set)
    """names of files, or numbers of ranges, at which an executor is lost"""
    refused: list[Refusal] = field(default_factory=list)
    without: set[str] = field(default_factory=set)
    """names of files that hold no edit of the region that moved"""

    def apply_groups(self, spark: SparkSession, tasks: Sequence[GroupTask], what: str) -> list[FileReport]:
        (task,) = tasks
        self.tasks.append(task)
        names = [file.name for file in task.files]
        self.files += names
        if self.lost & set(names):
            raise TransientError("an executor was lost")
        moved = MovedEdits(MOVING, MOVED, 4 * SAMPLE_BYTES, tuple(b"%d" % number for number in range(4)))
        return [
            FileReport(name, 100, True, tuple(TableTally(table, 2, 3, 1, 2) for table in task.route.tables), (), (),
                       (), (moved,) if MOVING in task.route.tables and name not in self.without else (),
                       compared=name in task.sent)
            for name in names
        ]  # fmt: skip

    def place_rows(self, spark: SparkSession | None, task: RowTask) -> Callable[[int, str], RowsApplied]:
        self.task = task

        def apply(number: int, what: str) -> RowsApplied:
            self.rows.append(number)
            if number in self.lost:
                raise TransientError("an executor was lost")
            return RowsApplied(1, tuple(self.refused))

        return apply


@pytest.fixture
def executors(monkeypatch: pytest.MonkeyPatch) -> Executors:
    made = Executors()
    monkeypatch.setattr(group_pieces, "apply_groups", made.apply_groups)
    monkeypatch.setattr(applying, "place_rows", made.place_rows)
    monkeypatch.setattr(lineage, "CONFIRM_SECONDS", 0)
    return made


@pytest.fixture
def run(tmp_path: Path, executors: Executors) -> Iterator[Run]:
    """A run with a batch of two files in each of two groups; one of the regions has moved."""
    spec = SPEC | {"tables": [{"source": table, "target": table} for table in TABLES]}
    with Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}", actor="test") as ledger:
        run = Run(ledger, ledger.open_run("move", "test", spec, "test").run_id)
        run.__dict__.update(source=Source(), target=SimpleNamespace(cluster_id=lambda: "there", close=lambda: None))
        files = [WalFile(f"{group}.{number}", group, group, number, f"/{group}.{number}", Place.ARCHIVED, 100)
                 for group, number in (("b", 1), ("a", 2), ("a", 3), ("b", 4))]  # fmt: skip
        run.ledger.log.see_files([SeenFile(f.name, f.group, f.server, f.number, f.path, 100, True) for f in files])
        regions = {table: tuple(run.source.regions(table)) for table in TABLES}
        batch = Batch(files=tuple(files), calm=frozenset({CALM}), standing=frozenset({STILL, "c" * 32}), cut_ms=1,
                      before=BEFORE, regions=regions)  # fmt: skip
        begin_batch(run, batch, 5, ROUTE.limits.piece_bytes, lease_check_of(run, ROUTE))
        yield run


def states(run: Run, table: str) -> dict[str, str]:
    return {r.file: r.state for r in run.ledger.log.ranges() if r.table == table}


def proceed(run: Run) -> Round:
    done = continue_batch(run, SPARK, ROUTE)
    assert done is not None
    return done


def test_the_oldest_files_go_first_and_the_rest_follows_when_they_are_recorded(run: Run, executors: Executors) -> None:
    done = proceed(run)
    assert executors.files == ["b.1", "a.2", "a.3", "b.4"]
    assert set(states(run, CALM).values()) == set(states(run, MOVING).values()) == {"applied"}
    assert (done.files, done.bytes, done.entries, done.cells) == (4, 400, 16, 24)
    assert (done.pieces, done.repeated) == (4 + len(executors.rows), 0)
    assert run.ledger.batches.now() is None
    assert kept_lines(run, "applied") == BEFORE


FOLLOWED = {name: Sent(50, ((50, 1),), frozenset(TABLES), frozenset({STILL, MOVED})) for name in ("a.2", "b.1")}


def follow_moved(run: Run) -> None:
    """Let all that the region wrote before its last opening have been sent while the logs were open."""
    kept = run.ledger.batches.now()
    assert kept is not None
    plan = Batch.model_validate_json(kept.plan).model_copy(update={"followed": frozenset({MOVED})})
    pieces = run.ledger.batches.pieces()
    run.ledger.batches.replan(plan.model_dump_json(), pieces, lease_check_of(run, ROUTE))


def test_the_rest_of_a_region_that_was_followed_through_its_moves_goes_by_group(run: Run, executors: Executors) -> None:
    follow_moved(run)
    continue_batch(run, SPARK, ROUTE, FOLLOWED)
    assert {task.standing for task in executors.tasks} == {frozenset({STILL, MOVED, "c" * 32})}
    assert executors.task is None, "no row is sorted"
    assert set(states(run, MOVING).values()) == {"applied"}


@pytest.mark.parametrize(
    "sent",
    [
        {},
        {name: replace(one, regions=frozenset({STILL})) for name, one in FOLLOWED.items()},
        {name: replace(one, regions=frozenset()) for name, one in FOLLOWED.items()},
    ],
    ids=[
        "by another process",
        "something was left",
        "others are held",
    ],
)
def test_if_not_all_that_was_sent_of_such_a_region_can_be_left_out_it_goes_by_row(
    sent: dict[str, Sent], run: Run, executors: Executors
) -> None:
    follow_moved(run)
    continue_batch(run, SPARK, ROUTE, sent)
    assert {task.standing for task in executors.tasks} == {frozenset({STILL, "c" * 32})}
    assert executors.task is not None
    assert MOVED not in executors.task.held
    assert {file.name for file in executors.task.files} == {"a.2", "a.3", "b.1", "b.4"}


def test_another_process_sorts_all_rows_of_such_a_region_also_those_of_pieces_that_are_done(
    run: Run, executors: Executors
) -> None:
    follow_moved(run)
    executors.lost = {"a.3"}
    with pytest.raises(TransientError, match="lost"):
        continue_batch(run, SPARK, ROUTE, FOLLOWED)
    executors.lost = set()
    continue_batch(run, SPARK, ROUTE)
    assert executors.task is not None
    assert {file.name for file in executors.task.files} == {"a.2", "a.3", "b.1", "b.4"}


@pytest.mark.parametrize("stopped", [False, True])
def test_what_was_sent_of_a_table_that_is_stopped_is_still_to_be_compared(
    stopped: bool, run: Run, executors: Executors
) -> None:
    """Hole: the piece compares the log without that table, which nobody would have marked."""
    note_sent(run.ledger, {"a.2": SentEarly(shown=((50, 1),), tables=(CALM, MOVING))}, lambda _: None)
    if stopped:
        item = QuarantineItem("earlier", 1, 9, CALM, ANY_REGION, 1, "damaged", b"x")
        run.ledger.quarantine.put([item], lambda ids: [Hold("earlier", CALM, ANY_REGION, 0, ids[0])])
    continue_batch(run, SPARK, ROUTE, {"a.2": Sent(50, ((50, 1),), frozenset(TABLES), frozenset({STILL}))})
    assert set(sent_early(run.ledger)) == ({"a.2"} if stopped else set())


def test_after_a_lost_executor_only_its_piece_and_what_was_not_begun_is_applied(run: Run, executors: Executors) -> None:
    executors.lost = {"a.3"}
    with pytest.raises(TransientError, match="lost"):
        proceed(run)
    assert states(run, CALM) == {"b.1": "applied", "a.2": "applied"}, "recorded at once"
    assert states(run, MOVING) == {}, "its history is judged by all files together"
    executors.lost, executors.files = set(), []
    assert proceed(run).repeated == 1
    assert executors.files == ["a.3", "b.4"]
    assert set(states(run, MOVING).values()) == {"applied"}


def test_of_a_table_that_moved_nothing_is_recorded_before_its_history_was_judged(
    run: Run, executors: Executors
) -> None:
    executors.lost, executors.without = {"a.3"}, {"b.1"}
    with pytest.raises(TransientError, match="lost"):
        proceed(run)
    assert states(run, MOVING) == {}
    executors.lost = set()
    proceed(run)
    assert executors.task is not None
    assert {file.name for file in executors.task.files} == {"a.2", "a.3", "b.4"}, "only these are read again"
    assert set(states(run, MOVING).values()) == {"applied"}


def test_what_the_target_refuses_of_the_rows_is_in_quarantine_and_its_region_waits(
    run: Run, executors: Executors
) -> None:
    executors.refused = [Refusal("a.2", 1, 9, MOVING, MOVED, 1, "no such family", b"x")]
    proceed(run)
    assert [(item.file, item.region) for item in run.ledger.quarantine.items()] == [("a.2", MOVED)]
    assert states(run, MOVING) == dict.fromkeys(("b.1", "a.2", "a.3", "b.4"), "sealed")


def test_rows_that_were_applied_are_not_applied_again(run: Run, executors: Executors) -> None:
    executors.lost = {2}
    with pytest.raises(TransientError, match="lost"):
        proceed(run)
    assert (executors.rows, states(run, MOVING)) == ([0, 1, 2], {})
    executors.lost, executors.rows, executors.files = set(), [], []
    assert proceed(run).repeated == 1
    assert executors.files == []
    assert executors.rows == [2, 3]
    assert executors.task is not None
    assert executors.task.pieces == frozenset({2, 3})
    assert executors.task.held >= {STILL}, "what stood still went by group"


def test_a_release_in_the_middle_of_a_batch_waits_for_its_end(run: Run, executors: Executors) -> None:
    """Otherwise some ranges of rows would have the edits of a region that other ranges left out."""
    executors.lost = {2}
    executors.refused = [Refusal("a.2", 1, 9, MOVING, MOVED, 1, "no such family", b"x")]
    with pytest.raises(TransientError, match="lost"):
        proceed(run)
    executors.lost = set()
    proceed(run)
    assert states(run, MOVING) == dict.fromkeys(("b.1", "a.2", "a.3", "b.4"), "sealed")
    assert {(hold.file, hold.region) for hold in run.ledger.quarantine.holds()} == {
        (name, MOVED) for name in ("b.1", "a.2", "a.3", "b.4")
    }
    assert set(states(run, CALM).values()) == {"applied"}


def test_a_hold_that_a_killed_process_recorded_counts_when_its_piece_is_repeated(
    run: Run, executors: Executors
) -> None:
    """Otherwise edits after it are applied, and those before them when it is released."""
    (item,) = run.ledger.quarantine.put([QuarantineItem("b.1", 1, 9, CALM, "c" * 32, 1, "no such family", b"x")])
    run.ledger.quarantine.hold([Hold("b.1", CALM, "c" * 32, 0, item)])
    proceed(run)
    assert all("c" * 32 in task.held for task in executors.tasks)


def test_a_process_that_was_succeeded_neither_begins_nor_records_anything(
    run: Run, executors: Executors, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its guard may have passed just before it was suspended."""
    real = executors.apply_groups

    def succeeded(spark: SparkSession, tasks: Sequence[GroupTask], what: str) -> list[FileReport]:
        run.ledger.leases.take(f"there {CALM}", "another", run.ledger.leases.newest(f"there {CALM}") + 1)
        return real(spark, tasks, what)

    monkeypatch.setattr(group_pieces, "apply_groups", succeeded)
    lease_check = lease_check_of(run, ROUTE)
    with pytest.raises(LeaseLostError, match="another process has taken it"):
        proceed(run)
    assert executors.files == ["b.1"]
    assert [piece.state for piece in run.ledger.batches.pieces()] == ["running", *["waiting"] * 3]
    assert run.ledger.log.ranges() == []
    changes: list[Callable[[], None]] = [
        lambda: run.ledger.batches.start(3, lease_check),
        lambda: run.ledger.batches.finish(3, "{}", lease_check),
        lambda: run.ledger.batches.add([Piece(9, "rows", "", "", 1)], lease_check),
        lambda: run.ledger.log.set_ranges([], also=run.ledger.batches.end(lease_check)),
        lambda: run.ledger.batches.begin("", [], 1, lease_check),
    ]
    for change in changes:
        with pytest.raises(LeaseLostError):
            change()
    assert len(run.ledger.batches.pieces()) == 4


def test_damage_that_shows_only_when_rows_are_read_holds_the_tables_and_ends_the_batch(
    run: Run, executors: Executors, monkeypatch: pytest.MonkeyPatch
) -> None:
    def damaged(*_: object) -> None:
        raise DamagedInputError("a.2 is damaged at byte 7", file="a.2", offset=7)

    monkeypatch.setattr(applying, "place_rows", damaged)
    proceed(run)
    assert [(item.file, item.kind) for item in run.ledger.quarantine.items("held")] == [("a.2", RefusalKind.DAMAGE)]
    assert set(states(run, MOVING).values()) == {"sealed"}
    assert run.ledger.batches.now() is None


def test_status_names_the_pieces_that_are_begun_again(run: Run, executors: Executors) -> None:
    executors.lost = {"a.3"}
    for _ in range(2):
        with pytest.raises(TransientError, match="lost"):
            proceed(run)
    progress = batch_progress(run.ledger)
    assert progress is not None
    assert (progress.pieces, progress.done, progress.bytes, progress.bytes_done) == (4, 2, 400, 200)
    assert progress.repeated == ("a: attempt 2",)
    assert progress.eta_seconds is not None


def test_a_file_that_vanishes_under_a_batch_is_a_gap(
    run: Run, executors: Executors, monkeypatch: pytest.MonkeyPatch
) -> None:
    def vanish(*_: object) -> list[FileReport]:
        raise GapError("a.3 is gone", file="a.3", start=0, end=None)

    monkeypatch.setattr(group_pieces, "apply_groups", vanish)
    with pytest.raises(GapError):
        proceed(run)
    assert [file.name for file in run.ledger.log.files() if file.state == "missing"] == ["a.3"]
