"""Where a run is, as its ledger shows it to a plain reader of SQLite."""

from __future__ import annotations

import sqlite3
import threading
import time
from contextlib import closing, suppress
from pathlib import Path

LOOK_S = 0.05


class Moments:
    """The moments of a run (`schedule.MOMENTS`) that have come; a thread looks for those that the ledger shows."""

    def __init__(self, ledger: Path) -> None:
        self._ledger = ledger
        self._changed = threading.Condition()
        self._reached: dict[str, float] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, name="moments", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """No moment will come any more."""
        self._over.set()
        with self._changed:
            self._changed.notify_all()
        self._thread.join()

    def has_come(self, moment: str) -> None:
        """The harness itself knows of a moment."""
        with self._changed:
            if self._reached.setdefault(moment, time.monotonic()):
                self._changed.notify_all()

    def await_(self, moment: str) -> bool:
        """Wait for a moment; False if the run is over before."""
        with self._changed:
            self._changed.wait_for(lambda: moment in self._reached or self._over.is_set())
            return moment in self._reached

    def _look(self) -> None:
        while not self._over.wait(LOOK_S):
            with suppress(sqlite3.Error):
                for moment in self._shown():
                    if moment not in self._reached:
                        self.has_come(moment)

    def _shown(self) -> list[str]:
        if not self._ledger.exists():
            return []
        with closing(reader(self._ledger)) as book:
            phases = book.execute("SELECT phase, state FROM phases").fetchall()
            rounds = book.execute("SELECT COUNT(*) FROM rounds").fetchone()[0]
        # `write_stop` begins with its question, which counts as the moment `stop asked`.
        found = [phase for phase, state in phases if phase not in ("approve", "write_stop") or state == "done"]
        return [*(["round"] if rounds else []), *("approved" if phase == "approve" else phase for phase in found)]


def reader(ledger: Path) -> sqlite3.Connection:
    """A connection that can only read."""
    return sqlite3.connect(f"file:{ledger}?mode=ro", uri=True, timeout=1)


def audited(ledger: Path) -> set[str]:
    """The actions that the audit trail has."""
    if not ledger.exists():
        return set()
    with suppress(sqlite3.Error), closing(reader(ledger)) as book:
        return {action for (action,) in book.execute("SELECT DISTINCT action FROM audit")}
    return set()


def state_of(ledger: Path) -> str | None:
    """The state of the run that the ledger has; None without one."""
    if not ledger.exists():
        return None
    with suppress(sqlite3.Error), closing(reader(ledger)) as book:
        row = book.execute("SELECT state FROM runs").fetchone()
        return str(row[0]) if row else None
    return None


def progress(ledger: Path) -> tuple[int, int]:
    """Something that grows while a run gets on: phases that are done, rounds."""
    with suppress(sqlite3.Error), closing(reader(ledger)) as book:
        done = book.execute("SELECT COUNT(*) FROM phases WHERE state = 'done'").fetchone()[0]
        return int(done), int(book.execute("SELECT COUNT(*) FROM rounds").fetchone()[0])
    return 0, 0
