"""Where a run is, as its ledger shows it to another reader."""

from __future__ import annotations

import threading
import time
from contextlib import suppress

from chaos.book import NO_ANSWER, Book

LOOK_S = 0.05


class Moments:
    """The moments of a run (`schedule.MOMENTS`) that have come; a thread looks for those that the ledger shows."""

    def __init__(self, ledger: Book) -> None:
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
            with suppress(NO_ANSWER):
                for moment in self._shown():
                    if moment not in self._reached:
                        self.has_come(moment)

    def _shown(self) -> list[str]:
        with self._ledger.reader() as book:
            phases = book.execute("SELECT phase, state FROM phases")
            rounds = book.execute("SELECT COUNT(*) FROM rounds")[0][0]
        # `write_stop` begins with its question, which counts as the moment `stop asked`.
        found = [phase for phase, state in phases if phase not in ("approve", "write_stop") or state == "done"]
        return [*(["round"] if rounds else []), *("approved" if phase == "approve" else phase for phase in found)]


def audited(ledger: Book) -> set[str]:
    """The actions that the audit trail has."""
    return {action for (action,) in ledger.asked("SELECT DISTINCT action FROM audit") or ()}


def state_of(ledger: Book) -> str | None:
    """The state of the first run that the ledger has; None without one."""
    runs = ledger.asked("SELECT state FROM runs ORDER BY created_ms")
    return str(runs[0][0]) if runs else None


def progress(ledger: Book) -> tuple[int, int]:
    """Something that grows while a run gets on: phases that are done, rounds."""
    done = ledger.asked("SELECT COUNT(*) FROM phases WHERE state = 'done'")
    rounds = ledger.asked("SELECT COUNT(*) FROM rounds")
    return int(done[0][0]) if done else 0, int(rounds[0][0]) if rounds else 0
