"""A run of `walferry keep`, and the processes that work on it."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from integration.migration.command import COMMAND, environment
from walferry.errors import WalferryError
from walferry.ledger import Ledger, RunLedger
from walferry.run.notes.kept_moments import copied_ends

DEADLINE_S = 120.0


@dataclass
class Keeper:
    """A run that keeps tables, and the processes that work on it."""

    folder: Path
    keys: dict[str, Any]
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start(self, **changed: Any) -> None:
        """Begin it, or go on with these keys changed."""
        self.keys |= changed
        (self.folder / "keep.yaml").write_text(yaml.safe_dump(self.keys))
        with (self.folder / f"err{len(self.processes)}").open("w") as said:
            process = subprocess.Popen(
                [*COMMAND, "keep", "keep.yaml"],
                cwd=self.folder, env=environment(self.folder), stderr=said, start_new_session=True,
            )  # fmt: skip
        self.processes.append(process)

    def kill(self) -> None:
        """kill -9 of the last process."""
        with suppress(ProcessLookupError):
            os.killpg(self.processes[-1].pid, signal.SIGKILL)
        self.processes[-1].wait()

    @property
    def run_id(self) -> str:
        return f"{self.keys['name']}-1"

    @property
    def kept(self) -> Path:
        """The run's folder."""
        return Path(self.keys["folder"]) / self.run_id

    def await_so(self, is_so: Callable[[RunLedger], bool], what: str) -> None:
        """Wait until something is true of the run."""
        deadline = time.monotonic() + DEADLINE_S
        while True:
            assert self.processes[-1].poll() is None, self.said()
            if (self.folder / "ledger.db").exists():
                with self.ledger() as ledger, suppress(WalferryError):
                    if is_so(ledger.of(self.run_id)):
                        return
            assert time.monotonic() < deadline, f"{what}:\n{self.said()}"
            time.sleep(0.2)

    def ledger(self) -> Ledger:
        return Ledger.open(f"sqlite:///{self.folder / 'ledger.db'}", actor="tester")

    def said(self) -> str:
        return (self.folder / f"err{len(self.processes) - 1}").read_text()


def covered(run: RunLedger, since_ms: int) -> bool:
    ends = copied_ends(run)
    return ends is not None and ends.covered_ms > since_ms


def has_bases(tables: list[str], since_ms: int = 0) -> Callable[[RunLedger], bool]:
    """Whether each table has a copied base that was begun since a moment."""

    def is_so(run: RunLedger) -> bool:
        new = {base.table for base in run.bases.there() if base.copied_ms and base.begun_ms > since_ms}
        return new == set(tables)

    return is_so
