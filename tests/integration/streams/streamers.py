"""`walferry stream` as a process of its own, with its spec and ledger in a folder."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from integration.migration.command import COMMAND, environment, walferry
from integration.migration.moves import cluster_keys, unique
from integration.streams.judging import DEADLINE_S, Judge, wait_until
from walferry.embedded.cluster import MiniCluster
from walferry.ledger import Ledger
from walferry.ledger.rows import RunRecord
from walferry.replay.keeping import objects
from walferry.run.run import LogRun

PARTITIONS = 3


@dataclass
class Streamer:
    """A stream of tables, and the processes that work on it."""

    folder: Path
    keys: dict[str, Any]
    address: str
    """of the broker"""
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    judges: list[Judge] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The stream's."""
        return str(self.keys["name"])

    def judge(self, table: str) -> Judge:
        """A consumer of the table's topic; closed with the streamer."""
        judge = Judge(self.address, f"{self.name}.{table}", PARTITIONS, self.keys.get("bytes_as", "base64"))
        self.judges.append(judge)
        return judge

    def start(self) -> subprocess.Popen[bytes]:
        """Begin the stream, and wait until it follows the log."""
        process = self.launch("stream", "stream.yaml")
        wait_until(lambda: self.phase() == "stream" or process.poll() is not None, "the stream does not begin")
        assert process.poll() is None, self.said()
        return process

    def write_spec(self, **changed: Any) -> None:
        """Write the spec, with these keys changed; None: with the key's default."""
        self.keys |= changed
        spec = {key: value for key, value in self.keys.items() if value is not None}
        (self.folder / "stream.yaml").write_text(yaml.safe_dump(spec))

    def launch(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Begin a command in a process group of its own; what it says goes to `out` and `err` with its number."""
        number = len(self.processes)
        with (self.folder / f"out{number}").open("w") as out, (self.folder / f"err{number}").open("w") as err:
            process = subprocess.Popen(
                [*COMMAND, *arguments],
                cwd=self.folder, env=environment(self.folder), stdout=out, stderr=err, start_new_session=True,
            )  # fmt: skip
        self.processes.append(process)
        return process

    def said(self, number: int = -1) -> str:
        """What a process has said on stderr; default: the last one."""
        return (self.folder / f"err{number % len(self.processes)}").read_text()

    def kill(self) -> None:
        """kill -9 of the last process."""
        process = self.processes[-1]
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """A command that comes to its end."""
        return walferry(self.folder, *arguments)

    def ended(self, number: int = -1) -> tuple[int, list[str]]:
        """The exit code of a process that ends, and what it said beside its log."""
        process = self.processes[number]
        process.wait(DEADLINE_S)
        return process.returncode, beside_log(self.said(number))

    def phase(self) -> str | None:
        """The newest phase that the ledger knows of."""
        if not (self.folder / "ledger.db").exists():
            return None
        with self.ledger() as ledger:
            record = self.record(ledger)
            phases = ledger.of(record.run_id).phases.all() if record else []
        return phases[-1].phase if phases else None

    def ledger(self) -> Ledger:
        """The stream's ledger, opened."""
        return Ledger.open(f"sqlite:///{self.folder / 'ledger.db'}", actor="tester")

    def record(self, ledger: Ledger) -> RunRecord | None:
        """The stream's newest run; None if there is none yet."""
        return next((run for run in reversed(ledger.runs()) if run.name == self.name), None)

    def end(self) -> None:
        """kill -9 of all processes; what the stream made at the source is removed."""
        for judge in self.judges:
            judge.close()
        self.judges.clear()
        for process in self.processes:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if (self.folder / "ledger.db").exists():
            with self.ledger() as ledger:
                for record in ledger.runs():
                    with LogRun(ledger, record.run_id) as run:
                        objects.release(run)


def beside_log(said: str) -> list[str]:
    """The lines that are not of the log."""
    return [line for line in said.splitlines() if not line[:8].replace(":", "").isdigit()]


def lay_out(folder: Path, source: MiniCluster, bootstrap: str, tables: list[str], **more: Any) -> Streamer:
    """A stream with a name of its own, its spec written, nothing started."""
    name = unique("stream_")
    source_keys = {key: value for key, value in cluster_keys(source).items() if key != "thrift"}
    keys = {
        "name": name, "source": source_keys, "kafka": {"bootstrap": bootstrap}, "tables": tables,
        "topic": f"{name}.{{table}}", "create_topics": {"partitions": PARTITIONS, "replication": 1}, "max_lag": 8,
        "resolved": 0, **more,
    }  # fmt: skip
    streamer = Streamer(folder, keys, bootstrap)
    streamer.write_spec()
    return streamer


Lay = Callable[..., Streamer]
"""the fixture `lay`: given tables and more keys"""
