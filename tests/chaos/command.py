"""The command `walferry` as a person runs it: in a terminal, where its questions are answered."""

from __future__ import annotations

import array
import fcntl
import os
import pty
import re
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import psutil

from walferry.embedded.processes import leash

CUTOVER, WRITES_STOPPED = "cutover", "writes stopped"
_QUESTIONS = {
    CUTOVER: re.compile(rb"Cut over \S+\? \[y/N\]: "),
    WRITES_STOPPED: re.compile(rb"Have all writes to the source stopped\? \[y/N\]: "),
}
QUIET_S = 3.0
"""a question that shows again so long after its answer is asked again"""


class Command:
    """One process of the command; what it says is in FOLDER/walferry-NUMBER.out and .err."""

    def __init__(self, folder: Path, number: int, arguments: list[str], environment: Mapping[str, str]) -> None:
        self.arguments = arguments
        self.err = folder / f"walferry-{number}.err"
        self._terminal, self._slave = pty.openpty()
        with (folder / f"walferry-{number}.out").open("w") as out, self.err.open("w") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "walferry.cli", *arguments],
                cwd=folder, env=environment, stdin=self._slave, stdout=out, stderr=err, start_new_session=True,
            )  # fmt: skip
        leash.hold(self.process.pid)
        self._read = 0
        self._answered: dict[str, float] = {}

    @property
    def is_running(self) -> bool:
        return self.process.poll() is None

    def question(self) -> str | None:
        """The question that waits for an answer now."""
        with self.err.open("rb") as file:
            file.seek(self._read)
            new = file.read()
        self._read += len(new)
        shown = [(match.start(), name) for name, pattern in _QUESTIONS.items() for match in pattern.finditer(new)]
        if not shown:
            return None
        _, name = max(shown)
        again = time.monotonic() - self._answered.get(name, -QUIET_S) >= QUIET_S
        return name if again and not self._unread() else None

    def _unread(self) -> int:
        """How many bytes of an answer it has not read: a suspended process must not find two answers."""
        count = array.array("i", [0])
        fcntl.ioctl(self._slave, termios.FIONREAD, count)
        return count[0]

    def answer(self, question: str) -> None:
        """Say yes."""
        self._answered[question] = time.monotonic()
        os.write(self._terminal, b"y\n")

    def processes(self) -> list[psutil.Process]:
        """The command and all that it has started."""
        try:
            driver = psutil.Process(self.process.pid)
            return [driver, *driver.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def end(self) -> None:
        """kill -9, if it is still running."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.close()

    def close(self) -> None:
        """Once it has ended."""
        leash.release(self.process.pid)
        if self._terminal >= 0:
            os.close(self._terminal)
            os.close(self._slave)
            self._terminal = -1

    def last_words(self) -> str:
        """The last line that it said."""
        lines = [line for line in self.err.read_text(errors="replace").splitlines() if line.strip()]
        return lines[-1][-300:] if lines else ""
