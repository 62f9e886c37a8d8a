"""One run: three tables, a writer, an operator, the command, the faults of the schedule, and the verdict."""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import yaml

from chaos import journal
from chaos.book import Book
from chaos.command import CUTOVER, WRITES_STOPPED, Command
from chaos.faults import Faults
from chaos.moments import Moments, audited, progress, state_of
from chaos.operations import Operator
from chaos.schedule import SIDES, Schedule
from chaos.verdict import Verdict, judge
from chaos.world import World, end_marked, marked
from chaos.writer import FAMILIES, STOP_FILE, row_key
from walferry.embedded import processes
from walferry.embedded.cluster import MiniCluster
from walferry.embedded.processes import ServerProcess
from walferry.errors import WalferryError
from walferry.hbase.client import HBaseClient
from walferry.hbase.errors import TableStateError
from walferry.hbase.mutate import Cell

RUN_SECONDS = 600.0
HEAL_SECONDS = 150.0
WRITER_SECONDS = 200.0
PROCESSES_SECONDS = 20.0
"""how long processes of an ended command may take to end"""
FUTILE = 6
"""attempts in a row that do not get further, with no fault under way: the run does not end by itself"""
RESUME_AFTER_S = 1.0
SETTLE_S = 1.5
"""between the writer's end and the word that writes have stopped"""
LOADED = 150
"""rows of each table before the run"""
BORDERS: Mapping[str, tuple[bytes, ...]] = {"a": (b"\x40", b"\x80", b"\xc0"), "b": (b"\x80",), "c": ()}
"""of the tables' regions at first, by the last letters of their names"""
RENAMED = {"c": "_moved"}
"""what the names of target tables have besides"""


COPIED_AGAIN = "copied again"
"""in the audit trail"""


class StuckError(WalferryError):
    """A run does not end."""


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
    folder: str = ""

    def line(self) -> str:
        """For people."""
        text = (
            f"seed {self.seed} {self.mode}: {'passed' if self.passed else 'FAILED'} in {self.seconds:.0f} s; "
            f"{self.faults} faults{f' and {self.missed} missed' if self.missed else ''}, {self.starts} starts, "
            f"{self.restarts} servers restarted, {self.edits} edits ({self.unknown} unknown), {self.operations} "
            f"operations, {self.rounds} rounds; {self.cells} cells compared, "
            f"{self.decided} columns decided by the "
            f"journal"
            f"{f', {self.unsure} unsure' if self.unsure else ''}"
        )
        text += f", {self.repaired} rows were repaired on the way" if self.repaired else ""
        return text + (f", {self.aged} have changed since the opening" if self.aged else "")


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
        self._schedule, self._world, self._folder, self._say = schedule, world, folder, say
        folder.mkdir(parents=True)
        (folder / "schedule.json").write_text(json.dumps(schedule.facts(), indent=1))
        self._marker = str(folder)
        self.name = f"chaos_{schedule.mode}_{schedule.seed}"
        of_server = world.postgresql and world.postgresql.database(self.name)
        self._ledger = Book(of_server) if of_server else Book.of_sqlite(folder / "ledger.db")
        self.tables = {f"{self.name}_{letter}": f"{self.name}_{letter}{RENAMED.get(letter, '')}" for letter in BORDERS}
        world.tables = sorted({*self.tables.keys(), *self.tables.values()})
        self._command: Command | None = None
        self._asking: Command | None = None
        self._asked = 0
        self._starts = 0
        self._seconds = seconds
        self._until = time.monotonic() + seconds
        self.result = Result(schedule.seed, schedule.mode, folder=str(folder))

    def do(self) -> Result:
        """Do all of it. What is wrong is in the result; nothing that was started is left."""
        began = time.monotonic()
        restarts = len(self._world.restarts)
        try:
            self._create_tables()
            self._move()
            verdict = self._judge()
            self.result.wrong += verdict.wrong
            for name in ("cells", "decided", "unsure", "repaired", "aged"):
                setattr(self.result, name, getattr(verdict, name))
        except WalferryError as error:
            self.result.wrong.append(str(error))
        finally:
            left = end_marked(self._marker)
        if left and not self.result.wrong:
            self.result.wrong.append(f"processes were left: {', '.join(left)}")
        outcomes = Counter(entry.outcome for entry in journal.read(self._folder))
        self.result.edits, self.result.unknown = outcomes.total(), outcomes["unknown"]
        self.result.starts, self.result.rounds = self._starts, progress(self._ledger)[1]
        self.result.restarts = len(self._world.restarts) - restarts
        self.result.seconds = round(time.monotonic() - began, 1)
        self.result.passed = not self.result.wrong
        (self._folder / "result.json").write_text(json.dumps(asdict(self.result), indent=1))
        return self.result

    def drop_tables(self) -> None:
        """Remove the tables on both sides."""
        for cluster, tables in ((self._world.source, self.tables.keys()), (self._world.target, self.tables.values())):
            with HBaseClient(cluster.address) as client:
                for table in tables:
                    if client.table_exists(table):
                        with suppress(TableStateError):  # it is disabled
                            client.disable_table(table)
                        client.delete_table(table)

    def _create_tables(self) -> None:
        self.drop_tables()
        with HBaseClient(self._world.source.address) as client:
            for table in self.tables:
                client.create_table(table, FAMILIES, BORDERS[table[-1]])
                rows = [row_key(b"loaded%04d" % number) for number in range(LOADED)]
                client.put(table, [Cell(row, b"f", b"loaded", b"before the run", 1) for row in rows])

    def _move(self) -> None:
        (self._folder / "move.yaml").write_text(yaml.safe_dump(self._spec()))
        with ExitStack() as at_end:
            writer = self._start_writer()
            at_end.callback(processes.stop, [writer])
            operator = Operator(self._world.source, list(self.tables), self._schedule.operations)
            at_end.callback(operator.close)
            at_target = Operator(self._world.target, list(self.tables.values()), self._schedule.at_target)
            at_end.callback(at_target.close)
            moments = Moments(self._ledger)
            faults = Faults(self._schedule.faults, self._world, moments, lambda: self._command, self._ledger, self._say)
            at_end.callback(self._end_commands)
            at_end.callback(faults.close)
            at_end.callback(moments.close)
            self._follow(moments, faults, writer)
            moments.close()
            faults.close()
            self.result.operations = operator.did.total() + at_target.did.total()
            self.result.faults, self.result.missed = len(faults.done), len(faults.missed)

    def _follow(self, moments: Moments, faults: Faults, writer: ServerProcess) -> None:
        """Start the command, answer its questions and resume it whenever it has ended, until the run is done."""
        futile, reached, due, question = 0, progress(self._ledger), 0.0, None
        self._start()
        while True:
            time.sleep(0.1)
            command = self._command
            assert command is not None
            if time.monotonic() > self._until:
                raise StuckError(f"the run has not ended in {self._seconds:.0f} s; {self._where()}")
            if not (writer.is_alive() or (self._folder / STOP_FILE).exists()):
                raise StuckError(f"the writer has failed:\n{writer.tail()}")
            if not command.is_running:
                if state_of(self._ledger) == "done":
                    command.close()
                    return
                self._say(f"  the command has ended with {command.process.returncode}: {command.last_words()}")
                now = progress(self._ledger)
                futile = 0 if now != reached or faults.under_way() else futile + 1
                reached, question = now, None
                if futile == FUTILE:
                    raise StuckError(f"{FUTILE} attempts in a row have not got the run further; {self._where()}")
                time.sleep(RESUME_AFTER_S * (1 + futile))
                self._start()
                continue
            if (asked := command.question()) is not None and asked != question:
                question = asked
                moments.has_come("asked" if asked == CUTOVER else "stop asked")
                pause = self._schedule.approve_after_s if asked == CUTOVER else self._schedule.stop_after_s
                due = time.monotonic() + pause
            if self._schedule.mode == "again" and not self._copies_again():
                continue  # the cutover waits
            if question is not None and time.monotonic() >= due:
                if question == WRITES_STOPPED:
                    self._stop_writing(faults, writer)
                command.answer(question)
                question = None

    def _copies_again(self) -> bool:
        """Ask for a copy of one table again once a round is over, as often as that command ends; whether it is done."""
        if COPIED_AGAIN in audited(self._ledger):
            return True
        if self._asking is not None and not self._asking.is_running:
            self._asking.close()
            self._asking = None
        if self._asking is None and progress(self._ledger)[1]:
            self._asked += 1
            table = sorted(self.tables)[self._schedule.seed % len(self.tables)]
            arguments = ["copy-again", self.name, "--table", table, "--reason", "chaos"]
            self._asking = Command(self._folder, 100 + self._asked, arguments, self._environment())
        return False

    def _stop_writing(self, faults: Faults, writer: ServerProcess) -> None:
        """Return when it is true that writes have stopped: nothing of them waits in a suspended server either."""
        (self._folder / STOP_FILE).touch()
        deadline = time.monotonic() + WRITER_SECONDS
        while writer.is_alive() or faults.under_way("source"):
            if time.monotonic() > deadline:
                raise StuckError("the writer does not end")
            time.sleep(0.1)
        if "Traceback" in writer.output():
            raise StuckError(f"the writer has failed:\n{writer.tail()}")
        self._world.await_healthy("source", time.monotonic() + HEAL_SECONDS)
        time.sleep(SETTLE_S)

    def _judge(self) -> Verdict:
        for side in SIDES:
            self._world.await_healthy(side, time.monotonic() + HEAL_SECONDS)
        wrong = self._processes_left() + self._tracebacks()
        lost = any(fault.act == "lose" for fault in self._schedule.faults)
        verdict = judge(self._world.source, self._world.target, self.tables, self._folder, self._ledger, lost)
        verdict.wrong = wrong + verdict.wrong
        if not any(journal.read(self._folder)):
            verdict.wrong.append("the writer wrote nothing")
        return verdict

    def _processes_left(self) -> list[str]:
        """What the command has started and not ended, and Spark's folders that it has not removed."""
        deadline = time.monotonic() + PROCESSES_SECONDS
        while (left := marked(self._marker)) and time.monotonic() < deadline:
            time.sleep(0.2)
        wrong = [f"process {process.pid} was left: {' '.join(process.cmdline())[:120]}" for process in left]
        return wrong + [f"the folder {path.name} was left" for path in (self._folder / "tmp").glob("walferry-spark-*")]

    def _tracebacks(self) -> list[str]:
        """What the command said that no user should see."""
        return [
            f"{path.name} has a traceback"
            for path in sorted(self._folder.glob("walferry-*.err"))
            if "Traceback (most recent call last)" in path.read_text(errors="replace")
        ]

    def _spec(self) -> dict[str, Any]:
        tables = [{"source": here, "target": there} for here, there in self.tables.items()]
        sides: dict[str, Any] = {side: cluster_keys(self._world.cluster(side)) for side in SIDES}
        keep: dict[str, Any] = {"protect": self._schedule.protect}
        if self._schedule.protect == "stage":
            keep["stage"] = str(self._folder / "staged")
            (self._folder / "staged").mkdir()
        return {"name": self.name, **sides, "tables": tables, "write_stop": "confirm", "max_lag": 60, **keep}

    def _start(self) -> None:
        self._starts += 1
        if self._command is not None:
            self._command.close()
        arguments = ["start", "move.yaml"] if state_of(self._ledger) is None else ["resume", self.name]
        self._command = Command(self._folder, self._starts, arguments, self._environment())

    def _end_commands(self) -> None:
        for command in (self._command, self._asking):
            if command is not None:
                command.end()

    def _start_writer(self) -> ServerProcess:
        facts = {
            "source": cluster_keys(self._world.source), "tables": list(self.tables), "seed": self._schedule.seed,
            "mode": self._schedule.mode,
        }  # fmt: skip
        (self._folder / "writer.json").write_text(json.dumps(facts))
        command = [sys.executable, "-m", "chaos.writer", str(self._folder)]
        path = os.pathsep.join(sys.path)
        return processes.start(
            "writer", command, self._folder / "writer.log", folder=self._folder, environment={"PYTHONPATH": path}
        )

    def _environment(self) -> dict[str, str]:
        (self._folder / "tmp").mkdir(exist_ok=True)
        return os.environ | {
            "WALFERRY_LEDGER": self._ledger.url,
            "WALFERRY_CHAOS": self._marker,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "TMPDIR": str(self._folder / "tmp"),
        }

    def _where(self) -> str:
        """What the run and the clusters say of themselves."""
        words = self._command.last_words() if self._command else ""
        sides = "; ".join(
            f"{side}: {found}" for side in SIDES if (found := self._world.lacking(side) or self._world.silent(side))
        )
        return f"the command's last words: {words}{'; ' if sides else ''}{sides}"


def cluster_keys(cluster: MiniCluster) -> dict[str, Any]:
    """The keys of a spec's `source` or `target`."""
    address = cluster.address
    return {name: getattr(address, name) for name in ("zookeeper", "znode", "webhdfs", "rootdir")}
