"""The snapshot's cells bulk-loaded: into an empty table with borders of its own, and into one that is created."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from integration.migration.moves import begin, content, copy_tables, make_spec, run_of, spark, unique
from integration.migration.test_rules import edit, one_round
from walferry.apply.bulk_loader import Loader, staging_folder
from walferry.cutover.cluster_answers import schema_differences
from walferry.cutover.gates import check_copy
from walferry.cutover.ways_out import abort
from walferry.embedded.cluster import MiniCluster
from walferry.errors import UsageError, WalferryError
from walferry.hbase.client import HBaseClient
from walferry.hbase.mutate import Cell, delete_family, put
from walferry.migration.comparing.compare import compare
from walferry.migration.copying import copy, history
from walferry.migration.plan import plan_run
from walferry.run.run import Run, RunEndedError
from walferry.spark.clients import shared_files

pytestmark = pytest.mark.cluster

FAMILIES = {"f": {"VERSIONS": "50"}, "g": {"VERSIONS": "50"}}


def stored(client: HBaseClient, make_table: Callable[..., str]) -> str:
    """A table with versions, markers, ties, tags, old timestamps, in several files of regions that moved and split."""
    table = make_table((b"m", b"q"))
    # A compaction drops markers, and what is put after them shows.
    client.modify_table(client.describe(table).with_attribute("COMPACTION_ENABLED", "false"))
    for step in (1, 2):
        edit(client, table, step)
        client.mutate(table, [delete_family(b"b%d" % step, b"g", 3)])
        client.mutate(table, [put(b"tagged", [Cell(b"tagged", b"f", b"q", b"t", step)], ttl_ms=86_400_000)])
        client.flush_table(table)
    for region in client.regions(table):
        client.move_region(region, next(server for server in client.servers() if server != region.server))
    edit(client, table, 3)
    client.split_region(client.regions(table)[0], b"h")
    return table


def emptied(client: HBaseClient, table: str) -> None:
    client.create_table(table, FAMILIES, [b"c", b"j", b"x"])
    client.modify_table(client.describe(table).with_attribute("COMPACTION_ENABLED", "false"))


@pytest.fixture
def writer(at_source: HBaseClient) -> Iterator[Callable[[str], Callable[[], None]]]:
    """Begins to edit a table until what it returned is called."""
    ended = threading.Event()
    threads: list[threading.Thread] = []

    def start(table: str) -> Callable[[], None]:
        def write() -> None:
            step = 100
            while not ended.is_set():
                edit(at_source, table, step, edits=10)
                step += 1

        threads.append(threading.Thread(target=write))
        threads[-1].start()

        def stop() -> None:
            ended.set()
            threads[-1].join()

        return stop

    yield start
    ended.set()
    for thread in threads:
        thread.join()


@pytest.mark.parametrize(
    ("existing", "by_spark"),
    [(True, False), (False, True), *(pytest.param(one, one, marks=pytest.mark.long) for one in (True, False))],
)
def test_the_history_is_loaded_while_a_writer_goes_on_and_the_replay_makes_both_sides_equal(
    source: MiniCluster, target: MiniCluster, at_source: HBaseClient, at_target: HBaseClient, make_table: Callable[...,
    str],
    writer: Callable[[str], Callable[[], None]], spark: SparkSession, tmp_path: Path, existing: bool, by_spark: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    if by_spark:
        monkeypatch.setenv("WALFERRY_HERE_BYTES", "1")
    table, other = stored(at_source, make_table), unique("o")
    if existing:
        emptied(at_target, other)
    stop = writer(table)
    with run_of(make_spec(source, target, [{"source": table, "target": other}], history="bulk"), tmp_path) as run:
        begin(run)
        copy_tables(run)
        facts = check_copy(run, tmp_path / "docs")
        loaded = run.done("copy", table)
        assert loaded["cells"] > 60
        assert all(row["source_cells"] == row["target_cells"] for row in loaded["loaded"])
        assert facts["rows"] == len(loaded["loaded"]) + 1
        starts = [region.start for region in run.target.regions(other)]
        borders = [start for _, start, _ in copy.borders(copy.manifest_of(run, table))]
        assert sorted(starts) == ([b"", b"c", b"j", b"x"] if existing else borders)
        assert schema_differences(run) == []
        stop()
        one_round(run, spark)
        here = content(source, table)
        assert len(here) > 30
        assert content(target, other) == here
        assert compare(run, lambda: spark, table).differing_rows == 0
        assert copy.copy(run, lambda: spark, table) == loaded, "done is done"
        assert run.target_files.status(staging_folder(run.target_root, other)) is None


@pytest.mark.parametrize(
    "meanwhile", ["truncated", *(pytest.param(what, marks=pytest.mark.long) for what in ("nothing", "dropped"))]
)
def test_a_load_that_was_killed_goes_on_with_the_regions_that_are_left_also_after_a_split_at_the_target(
    source: MiniCluster, target: MiniCluster, at_source: HBaseClient, at_target: HBaseClient, make_table: Callable[...,
    str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, meanwhile: str,
) -> None:  # fmt: skip
    """Of a table that somebody empties in between, or drops, none are left out."""
    table, other = stored(at_source, make_table), unique("o")
    emptied(at_target, other)
    with run_of(make_spec(source, target, [{"source": table, "target": other}], history="bulk"), tmp_path) as run:
        begin(run)
        copy.snapshot(run, table)
        keep, kept = run.ledger.notes.keep, 0

        def killed(name: str, *args: Any) -> None:
            nonlocal kept
            if name == "history loaded":
                kept += 1
                if kept == 2:
                    raise KeyboardInterrupt
            keep(name, *args)

        with monkeypatch.context() as patch:
            patch.setattr(run.ledger.notes, "keep", killed)
            with pytest.raises(KeyboardInterrupt):
                copy.copy(run, spark, table)
        recorded = {subject.rpartition(" ")[2] for subject in run.ledger.notes.named("history loaded")}
        assert len(recorded) == 1
        if meanwhile != "nothing":
            recorded = set()
            at_target.disable_table(other)
            (at_target.truncate_table if meanwhile == "truncated" else at_target.delete_table)(other)
        again: list[str] = []
        one_at_a_time = threading.Lock()
        load = Loader.load

        def split_first(self: Loader, staged: Any) -> None:
            with one_at_a_time:
                if not again:
                    at_target.split_region(next(r for r in at_target.regions(other) if r.holds(b"j")), b"k")
                again.append(self.folder)
            load(self, staged)

        monkeypatch.setattr(Loader, "load", split_first)
        copy.copy(run, spark, table)
        # The first attempt's threads live on in this process; without its lease they load nothing.
        loaded = [row["region"] for row in run.done("copy", table)["loaded"]]
        assert {loaded[int(folder.rpartition("/")[2])] for folder in again} == set(loaded) - recorded
        copy.clone(run, table)
        check_copy(run, tmp_path / "docs")
        assert content(target, other) == content(source, table)


def test_cells_that_were_not_loaded_shut_the_gate(
    source: MiniCluster, target: MiniCluster, at_source: HBaseClient, make_table: Callable[..., str], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    table = stored(at_source, make_table)
    stage = Loader.stage

    def lossy(self: Loader, family: bytes, clusters: bytes, format: Any, cells: Any) -> Any:
        return stage(self, family, clusters, format, ((buffer, positions[:-1]) for buffer, positions in cells))

    with run_of(make_spec(source, target, [table], history="bulk"), tmp_path) as run:
        begin(run)
        monkeypatch.setattr(Loader, "stage", lossy)
        copy_tables(run)
        with pytest.raises(WalferryError, match=f"after_load of {run.run_id} failed"):
            check_copy(run, tmp_path / "docs")


def test_what_is_staged_beside_an_abort_does_not_stay(
    source: MiniCluster, target: MiniCluster, at_source: HBaseClient, make_table: Callable[..., str], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    table = stored(at_source, make_table)
    stage = Loader.stage
    with run_of(make_spec(source, target, [table], history="bulk"), tmp_path) as run:
        begin(run)
        copy.snapshot(run, table)

        def aborted_first(self: Loader, *args: Any) -> Any:
            with one_at_a_time:
                if run.ledger.record.state == "running":
                    abort(run, "enough")
            return stage(self, *args)

        one_at_a_time = threading.Lock()
        monkeypatch.setattr(Loader, "stage", aborted_first)
        monkeypatch.setattr(history, "AT_ONCE_HERE", 1)
        with pytest.raises(RunEndedError):
            copy.copy(run, spark, table)
        assert run.target_files.status(staging_folder(run.target_root, table)) is None


def refusal(run: Run) -> str:
    with pytest.raises(UsageError) as caught:
        plan_run(run)
    return str(caught.value)


def test_a_target_table_that_is_not_empty_or_has_other_families_is_refused(
    source: MiniCluster, target: MiniCluster, at_source: HBaseClient, at_target: HBaseClient, make_table: Callable[...,
    str], tmp_path: Path,
) -> None:  # fmt: skip
    table, filled, lacking = make_table(), unique("o"), unique("o")
    at_target.create_table(filled, FAMILIES)
    at_target.put(filled, [Cell(b"r", b"f", b"q", b"v", 1)])
    at_target.create_table(lacking, {"f": {"VERSIONS": "50"}})
    for other, said in ((filled, "is not empty"), (lacking, f"family g of {table} is only at the source")):
        pair = {"source": table, "target": other}
        with run_of(make_spec(source, target, [pair], history="bulk"), tmp_path) as run:
            assert said in refusal(run)


@pytest.fixture
def staging(target: MiniCluster) -> Iterator[str]:
    """The folder of all tables' staging folders, which is not there before the test, nor afterwards."""
    parent, files = staging_folder(target.address.root_path, "t").rpartition("/")[0], shared_files(target.address)
    files.delete(parent, recursive=True)
    yield parent
    files.delete(parent, recursive=True)


def test_a_user_who_may_only_write_where_files_are_staged_loads_them_and_an_abort_leaves_the_table(
    source: MiniCluster, target: MiniCluster, at_source: HBaseClient, at_target: HBaseClient, make_table: Callable[...,
    str], staging: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    table, other = stored(at_source, make_table), unique("o")
    emptied(at_target, other)
    pairs = [{"source": table, "target": other}]
    spec = make_spec(source, target, pairs, history="bulk")
    with run_of(spec, tmp_path) as owner:
        limited = spec.model_copy(update={"target": spec.target.model_copy(update={"user": "mover"})})
        with run_of(limited.model_copy(update={"name": unique("move_")}), tmp_path) as run:
            assert "mover may not write to" in refusal(run)
        owner.target_files.mkdirs(staging, 0o777)
        owner.ledger.end("aborted", "tester", "another user")
    with run_of(limited.model_copy(update={"name": unique("move_")}), tmp_path) as run:
        begin(run)
        copy.snapshot(run, table)
        with monkeypatch.context() as patch:
            patch.setattr(history, "_compared", lambda *args: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                copy.copy(run, spark, table)
        abort(run, "enough")
        assert at_target.table_exists(other)
        assert run.target_files.status(staging_folder(run.target_root, other)) is None
    assert content(target, other) == content(source, table)
