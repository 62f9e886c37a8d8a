"""Receivers as processes of their own, between a source that replicates natively and a target."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import time
from ast import literal_eval
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from integration.migration.command import COMMAND, environment
from integration.migration.moves import cluster_keys, content, unique
from integration.replication.native import REPLICATED, native_peer
from walferry.clock import now_ms
from walferry.embedded.cluster import MiniCluster
from walferry.embedded.kafka import Broker
from walferry.formats.proto import hbase_pb2 as pb
from walferry.hbase.client import HBaseClient
from walferry.hbase.rpc import RpcConnection
from walferry.ledger import Ledger, RunLedger
from walferry.ledger.received import ReceivedTotal, Receiver
from walferry.replay.rights import dirty
from walferry.replication.shipped import ship_all
from walferry.replication.spec import ResolvedReplicateSpec
from walferry.run.notes.left_out import LeftOut, left_out

SPLITS = [b"row3", b"row6"]
PARTITIONS = 3
Keys = Mapping[str, Any]
NO_KEYS: Keys = {}


_TAKES = "is held by"


@dataclass
class Receivers:
    """A run, and the processes that serve it."""

    source: MiniCluster
    target: MiniCluster
    """in whose ZooKeeper the source finds them"""
    folder: Path
    tables: Sequence[str]
    name: str
    opened: ExitStack
    peer: str = ""
    """the source's, that leads to them"""
    ledger: str = ""
    """its URL; "": a file in the folder"""
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    started: list[str] = field(default_factory=list)
    """the name of each process as a server"""

    def begin(self, count: int, **config: Any) -> None:
        """So many processes, and a peer of the source that leads to them, with this configuration."""
        self.opened.callback(self.stop)
        for _ in range(count):
            self.start()
        key = f"{self.target.host}:{self.target.ports.zookeeper}:/walferry/receive/{self.name}"
        self.peer = self.opened.enter_context(native_peer(self.source, self.target, self.tables, key=key, **config))

    def start(self) -> subprocess.Popen[bytes]:
        """One more process. Returns once it is listed in ZooKeeper."""
        number, before = len(self.processes), self.servers()
        with (self.folder / f"out{number}").open("w") as out, (self.folder / f"err{number}").open("w") as err:
            command = [*COMMAND, "receive", "receive.yaml", "--host", self.target.host, "--port", "0"]
            process = subprocess.Popen(command, cwd=self.folder, env=self._environment(), stdout=out, stderr=err)
        self.processes.append(process)
        deadline = time.monotonic() + 60
        while not (new := set(self.servers()) - set(before)):
            assert process.poll() is None, (self.folder / f"err{number}").read_text()
            assert time.monotonic() < deadline, "the receiver is not listed"
            time.sleep(0.2)
        self.started += new
        return process

    def servers(self) -> list[str]:
        """The region servers that a source sees."""
        with HBaseClient(self.target.address) as client:
            path = f"/walferry/receive/{self.name}/rs"
            return client.zk.get_children(path) if client.zk.exists(path) else []

    def holder(self, table: str) -> int:
        """The number of the process that took a table last."""
        lines = {
            number: [line for line in (self.folder / f"err{number}").read_text().splitlines() if _TAKES in line]
            for number in range(len(self.processes))
        }
        taken = [(line[:8], number) for number, of in lines.items() for line in of if f"table {table} {_TAKES}" in line]
        return max(taken)[1]

    def said(self) -> str:
        """What all processes have logged."""
        return "".join(path.read_text() for path in sorted(self.folder.glob("err*")))

    def send(self, parameter: bytes, cells: bytes, timeout_s: float = 60) -> None:
        """Send a call to the first process, as a source's server does."""
        host, port, _ = self.servers()[0].split(",")
        connection = RpcConnection(f"{host}:{port}", "AdminService")
        with closing(connection):
            connection.call("ReplicateWALEntry", parameter, pb.ReplicateWALEntryResponse, cells, timeout_s=timeout_s)

    def _environment(self) -> dict[str, str]:
        given = environment(self.folder)
        return given | {"WALFERRY_LEDGER": self.ledger} if self.ledger else given

    def _run(self) -> RunLedger:
        ledger = Ledger.open(self._environment()["WALFERRY_LEDGER"], create=False)
        self.opened.callback(ledger.close)
        return ledger.of(next(run.run_id for run in ledger.runs() if run.name == self.name))

    def serving(self) -> list[Receiver]:
        """The processes that serve, as the ledger shows them."""
        return [process for process in self._run().received.receivers() if process.serves(now_ms())]

    def totals(self) -> dict[str, ReceivedTotal]:
        """What the ledger has of each target table."""
        return {total.table: total for total in self._run().received.totals()}

    def left_out(self) -> dict[str, LeftOut]:
        """What was left out of each source table as older."""
        return left_out(self._run())

    def equal(self, deadline_s: float = 120.0) -> None:
        """Wait until both sides have the same. Read by a client of HBase, not by what receives."""
        deadline = time.monotonic() + deadline_s
        for table in self.tables:
            while (here := content(self.source, table)) != (there := content(self.target, table)):
                if time.monotonic() > deadline:
                    differing = sorted(key for key in here.keys() | there.keys() if here.get(key) != there.get(key))
                    shown = [(key, here.get(key), there.get(key)) for key in differing[:5]]
                    raise AssertionError(f"{table}: {len(differing)} cells differ: {shown}\n{self.said()[-3000:]}")
                time.sleep(1)

    def ship(self) -> None:
        """Wait until the source has shipped all that was written before, by the names of its logs."""
        keys = {"source": cluster_keys(self.source), "target": None, "peer": self.peer}
        (shipped,) = ship_all(ResolvedReplicateSpec.model_validate(keys), 360)
        assert shipped.peer == self.peer

    def differs_only_where_marked(self) -> None:
        """Whatever differs between both sides, in a range of rows that is marked as dirty."""
        late = sum(total.late for total in self.totals().values())
        for table in self.tables:
            here, there = content(self.source, table), content(self.target, table)
            differing = (key for key in here.keys() | there.keys() if here.get(key) != there.get(key))
            rows = {literal_eval(key.partition(" ")[0]) for key in differing}
            with HBaseClient(self.target.address) as client:
                marks = dirty.marks(client.zk, table)
            spans = [(literal_eval(f"b{one.first}"), literal_eval(f"b{one.last}")) for one in marks]
            print(f"{table}: {late} edits were late, {len(spans)} marks, {len(rows)} rows differ")
            unmarked = [row for row in sorted(rows) if not any(first <= row <= last for first, last in spans)]
            assert not unmarked, f"{table}: {unmarked[:5]} of {len(unmarked)} rows differ\n{self.said()[-3000:]}"

    def suspend(self, number: int) -> None:
        """Stop a process, but not while it writes to the ledger: of SQLite, all others would wait for it."""
        ledger = sqlite3.connect(self.folder / "ledger.db", timeout=2, isolation_level=None)
        with closing(ledger):
            while True:
                os.kill(self.processes[number].pid, signal.SIGSTOP)
                try:
                    ledger.execute("BEGIN IMMEDIATE")
                except sqlite3.OperationalError:
                    os.kill(self.processes[number].pid, signal.SIGCONT)
                    time.sleep(0.1)
                else:
                    ledger.execute("ROLLBACK")
                    return

    def abort(self) -> subprocess.CompletedProcess[str]:
        """End the run by the command."""
        command = [*COMMAND, "abort", f"{self.name}-1", "--reason", "the test is over"]
        return subprocess.run(
            command, cwd=self.folder, env=self._environment(), capture_output=True, text=True, timeout=120
        )

    def stop(self) -> None:
        """End all processes, in order if they can."""
        for process in self.processes:
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGCONT)
                process.terminate()
        for process in self.processes:
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@contextmanager
def kafka_receivers(
    source: MiniCluster, broker: Broker, folder: Path, tables: Sequence[str], count: int = 2, *, peer: Keys = NO_KEYS,
    at: MiniCluster | None = None, ledger: str = "", **keys: Any,
) -> Iterator[Receivers]:  # fmt: skip
    """So many receivers of tables of the source into Kafka, and a peer of the source that leads to them, with `peer` in
    its configuration. `at`: in whose ZooKeeper the source finds them, instead of its own. `ledger`: its URL. `keys`:
    more of the spec."""
    name = unique("receive_")
    spec = {
        "name": name, "tables": list(tables), "source": cluster_keys(source), "kafka": {"bootstrap": broker.address},
        "topic": f"{name}.{{table}}", "create_topics": {"partitions": PARTITIONS, "replication": 1}, **keys,
    }  # fmt: skip
    spec["source"].pop("thrift", None)
    if at is not None:
        spec["receive"] = {"zookeeper": f"{at.host}:{at.ports.zookeeper}"} | dict(keys.get("receive", {}))
    (folder / "receive.yaml").write_text(yaml.safe_dump(spec))
    with ExitStack() as opened:
        made = Receivers(source, at or source, folder, tables, name, opened, ledger=ledger)
        made.begin(count, **peer)
        yield made


@contextmanager
def receivers(
    source: MiniCluster,
    target: MiniCluster,
    folder: Path,
    count: int = 2,
    tables: int = 2,
    *,
    more: Mapping[str, Any] | None = None,
    before: Callable[[HBaseClient, Sequence[str]], None] = lambda client, tables: None,
    **config: Any,
) -> Iterator[Receivers]:
    """Tables on both sides, so many receivers, and a peer of the source that leads to them.

    `more`: further keys of the spec. `before`: writes to the source's tables. `config`: of the peer.
    """
    names = [unique("received") for _ in range(tables)]
    name = unique("receive_")
    keys = {"name": name, "tables": names, "source": cluster_keys(source), "target": cluster_keys(target)}
    (folder / "receive.yaml").write_text(yaml.safe_dump(keys | dict(more or {})))
    with ExitStack() as opened:
        for cluster in (source, target):
            client = opened.enter_context(HBaseClient(cluster.address))
            for table in names:
                client.create_table(table, {"d": REPLICATED | {"VERSIONS": "3"}, "e": REPLICATED}, SPLITS)
                opened.callback(client.delete_table, table)
                opened.callback(client.disable_table, table)
            if cluster is source:
                before(client, names)
        made = Receivers(source, target, folder, names, name, opened)
        made.begin(count, **config)
        yield made
