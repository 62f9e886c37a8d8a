"""Run a command to its end: how long it takes, and what its Python processes hold at most."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from walferry.errors import WalferryError

_LOOK_SECONDS = 0.25


@dataclass(frozen=True)
class Timed:
    """What a command took. `python_bytes`: the peak of the largest of its Python processes.

    `cpu_seconds`: of all processors, by the command, all that it started, and the servers.
    """

    seconds: float
    cpu_seconds: float
    python_bytes: int
    output: str
    errors: str

    def after(self, first: Timed) -> Timed:
        """This command and the one before it as one."""
        return replace(
            self,
            seconds=first.seconds + self.seconds,
            cpu_seconds=first.cpu_seconds + self.cpu_seconds,
            python_bytes=max(first.python_bytes, self.python_bytes),
        )


class _Watch:
    """Looks at a process and all that it started, from a thread of its own, until it is stopped."""

    def __init__(self, pid: int) -> None:
        self.python_bytes = 0
        self._cpu: dict[int, float] = {}
        self._pid = pid
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._look_on)
        self._thread.start()

    def stop(self) -> None:
        self._done.set()
        self._thread.join()

    @property
    def cpu_seconds(self) -> float:
        return sum(self._cpu.values())

    def _look_on(self) -> None:
        while not self._done.wait(_LOOK_SECONDS):
            try:
                process = psutil.Process(self._pid)
                everybody = [process, *process.children(recursive=True)]
            except psutil.NoSuchProcess:
                return
            for one in everybody:
                try:
                    self._cpu[one.pid] = cpu_of(one)
                    if "python" in Path(one.exe()).name:  # the name of a command is that of its script
                        self.python_bytes = max(self.python_bytes, _peak(one.pid))
                except (psutil.Error, FileNotFoundError):
                    continue


def cpu_of(process: psutil.Process) -> float:
    """Seconds of processors that a process has used until now, without its children."""
    times = process.cpu_times()
    return float(times.user + times.system)


def timed(
    command: Sequence[str],
    log: Path,
    servers: Iterable[int],
    environment: Mapping[str, str] | None = None,
    *,
    keep_output: bool = True,
    expected: Collection[int] = (0,),
) -> Timed:
    """Run a command, its stderr written to `log`. `servers`: pids of those that work for it.

    Raises WalferryError with the end of the log when its exit code is not one of `expected`.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    serving = [psutil.Process(pid) for pid in servers]
    before = sum(map(cpu_of, serving))
    with log.open("wb") as err:
        out = subprocess.PIPE if keep_output else subprocess.DEVNULL
        begun = time.perf_counter()
        process = subprocess.Popen(command, stdout=out, stderr=err, env=os.environ | dict(environment or {}))
        watch = _Watch(process.pid)
        try:
            output, _ = process.communicate()
            seconds = time.perf_counter() - begun
        finally:
            watch.stop()
            if process.poll() is None:
                process.kill()
                process.wait()
    if process.returncode not in expected:
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
        raise WalferryError(f"{' '.join(command)[-300:]} failed with {process.returncode}; the end of {log}:\n{tail}")
    cpu = watch.cpu_seconds + sum(map(cpu_of, serving)) - before
    return Timed(
        seconds, cpu, watch.python_bytes, (output or b"").decode(errors="replace"), log.read_text(errors="replace")
    )


def _peak(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) << 10
    return 0
