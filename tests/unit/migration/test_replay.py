"""Which files a round asks for and which it reads (R1): they are real, the source's answers are given."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from unit.migration.filled_ledger import CLUSTER, SPEC
from walferry.errors import GapError
from walferry.hbase.zookeeper import Server
from walferry.ledger import Hold, Ledger, Position, QuarantineItem, SeenFile, WalRange
from walferry.ledger.rows import RangeState
from walferry.migration.context import Migration
from walferry.migration.cut import Cut, as_listed
from walferry.migration.protect import PeerChangedError
from walferry.migration.replay import _pending, check_complete
from walferry.storage import Local
from walferry.wal.files import list_wals

TABLE = "shop:orders"
SERVER = Server("rs", 1, 2)
GROUP = "rs%2C1%2C2"


@dataclass
class Source:
    """What the source says of its servers, and of the run's peer and its queue."""

    alive: list[Server] = field(default_factory=lambda: [SERVER])
    peer: tuple[bool, str] | None = (False, "")
    queue: list[str] = field(default_factory=list)

    def servers(self) -> list[Server]:
        return self.alive

    def peers(self) -> dict[str, tuple[bool, str]]:
        return {} if self.peer is None else {"walferry_move_1": self.peer}

    def peer_queues(self, peer_id: str) -> dict[str, dict[str, int]]:
        return {SERVER.name: dict.fromkeys(self.queue, 0)} if peer_id in self.peers() else {}

    def close(self) -> None:
        """Nothing is open."""


@pytest.fixture
def source() -> Source:
    return Source()


@pytest.fixture
def migration(tmp_path: Path, source: Source) -> Iterator[Migration]:
    """A run whose start fence stands in file 10; its source's files are on this machine."""
    spec = SPEC | {"source": CLUSTER | {"rootdir": f"hdfs://127.0.0.1:1{tmp_path}"}}
    with Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}", actor="test") as ledger:
        run = Migration(ledger, ledger.open_run("move", "test", spec, "test").run_id)
        run.__dict__.update(source=source, source_files=Local())
        (tmp_path / "WALs").mkdir()
        ledger.plan_object(run.run_id, "source", "peer", run.peer)
        ledger.object_made(run.run_id, "source", "peer", run.peer)
        ledger.plan_object(run.run_id, "source", "peer", run.peer)
        ledger.object_made(run.run_id, "source", "peer", run.peer)
        ledger.set_fence(run.run_id, "start", [Position(GROUP, f"{GROUP}.10", 10, 0)])
        yield run


def write(migration: Migration, *numbers: int) -> None:
    """Let these files stand in the archive."""
    for number in numbers:
        Local().write(f"{migration.source_root}/oldWALs/{GROUP}.{number}", [b"ten bytes!"])


def see(migration: Migration, number: int, *, length: int = 10, sealed: bool = True) -> str:
    """Let the ledger have seen a file; its name."""
    name = f"{GROUP}.{number}"
    path = f"{migration.source_root}/oldWALs/{name}"
    migration.ledger.see_files(migration.run_id, [SeenFile(name, GROUP, SERVER.name, number, path, length, sealed)])
    return name


def cut(migration: Migration) -> Cut:
    return Cut(1, {}, {}, list_wals(migration.source_files, migration.source_root), {})


def test_a_file_that_the_ledger_saw_is_missed_though_the_peer_has_let_go_of_it(migration: Migration) -> None:
    write(migration, 10)
    see(migration, 10)
    lost = see(migration, 11)
    with pytest.raises(GapError, match=lost) as gap:
        check_complete(migration, cut(migration))
    assert gap.value.files == [lost]
    assert [file.name for file in migration.ledger.files(migration.run_id) if file.state == "missing"] == [lost]


def test_a_file_that_only_the_queue_of_the_peer_names_is_missed_too(migration: Migration, source: Source) -> None:
    write(migration, 10)
    source.queue = [f"{GROUP}.9", f"{GROUP}.10", f"{GROUP}.11"]  # the first is in the snapshot
    with pytest.raises(GapError) as gap:
        check_complete(migration, cut(migration))
    assert gap.value.files == [f"{GROUP}.11"]


def test_a_file_that_was_applied_may_go(migration: Migration, source: Source) -> None:
    write(migration, 11)
    applied = see(migration, 10)
    migration.ledger.set_ranges(migration.run_id, [WalRange(applied, 0, 10, TABLE, 0, 0, None, None, "applied")])
    source.queue = [applied]
    check_complete(migration, cut(migration))


def test_a_file_that_only_one_of_two_tables_has_is_still_missed(tmp_path: Path, migration: Migration) -> None:
    second = SPEC | {"name": "two", "tables": [TABLE, "shop:carts"], "source": migration.run.spec["source"]}
    run = Migration(migration.ledger, migration.ledger.open_run("two", "test", second, "test").run_id)
    run.__dict__.update(source=Source(), source_files=Local())
    run.source.peers = lambda: {run.peer: (False, "")}  # type: ignore[method-assign]
    run.ledger.plan_object(run.run_id, "source", "peer", run.peer)
    run.ledger.object_made(run.run_id, "source", "peer", run.peer)
    run.ledger.set_fence(run.run_id, "start", [Position(GROUP, f"{GROUP}.10", 10, 0)])
    lost = see(run, 10)
    states: dict[str, RangeState] = {TABLE: "applied", "shop:carts": "sealed"}
    run.ledger.set_ranges(run.run_id, [WalRange(lost, 0, 10, t, 0, 0, None, None, s) for t, s in states.items()])
    with pytest.raises(GapError, match=lost):
        check_complete(run, cut(run))
    run.ledger.set_ranges(run.run_id, [WalRange(lost, 0, 10, "shop:carts", 0, 0, None, None, "applied")])
    check_complete(run, cut(run))


def test_a_file_that_came_behind_the_listing_is_not_missed(migration: Migration, source: Source) -> None:
    write(migration, 10)
    made = cut(migration)
    write(migration, 11)
    source.queue = [f"{GROUP}.11"]
    check_complete(migration, made)


@pytest.mark.parametrize(
    ("length", "sealed", "alive", "later"),
    [(10, False, [], False), (0, True, [], False), (0, False, [SERVER], False), (0, False, [], True)],
    ids=["it held bytes", "it was closed", "its server lives", "its server wrote another one behind it"],
)
def test_only_the_last_open_file_of_a_dead_server_may_be_gone_as_empty(
    migration: Migration, source: Source, length: int, sealed: bool, alive: list[Server], later: bool
) -> None:
    lost = see(migration, 10, length=length, sealed=sealed)
    if later:
        write(migration, 11)
        see(migration, 11)
    source.alive = alive
    with pytest.raises(GapError) as gap:
        check_complete(migration, cut(migration))
    assert gap.value.files == [lost]


def test_an_empty_file_that_went_with_its_server_leaves_no_gap(migration: Migration, source: Source) -> None:
    see(migration, 10, length=0, sealed=False)
    source.alive = []
    check_complete(migration, cut(migration))
    assert migration.ledger.gaps(migration.run_id) == []


@pytest.mark.parametrize(("peer", "what"), [(None, "removed"), ((True, ""), "enabled")])
def test_nothing_is_applied_while_no_peer_keeps_the_log(
    migration: Migration, source: Source, peer: tuple[bool, str] | None, what: str
) -> None:
    source.peer = peer
    with pytest.raises(PeerChangedError, match=f"was {what} at the source"):
        check_complete(migration, cut(migration))


def test_a_file_is_read_again_until_each_of_its_tables_is_applied_or_waits(tmp_path: Path) -> None:
    other = "shop:users"
    spec = SPEC | {"tables": [{"source": table, "target": table} for table in (TABLE, other)]}
    with Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}", actor="test") as ledger:
        migration = Migration(ledger, ledger.open_run("move", "test", spec, "test").run_id)
        run = migration.run_id
        new, done, half, waits, killed, unsent = (see(migration, number) for number in range(10, 16))
        refused = QuarantineItem(waits, 0, 9, other, "r1", 1, "refused", b"")
        (item,) = ledger.quarantine(run, [refused])
        # Holds come first: without ranges they are of a batch that was killed.
        holds = [(waits, other), (killed, TABLE), (killed, other)]
        ledger.hold_regions(run, [Hold(file, table, "r1", 0, item) for file, table in holds])
        states = {(done, TABLE): "applied", (done, other): "verified", (half, TABLE): "applied"}
        states |= {(waits, TABLE): "applied", (waits, other): "sealed"}
        states |= {(unsent, TABLE): "applied", (unsent, other): "sealed"}
        for (file, table), state in states.items():
            ledger.set_ranges(run, [WalRange(file, 0, 10, table, 0, 0, None, None, state)])  # type: ignore[arg-type]
        listed = [as_listed(file) for file in ledger.files(run)]
        assert [file.name for file in _pending(migration, listed)] == [new, half, killed, unsent]
