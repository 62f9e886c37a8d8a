"""What a batch tells of regions is kept with it, and what the batches before told is looked at first (R11)."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from pyspark.sql import SparkSession

from unit.apply.guards import Guard
from unit.migration.filled_ledger import SPEC
from walferry.apply.by_group import GroupTask
from walferry.apply.outcomes import FileReport, TableTally
from walferry.apply.region_events import RegionEvent
from walferry.apply.route import Route
from walferry.formats.markers import Marker
from walferry.hbase.address import ClusterAddress
from walferry.hbase.descriptors import Region
from walferry.hbase.versions import release_of
from walferry.hbase.zookeeper import Server
from walferry.ledger import KnownRegion, Ledger, SeenFile
from walferry.refusals import ANY_REGION, RefusalKind
from walferry.replay.log import lineage
from walferry.replay.log.cut import regions_if_exists
from walferry.replay.pieces import group_pieces
from walferry.replay.rights.applying import lease_check_of
from walferry.replay.rights.lease import LeaseLostError
from walferry.replay.rounds.batch import begin_batch, continue_batch
from walferry.replay.rounds.batch_work import Batch
from walferry.run.run import Run
from walferry.wal.files import Place, WalFile
from write_limits import write_limits

TABLE, OTHER = "shop:orders", "shop:users"
GROUP = "rs%2C1%2C2"
SPARK = cast(
    SparkSession, SimpleNamespace(sparkContext=SimpleNamespace(defaultParallelism=2, cancelAllJobs=lambda: None))
)
HERE = ClusterAddress("127.0.0.1:1", rootdir="hdfs://127.0.0.1:1/hbase")
ROUTE = Route(HERE, "/hbase", (1, 2), HERE, {TABLE: TABLE, OTHER: OTHER}, Guard(), write_limits())
A, B = "a" * 32, "b" * 32


class Source:
    """Each table's regions, by encoded name; all of them are open."""

    release = release_of("2.6.3")

    def __init__(self) -> None:
        self.now = {TABLE: [A], OTHER: []}

    def regions(self, table: str) -> list[Region]:
        return [Region(b"", name, table, b"", b"", Server("rs", 1, 2), 1, 50) for name in self.now[table]]

    def describe(self, table: str) -> SimpleNamespace:
        return SimpleNamespace(families={"f": None})

    def close(self) -> None:
        """Nothing is open."""


@pytest.fixture
def source() -> Source:
    return Source()


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[RegionEvent]:
    """What files read by group tell of regions; whether a table is read is told by its tally."""
    events: list[RegionEvent] = []

    def apply(spark: SparkSession, tasks: Sequence[GroupTask], what: str) -> list[FileReport]:
        return [
            FileReport(file.name, 100, True, tuple(TableTally(t, 2, 3, 1, 2) for t in task.route.tables), (), (),
                       tuple(event for event in events if event.file == file.name))
            for task in tasks for file in task.files
        ]  # fmt: skip

    monkeypatch.setattr(group_pieces, "apply_groups", apply)
    monkeypatch.setattr(lineage, "CONFIRM_SECONDS", 0)
    return events


@pytest.fixture
def run(tmp_path: Path, source: Source) -> Iterator[Run]:
    spec = SPEC | {"tables": [{"source": table, "target": table} for table in (TABLE, OTHER)]}
    with Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}", actor="test") as ledger:
        run = Run(ledger, ledger.open_run("move", "test", spec, "test").run_id)
        run.__dict__.update(source=source, target=SimpleNamespace(cluster_id=lambda: "there", close=lambda: None))
        yield run


def calm(run: Run, number: int, at_cut: Mapping[str, Sequence[Region]] | None = None, *, route: Route = ROUTE) -> None:
    """Apply a file during which no region moved. `at_cut`: the regions then, where they are not those of now."""
    name = f"{GROUP}.{number}"
    run.ledger.log.see_files([SeenFile(name, GROUP, "rs,1,2", number, f"/{name}", 100, sealed=True)])
    file = WalFile(name, GROUP, "rs,1,2", number, f"/{name}", Place.ARCHIVED, 100)
    regions = {table: regions_if_exists(run.source, table) for table in (TABLE, OTHER)} if at_cut is None else at_cut
    begin_batch(
        run,
        Batch(
            files=(file,),
            calm=frozenset({TABLE, OTHER}),
            standing=frozenset({A, B}),
            cut_ms=0,
            before={},
            regions={table: tuple(found) for table, found in regions.items()},
        ),
        0,
        route.limits.piece_bytes,
        lease_check_of(run, route),
    )
    continue_batch(run, SPARK, route)


def event(kind: Marker, number: int, *files: str, file: int = 10) -> RegionEvent:
    return RegionEvent(kind, f"{GROUP}.{file}", number, TABLE, A, number, number, frozenset(files))


def test_what_is_flushed_in_a_calm_batch_is_known_afterwards(run: Run, told: list[RegionEvent]) -> None:
    told.append(event(Marker.FLUSH, 20, "f/f1"))
    calm(run, 10)
    assert run.ledger.regions.known([TABLE], [A]) == {(TABLE, A): KnownRegion(TABLE, A, frozenset({"f/f1"}))}
    assert {r.state for r in run.ledger.log.ranges()} == {"applied"}


def test_a_process_that_lost_its_leases_while_it_applied_a_batch_records_nothing(
    run: Run, told: list[RegionEvent]
) -> None:
    """Its executors may have finished while it was suspended, and its successor may be further by now."""

    def lost(tables: Collection[str]) -> None:
        raise LeaseLostError("another run applies to it", table=next(iter(tables)), number=1)

    told.append(event(Marker.FLUSH, 20, "f1"))
    with pytest.raises(LeaseLostError):
        calm(run, 10, route=replace(ROUTE, guard=Guard(lost)))
    assert run.ledger.log.ranges() == []
    assert run.ledger.regions.known([TABLE]) == {}
    assert run.ledger.rounds.all() == []


def test_a_disabled_table_that_was_restored_with_other_borders_stops_although_no_batch_saw_it_open(
    run: Run, told: list[RegionEvent], source: Source
) -> None:
    told += [event(Marker.FLUSH, 20, "f/f1"), event(Marker.REGION_CLOSE, 21)]
    calm(run, 10)
    source.now[TABLE] = [B]
    calm(run, 11)
    (item,) = run.ledger.quarantine.items("held")
    assert (item.table, item.kind, item.file) == (TABLE, RefusalKind.LINEAGE, f"{GROUP}.10")
    ranges = {(r.file[-2:], r.table): (r.state, r.entries) for r in run.ledger.log.ranges()}
    assert ranges["11", TABLE] == ("sealed", 0), "nothing of it is applied"
    assert ranges["11", OTHER] == ("applied", 2)
    assert run.ledger.regions.known([TABLE])[TABLE, A].closed_sequence == 21


def test_a_break_that_only_the_events_of_a_calm_batch_show_holds_the_table_although_its_edits_are_applied(
    run: Run, told: list[RegionEvent]
) -> None:
    told += [event(Marker.REGION_CLOSE, 21), event(Marker.FLUSH, 25, "f/f1")]
    calm(run, 10)
    calm(run, 11)
    (item,) = run.ledger.quarantine.items("held")
    assert (item.table, item.region, item.kind) == (TABLE, ANY_REGION, RefusalKind.LINEAGE)
    assert (item.file, item.start) == (f"{GROUP}.10", 25)
    ranges = {(r.file[-2:], r.table): (r.state, r.entries) for r in run.ledger.log.ranges()}
    assert ranges["11", TABLE] == ("sealed", 0), "nothing after it is applied"
    assert ranges["10", OTHER] == ranges["11", OTHER] == ("applied", 2)
    assert run.ledger.regions.known([TABLE], [A]) == {}


def test_a_batch_goes_by_the_regions_of_its_cut_although_they_were_split_or_restored_since(
    run: Run, told: list[RegionEvent], source: Source
) -> None:
    told += [event(Marker.FLUSH, 20, "f/f1"), event(Marker.REGION_CLOSE, 21)]
    at_cut = {table: regions_if_exists(run.source, table) for table in (TABLE, OTHER)}
    source.now[TABLE] = [B]
    calm(run, 10, at_cut)
    calm(run, 11, at_cut)
    assert run.ledger.quarantine.items() == []
    assert run.ledger.regions.known([TABLE])[TABLE, A].closed_sequence == 21, "a later cut tells what became of it"
    calm(run, 12)
    assert [item.kind for item in run.ledger.quarantine.items()] == [RefusalKind.LINEAGE]
