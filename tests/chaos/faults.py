"""Carries out the faults of a schedule, each in a thread that waits for its moment."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

import psutil

from chaos import losing
from chaos.book import Book
from chaos.command import Command
from chaos.moments import Moments
from chaos.schedule import Fault, Side
from chaos.world import World, names_of

OF_COMMAND = ("walferry", "driver", "jvm", "worker", "restore")
LOST_BYTES = 8 << 10
PATIENCE_S = 20.0
"""how long a fault waits for a victim, such as a Python worker of Spark"""


class Faults:
    """The faults of a run; `say` gets a line for each that has begun, `command` finds the command of a victim and a
    pick."""

    def __init__(
        self,
        faults: Sequence[Fault],
        world: World,
        moments: Moments,
        command: Callable[[str, float], Command | None],
        ledger: Book,
        say: Callable[[str], None],
    ) -> None:
        self._world, self._moments, self._command, self._ledger, self._say = world, moments, command, ledger, say
        self._active: dict[int, Fault] = {}
        self.done: list[Fault] = []
        self.missed: list[Fault] = []
        self._over = threading.Event()
        self._threads = [
            threading.Thread(target=self._carry_out, args=(number, fault), name=f"fault {number}", daemon=True)
            for number, fault in enumerate(faults)
        ]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """End what is under way; nothing stays suspended."""
        self._over.set()
        for thread in self._threads:
            thread.join()

    def under_way(self, side: Side | None = None) -> bool:
        """Whether a fault is, at all or on this side."""
        return any(side is None or fault.victim.startswith(side) for fault in list(self._active.values()))

    def _carry_out(self, number: int, fault: Fault) -> None:
        if not self._moments.await_(fault.moment) or self._over.wait(fault.after_s):
            self.missed.append(fault)
            return
        self._active[number] = fault
        try:
            did = self._act(fault)
        finally:
            del self._active[number]
        (self.done if did else self.missed).append(fault)
        if not did:
            self._say(f"  missed, there was no victim: {fault.describe()}")

    def _act(self, fault: Fault) -> bool:
        if fault.act == "lock":
            told = partial(self._say, f"  fault: {fault.describe()}")
            return self._ledger.locked(told, partial(self._over.wait, fault.seconds))
        if fault.victim == "postgresql":
            return self._on_postgresql(fault)
        return self._on_command(fault) if fault.victim in OF_COMMAND else self._on_cluster(fault)

    def _on_postgresql(self, fault: Fault) -> bool:
        server = self._world.postgresql
        assert server is not None
        self._say(f"  fault: {fault.describe()}")
        if fault.act == "kill":
            server.kill()
        else:
            _signal(suspended := server.processes(), signal.SIGSTOP)
        self._over.wait(fault.seconds)
        if fault.act == "kill":
            server.start()
        else:
            _signal(suspended, signal.SIGCONT)
        return True

    def _on_cluster(self, fault: Fault) -> bool:
        side: Side = "source" if fault.victim.startswith("source") else "target"
        names = names_of(fault.victim, self._world.cluster(side))
        if fault.act == "lose":
            names = [*names, "datanode"]
        self._say(f"  fault: {fault.describe()}")
        begin = {"kill": self._world.kill, "suspend": self._world.suspend, "lose": self._lose}
        begin[fault.act](side, names)
        self._over.wait(fault.seconds)
        self._world.go_on(side, names)
        return True

    def _lose(self, side: Side, names: Sequence[str]) -> None:
        """Kill a region server, the first one, and the data node, once there is something to lose, and cut its log."""
        cluster = self._world.cluster(side)
        folder = losing.folder_of(cluster, names[0])
        losing.await_bytes(cluster, folder, 2 * LOST_BYTES)
        self._world.kill(side, names)
        replica = losing.newest(cluster, folder)
        self._say(f"  {losing.cut(replica, LOST_BYTES)} bytes of {replica.name} are lost")

    def _on_command(self, fault: Fault) -> bool:
        deadline = time.monotonic() + PATIENCE_S
        while not (victims := self._victims(fault)):
            if self._over.wait(0.05) or time.monotonic() > deadline:
                return False
        self._say(f"  fault: {fault.describe()}")
        _signal(victims, signal.SIGKILL if fault.act == "kill" else signal.SIGSTOP)
        if fault.act == "suspend":
            self._over.wait(fault.seconds)
            _signal(victims, signal.SIGCONT)
        return True

    def _victims(self, fault: Fault) -> list[psutil.Process]:
        command = self._command(fault.victim, fault.pick)
        if command is None or not command.is_running:
            return []
        if not (processes := command.processes()):
            return []
        driver, *others = processes
        if fault.victim == "driver":
            return [driver]
        named = [(process, _words(process)) for process in others]
        if fault.victim in ("walferry", "restore"):
            # But the shell that waits for the driver's end, to end the JVM and remove its folder.
            return [driver, *(process for process, words in named if not words or not words[0].endswith("sh"))]
        if fault.victim == "jvm":
            return [process for process, words in named if words and words[0].endswith("java")][:1]
        workers = [process for process, words in named if any("pyspark" in w for w in words[1:3])]
        busy = sorted((p for p in workers if p.pid not in _parents(workers)), key=lambda process: process.pid)
        return [busy[int(fault.pick * len(busy))]] if busy else []


def _words(process: psutil.Process) -> list[str]:
    try:
        return list(process.cmdline())
    except psutil.Error:
        return []


def _parents(processes: Sequence[psutil.Process]) -> set[int]:
    found = set()
    for process in processes:
        with suppress(psutil.Error):
            found.add(process.ppid())
    return found


def _signal(processes: Sequence[psutil.Process], number: int) -> None:
    for process in processes:
        with suppress(psutil.Error):
            process.send_signal(number)
