"""What a round and a status cost does not depend on how much was applied before (R14)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from sqlalchemy import event

from unit.migration.filled_ledger import CLUSTER, SPEC
from walferry.apply.outcomes import FileReport, TableTally
from walferry.hbase.descriptors import Region
from walferry.hbase.zookeeper import Server
from walferry.ledger import Ledger, LogPosition, Round, SeenFile, WalRange, columns, store
from walferry.replay.log import cut as cutting
from walferry.replay.log.cut import cut_log, see
from walferry.replay.record_reports import record_reports
from walferry.replay.rounds.completeness import check_complete
from walferry.run.progress.status import status
from walferry.run.run import Run
from walferry.storage import FileStatus, Local
from walferry.wal import files as wal_files
from walferry.wal.files import WalFile

TABLE = "shop:orders"
SERVER = Server("rs", 1, 2)
GROUP = "rs%2C1%2C2"
STEPS = 500
"""instructions of SQLite between two counts"""


@dataclass
class Cost:
    """What something took."""

    sql: int = 0
    """instructions of SQLite, in steps of `STEPS`"""
    statements: int = 0
    rows: int = 0
    listed: int = 0
    """files that the NameNode told of"""
    znodes: int = 0

    def within(self, other: Cost) -> bool:
        """Whether it is as good as the same: the depth of an index grows a little."""
        return all(
            mine <= 1.1 * theirs + 3 for mine, theirs in zip(vars(self).values(), vars(other).values(), strict=True)
        )


@dataclass
class Source:
    """A source with one server, whose logs are files on this machine."""

    root: Path
    peer: str
    cost: Cost = field(default_factory=Cost)
    number: int = 10

    def servers(self) -> list[Server]:
        return [SERVER]

    def settings(self, server: Server) -> dict[str, str] | None:
        return None

    def peers(self) -> dict[str, tuple[bool, str]]:
        return {self.peer: (False, "")}

    def peer_queues(self, peer: str) -> dict[str, set[str]]:
        self.cost.znodes += 2
        return {SERVER.name: {f"{GROUP}.{number}" for number in range(10, self.number + 1)}}

    def write_counts(self, server: Server, tables: object, attempts: int = 1) -> dict[str, int]:
        """Something new at every cut."""
        return {"any": time.time_ns()}

    def regions(self, table: str) -> list[Region]:
        return []

    def roll_wal(self, server: Server, attempts: int = 1) -> None:
        """The server begins a new log; the one before the last is archived."""
        live = self.root / "WALs" / SERVER.name
        (live / f"{GROUP}.{self.number}").write_bytes(b"....LAWP")
        before = live / f"{GROUP}.{self.number - 1}"
        if before.exists():
            before.rename(self.root / "oldWALs" / before.name)
        self.number += 1
        (live / f"{GROUP}.{self.number}").write_bytes(b"")

    def close(self) -> None:
        """Nothing is open."""


class Files(Local):
    """Counts what is listed."""

    def __init__(self, cost: Cost) -> None:
        self.cost = cost

    def list(self, path: str) -> list[FileStatus]:
        found = super().list(path)
        self.cost.listed += len(found)
        return found

    def status(self, path: str) -> FileStatus | None:
        self.cost.listed += 1
        return super().status(path)


@contextmanager
def counted(ledger: Ledger, cost: Cost) -> Iterator[None]:
    """Count what the ledger does."""

    def step() -> int:
        cost.sql += 1
        return 0

    def watch(connection: Any, *_: Any) -> None:
        connection.set_progress_handler(step, STEPS)

    def executed(*_: Any) -> None:
        cost.statements += 1

    def unwatch(connection: Any, *_: Any) -> None:
        connection.set_progress_handler(None, 0)

    engine, convert = ledger._store.database._engine, columns.from_columns

    def converted(*args: Any) -> Any:
        cost.rows += 1
        return convert(*args)

    listeners = (("checkout", watch), ("checkin", unwatch), ("after_cursor_execute", executed))
    for name, listener in listeners:
        event.listen(engine, name, listener)
    with patch.object(store, "from_columns", converted):
        yield
    for name, listener in listeners:
        event.remove(engine, name, listener)


def run_of(folder: Path, applied: int) -> tuple[Run, Source]:
    """A run that has applied that many files in as many rounds."""
    (folder / "WALs" / SERVER.name).mkdir(parents=True)
    (folder / "oldWALs").mkdir()
    spec = SPEC | {"source": CLUSTER | {"rootdir": f"hdfs://127.0.0.1:1{folder}"}}
    ledger = Ledger.open(f"sqlite:///{folder / 'ledger.db'}", actor="test")
    run = Run(ledger, ledger.open_run("move", "test", spec, "test").run_id)
    source = Source(folder, run.peer)
    run.__dict__.update(source=source, wal_files=Files(source.cost))
    run.ledger.objects.plan("source", "peer", run.peer)
    run.ledger.objects.made("source", "peer", run.peer)
    run.ledger.phases.start("replay")
    run.ledger.log.set_fence("start", [LogPosition(GROUP, f"{GROUP}.10", 10, 0)])
    names = {number: f"{GROUP}.{number}" for number in range(10, 10 + applied)}
    for name in names.values():
        (folder / "oldWALs" / name).write_bytes(b"....LAWP")
    run.ledger.log.see_files(
        [SeenFile(name, GROUP, SERVER.name, n, f"{folder}/oldWALs/{name}", 8, True) for n, name in names.items()]
    )
    run.ledger.log.set_ranges([WalRange(name, 0, 8, TABLE, 1, 1, n, n, "applied") for n, name in names.items()])
    for number in range(1, applied + 1, 10):
        run.ledger.rounds.record(made(number))
    source.number += applied
    (folder / "WALs" / SERVER.name / f"{GROUP}.{source.number}").write_bytes(b"")
    return run, source


def made(number: int) -> Round:
    return Round(number, 100 * number, 100 * number + 50, 1, 8, 1, 1, 20, 0)


def one_round(run: Run, number: int) -> list[WalFile]:
    """The driver's own work of a round, and what a person asks meanwhile."""
    cut = cut_log(run)
    below = see(run, cut)
    check_complete(run, cut.files)
    waiting = run.ledger.log.pending([file.name for file in below])
    pending = [file for file in below if file.name in waiting]
    reports = [FileReport(f.name, 8, True, (TableTally(TABLE, 1, 1, 1, 1),), (), ()) for f in pending]
    record_reports(run, reports, lambda connection: None)
    run.ledger.rounds.record(made(number))
    status(run.ledger)
    assert run.ledger.log.gaps() == []
    assert all([run.ledger.log.coverage(), run.ledger.log.reached(), run.ledger.log.groups()])
    return pending


def cost_after(folder: Path, applied: int) -> Cost:
    """What a round costs after so many files; the first lists the archive."""
    run, source = run_of(folder, applied)
    with patch.object(wal_files, "TRAILER_MAGIC", b"LAWP"), patch.object(cutting, "bytes_held", lambda *_: 1):
        assert [file.number for file in one_round(run, applied + 1)] == [source.number - 1]
        with counted(run.ledger.whole, source.cost):
            vars(source.cost).update(vars(Cost()))
            assert [file.number for file in one_round(run, applied + 2)] == [source.number - 1]
    run.ledger.whole.close()
    return source.cost


def test_a_round_costs_the_same_after_fifty_files_and_after_five_thousand(tmp_path: Path) -> None:
    few, many = cost_after(tmp_path / "few", 50), cost_after(tmp_path / "many", 5_000)
    assert all(vars(few).values()), few
    assert many.within(few), (few, many)


def test_what_is_applied_and_gone_is_folded_when_the_archive_is_listed(tmp_path: Path) -> None:
    run, source = run_of(tmp_path, 50)
    with patch.object(wal_files, "TRAILER_MAGIC", b"LAWP"), patch.object(cutting, "bytes_held", lambda *_: 1):
        one_round(run, 51)
        for file in (tmp_path / "oldWALs").iterdir():
            file.unlink()
        one_round(run, 52)
        assert len(run.ledger.log.files()) == 53
        run.wal_listing._whole_at = None
        one_round(run, 53)
        # The fence's file, one for all others that are gone, and those that exist.
        left = list(range(source.number - 3, source.number + 1))
        assert [file.number for file in run.ledger.log.files()] == [10, 11, *left]
        one_round(run, 54)  # the queue still names them all
    run.ledger.whole.close()


def test_a_log_that_was_begun_closed_and_archived_between_two_rounds_is_in_the_next(tmp_path: Path) -> None:
    """No listing of the servers' folders ever showed it: the peer's queue does."""
    run, source = run_of(tmp_path, 20)
    with patch.object(wal_files, "TRAILER_MAGIC", b"LAWP"), patch.object(cutting, "bytes_held", lambda *_: 1):
        one_round(run, 21)
        before = source.number
        for _ in range(4):
            source.roll_wal(SERVER)
        vars(source.cost).update(vars(Cost()))
        assert [file.number for file in one_round(run, 22)] == list(range(before, before + 5))
        assert not run.wal_listing.whole
    run.ledger.whole.close()


@pytest.mark.parametrize("what", ["a server came", "many are expected", "time has passed"])
def test_the_archive_is_listed_as_a_whole_only_when_something_calls_for_it(tmp_path: Path, what: str) -> None:
    run, _ = run_of(tmp_path, 20)
    log = run.wal_listing
    assert len(log.with_archive(log.live(), [])) == 21
    assert [file.number for file in log.with_archive(log.live(), [f"{GROUP}.12", f"{GROUP}.99"])] == [12, 30]
    live = log.live()
    if what == "a server came":
        (tmp_path / "WALs" / "rs,9,9").mkdir()
        (tmp_path / "WALs" / "rs,9,9" / "rs%2C9%2C9.1").write_bytes(b"")
        live = log.live()
    elif what == "time has passed":
        log._whole_at = -1e9
    expected = [f"{GROUP}.{number}" for number in range(500)] if what == "many are expected" else []
    assert len(log.with_archive(live, expected)) == 20 + len(live)
    run.ledger.whole.close()
