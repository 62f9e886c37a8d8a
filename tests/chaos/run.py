"""One run: tables, a writer, operators, faults, what the mode does meanwhile, and the verdict."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from chaos import journal
from chaos.book import Book
from chaos.keeping import keep
from chaos.moments import progress
from chaos.moving import RENAMED, move
from chaos.scene import BORDERS, RUN_SECONDS, Scene, drop
from chaos.schedule import SIDES, Mode, Schedule
from chaos.streaming import stream
from chaos.verdict import Verdict
from chaos.world import World, end_marked
from walferry.errors import WalferryError

DO: Mapping[Mode, Callable[[Scene], Verdict]] = {
    "mild": move,
    "full": move,
    "again": move,
    "keep": keep,
    "stream": stream,
}


@dataclass
class Result:
    """What a run came to, as it is recorded."""

    seed: int
    mode: str
    passed: bool = False
    seconds: float = 0.0
    wrong: list[str] = field(default_factory=list)
    starts: int = 0
    faults: int = 0
    missed: int = 0
    edits: int = 0
    unknown: int = 0
    operations: int = 0
    rounds: int = 0
    restarts: int = 0
    cells: int = 0
    decided: int = 0
    unsure: int = 0
    repaired: int = 0
    aged: int = 0
    restored: int = 0
    bases: int = 0
    logged: int = 0
    folder: str = ""

    def line(self) -> str:
        """For people."""
        text = (
            f"seed {self.seed} {self.mode}: {'passed' if self.passed else 'FAILED'} in {self.seconds:.0f} s; "
            f"{self.faults} faults{f' and {self.missed} missed' if self.missed else ''}, {self.starts} starts, "
            f"{self.restarts} servers restarted, {self.edits} edits ({self.unknown} unknown), {self.operations} "
            f"operations; {self.cells} cells compared, {self.decided} columns or edits decided by the journal"
        )
        counts = {
            "unsure": self.unsure,
            "rounds": self.rounds,
            "rows were repaired on the way": self.repaired,
            "have changed since the opening": self.aged,
            "bases": self.bases,
            "tables restored": self.restored,
            "cells of the source's log": self.logged,
        }
        return ", ".join([text, *(f"{count} {what}" for what, count in counts.items() if count)])


class ChaosRun:
    """One run in a folder of its own, on clusters that are running."""

    def __init__(
        self,
        schedule: Schedule,
        world: World,
        folder: Path,
        say: Callable[[str], None],
        seconds: float = RUN_SECONDS,
    ) -> None:
        folder.mkdir(parents=True)
        (folder / "schedule.json").write_text(json.dumps(schedule.facts(), indent=1))
        name = f"chaos_{schedule.mode}_{schedule.seed}"
        of_server = world.postgresql and world.postgresql.database(name)
        ledger = Book(of_server) if of_server else Book.of_sqlite(folder / "ledger.db")
        tables = [f"{name}_{letter}" for letter in BORDERS]
        self._scene = Scene(schedule, world, folder, say, name, ledger, tables, time.monotonic() + seconds)
        self._made = {f"{table}{end}" for table in tables for end in ("", *RENAMED.values())}
        world.tables = sorted(self._made)
        self.result = Result(schedule.seed, schedule.mode, folder=str(folder))

    def do(self) -> Result:
        """Do all of it. What is wrong is in the result; nothing that was started is left."""
        scene, world, began = self._scene, self._scene.world, time.monotonic()
        restarts = len(world.restarts)
        try:
            self.drop_tables()
            verdict = DO[scene.schedule.mode](scene)
            self.result.wrong += verdict.wrong
            for name in ("cells", "decided", "unsure", "repaired", "aged", "restored", "bases", "logged"):
                setattr(self.result, name, getattr(verdict, name))
        except WalferryError as error:
            self.result.wrong.append(str(error))
        finally:
            left = end_marked(scene.marker)
        if left and not self.result.wrong:
            self.result.wrong.append(f"processes were left: {', '.join(left)}")
        outcomes = Counter(entry.outcome for entry in journal.read(scene.folder))
        self.result.edits, self.result.unknown = outcomes.total(), outcomes["unknown"]
        self.result.starts, self.result.rounds = scene.starts, progress(scene.ledger)[1]
        for name in ("operations", "faults", "missed"):
            setattr(self.result, name, scene.counts[name])
        self.result.restarts = len(world.restarts) - restarts
        self.result.seconds = round(time.monotonic() - began, 1)
        self.result.passed = not self.result.wrong
        (scene.folder / "result.json").write_text(json.dumps(asdict(self.result), indent=1))
        return self.result

    def drop_tables(self) -> None:
        """Remove the run's tables on both sides."""
        for side in SIDES:
            drop(self._scene.world.cluster(side), sorted(self._made | set(self._scene.made)))
