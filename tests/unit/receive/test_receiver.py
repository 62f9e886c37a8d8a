"""What becomes of a call: where its edits are applied, in which order, and when it is refused. On real sockets."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from unit.receive.call_builder import Sent, call
from walferry.errors import TransientError
from walferry.formats.cells import encode_cell
from walferry.formats.proto import hbase_pb2 as pb
from walferry.hbase.authentication import Simple
from walferry.hbase.errors import RemoteError, RemoteTransientError
from walferry.hbase.rpc import CODEC_WITH_TAGS, RpcConnection
from walferry.hbase.rpc_server import RpcServer
from walferry.receive import receiver
from walferry.receive.holding import not_held
from walferry.receive.receiver import Receiver
from walferry.receive.standing import Standing
from walferry.run.spec import TablePair

SOURCE, TARGET = UUID(int=5), UUID(int=7)
HERE = (0, 5)
"""the source, as a key names it"""
CELL = encode_cell(b"r", b"d", b"q", 1, 4, b"v")
LOAD = encode_cell(b"\0", b"METAFAMILY", b"HBASE::BULK_LOAD", 1, 4, b"v")


class Process:
    """A receiver with its server. `held`: the target tables that it holds; `holders`: who has others."""

    def __init__(self, server: RpcServer, port: int, loop: asyncio.AbstractEventLoop, handler: Receiver) -> None:
        self.server, self.port, self.loop, self.handler = server, port, loop, handler
        self.name = f"127.0.0.1,{port},1"

    def send(self, *entries: Sent, service: str = "AdminService") -> None:
        parameter, cells = call(entries, replicationClusterId="")
        connection = RpcConnection(f"127.0.0.1:{self.port}", service, CODEC_WITH_TAGS, Simple("hbase"))
        try:
            connection.call("ReplicateWALEntry", parameter, pb.ReplicateWALEntryResponse, cells)
        finally:
            connection.close()


class Cluster:
    """Processes that share tables, and what they have applied."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.processes: list[Process] = []
        self.held: dict[str, int] = {"t1": 0, "t2": 1}
        """by target table, the process that holds it"""
        self.applied: list[tuple[int, str, list[int]]] = []
        """process, table, and the numbers of the entries"""
        self.slow: Callable[[str, int], None] = lambda table, number: None
        monkeypatch.setattr(receiver, "apply_entries", self._apply)
        monkeypatch.setattr(receiver, "AGAIN_SECONDS", 0.05)

    def _apply(self, holding: Any, batch: Any, picked: Any, deadline: float) -> None:
        numbers = batch.sequence_number[picked].tolist()
        self.slow(holding.table, numbers[0])
        self.applied.append((holding.process, holding.table, numbers))

    @contextmanager
    def process(self) -> Iterator[Process]:
        number = len(self.processes)

        run: Any = SimpleNamespace(
            tables=[TablePair(source="t1", target="t1"), TablePair(source="old", target="t2")],
            source=SimpleNamespace(cluster_uuid=lambda: SOURCE), target=SimpleNamespace(cluster_uuid=lambda: TARGET),
            record=SimpleNamespace(name="run"),
        )  # fmt: skip
        tables: Any = Tables(self, number)
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=loop.run_forever, daemon=True)
        thread.start()
        standing = Standing("")
        handler = Receiver(run, tables, standing)
        server = RpcServer(handler.handle, host="127.0.0.1", port=0, memory_bytes=1 << 24, read_seconds=5)
        port = asyncio.run_coroutine_threadsafe(server.start(), loop).result(10)
        made = Process(server, port, loop, handler)
        standing.server = made.name
        self.processes.append(made)
        try:
            yield made
        finally:
            asyncio.run_coroutine_threadsafe(server.close(), loop).result(10)
            handler.close()
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()


class Tables:
    """What a process holds."""

    def __init__(self, cluster: Cluster, process: int) -> None:
        self._cluster, self._process = cluster, process
        self.trouble: dict[str, str] = {}

    @property
    def held(self) -> list[str]:
        return [table for table, process in self._cluster.held.items() if process == self._process]

    def holding(self, table: str) -> Any:
        if table not in self.held:
            raise not_held(table)
        return SimpleNamespace(process=self._process, table=table)

    def holder(self, table: str) -> str | None:
        place = self._cluster.held.get(table)
        return None if place is None else self._cluster.processes[place].name


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    made = Cluster(monkeypatch)
    with ExitStack() as opened:
        for _ in range(2):
            opened.enter_context(made.process())
        yield made


def edit(number: int = 1, table: str = "t1", **fields: Any) -> Sent:
    return Sent([CELL], table=table, number=number, **({"clusters": [HERE]} | fields))


def test_edits_are_applied_by_the_process_that_holds_their_table_whichever_gets_the_call(cluster: Cluster) -> None:
    for process in cluster.processes:
        cluster.applied.clear()
        process.send(edit(1), edit(2, "old"), edit(3))
        assert sorted(cluster.applied) == [(0, "t1", [1, 3]), (1, "t2", [2])]


def test_a_table_that_moves_while_its_call_is_under_way_is_applied_by_its_new_holder(cluster: Cluster) -> None:
    cluster.held = {}
    with ThreadPoolExecutor() as pool:
        sent = pool.submit(cluster.processes[0].send, edit())
        time.sleep(0.3)
        assert cluster.applied == []
        cluster.held = {"t1": 1}
        sent.result(10)
    assert cluster.applied == [(1, "t1", [1])]


def test_calls_of_one_region_are_applied_one_after_the_other_also_by_way_of_another_process(cluster: Cluster) -> None:
    began, go_on = threading.Event(), threading.Event()

    def slow(_: str, number: int) -> None:
        if number == 1:
            began.set()
            assert go_on.wait(10)

    cluster.slow = slow
    with ThreadPoolExecutor() as pool:
        first = pool.submit(cluster.processes[0].send, edit(1))
        assert began.wait(10)
        same = [pool.submit(process.send, edit(2)) for process in cluster.processes]
        cluster.processes[1].send(edit(3, region="other"))
        time.sleep(0.3)
        assert cluster.applied == [(0, "t1", [3])]
        go_on.set()
        for sent in (first, *same):
            sent.result(10)
    assert [numbers for _, _, numbers in cluster.applied] == [[3], [1], [2], [2]]


def test_a_call_that_takes_too_long_is_refused_and_its_repetition_waits_for_it(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receiver, "ANSWER_SECONDS", 0.5)
    go_on, waits = threading.Event(), [True]

    def slow(_: str, __: int) -> None:
        if waits.pop():
            assert go_on.wait(10)
        waits.append(False)

    cluster.slow = slow
    with pytest.raises(RemoteTransientError, match="not applied in time"):
        cluster.processes[0].send(edit(1))
    waits.append(False)
    with pytest.raises(RemoteTransientError, match="not applied in time"):
        cluster.processes[1].send(edit(1))
    assert cluster.applied == [], "the first attempt has not ended"
    go_on.set()
    cluster.processes[1].send(edit(1))
    assert cluster.applied[:2] == [(0, "t1", [1])] * 2, "what of it was applied before, `seen` knows"


def test_a_table_that_nobody_holds_is_refused_in_time(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receiver, "ANSWER_SECONDS", 0.4)
    cluster.held = {}
    began = time.monotonic()
    with pytest.raises(RemoteTransientError):
        cluster.processes[0].send(edit())
    assert time.monotonic() - began < 5
    cluster.held = {"t1": 0}
    cluster.processes[0].send(edit(2))
    assert cluster.applied == [(0, "t1", [2])]


def test_a_call_with_one_table_that_fails_is_refused_and_the_others_are_applied(cluster: Cluster) -> None:
    def slow(table: str, _: int) -> None:
        if table == "t2":
            raise TransientError("the target is away")

    cluster.slow = slow
    with pytest.raises(RemoteTransientError, match="the target is away"):
        cluster.processes[0].send(edit(1), edit(2, "old"))
    assert cluster.applied == [(0, "t1", [1])]


def test_edits_that_the_target_had_first_are_left_out(cluster: Cluster) -> None:
    cluster.processes[0].send(edit(1, clusters=[(0, 7), HERE]), edit(2))
    assert cluster.applied == [(0, "t1", [2])]


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        (edit(table="unknown"), "table unknown is none of the run's"),
        (edit(clusters=[(0, 9)]), f"comes from cluster {UUID(int=9)}"),
        (edit(clusters=[]), "comes from cluster .unknown."),
        (Sent([LOAD]), "a bulk load of t1"),
    ],
)
def test_what_is_not_to_be_applied_is_refused_whole_and_the_source_keeps_it(
    cluster: Cluster, entry: Sent, why: str
) -> None:
    with pytest.raises((RemoteError, RemoteTransientError), match=why) as refused:
        cluster.processes[0].send(edit(1), entry)
    assert isinstance(refused.value, RemoteTransientError), "a source gives up what is refused for good"
    assert cluster.applied == []


def test_other_requests_than_those_of_replication_are_refused(cluster: Cluster) -> None:
    with pytest.raises((RemoteError, RemoteTransientError), match="no call that a receiver answers"):
        cluster.processes[0].send(edit(), service="ClientService")
