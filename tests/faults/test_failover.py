"""The active master dies, or hangs for longer than its ZooKeeper session, and the backup takes over."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from chaos.run import ChaosRun
from chaos.schedule import Fault, schedule
from chaos.world import World, booted
from faults.apart import TwoMasters
from integration.migration.moves import unique
from walferry.hbase.client import HBaseClient
from walferry.hbase.mutate import Cell
from walferry.hbase.retry import FAILOVER_ATTEMPTS

RUN_SECONDS = 600.0
DOWN_SECONDS = 15.0
"""longer than a master's session (chaos.world.SESSION_MS)"""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with booted(tmp_path_factory.mktemp("servers"), "sqlite", TwoMasters) as world:
        yield world


def fault(act: str, victim: str, moment: str, after_s: float = 0.2) -> Fault:
    return Fault(moment, after_s, act, victim, DOWN_SECONDS, 0.0)  # type: ignore[arg-type]


FAULTS = {
    "dies while the source's peer is added": fault("kill", "source master", "protect", 0.05),
    "dies while a snapshot is taken": fault("kill", "source master", "snapshot"),
    "dies while the target clones": fault("kill", "target master", "clone"),
    "dies while the log is followed": fault("kill", "source master", "round", 1.0),
    "dies at the target while the log is followed": fault("kill", "target master", "round", 1.0),
    "dies while the writes are stopped": fault("kill", "source master", "stop asked", 0.0),
    "dies while the target is opened": fault("kill", "target master", "open_target", 0.0),
    "hangs while a snapshot is taken": fault("suspend", "source master", "snapshot"),
    "hangs while the target clones": fault("suspend", "target master", "clone"),
    "hangs while the log is followed": fault("suspend", "source master", "round", 1.0),
}


@pytest.mark.parametrize("what", FAULTS)
def test_a_migration_loses_nothing_although_the_active_master(what: str, world: World, tmp_path: Path) -> None:
    plan = replace(schedule(list(FAULTS).index(what), "mild", "sqlite"), faults=(FAULTS[what],))
    run = ChaosRun(plan, world, tmp_path / "run", print, RUN_SECONDS)
    result = run.do()
    print(result.line())
    assert (result.wrong, result.faults) == ([], 1)
    run.drop_tables()


SPLITS = [b"h", b"q"]
CALLS: dict[str, Callable[[HBaseClient, str], object]] = {
    "creates a table": lambda client, name: client.create_table(f"{name}_new", {"f": {}}, SPLITS),
    "takes a snapshot": lambda client, name: client.snapshot(f"{name}_new", name),
    "clones a snapshot": lambda client, name: client.clone_snapshot(f"{name}_old", f"{name}_new"),
    "makes a table read only": lambda client, name: client.set_read_only(name, True),
    "disables a table": lambda client, name: client.disable_table(name),
    "empties a table": lambda client, name: client.truncate_table(f"{name}_off"),
    "adds a peer": lambda client, name: client.add_peer(name),
}
DONE: dict[str, Callable[[HBaseClient, str], bool]] = {
    "creates a table": lambda client, name: len(open_regions(client, f"{name}_new")) == 3,
    "takes a snapshot": lambda client, name: f"{name}_new" in {one.name for one in client.snapshots()},
    "clones a snapshot": lambda client, name: (
        len(open_regions(client, f"{name}_new")) == 3 and len(list(client.scan(f"{name}_new"))) == 3
    ),
    "makes a table read only": lambda client, name: client.describe(name).read_only,
    "disables a table": lambda client, name: not client.table_enabled(name),
    "empties a table": lambda client, name: (
        client.table_enabled(f"{name}_off") and list(client.scan(f"{name}_off")) == []
    ),
    "adds a peer": lambda client, name: client.peers()[name][0] is False,
}


def open_regions(client: HBaseClient, table: str) -> list[str]:
    return [region.encoded for region in client.regions(table) if region.server is not None]


@pytest.mark.parametrize("after_s", [0.0, 0.15])
@pytest.mark.parametrize("what", CALLS)
def test_what_is_asked_of_a_master_that_dies_is_done_once(what: str, after_s: float, world: World) -> None:
    world.tables = []
    world.await_healthy("source", time.monotonic() + 120)
    name = unique()
    cells = [Cell(row, b"f", b"q", b"v", 1) for row in (b"a", b"k", b"x")]
    with HBaseClient(world.source.address, master_attempts=FAILOVER_ATTEMPTS) as client:
        for table in (name, f"{name}_off"):
            client.create_table(table, {"f": {}}, SPLITS)
            client.put(table, cells)
        client.snapshot(f"{name}_old", name)
        client.disable_table(f"{name}_off")
        active = world.source.active_master
        killing = threading.Timer(after_s, lambda: world.kill("source", [active]))
        killing.start()
        began = time.monotonic()
        try:
            CALLS[what](client, name)
            print(f"{what}, killed after {after_s} s: {time.monotonic() - began:.1f} s")
            assert DONE[what](client, name)
        finally:
            killing.join()
            world.go_on("source", [active])
