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

from unit.receive.call_builder import REGION, Sent, received
from unit.receive.processes import HERE, SOURCE, TARGET, Process, running
from walferry.errors import TransientError
from walferry.formats.cells import encode_cell
from walferry.formats.proto import hbase_pb2 as pb
from walferry.hbase.errors import RemoteError, RemoteTransientError
from walferry.hbase.rpc_stream import Room
from walferry.receive import receiver
from walferry.receive.holding import StillAtWorkError, not_held
from walferry.run.spec import TablePair
from walferry.security.accepting_tls import ServerTls

CELL = encode_cell(b"r", b"d", b"q", 1, 4, b"v")
UNKNOWN = encode_cell(b"\0", b"METAFAMILY", b"HBASE::NEW", 1, 4, b"v")
LOAD = encode_cell(b"\0", b"METAFAMILY", b"HBASE::BULK_LOAD", 1, 4, b"v")


class Work:
    """Work on a table beside its calls."""

    fault = ""

    def __str__(self) -> str:
        return "a bulk load is being applied"


class Cluster:
    """Processes that share tables, and what they have applied."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, start_ms: int | None = None) -> None:
        self.start_ms, self.at_once = start_ms, 100
        self.rested: list[set[str]] = []
        self.beside: dict[str, Work] = {}
        """work on tables beside their calls"""
        self.since_ms = 0
        self.tls: list[ServerTls | None] = []
        """of each process that is to begin, if there is any"""
        self.prepares: set[str] = set()
        """the tables that their holders still prepare"""
        self.processes: list[Process] = []
        self.held: dict[str, int] = {"t1": 0, "t2": 1}
        """by target table, the process that holds it"""
        self.opening: dict[str, str] = {}
        """the tables that their holders cannot use yet, and why"""
        self.applied: list[tuple[int, str, list[int]]] = []
        """process, table, and the numbers of the entries"""
        self.slow: Callable[[str, int], None] = lambda table, number: None
        monkeypatch.setattr(receiver, "AGAIN_SECONDS", 0.05)

    def apply(self, holding: Any, batch: Any, picked: Any, deadline: float) -> Any:
        numbers = batch.sequence_number[picked[: self.at_once]].tolist()
        self.slow(holding.table, numbers[0])
        self.applied.append((holding.process, holding.table, numbers))
        return picked[self.at_once :]

    def under_way(self, regions: set[str]) -> Work | None:
        return next((work for table, work in self.beside.items() if any(table in region for region in regions)), None)

    async def at_rest(self, regions: set[str]) -> None:
        self.rested.append(regions)
        while self.under_way(regions):
            await asyncio.sleep(0.1)

    @contextmanager
    def process(self) -> Iterator[Process]:
        number = len(self.processes)

        to: Any = SimpleNamespace(
            pairs=[TablePair(source="t1", target="t1"), TablePair(source="old", target="t2")],
            source_id=SOURCE, sink_id=TARGET, calls_at_once=4, apply=self.apply,
            under_way=self.under_way, at_rest=self.at_rest, close=lambda: None,
        )  # fmt: skip
        tables: Any = Tables(self, number)
        with running(to, tables, self.start_ms, self.tls[number] if self.tls else None) as made:
            self.processes.append(made)
            yield made

    def left_out(self) -> list[tuple[int, str, int]]:
        """Process, source table, and how many entries it has left out since the last time."""
        found: list[tuple[int, str, int]] = []
        for number, process in enumerate(self.processes):
            process.standing.record_left_out(lambda table, count, of=number: found.append((of, table, count)))  # type: ignore[misc]
        return sorted(found)


class Tables:
    """What a process holds."""

    def __init__(self, cluster: Cluster, process: int) -> None:
        self._cluster, self._process = cluster, process
        self.trouble = cluster.opening

    @property
    def held(self) -> list[str]:
        mine = [table for table, process in self._cluster.held.items() if process == self._process]
        return [table for table in mine if table not in self._cluster.opening]

    def require_prepared(self, table: str) -> None:
        if table in self._cluster.prepares and self._cluster.held.get(table) == self._process:
            raise StillAtWorkError(f"{table} is being copied")

    def holding(self, table: str) -> Any:
        if table not in self.held:
            raise not_held(table)
        pair = TablePair(source={"t2": "old"}.get(table, table), target=table)
        return SimpleNamespace(process=self._process, table=table, pair=pair, since_ms=self._cluster.since_ms)

    def holder(self, table: str) -> str | None:
        place = self._cluster.held.get(table)
        return None if place is None else self._cluster.processes[place].name


@pytest.fixture(params=[{}])
def cluster(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Parametrized with keyword arguments of Cluster."""
    made = Cluster(monkeypatch, **request.param)
    received(Sent([CELL]))  # the kernels are loaded before a call's time begins
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
    monkeypatch.setattr(receiver, "ANSWER_SECONDS", 1.0)
    monkeypatch.setattr(receiver, "PASSED_ON_SECONDS", 0.1)
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
    monkeypatch.setattr(receiver, "ANSWER_SECONDS", 1.5)
    cluster.held = {}
    began = time.monotonic()
    with pytest.raises(RemoteTransientError):
        cluster.processes[0].send(edit())
    assert time.monotonic() - began < 5
    cluster.held = {"t1": 0}
    cluster.processes[0].send(edit(2))
    assert cluster.applied == [(0, "t1", [2])]


@pytest.mark.parametrize("process", [0, 1])
def test_a_table_that_its_holder_cannot_use_is_refused_with_the_reason_whichever_gets_the_call(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, process: int
) -> None:
    monkeypatch.setattr(receiver, "ANSWER_SECONDS", 4.0)
    cluster.opening["t1"] = "Kafka is away"
    with pytest.raises(RemoteTransientError, match=r"not applied in time.*: Kafka is away"):
        cluster.processes[process].send(edit())
    assert cluster.applied == []


def test_the_reason_of_a_holder_is_told_also_if_it_has_given_the_table_back_since(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receiver, "ANSWER_SECONDS", 4.0)
    cluster.opening["t1"] = "Kafka is away"
    with ThreadPoolExecutor() as pool:
        sent = pool.submit(cluster.processes[1].send, edit())
        time.sleep(0.5)
        del cluster.held["t1"], cluster.opening["t1"]
        with pytest.raises(RemoteTransientError, match=r"not applied in time.*: Kafka is away"):
            sent.result(10)


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
        (Sent([LOAD], clusters=[HERE]), "the marker of a bulk load of t1 .* cannot be read"),
        (Sent([UNKNOWN], clusters=[HERE]), "a marker of t1 is of no known kind"),
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


@pytest.mark.parametrize("cluster", [{"start_ms": 1700000000000}], indirect=True)
def test_what_was_written_before_the_start_is_left_out_counted_and_acknowledged(cluster: Cluster) -> None:
    cluster.processes[0].send(edit(1, time=1699999999999), edit(2, time=1700000000000))
    cluster.processes[0].send(edit(3, time=1), edit(4, table="old", time=1), edit(5, table="old", time=2))
    cluster.processes[0].send(edit(6))
    assert cluster.applied == [(0, "t1", [2]), (0, "t1", [6])]
    assert cluster.left_out() == [(0, "old", 2), (0, "t1", 2)]
    assert cluster.left_out() == []


def test_what_was_written_before_the_copy_of_its_table_is_left_out_counted_and_acknowledged(cluster: Cluster) -> None:
    cluster.since_ms = 1700000000000
    cluster.processes[0].send(edit(1, time=1699999999999), edit(2, time=1700000000000))
    cluster.processes[1].send(edit(3, time=1), edit(4, table="old", time=1))
    assert cluster.applied == [(0, "t1", [2])]
    assert cluster.left_out() == [(0, "t1", 2), (1, "old", 1)]


@pytest.mark.parametrize("cluster", [{"start_ms": 1700000000000}], indirect=True)
def test_old_edits_of_a_table_that_the_run_does_not_have_are_refused_like_new_ones(cluster: Cluster) -> None:
    with pytest.raises(RemoteTransientError, match="table foreign is none of the run's"):
        cluster.processes[0].send(edit(1, time=1), edit(2, table="foreign", time=1))
    assert cluster.left_out() == []


@pytest.mark.parametrize("cluster", [{"start_ms": 1700000000000}], indirect=True)
def test_what_is_left_out_of_a_refused_call_is_not_counted(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receiver, "ANSWER_SECONDS", 3.0)
    cluster.held = {"t1": 0}
    with pytest.raises(RemoteTransientError):
        cluster.processes[0].send(edit(1, time=1), edit(2, table="old"))
    assert cluster.left_out() == []


@pytest.mark.parametrize("process", [0, 1])
def test_a_table_that_is_still_copied_is_refused_at_once_with_that_reason_and_counts_as_no_fault(
    cluster: Cluster, process: int
) -> None:
    cluster.prepares = {"t1"}
    began = time.monotonic()
    with pytest.raises(RemoteTransientError, match="t1 is being copied"):
        cluster.processes[process].send(edit(1))
    assert time.monotonic() - began < 5
    standing = cluster.processes[process].handler._standing.row("serving", (), 0)
    assert (standing.calls, standing.refused, standing.last_refusal) == (1, 0, "")


@pytest.fixture
def load_of_t1(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Work:
    """It does not end while calls have time."""
    monkeypatch.setattr(receiver, "ANSWER_SECONDS", 3.0)
    cluster.beside["t1"] = Work()
    return cluster.beside["t1"]


def refusals(cluster: Cluster) -> list[str]:
    """What counts as a fault of each process."""
    rows = [process.handler._standing.row("serving", (), 0) for process in cluster.processes]
    assert [row.refused for row in rows] == [int(bool(row.last_refusal)) for row in rows]
    return [row.last_refusal for row in rows]


@pytest.mark.parametrize("process", [0, 1])
@pytest.mark.parametrize("tables", [["t1"], ["t1", "old"], ["old", "t1"]])
def test_a_call_that_waits_for_work_beside_it_is_refused_with_that_reason_and_counts_as_no_fault(
    cluster: Cluster, load_of_t1: Work, process: int, tables: list[str]
) -> None:
    for held in ({"t1": 0, "t2": 1}, {"t1": 0, "t2": 0}):
        cluster.held = held
        with pytest.raises(RemoteTransientError, match="not applied in time: a bulk load is being applied"):
            cluster.processes[process].send(*(edit(table=table) for table in tables))
        assert refusals(cluster) == ["", ""]


def test_a_call_that_waits_for_its_turn_behind_work_counts_as_no_fault_either(
    cluster: Cluster, load_of_t1: Work
) -> None:
    with ThreadPoolExecutor() as pool:
        for sent in [pool.submit(process.send, edit()) for process in cluster.processes]:
            with pytest.raises(RemoteTransientError, match="not applied in time: a bulk load is being applied"):
                sent.result()
    assert refusals(cluster) == ["", ""]


def test_work_that_may_not_end_well_is_a_fault(cluster: Cluster, load_of_t1: Work) -> None:
    load_of_t1.fault = "it has failed before"
    with pytest.raises(RemoteTransientError, match="a bulk load is being applied"):
        cluster.processes[0].send(edit())
    assert refusals(cluster) == ["not applied in time: a bulk load is being applied", ""]


@pytest.mark.parametrize("where", [0, 1])
def test_work_on_one_table_hides_no_fault_of_another_one(cluster: Cluster, load_of_t1: Work, where: int) -> None:
    cluster.held["t2"] = where

    def refuse(table: str, number: int) -> None:
        raise TransientError("the target is full")

    cluster.slow = refuse
    with pytest.raises(RemoteTransientError, match="the target is full"):
        cluster.processes[0].send(edit(), edit(table="old"))
    assert "the target is full" in refusals(cluster)[0]


def test_a_call_that_was_passed_on_is_answered_in_the_time_of_the_one_who_waits_for_it(
    cluster: Cluster, load_of_t1: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though it comes slowly."""
    take = Room.take

    async def slowly(room: Room, size: int, deadline: float) -> bool:
        await asyncio.sleep(1.3)
        return await take(room, size, deadline)

    slow = Room(1 << 20)
    monkeypatch.setattr(receiver, "ANSWER_SECONDS", 6.0)
    monkeypatch.setattr(cluster.processes[0].server, "room_of", lambda service: slow)
    monkeypatch.setattr(Room, "take", lambda room, *given: slowly(room, *given) if room is slow else take(room, *given))
    with pytest.raises(RemoteTransientError, match="a bulk load is being applied"):
        cluster.processes[1].send(edit())
    assert refusals(cluster) == ["", ""]


def test_a_table_that_is_copied_elsewhere_keeps_no_other_one_from_being_looked_for(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receiver, "ANSWER_SECONDS", 5.0)
    cluster.prepares = {"t1"}
    del cluster.held["t2"]
    with ThreadPoolExecutor() as pool:
        sent = pool.submit(cluster.processes[1].send, edit(1), edit(2, "old"))
        time.sleep(0.5)
        assert not sent.done()
        cluster.held["t2"] = 1
        with pytest.raises(RemoteTransientError, match="t1 is being copied"):
            sent.result()
    assert cluster.applied == [(1, "t2", [2])]
    assert refusals(cluster) == ["", ""]


def test_what_is_in_the_way_now_is_told_rather_than_what_was(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receiver, "ANSWER_SECONDS", 3.0)
    cluster.held = {}
    cluster.opening["t1"] = "Kafka was away"

    def holder(tables: Tables, table: str) -> str | None:
        raise TransientError("ZooKeeper does not answer")

    monkeypatch.setattr(Tables, "holder", holder)
    with pytest.raises(RemoteTransientError, match="not applied in time: ZooKeeper does not answer"):
        cluster.processes[0].send(edit())


@pytest.mark.parametrize("process", [0, 1])
def test_work_on_one_table_does_not_hide_that_nobody_holds_another_one(
    cluster: Cluster, load_of_t1: Work, process: int
) -> None:
    del cluster.held["t2"]
    with pytest.raises(RemoteTransientError, match="no receiver holds the lease on table t2 yet"):
        cluster.processes[process].send(edit(), edit(table="old"))
    assert "no receiver holds the lease on table t2 yet" in refusals(cluster)[process]


def test_a_bug_is_counted_as_a_refusal(cluster: Cluster) -> None:
    def slow(table: str, number: int) -> None:
        raise IndexError("a bug")

    cluster.slow = slow
    with pytest.raises((RemoteError, RemoteTransientError), match="internal error"):
        cluster.processes[0].send(edit(1))
    assert cluster.processes[0].handler._standing.row("serving", (), 0).last_refusal == "a bug"


def test_markers_of_bulk_loads_go_where_the_edits_go_in_their_order(cluster: Cluster) -> None:
    told = pb.BulkLoadDescriptor(
        table_name=pb.TableName(namespace=b"default", qualifier=b"t1"), encoded_region_name=REGION.encode(),
        stores=[pb.StoreDescriptor(family_name=b"d", store_home_dir="d", store_file=["one"])], bulkload_seq_num=2,
    )  # fmt: skip
    marker = encode_cell(b"\0", b"METAFAMILY", b"HBASE::BULK_LOAD", 1, 4, told.SerializeToString())
    cluster.processes[0].send(edit(1), Sent([marker], number=2, clusters=[HERE]), edit(3))
    assert cluster.applied == [(0, "t1", [1, 2, 3])]


def test_the_rest_of_a_call_is_applied_once_its_regions_are_at_rest(cluster: Cluster) -> None:
    cluster.at_once = 2
    cluster.processes[0].send(edit(1), edit(2), edit(3))
    assert cluster.applied == [(0, "t1", [1, 2]), (0, "t1", [3])]
    assert cluster.rested == [{f"t1 {REGION}"}] * 3
