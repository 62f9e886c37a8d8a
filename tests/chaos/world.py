"""Both clusters of a series, and the keeper, which starts again what has died, as an operator's supervisor would."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from booting import QUICK, QUICK_SITE
from chaos.book import Postgresql
from chaos.schedule import SIDES, Side, Store
from walferry.embedded import processes
from walferry.embedded.cluster import STORAGE, MiniCluster, Ports, boot
from walferry.errors import WalferryError
from walferry.hbase.client import HBaseClient
from walferry.hbase.errors import TableNotFoundError

SESSION_MS = 8_000
"""after so long without a sign of life a region server counts as dead"""
SITE = {
    **QUICK_SITE,
    "zookeeper.session.timeout": str(SESSION_MS),
    "hbase.master.logcleaner.ttl": str(24 * 3600 * 1000),
    # A data node that is down for seconds must not cost a region server more than it has to.
    "hbase.regionserver.logroll.errors.tolerated": "10",
}
REPAIR_S = 45.0
"""so long a cluster may lack a server or a master although all processes live: then they are killed and started"""
BOOT_S = 20.0


def names_of(victim: str, cluster: MiniCluster) -> list[str]:
    """The servers of a cluster that a victim of the schedule means, in the order in which they start."""
    what = victim.partition(" ")[2]
    if what == "server":
        return ["regionserver-1"]
    if what == "master":
        return [cluster.active_master]
    return [what] if what != "all" else [name for name in cluster.names if name in cluster.servers]


@dataclass
class World:
    """Source and target; `down` are the servers that a fault keeps down or suspended, by side and name.

    `tables`: of the present run, which are to be served.
    """

    source: MiniCluster
    target: MiniCluster
    postgresql: Postgresql | None = None
    """where ledgers are; None: each in a file"""
    tables: list[str] = field(default_factory=list)
    down: set[tuple[Side, str]] = field(default_factory=set)
    restarts: list[str] = field(default_factory=list)
    lock: threading.RLock = field(default_factory=threading.RLock)

    def cluster(self, side: Side) -> MiniCluster:
        return self.source if side == "source" else self.target

    def kill(self, side: Side, names: Sequence[str]) -> None:
        """kill -9 servers; the keeper leaves them down until they are taken out of `down`."""
        with self.lock:
            self.down |= {(side, name) for name in names}
            for name in names:
                if name in self.cluster(side).servers:
                    self.cluster(side).kill(name)

    def suspend(self, side: Side, names: Sequence[str]) -> None:
        """SIGSTOP servers."""
        with self.lock:
            self.down |= {(side, name) for name in names}
            self._signal(side, names, signal.SIGSTOP)

    def go_on(self, side: Side, names: Sequence[str]) -> None:
        """The end of a kill or a suspension."""
        with self.lock:
            self._signal(side, names, signal.SIGCONT)
            self.down -= {(side, name) for name in names}

    def _signal(self, side: Side, names: Sequence[str], number: int) -> None:
        for name in names:
            server = self.cluster(side).servers.get(name)
            if server is not None and server.is_alive():
                with suppress(ProcessLookupError):
                    os.killpg(server.pid, number)

    def healthy(self, side: Side) -> bool:
        """Whether no fault is under way there and all servers serve."""
        if any(one == side for one, _ in self.down):
            return False
        cluster = self.cluster(side)
        if any(name not in cluster.servers or not cluster.servers[name].is_alive() for name in cluster.names):
            return False
        return not (self.lacking(side) or self.silent(side))

    def await_healthy(self, side: Side, deadline: float) -> None:
        """Wait until the side is healthy; WalferryError at `deadline` (time.monotonic())."""
        while not self.healthy(side):
            if time.monotonic() > deadline:
                why = self.lacking(side) or self.silent(side) or "a process is down"
                raise WalferryError(f"the {side} does not recover: {why}")
            time.sleep(0.5)

    def lacking(self, side: Side) -> str:
        """What a side lacks: a region server or the master; "" if nothing."""
        cluster = self.cluster(side)
        try:
            with HBaseClient(cluster.address, timeout_s=5) as client:
                ports = {server.port for server in client.servers()}
                absent = sorted(set(cluster.ports.region_servers) - ports)
                if absent:
                    return f"region servers on ports {absent}"
                _ = client.master
        except (WalferryError, OSError) as error:
            return str(error)
        return ""

    def silent(self, side: Side) -> str:
        """Why a region of the run's tables does not answer; "" if all do."""
        try:
            with HBaseClient(self.cluster(side).address, timeout_s=5) as client:
                for table in self.tables:
                    with suppress(TableNotFoundError):
                        for _ in client.scan(table):
                            pass
        except (WalferryError, OSError) as error:
            return str(error)
        return ""


class Keeper:
    """A thread that starts what is dead and not meant to be, and kills what lives without serving."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._ended = threading.Event()
        self._began: dict[tuple[Side, str], float] = {}
        self._sound: dict[Side, float] = {}
        self._looked = time.monotonic()
        self._thread = threading.Thread(target=self._keep, name="keeper", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._ended.set()
        self._thread.join()

    def _keep(self) -> None:
        while not self._ended.wait(0.5):
            for side in SIDES:
                with self._world.lock:
                    self._start_dead(side)
            if time.monotonic() - self._looked > 5:
                for side in SIDES:
                    self._repair(side)
                self._looked = time.monotonic()

    def _start_dead(self, side: Side) -> None:
        cluster = self._world.cluster(side)
        for name in cluster.names:
            server = cluster.servers.get(name)
            alive = server is not None and server.is_alive()
            if not alive:
                self._start(side, name)
            if name == "hdfs" and not (alive and re.search(cluster.started_line(name), server.output())):  # type: ignore[union-attr]
                return  # the others need it

    def _start(self, side: Side, name: str) -> None:
        key = side, name
        if key in self._world.down or time.monotonic() - self._began.get(key, -60) < 3:
            return
        self._began[key] = time.monotonic()
        self._world.restarts.append(f"{side} {name}")
        self._world.cluster(side).start_server(name)

    def _repair(self, side: Side) -> None:
        now = time.monotonic()
        if any(one == side for one, _ in self._world.down) or not self._world.lacking(side):
            self._sound[side] = now
            return
        began = max([self._sound.setdefault(side, now), *(t for key, t in self._began.items() if key[0] == side)])
        if now - began > REPAIR_S:
            with self._world.lock:
                cluster = self._world.cluster(side)
                for name in [name for name in cluster.names if name in cluster.servers and name not in STORAGE]:
                    cluster.kill(name)
            self._sound[side] = now


@contextmanager
def booted(folder: Path, store: Store = "sqlite", kind: type[MiniCluster] = MiniCluster) -> Iterator[World]:
    """Two clusters of two region servers each, at least one of which has a process of its own, and PostgreSQL if the
    ledger is to be there; stopped at the end."""
    os.environ.update(QUICK)
    clusters = [kind(folder / side, Ports.free(2), hbase_site=SITE) for side in SIDES]
    with ExitStack() as at_end:
        for cluster in clusters:
            at_end.callback(cluster.stop)
        boot(*clusters)
        postgresql = None
        if store == "postgresql":
            postgresql = Postgresql(folder / "postgresql")
            postgresql.start()
            at_end.callback(postgresql.stop)
        yield at_end.enter_context(kept(clusters[0], clusters[1], postgresql))


@contextmanager
def kept(source: MiniCluster, target: MiniCluster, postgresql: Postgresql | None = None) -> Iterator[World]:
    """Clusters that are running, with a keeper; nothing of them is suspended at the end."""
    world = World(source, target, postgresql)
    keeper = Keeper(world)
    try:
        yield world
    finally:
        for side, name in list(world.down):
            world.go_on(side, [name])
        keeper.close()


def end_marked(marker: str) -> list[str]:
    """kill -9 every process that has `marker` in its environment; what they were."""
    found = marked(marker)
    for process in found:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(found, timeout=processes.STOP_GRACE_S)
    return [f"{process.pid}" for process in found]


def marked(marker: str) -> list[psutil.Process]:
    """The living processes that have `marker` in the value of WALFERRY_CHAOS."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if process.environ().get("WALFERRY_CHAOS") == marker and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found
