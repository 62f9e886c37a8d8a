"""A table restored to a moment is what a copy of that moment is, under writers, splits and moves."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from integration.migration.moves import at_work, cluster_keys, content, taken_away, unique, visible
from integration.moments.writing import KEPT, Writer, now
from integration.streams.bulk_loads import load_file
from walferry.embedded.cluster import MiniCluster
from walferry.errors import GapError, SidesDifferError, UsageError
from walferry.hbase.client import HBaseClient
from walferry.hbase.mutate import Cell, delete_row
from walferry.ledger import Ledger
from walferry.ledger.rows import Base
from walferry.moments.keeping.bases import take
from walferry.moments.keeping.keep import begin
from walferry.moments.keeping.keep_run import KeepRun
from walferry.moments.keeping.keep_spec import parse_keep_spec, resolve_keep
from walferry.moments.keeping.plan import plan_keep
from walferry.moments.keeping.start import open_keep
from walferry.moments.restoring import restore as restoring
from walferry.moments.restoring.base import NoBaseError
from walferry.moments.restoring.log_part import NewHistoryError, NotInLogError
from walferry.moments.restoring.restore_run import RestoreRun, chosen, open_restore, planned
from walferry.replay.keeping import by_copies, objects
from walferry.run.spec import Cluster
from walferry.spark.clients import shared_files
from walferry.wal.files import list_wals

pytestmark = pytest.mark.cluster

Restore = Callable[..., RestoreRun]


@pytest.fixture(autouse=True)
def little_skew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Source and test share a clock, so that a restore need not wait a minute for others."""
    monkeypatch.setenv("WALFERRY_CLOCK_SKEW_SECONDS", "0.3")


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger.open(f"sqlite:///{tmp_path / 'restore.db'}", actor="test") as book:
        yield book


@pytest.fixture
def table(at_source: HBaseClient) -> str:
    """A table with two regions."""
    name = unique("restored")
    at_source.create_table(name, {"f": KEPT, "g": KEPT}, [b"m"])
    return name


@pytest.fixture
def keeper(ledger: Ledger, source: MiniCluster, table: str, tmp_path: Path) -> Iterator[KeepRun]:
    """A run that keeps the table; tests do one by one what its loop does."""
    spec = {
        "name": unique("kept_"),
        "source": cluster_keys(source),
        "tables": [table],
        "folder": str(tmp_path / "kept"),
    }
    found = resolve_keep(parse_keep_spec(spec, origin="test"), lambda name: Cluster(**cluster_keys(source)))
    with KeepRun(ledger, open_keep(ledger, found, "test")) as run:
        plan_keep(run)
        begin(run)
        yield run
        objects.release(run)


@pytest.fixture
def restored(ledger: Ledger, spark: SparkSession) -> Iterator[Restore]:
    """Restores a table to a moment, into a new one."""
    opened: list[RestoreRun] = []

    def go(table: str, at_ms: int, target: MiniCluster | None = None, base: str | None = None) -> RestoreRun:
        cluster = None if target is None else Cluster(**cluster_keys(target))
        kept, _ = chosen(ledger, table, at_ms, base)
        record = planned(ledger, table, at_ms, unique("new"), kept, cluster)
        time.sleep(min(1.0, max(0.0, at_ms / 1000 + 0.3 - time.time())))
        opened.append(RestoreRun(ledger, open_restore(ledger, record, kept, "test")))
        restoring.restore(opened[-1], lambda: spark)
        return opened[-1]

    yield go
    for run in opened:
        run.close()


def take_base(keeper: KeepRun) -> Base:
    time.sleep(0.01)  # two snapshots of one millisecond would have one name
    return take(keeper, by_copies.stage_of(keeper), keeper.spec.tables[0])


def copy_now(client: HBaseClient, writer: Writer) -> tuple[int, str]:
    """A moment at which nobody writes, and a copy of the table from then."""
    with writer.held:
        at_ms, name = now(), unique("copy")
        client.snapshot(name, writer.table)
        client.clone_snapshot(name, name)
    return at_ms, name


def test_a_restored_table_is_a_copy_of_that_moment(
    source: MiniCluster, target: MiniCluster, at_source: HBaseClient, table: str, keeper: KeepRun, restored: Restore,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    writer = Writer(at_source, table)
    with at_work(writer.write):
        writer.until(100)
        older = take_base(keeper)
        writer.until(100)
        first_ms, first = copy_now(at_source, writer)
        writer.until(30)
        at_source.split_region(at_source.locate(table, b"b"), b"e")
        writer.until(50)
        for region in at_source.regions(table):
            at_source.move_region(region)
        writer.until(50)
        newer = take_base(keeper)
        writer.until(50)
        at_source.flush_table(table)
        second_ms, second = copy_now(at_source, writer)
        writer.until(50)
    for at_ms, copy, base in ((first_ms, first, None), (second_ms, second, None), (second_ms, second, older.snapshot)):
        run = restored(table, at_ms, base=base)
        assert run.kept.base.snapshot == (base or (older if at_ms == first_ms else newer).snapshot)
        assert content(source, run.new_table) == content(source, copy)
        assert run.ledger.record.state == "done"
        facts = run.done("verify")
        assert facts["rows"] == len({row for row, _, _ in visible(source, copy)})
    monkeypatch.setenv("WALFERRY_HERE_BYTES", "1")  # Spark's workers do it all
    run = restored(table, second_ms, target)
    assert content(target, run.new_table) == content(source, second)
    assert run.done("verify")["digest"] == facts["digest"]


def test_before_a_truncation_works_and_past_it_is_refused(
    source: MiniCluster, at_source: HBaseClient, table: str, keeper: KeepRun, restored: Restore, tmp_path: Path
) -> None:
    writer = Writer(at_source, table)
    for _ in range(40):
        writer.edit()
    base = take_base(keeper)
    for _ in range(40):
        writer.edit()
    before_ms, copy = copy_now(at_source, writer)
    at_source.disable_table(table)
    at_source.truncate_table(table)
    writer.edit()
    after_ms = now()
    run = restored(table, before_ms)
    assert content(source, run.new_table) == content(source, copy)
    with pytest.raises(NewHistoryError, match=f"{table} was truncated, dropped and created again, or restored, at 20"):
        restored(table, after_ms)
    with pytest.raises(NoBaseError, match=f"the oldest base of {table}, {base.snapshot}, was complete at"):
        restored(table, base.complete_ms - 1)
    with pytest.raises(UsageError, match="is in the future"):
        restored(table, after_ms + 3_600_000_000)
    at_source.disable_table(table)
    at_source.delete_table(table)  # the base and the log are enough
    by_copies.tend(keeper)
    with ExitStack() as gone:
        files = shared_files(source.address)
        listed = list_wals(files, "/hbase")
        newest = {file.group: file.name for file in listed}
        for file in listed:
            if newest[file.group] != file.name:
                gone.enter_context(taken_away(files, file.path))
        run = restored(table, before_ms)
        assert content(source, run.new_table) == content(source, copy)
        for copied in keeper.ledger.staged.there():
            (tmp_path / "kept" / keeper.run_id / copied.name).unlink()
        with pytest.raises(GapError, match=r"part of the log between base .* no longer exists: .*last seen at"):
            restored(table, before_ms)


def test_a_bulk_load_since_the_base_is_named(
    source: MiniCluster, at_source: HBaseClient, table: str, keeper: KeepRun, restored: Restore
) -> None:
    take_base(keeper)
    before_ms = now()
    load_file(source, at_source, table, b"q")
    with pytest.raises(NotInLogError, match=r"has data that the log does not hold, from 20.*a bulk load"):
        restored(table, now())
    restored(table, before_ms)


@pytest.mark.parametrize("where", ["here", "in Spark"])
def test_the_check_finds_an_edit_that_was_not_applied(
    where: str, at_source: HBaseClient, table: str, keeper: KeepRun, restored: Restore,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    if where == "in Spark":
        monkeypatch.setenv("WALFERRY_HERE_BYTES", "1")
    take_base(keeper)
    at_source.put(table, [Cell(b"b", b"f", b"q", b"1"), Cell(b"x", b"f", b"q", b"1")])

    def lossy(run: RestoreRun, spark: object) -> object:
        found = restoring.apply_log(run, spark)  # type: ignore[arg-type]
        run.target.mutate(run.new_table, [delete_row(b"x")])
        return found

    monkeypatch.setattr(restoring, "WORK", {**restoring.WORK, "apply": lossy})
    with pytest.raises(SidesDifferError, match=r"1 row of new.* are not as base and log say, the first: b'x'"):
        restored(table, now())
