"""Server processes on this machine: starts, watches and stops them, and never leaves one behind.

Every server gets a session of its own: ending its process group ends whatever it started, and Ctrl-C in a terminal
reaches only this process. If this process dies without cleaning up, the `Leash` ends the servers.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

import psutil

from walferry.errors import WalferryError

STOP_GRACE_S = 10.0
LOWEST_PORT, HIGHEST_PORT = 20_000, 32_000  # below the range of ephemeral ports
_given: set[int] = set()
"""ports that this process has handed out; their servers may not listen yet"""


def free_ports(count: int) -> list[int]:
    """`count` different TCP ports of 127.0.0.1 that are free at the moment; never hands out a port twice."""
    with contextlib.ExitStack() as held:
        ports: list[int] = []
        left = [port for port in range(LOWEST_PORT, HIGHEST_PORT) if port not in _given]
        for port in random.sample(left, min(len(left), 2000)):
            if len(ports) == count:
                _given.update(ports)
                return ports
            listener = held.enter_context(socket.socket())
            with contextlib.suppress(OSError):
                listener.bind(("127.0.0.1", port))
                ports.append(port)
    raise WalferryError(f"no {count} free ports between {LOWEST_PORT} and {HIGHEST_PORT} of 127.0.0.1")


@dataclass(frozen=True)
class ServerProcess:
    """One running process: its name, pid, start time (seconds since 1970; detects a reused pid) and log."""

    name: str
    pid: int
    started: float
    log: str
    log_offset: int = 0  # where this process's lines start: a restarted server appends to the same file

    def is_alive(self) -> bool:
        """Whether this very process is still running; a zombie does not count."""
        try:
            process = psutil.Process(self.pid)
            same = process.create_time() == self.started
            return same and process.status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False

    def output(self) -> str:
        """This process's log so far."""
        with Path(self.log).open("rb") as file:
            file.seek(self.log_offset)
            return file.read().decode(errors="replace")

    def tail(self) -> str:
        """The last lines of `output`."""
        return "\n".join(self.output().splitlines()[-20:])

    def await_line(self, pattern: str, deadline: float) -> str:
        """Wait until a line of the log matches `pattern` and return it.

        `deadline` is a time.monotonic() time. Raises WalferryError with the last log lines if the process ends first or
        the deadline passes.
        """
        wanted = re.compile(pattern)
        while True:
            alive = self.is_alive()  # checked before reading the log, so as not to miss its last lines
            output = self.output()
            if match := wanted.search(output):
                return match[0]
            if not alive or time.monotonic() > deadline:
                what = "is not ready in time" if alive else "ended while it was starting"
                raise WalferryError(f"{self.name} {what}; the end of {self.log}:\n{self.tail()}")
            time.sleep(0.2)


class Servers(ABC):
    """Servers that end with a `with` block, however it ends."""

    @abstractmethod
    def stop(self) -> None:
        """End them. A second call does nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()


class Leash:
    """A small helper process that ends this process's servers when this process dies, even by kill -9.

    It reads its stdin, whose other end only this process holds: `+pid` and `-pid` lines add and remove process groups,
    and the end of the input means that this process has died.
    """

    def __init__(self) -> None:
        self._helper: subprocess.Popen[str] | None = None

    def hold(self, pid: int) -> None:
        """End the process group `pid` when this process dies."""
        self._send(f"+{pid}")

    def release(self, pid: int) -> None:
        """Take the process group `pid` off the leash: it has already ended, or should outlive this process."""
        self._send(f"-{pid}")

    def _send(self, line: str) -> None:
        if self._helper is None or self._helper.poll() is not None:
            self._helper = subprocess.Popen(
                [sys.executable, "-c", _LEASH], stdin=subprocess.PIPE, text=True, start_new_session=True
            )
            atexit.register(self._close)
        assert self._helper.stdin is not None
        self._helper.stdin.write(line + "\n")
        self._helper.stdin.flush()

    def _close(self) -> None:
        if self._helper is not None and self._helper.stdin is not None:
            self._helper.stdin.close()
            self._helper.wait()


_LEASH = f"""
import os, signal, sys, time
held = set()
for line in sys.stdin:
    pid = int(line[1:])
    held.add(pid) if line[0] == "+" else held.discard(pid)

def signal_all(number):
    for pid in sorted(held):
        try:
            os.killpg(pid, number)
        except OSError:
            held.discard(pid)

signal_all(signal.SIGTERM)
for _ in range({int(STOP_GRACE_S * 10)}):
    signal_all(0)
    if not held:
        break
    time.sleep(0.1)
signal_all(signal.SIGKILL)
"""

leash = Leash()


def start(
    name: str, command: Sequence[str], log: Path, *, folder: Path, environment: Mapping[str, str] | None = None
) -> ServerProcess:
    """Start `command` in `folder`, in its own session and on the leash; appends stdout and stderr to `log`."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        offset = output.tell()
        child = psutil.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env=variables(environment or {}),
            start_new_session=True,
        )
    leash.hold(child.pid)
    return ServerProcess(name, child.pid, psutil.Process(child.pid).create_time(), str(log), offset)


def variables(more: Mapping[str, str]) -> dict[str, str]:
    """The environment of this process with more variables, for one that it starts."""
    return {**os.environ, **more}


def stop(servers: Iterable[ServerProcess], *, grace_s: float = STOP_GRACE_S) -> None:
    """End the servers and all processes they started: SIGTERM to all, SIGKILL to those left after `grace_s` seconds.

    Ignores servers that have ended or whose pid now belongs to another process.
    """
    processes: list[psutil.Process] = []
    leaders: list[int] = []
    for server in servers:
        if server.is_alive():
            leaders.append(server.pid)
            with contextlib.suppress(psutil.NoSuchProcess):
                process = psutil.Process(server.pid)
                processes += [process, *process.children(recursive=True)]
        leash.release(server.pid)
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.terminate()
    _, left = psutil.wait_procs(processes, timeout=grace_s)
    for process in left:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    for pid in leaders:  # processes that a server started meanwhile, in its process group
        with contextlib.suppress(OSError):
            os.killpg(pid, signal.SIGKILL)
    psutil.wait_procs(left, timeout=grace_s)


def kill(server: ServerProcess) -> None:
    """kill -9: the server dies at once, as in a crash."""
    if server.is_alive():
        os.killpg(server.pid, signal.SIGKILL)
        with contextlib.suppress(psutil.NoSuchProcess, psutil.TimeoutExpired):
            psutil.Process(server.pid).wait(timeout=STOP_GRACE_S)
    leash.release(server.pid)


def write_pid_file(path: Path, servers: Iterable[ServerProcess]) -> None:
    """Record the servers, so that a later process can stop them."""
    path.write_text(json.dumps([asdict(server) for server in servers], indent=1))


def read_pid_file(path: Path) -> list[ServerProcess]:
    """The servers recorded by `write_pid_file`; none if the file does not exist."""
    if not path.exists():
        return []
    return [ServerProcess(**entry) for entry in json.loads(path.read_text())]
