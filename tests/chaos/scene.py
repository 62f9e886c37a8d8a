"""What all runs are made of: the tables, the writer, the operators, the faults, and commands that are given again."""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from thriftpy2.thrift import TException

from chaos.book import Book
from chaos.command import Command
from chaos.faults import Faults
from chaos.moments import Moments, state_of
from chaos.operations import Operator
from chaos.schedule import SIDES, Schedule, Side
from chaos.verdict import Content, content
from chaos.world import World, marked
from chaos.writer import LOGGED, OF_OLD, PAUSE_FILE, PAUSE_S, ROWS, STOP_FILE, families, old_row, row_key
from walferry.embedded import processes
from walferry.embedded.cluster import MiniCluster
from walferry.embedded.processes import ServerProcess
from walferry.errors import WalferryError
from walferry.hbase.client import HBaseClient
from walferry.hbase.errors import TableStateError
from walferry.hbase.mutate import Cell

RUN_SECONDS = 900.0
HEAL_SECONDS = 150.0
WRITER_SECONDS = 200.0
PROCESSES_SECONDS = 20.0
"""how long processes of an ended command may take to end"""
FUTILE = 6
"""attempts in a row that do not get further, with no fault under way: the run does not end by itself"""
RESUME_AFTER_S = 1.0
SETTLE_S = 1.5
"""between the writer's end or pause and the word that nothing is written any more"""
LOADED = 150
"""rows of each table before the run"""
BORDERS: Mapping[str, tuple[bytes, ...]] = {"a": (b"\x40", b"\x80", b"\xc0"), "b": (b"\x80",), "c": ()}
"""of the tables' regions at first, by the last letters of their names"""


class StuckError(WalferryError):
    """A run does not end."""


@dataclass
class Attempts:
    """A command that is given again whenever it has ended too early, as a person would do."""

    start: Callable[[], Command]
    is_done: Callable[[Command], bool]
    """whether it may end: of one that has ended"""
    progress: Callable[[], object]
    """something else whenever it has got further"""
    command: Command | None = None
    done: bool = False
    _futile: int = 0
    _reached: object = None
    _again: float = 0.0

    @property
    def is_running(self) -> bool:
        return self.command is not None and self.command.is_running

    def look(self, scene: Scene) -> None:
        """Give the command again if it has ended and is not done. Raises StuckError for one that gets no further."""
        if self.done or self.is_running or time.monotonic() < self._again:
            return
        if self.command is not None:
            if self.is_done(self.command):
                self.done = True
                self.command.close()
                return
            if not self._again:
                self._note_end(scene, self.command)
                return
            self.command.close()
        self._again = 0.0
        self.command = self.start()

    def _note_end(self, scene: Scene, command: Command) -> None:
        scene.say(f"  the command has ended with {command.process.returncode}: {command.last_words()}")
        now = self.progress()
        self._futile = 0 if now != self._reached or scene.faults.under_way() else self._futile + 1
        self._reached = now
        if self._futile == FUTILE:
            raise StuckError(f"{FUTILE} attempts in a row have not got the run further; {scene.where()}")
        self._again = time.monotonic() + RESUME_AFTER_S * (1 + self._futile)


@dataclass
class Scene:
    """One run's surroundings, in a folder of its own. `attempts`: the commands that it gives, by victim."""

    schedule: Schedule
    world: World
    folder: Path
    say: Callable[[str], None]
    name: str
    ledger: Book
    tables: Sequence[str]
    """at the source"""
    until: float
    """when the run must have ended (time.monotonic())"""
    attempts: dict[str, Attempts] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    """what commands have besides"""
    made: list[str] = field(default_factory=list)
    """tables that were made besides, on either side"""
    counts: Counter[str] = field(default_factory=Counter)
    """of operations and faults that were done, and of faults that were missed"""
    faults: Faults = field(init=False)
    moments: Moments = field(init=False)
    writer: ServerProcess | None = None
    _commands: list[Command] = field(default_factory=list)

    @property
    def marker(self) -> str:
        """What the environment of each process of the commands has as WALFERRY_CHAOS."""
        return str(self.folder)

    @property
    def starts(self) -> int:
        """How many commands were given."""
        return len(self._commands)

    # -------------------------------------------------------------- tables

    def create_tables(self) -> None:
        with HBaseClient(self.world.source.address) as client:
            for table in self.tables:
                client.create_table(table, families(self.schedule.mode), BORDERS[table[-1]])

    def load(self) -> None:
        """Put rows into each table. Where deleted cells are kept, each row of old timestamps has a cell that is as old
        as any delete: otherwise a compaction drops the deletes that are older than all puts."""
        names = [row_key(b"loaded%04d" % number) for number in range(LOADED)]
        cells = [Cell(row, b"f", b"loaded", b"before the run", 1) for row in names]
        if self.schedule.mode in LOGGED:
            old = [old_row(number) for number in range(ROWS // 2)]
            cells += [Cell(row, of.encode(), b"loaded", b"before the run", 1) for row in old for of in OF_OLD]
        with HBaseClient(self.world.source.address) as client:
            for table in self.tables:
                client.put(table, cells)

    def truncate(self, table: str) -> None:
        """Empty a table, as an operator who tries again; nothing may be written meanwhile."""

        def is_done() -> bool:
            with HBaseClient(self.world.source.address) as client:
                try:
                    with suppress(TableStateError):  # it is disabled, since the last attempt failed
                        client.disable_table(table)
                    client.truncate_table(table)
                except WalferryError:
                    return False
            return True

        self.wait(is_done, f"{table} cannot be truncated")

    # -------------------------------------------------------------- what goes on

    @contextmanager
    def at_work(self, operators: Mapping[Side, Sequence[str]]) -> Iterator[None]:
        """Operators work on these tables, and the faults of the schedule wait for their moments. At the end of the
        block everything that was started is ended."""
        of_side = {"source": self.schedule.operations, "target": self.schedule.at_target}
        with ExitStack() as at_end:
            at_end.callback(self._end_writer)
            working = [Operator(self.world.cluster(side), tables, of_side[side]) for side, tables in operators.items()]
            for operator in working:
                at_end.callback(operator.close)
            self.moments = Moments(self.ledger)
            self.faults = Faults(self.schedule.faults, self.world, self.moments, self.command_of, self.ledger, self.say)
            at_end.callback(self._end_commands)
            at_end.callback(self.faults.close)
            at_end.callback(self.moments.close)
            yield
            self.moments.close()
            self.faults.close()
            self.counts["operations"] = sum(operator.did.total() for operator in working)
            self.counts["faults"], self.counts["missed"] = len(self.faults.done), len(self.faults.missed)

    def attempt(
        self,
        victim: str,
        arguments: Callable[[], list[str]],
        is_done: Callable[[Command], bool],
        progress: Callable[[], object],
    ) -> Attempts:
        """Give a command, again whenever it ends before it is done, while `wait` or `attend` are called."""
        attempts = Attempts(lambda: self.give(arguments()), is_done, progress)
        self.attempts[victim] = attempts
        self.attend()
        return attempts

    def give(self, arguments: list[str]) -> Command:
        """Give a command once."""
        (self.folder / "tmp").mkdir(exist_ok=True)
        environment = os.environ | self.environment | {
            "WALFERRY_LEDGER": self.ledger.url,
            "WALFERRY_CHAOS": self.marker,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "TMPDIR": str(self.folder / "tmp"),
        }  # fmt: skip
        command = Command(self.folder, len(self._commands) + 1, arguments, environment)
        self._commands.append(command)
        return command

    def command_of(self, victim: str, pick: float = 0.0) -> Command | None:
        """The command that a fault hits. `pick`, in [0, 1): which of several."""
        begin = "restore" if victim == "restore" else "walferry"
        found = [one.command for name, one in self.attempts.items() if name.startswith(begin) and one.is_running]
        return found[int(pick * len(found))] if found else None

    def attend(self) -> None:
        """Give commands again that have ended. Raises StuckError."""
        for attempts in list(self.attempts.values()):
            attempts.look(self)
        if time.monotonic() > self.until:
            raise StuckError(f"the run has not ended in time; {self.where()}")
        if self.writer is not None and not (self.writer.is_alive() or (self.folder / STOP_FILE).exists()):
            raise StuckError(f"the writer has failed:\n{self.writer.tail()}")

    def wait(self, is_so: Callable[[], bool], otherwise: str, seconds: float = HEAL_SECONDS) -> None:
        """Attend until something is so. Raises StuckError."""
        deadline = time.monotonic() + seconds
        while not is_so():
            self.attend()
            if time.monotonic() > deadline:
                raise StuckError(f"{otherwise}; {self.where()}")
            time.sleep(0.1)

    def go_on_for(self, seconds: float) -> None:
        """Attend for so long."""
        end = time.monotonic() + seconds
        self.wait(lambda: time.monotonic() > end, "", seconds + 60)

    # -------------------------------------------------------------- the writer

    def start_writer(self) -> None:
        facts = {
            "source": cluster_keys(self.world.source), "tables": list(self.tables), "seed": self.schedule.seed,
            "mode": self.schedule.mode,
        }  # fmt: skip
        (self.folder / "writer.json").write_text(json.dumps(facts))
        command = [sys.executable, "-m", "chaos.writer", str(self.folder)]
        path = os.pathsep.join(sys.path)
        self.writer = processes.start(
            "writer", command, self.folder / "writer.log", folder=self.folder, environment={"PYTHONPATH": path}
        )

    def pause_writing(self) -> None:
        """Return when nothing is written any more: nothing of the writer waits in a suspended server either."""
        (self.folder / PAUSE_FILE).touch()
        paused = [self.folder / f"{PAUSE_FILE}-{number}" for number in range(len(self.tables))]
        self.wait(lambda: all(one.exists() for one in paused), "the writer does not pause", WRITER_SECONDS)
        self._settle()

    def go_on_writing(self) -> None:
        (self.folder / PAUSE_FILE).unlink()
        time.sleep(3 * PAUSE_S)  # a thread may have looked before
        for number in range(len(self.tables)):
            (self.folder / f"{PAUSE_FILE}-{number}").unlink()

    def stop_writing(self) -> None:
        """Return when nothing is written any more, for good."""
        writer = self.writer
        assert writer is not None
        (self.folder / STOP_FILE).touch()
        self.wait(lambda: not writer.is_alive(), "the writer does not end", WRITER_SECONDS)
        if "Traceback" in writer.output():
            raise StuckError(f"the writer has failed:\n{writer.tail()}")
        self._settle()

    def _settle(self) -> None:
        self.wait(lambda: not self.faults.under_way("source"), "a fault does not end", WRITER_SECONDS)
        self.wait(lambda: self.world.healthy("source"), "the source does not recover")
        self.go_on_for(SETTLE_S)

    def _end_writer(self) -> None:
        if self.writer is not None:
            processes.stop([self.writer])

    # -------------------------------------------------------------- the end

    def state(self) -> str | None:
        """The state of the first run that the ledger has; None without one."""
        return state_of(self.ledger)

    def abort(self) -> None:
        """Abort that run, and wait for the end of its command."""
        arguments = ["abort", self.name, "--reason", "chaos"]
        aborting = self.attempt("abort", lambda: arguments, lambda _: self.state() == "aborted", lambda: 0)
        self.wait(lambda: aborting.done, "the run cannot be aborted")
        self.wait(lambda: self.attempts["walferry"].done, "the command does not end after the abort", 60)

    def _end_commands(self) -> None:
        for command in self._commands:
            command.end() if command.is_running else command.close()

    def processes_left(self) -> list[str]:
        """What the commands have started and not ended, and Spark's folders that they have not removed."""
        deadline = time.monotonic() + PROCESSES_SECONDS
        while (left := marked(self.marker)) and time.monotonic() < deadline:
            time.sleep(0.2)
        wrong = [f"process {process.pid} was left: {' '.join(process.cmdline())[:120]}" for process in left]
        return wrong + [f"the folder {path.name} was left" for path in (self.folder / "tmp").glob("walferry-spark-*")]

    def tracebacks(self) -> list[str]:
        """What the commands said that no user should see."""
        return [
            f"{path.name} has a traceback"
            for path in sorted(self.folder.glob("walferry-*.err"))
            if "Traceback (most recent call last)" in path.read_text(errors="replace")
        ]

    def where(self) -> str:
        """What the run and the clusters say of themselves."""
        words = "; ".join(
            f"last words of {victim}: {attempts.command.last_words()}"
            for victim, attempts in self.attempts.items() if attempts.command is not None
        )  # fmt: skip
        sides = "; ".join(
            f"{side}: {found}" for side in SIDES if (found := self.world.lacking(side) or self.world.silent(side))
        )
        return f"{words}{'; ' if sides else ''}{sides}"


def seen_by_thrift(scene: Scene, side: Side, table: str) -> Content:
    """All that HBase's Thrift server shows of a table, once it does so without an error."""
    found: list[Content] = []

    def is_read() -> bool:
        with suppress(TException, OSError):
            found.append(content(scene.world.cluster(side), table))
        return bool(found)

    scene.wait(is_read, f"Thrift does not show {table} of the {side}")
    return found[0]


def drop(cluster: MiniCluster, tables: Sequence[str]) -> None:
    """Remove those of these tables that exist."""
    with HBaseClient(cluster.address) as client:
        for table in tables:
            if client.table_exists(table):
                with suppress(TableStateError):  # it is disabled
                    client.disable_table(table)
                client.delete_table(table)


def cluster_keys(cluster: MiniCluster) -> dict[str, Any]:
    """The keys of a spec's `source` or `target`."""
    address = cluster.address
    return {name: getattr(address, name) for name in ("zookeeper", "znode", "webhdfs", "rootdir")}
