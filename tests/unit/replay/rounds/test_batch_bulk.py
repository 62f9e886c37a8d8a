"""A large batch is loaded in bulk if all of it is plain, and otherwise goes by group, from its beginning."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from pyspark.sql import SparkSession

from unit.apply.guards import Guard
from unit.migration.filled_ledger import SPEC
from walferry.apply.by_group import GroupTask
from walferry.apply.in_bulk import BulkApplied, BulkTask, InFile, Placed
from walferry.apply.index import FileIndex
from walferry.apply.number_spans import NumberSpan
from walferry.apply.outcomes import FileReport, Refusal, TableTally
from walferry.apply.region_events import RegionEvent
from walferry.apply.route import Route
from walferry.errors import GapError, TransientError, WalferryError
from walferry.formats.markers import Marker
from walferry.hbase.address import ClusterAddress
from walferry.hbase.descriptors import Region, TableDescriptor, new_table
from walferry.hbase.versions import release_of
from walferry.hbase.zookeeper import Server
from walferry.ledger import Hold, Ledger, QuarantineItem, Round, SeenFile
from walferry.refusals import ANY_REGION, ANY_TABLE, RefusalKind
from walferry.replay.log import lineage
from walferry.replay.pieces import bulk_pieces, group_pieces
from walferry.replay.pieces.bulk_pieces import table_faults
from walferry.replay.rights.applying import lease_check_of
from walferry.replay.rights.lease import OutcomeUnknownError
from walferry.replay.rounds import batch_bulk
from walferry.replay.rounds.batch import begin_batch, continue_batch
from walferry.replay.rounds.batch_bulk import BULK_ATTEMPTS
from walferry.replay.rounds.batch_work import Batch
from walferry.run.run import Run
from walferry.storage import PermissionDeniedError
from walferry.wal.files import Place, WalFile
from write_limits import write_limits

TABLE = "shop:orders"
REGION = "a" * 32
HERE = ClusterAddress("127.0.0.1:1", rootdir="hdfs://127.0.0.1:1/hbase")
ROUTE = Route(HERE, "/hbase", (1, 2), HERE, {TABLE: TABLE}, Guard(), write_limits(piece_bytes=30 << 20))
SPARK = cast(
    SparkSession, SimpleNamespace(sparkContext=SimpleNamespace(defaultParallelism=1, cancelAllJobs=lambda: None))
)
FILES = tuple(
    WalFile(f"rs%2C1%2C2.{number}", "rs%2C1%2C2", "rs,1,2", number, f"/{number}", Place.ARCHIVED, 40 << 20)
    for number in (1, 2)
)
BORDERS = (b"g", b"p")


class Cluster:
    """Both sides: a table of one region."""

    release = release_of("2.6.3")
    address = ClusterAddress("none:1")

    def regions(self, table: str) -> list[Region]:
        return [Region(b"", REGION, table, b"", b"", Server("rs", 1, 2), 1, 50)]

    def describe(self, table: str) -> TableDescriptor:
        return new_table(table, {"f": {}})

    def cluster_id(self) -> str:
        return "there"

    def close(self) -> None:
        """Nothing is open."""


@dataclass
class Executors:
    """What the executors were given, and what they answer."""

    sent: list[str] = field(default_factory=list)
    """files by group"""
    asked: list[frozenset[int] | None] = field(default_factory=list)
    """the pieces that files were read for"""
    loaded: list[int] = field(default_factory=list)
    removed: int = 0
    fails: dict[int, Exception] = field(default_factory=dict)
    """pieces whose loading fails; -1: reading does"""
    refused: list[Refusal] = field(default_factory=list)
    events: list[RegionEvent] = field(default_factory=list)
    lost: int = 0
    """cells that each piece does not come to load"""

    def _report(self, name: str) -> FileReport:
        refusals = tuple(refusal for refusal in self.refused if refusal.file == name)
        whole = all(refusal.kind is not RefusalKind.DAMAGE for refusal in refusals)
        span = NumberSpan(TABLE, REGION, name, 5, 9, True, True, 1)
        return FileReport(name, 40 << 20, whole, (TableTally(TABLE, 2, 3, 1, 2),), refusals, (),
                          tuple(event for event in self.events if event.file == name), numbers=(span,))  # fmt: skip

    def apply_groups(self, spark: SparkSession, tasks: Sequence[GroupTask], what: str) -> list[FileReport]:
        names = [file.name for task in tasks for file in task.files]
        self.sent += names
        return [self._report(name) for name in names]

    def place(self, spark: SparkSession, task: BulkTask) -> Placed:
        pieces = range(len(task.rows.borders))
        self.asked.append(task.rows.pieces)
        wanted = [piece for piece in pieces if task.rows.pieces is None or piece in task.rows.pieces]

        def read() -> list[InFile]:
            if -1 in self.fails:
                raise self.fails[-1]
            return [InFile(FileIndex(self._report(f.name)), 3, 0, dict.fromkeys(wanted, 1)) for f in task.rows.files]

        def apply(piece: int, what: str) -> BulkApplied:
            self.loaded.append(piece)
            if piece in self.fails:
                raise self.fails[piece]
            return BulkApplied(2, 0, 1, 100, 2 - self.lost)

        return Placed(read, apply)

    def removes(self, run: Run, pairs: object) -> None:
        self.removed += 1


@pytest.fixture
def executors(monkeypatch: pytest.MonkeyPatch) -> Executors:
    made = Executors()
    monkeypatch.setattr(group_pieces, "apply_groups", made.apply_groups)
    monkeypatch.setattr(batch_bulk, "place_in_bulk", made.place)
    monkeypatch.setattr(batch_bulk, "remove_staged", made.removes)
    monkeypatch.setattr(bulk_pieces, "remove_staged", made.removes)
    monkeypatch.setattr(bulk_pieces, "sample_rows", lambda task: [(TABLE, row) for row in (b"a", *BORDERS)])
    monkeypatch.setattr(lineage, "CONFIRM_SECONDS", 0)
    return made


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    with Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}", actor="test") as ledger:
        run = Run(ledger, ledger.open_run("move", "test", SPEC, "test").run_id)
        run.__dict__.update(source=Cluster(), target=Cluster(), target_files=SimpleNamespace(mkdirs=lambda path: None))
        run.ledger.log.see_files([SeenFile(f.name, f.group, f.server, f.number, f.path, f.length, True) for f in FILES])
        yield run


def begin(run: Run, files: Sequence[WalFile] = FILES) -> int:
    """Begin a batch; how often it may fail in bulk."""
    batch = Batch(files=tuple(files), calm=frozenset({TABLE}), standing=frozenset({REGION}), cut_ms=1,
                  before={TABLE: {REGION: "rs"}}, regions={TABLE: tuple(Cluster().regions(TABLE))})  # fmt: skip
    begin_batch(run, batch, 5, ROUTE.limits.piece_bytes, lease_check_of(run, ROUTE))
    return plan(run).bulk


def plan(run: Run) -> Batch:
    kept = run.ledger.batches.now()
    assert kept is not None
    return Batch.model_validate_json(kept.plan)


def proceed(run: Run) -> Round:
    done = continue_batch(run, SPARK, ROUTE)
    assert done is not None
    return done


def sent_under_new_leases(run: Run) -> Round:
    """Hole: it was sent under those under which an executor that Spark had given up could still load older edits."""
    with pytest.raises(OutcomeUnknownError, match="an executor may still load edits in bulk"):
        proceed(run)
    assert plan(run).bulk == 0
    return proceed(run)


def states(run: Run) -> set[str]:
    return {found.state for found in run.ledger.log.ranges()}


def refusal(kind: RefusalKind = RefusalKind.REFUSED, table: str = TABLE) -> Refusal:
    return Refusal(FILES[1].name, 7, 9, table, ANY_REGION if table == ANY_TABLE else REGION, 1, "no way", b"x", kind)


def test_a_large_batch_is_loaded_and_recorded_as_the_same_one_by_group(run: Run, executors: Executors) -> None:
    begin(run)
    done = proceed(run)
    assert (sorted(executors.loaded), executors.sent) == ([0, 1, 2], [])
    assert executors.removed == 1, "what was left of its files"
    assert (done.files, done.bytes, done.entries, done.cells) == (2, 80 << 20, 4, 6)
    assert (done.pieces, done.repeated) == (3, 0)
    assert states(run) == {"applied"}
    assert run.ledger.numbers.last([REGION])[REGION].number == 9
    assert run.ledger.batches.now() is None


@pytest.mark.parametrize("asked", ["auto", "bulk", "rpc"])
def test_only_a_large_batch_of_a_run_that_may_goes_in_bulk(asked: str, run: Run, executors: Executors) -> None:
    run.__dict__["spec"] = run.spec.model_copy(update={"apply": asked})
    assert begin(run, FILES[:1]) == 0, "the tail"
    proceed(run)
    assert (begin(run) > 0) is (asked != "rpc")


def test_a_batch_is_sent_where_files_may_not_be_staged(
    run: Run, executors: Executors, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(path: str, permission: int = 0) -> None:
        raise PermissionDeniedError(f"not allowed to write to {path}")

    monkeypatch.setattr(run.target_files, "mkdirs", refuse)
    assert begin(run) == 0
    assert "not allowed to write to /hbase/staging" in caplog.text


def test_a_batch_that_is_small_for_the_number_of_regions_is_sent(
    run: Run, executors: Executors, monkeypatch: pytest.MonkeyPatch
) -> None:
    some = Cluster().regions(TABLE)
    monkeypatch.setattr(run.target, "regions", lambda table: some * 41)
    assert begin(run) == 0


def test_what_quarantine_holds_keeps_a_batch_from_bulk(
    run: Run, executors: Executors, caplog: pytest.LogCaptureFixture
) -> None:
    (item,) = run.ledger.quarantine.put([QuarantineItem(FILES[0].name, 1, 9, TABLE, REGION, 1, "no", b"x")])
    run.ledger.quarantine.hold([Hold(FILES[0].name, TABLE, REGION, 0, item)])
    with caplog.at_level(logging.WARNING):
        assert begin(run) == 0
    assert "quarantine holds regions of shop:orders" in caplog.text


@pytest.mark.parametrize(
    "refused",
    [refusal(), refusal(RefusalKind.NOT_IN_LOG), refusal(RefusalKind.DAMAGE, ANY_TABLE)],
    ids=["refused", "not in the log", "damage"],
)
def test_nothing_is_loaded_of_a_batch_with_something_that_cannot_be_applied(
    refused: Refusal, run: Run, executors: Executors, caplog: pytest.LogCaptureFixture
) -> None:
    executors.refused = [refused]
    begin(run)
    proceed(run)
    assert (executors.loaded, executors.sent) == ([], [file.name for file in FILES])
    assert [item.reason for item in run.ledger.quarantine.items("held")] == ["no way"]
    assert "the whole batch is applied by rpc, not in bulk: its edits may have to wait: no way" in caplog.text


def test_nothing_is_loaded_of_a_table_that_began_a_new_history(run: Run, executors: Executors) -> None:
    executors.events = [RegionEvent(Marker.REGION_OPEN, FILES[1].name, 3, TABLE, "b" * 32, 2, 1)]
    begin(run)
    proceed(run)
    assert (executors.loaded, executors.sent) == ([], [file.name for file in FILES])
    assert [item.kind for item in run.ledger.quarantine.items("held")] == [RefusalKind.LINEAGE]


def test_a_killed_process_loads_only_what_is_left(run: Run, executors: Executors) -> None:
    executors.fails = {1: TransientError("a server was restarted")}
    begin(run)
    with pytest.raises(TransientError, match="restarted"):
        proceed(run)
    assert (executors.loaded, states(run)) == ([0, 1], set())
    assert plan(run).bulk == BULK_ATTEMPTS - 1
    executors.fails, executors.loaded = {}, []
    done = proceed(run)
    assert (executors.asked, executors.loaded) == ([None, frozenset({1, 2})], [1, 2])
    assert (done.cells, done.pieces, done.repeated) == (6, 3, 1)


@pytest.mark.parametrize("at", [-1, 1], ids=["read", "loaded"])
@pytest.mark.parametrize("error", [TransientError("no answer"), RuntimeError("no space is left on the worker's disk")])
def test_a_batch_that_keeps_failing_in_bulk_is_sent(at: int, error: Exception, run: Run, executors: Executors) -> None:
    executors.fails = {at: error}
    begin(run)
    for _ in range(BULK_ATTEMPTS - 1):
        with pytest.raises(type(error)):
            proceed(run)
    assert (executors.sent, executors.removed) == ([], 0)
    sent_under_new_leases(run) if at == 1 else proceed(run)
    assert (executors.sent, executors.removed) == ([file.name for file in FILES], 1)
    assert states(run) == {"applied"}


def test_a_batch_that_the_target_does_not_load_is_sent_at_once(
    run: Run, executors: Executors, caplog: pytest.LogCaptureFixture
) -> None:
    executors.fails = {1: WalferryError("nobody may write below /hbase/staging")}
    begin(run)
    assert sent_under_new_leases(run).cells == 6
    assert executors.sent == [file.name for file in FILES]
    assert "not in bulk: loading failed: nobody may write below /hbase/staging" in caplog.text


def test_a_batch_of_which_cells_got_lost_on_their_way_is_sent(run: Run, executors: Executors) -> None:
    executors.lost = 1
    begin(run)
    sent_under_new_leases(run)
    assert executors.sent == [file.name for file in FILES]


def test_a_file_that_vanishes_under_a_batch_in_bulk_is_a_gap(run: Run, executors: Executors) -> None:
    executors.fails = {-1: GapError("a file is gone", file=FILES[0].name, start=0, end=None)}
    begin(run)
    with pytest.raises(GapError):
        proceed(run)
    assert plan(run).bulk == BULK_ATTEMPTS
    assert [file.name for file in run.ledger.log.files() if file.state == "missing"] == [FILES[0].name]


def test_what_a_load_would_not_do_as_edits_do_is_named() -> None:
    families = {"n": {"NEW_VERSION_BEHAVIOR": "true"}, "e": {"ENCRYPTION": "AES"}, "m": {"IS_MOB": "true"}, "f": {}}
    table = new_table("t", families).with_attribute("coprocessor$1", "|org.example.Indexer|1|")
    assert [fault.split()[0] for fault in sorted(table_faults("t", table))] == ["t", "t:e", "t:m", "t:n"]
    assert table_faults("t", new_table("t", {"f": {}})) == []
