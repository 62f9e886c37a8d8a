"""Bulk loads of a call: which cells the target gets, in which order, and what a load that lasts does to other calls."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import numpy as np
import pytest

from unit.receive.call_builder import REGION, Sent
from unit.receive.processes import HERE, SOURCE, TARGET, Process, running
from walferry.apply import by_group
from walferry.apply.route import Route
from walferry.apply.writer_protocol import RefusedError, WriteLimits
from walferry.errors import TransientError, WalferryError
from walferry.formats import hfile, hfile_writer
from walferry.formats.cells import cells_to_arrow, encode_cell, index_cells
from walferry.formats.hfile_writer import StoreFormat, WrittenFile, hfile_chunks
from walferry.formats.proto import hbase_pb2 as pb
from walferry.formats.wal import cluster_ids
from walferry.hbase.address import ClusterAddress
from walferry.hbase.errors import RemoteTransientError
from walferry.ledger import Ledger
from walferry.ledger.batches import in_one
from walferry.receive import loads, receiver
from walferry.receive.holding import not_held
from walferry.receive.into_cluster import TargetCluster
from walferry.receive.seen import Applied, Seen
from walferry.receive.target_table import TargetTable
from walferry.run.spec import TablePair
from walferry.storage import Local, PermissionDeniedError

FILE, OTHER = "0a_SeqId_7_", "0b_SeqId_7_"
LIMITS = WriteLimits(
    mutations=1, bytes=1 << 20, aim_bytes=1 << 20, lanes=2, read_ahead=1, ahead_bytes=1 << 20, piece_bytes=1,
    here_bytes=1, request_seconds=5, settle_seconds=0, claim_seconds=1,
)  # fmt: skip


class Guard:
    """A lease that is never lost."""

    def __init__(self) -> None:
        self.dirty: list[tuple[Any, str]] = []

    def __call__(self, tables: Any) -> None: ...

    def wait_turn(self, tables: Any, cells: int, size: int) -> None: ...

    def mark_dirty(self, rows: Any, why: str = "") -> None:
        self.dirty.append((rows, why))


class Table:
    """Table t1 of a source with files in a folder, and its copy under a lease, with a real ledger. What the copy
    got, in its order: `values` of cells, the `clusters` that came with each, and requests as they were `sent`."""

    def __init__(self, ledger: Ledger, folder: Path) -> None:
        run = ledger.open_run("east", "me", {"name": "east", "tables": ["t1"]}, "me", "receive")
        self.received, self.root = ledger.of(run.run_id).received, folder / "hbase"
        self.guard, self.trouble = Guard(), {"copy": "nobody has it"}
        self.values: list[bytes] = []
        self.clusters: list[list[UUID]] = []
        self.sent: list[bytes] = []
        self.before: Callable[[bytes], object] = lambda value: None
        self.take()

    def take(self) -> None:
        """As the lease's next holder does."""
        address = ClusterAddress("nowhere:1")
        route = Route(address, "/", (5, 0), address, {"t1": "copy"}, self.guard, LIMITS)  # type: ignore[arg-type]
        seen = Seen(self.received.floors("t1"), map(Applied.decode, self.received.contents("t1")))
        pair = TablePair(source="t1", target="copy")
        self.mine: TargetTable | None = TargetTable(
            pair, lambda: None, in_one(), self.received, seen, threading.Lock(), route
        )

    def give_back(self) -> None:
        """Returns once nobody uses the lease."""
        assert self.mine is not None
        ended, self.mine = self.mine, None
        ended.end()

    @property
    def held(self) -> Sequence[str]:
        return ["copy"] if self.mine else []

    def holding(self, table: str) -> TargetTable:
        if self.mine is None:
            raise not_held(table)
        return self.mine

    def require_prepared(self, table: str) -> None: ...

    def holder(self, table: str) -> str | None:
        return None

    def writer(self, route: Route) -> Any:
        def send(runs: Sequence[Any], cells: Any) -> None:
            route.guard.wait_turn(["copy"], 1, len(cells))
            self.sent.append(bytes(cells))
            for value in cells_to_arrow(index_cells(np.frombuffer(cells, np.uint8)))["value"].to_pylist():
                self.before(value)
                self.values.append(value)
                self.clusters.append(cluster_ids(runs[0].clusters))

        return SimpleNamespace(send=send)

    def sums(self) -> tuple[int, int, int, int]:
        """Entries that were applied, their cells, entries that were repeated, and late ones."""
        (total,) = self.received.totals()
        return total.entries, total.cells, total.repeated, total.late

    def add(self, *cells: bytes, name: str = FILE, folder: str = "data") -> Path:
        """A store file with these cells."""
        # one by one, so that keys may be equal
        batches = [(np.frombuffer(cell, np.uint8), np.zeros(1, np.int64)) for cell in cells]
        path = self.root / folder / "default/t1" / REGION / "d" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"".join(hfile_chunks(batches, StoreFormat(block_bytes=1), 1, WrittenFile())))
        return path


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Table]:
    with Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}", actor="tester") as ledger:
        made = Table(ledger, tmp_path)
        monkeypatch.setattr(by_group, "writer_to", made.writer)
        monkeypatch.setattr(loads, "writer_to", made.writer)
        monkeypatch.setattr(hfile_writer, "compare_keys", lambda *_: -1)  # else equal keys are refused
        monkeypatch.setattr(hfile, "BATCH_BYTES", 1)  # each block is read alone
        monkeypatch.setattr(receiver, "AGAIN_SECONDS", 0.05)
        yield made


@contextmanager
def running_for(table: Table) -> Iterator[Process]:
    run: Any = SimpleNamespace(
        run_id="east-1", tables=[TablePair(source="t1", target="copy")],
        source=SimpleNamespace(cluster_uuid=lambda: SOURCE),
        target=SimpleNamespace(cluster_uuid=lambda: TARGET), source_files=Local(), source_root=str(table.root),
    )  # fmt: skip
    with running(TargetCluster(run), table) as made:
        yield made


@pytest.fixture
def process(table: Table) -> Iterator[Process]:
    with running_for(table) as made:
        yield made


def cell(value: bytes, row: bytes = b"r", time: int = 7, kind: int = 4, tags: Any = ()) -> bytes:
    return encode_cell(row, b"d", b"q", time, kind, value, tags)


def edit(number: int, **fields: Any) -> Sent:
    return Sent([cell(b"edit %d" % number)], number=number, clusters=[HERE], **fields)


def load(number: int, *names: str, sequence: int = 7, region: str = REGION, **fields: Any) -> Sent:
    """The marker of a load of these files."""
    marker = pb.BulkLoadDescriptor(
        table_name=pb.TableName(namespace=b"default", qualifier=b"t1"), encoded_region_name=region.encode(),
        stores=[pb.StoreDescriptor(family_name=b"d", store_home_dir="d", store_file=names or [FILE])],
        bulkload_seq_num=sequence, **fields,
    )  # fmt: skip
    value = marker.SerializeToString()
    packed = encode_cell(b"\0", b"METAFAMILY", b"HBASE::BULK_LOAD", 1, 4, value)
    return Sent([packed], number=number, region=region, clusters=[HERE])


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_edits_before_a_load_come_first_then_its_cells_then_those_after_it(table: Table, process: Process) -> None:
    table.add(cell(b"a", b"r1"), cell(b"b", b"r2"))
    process.send(edit(1), edit(2, region="other"), load(3), edit(4), load(5, FILE), edit(6))
    assert table.values == [b"edit 1", b"edit 2", b"a", b"b", b"edit 4", b"a", b"b", b"edit 6"]
    assert table.sums() == (6, 8, 0, 0)
    assert table.guard.dirty == []


def test_all_kinds_of_cells_come_as_they_are_in_the_file(table: Table, process: Process) -> None:
    tagged, gone = cell(b"tagged", time=9, tags=[(8, b"\0" * 8)]), cell(b"", time=8, kind=14)
    table.add(gone, tagged, cell(b"old"))
    process.send(load(1))
    assert table.sent == [gone, tagged, cell(b"old")]


@pytest.mark.parametrize("block_bytes", [1, 1 << 20])
def test_of_equal_keys_in_a_file_the_first_is_sent_which_a_reader_sees(
    table: Table, process: Process, monkeypatch: pytest.MonkeyPatch, block_bytes: int
) -> None:
    monkeypatch.setattr(hfile, "BATCH_BYTES", block_bytes)
    table.add(cell(b"seen"), cell(b"hidden"), cell(b"hidden too"), cell(b"older", time=6))
    process.send(load(1))
    assert table.values == [b"seen", b"older"]


def test_of_equal_keys_in_two_files_of_a_load_that_of_the_smaller_file_comes_last(
    table: Table, process: Process
) -> None:
    table.add(cell(b"seen"), name=FILE)
    table.add(cell(b"hidden"), cell(b"x" * 99, b"s"), name=OTHER)
    for names in ((FILE, OTHER), (OTHER, FILE)):
        table.values.clear()
        process.send(load(len(names[0]) + ord(names[0][1]), *names))
        assert table.values == [b"hidden", b"x" * 99, b"seen"]


def test_a_file_that_a_compaction_has_archived_is_found_there(table: Table, process: Process) -> None:
    table.add(cell(b"a"), folder="archive/data")
    process.send(load(1))
    assert table.values == [b"a"]


def test_a_file_that_comes_back_from_the_archive_between_two_looks_is_found(
    table: Table, process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def status(files: Local, path: str) -> Any:
        asked.append(path)
        if len(asked) == 3:
            table.add(cell(b"a"))
        return found(files, path)

    found = Local.status
    monkeypatch.setattr(Local, "status", status)
    process.send(load(1))
    assert table.values == [b"a"]
    assert asked[0] == asked[2] != asked[1]


def test_a_file_that_is_gone_is_refused_by_its_name_and_nothing_of_its_load_is_sent(
    table: Table, process: Process
) -> None:
    table.add(cell(b"a"))
    for _ in range(2):
        with pytest.raises(
            RemoteTransientError, match=f"{OTHER} is gone, and not in the archive.*copy what was loaded"
        ):
            process.send(edit(1), load(2, FILE, OTHER), edit(3))
    assert table.values == [b"edit 1"]
    table.add(cell(b"b"), name=OTHER)
    process.send(edit(1), load(2, FILE, OTHER), edit(3))
    assert table.values == [b"edit 1", b"a", b"b", b"edit 3"]


@pytest.mark.parametrize("name", ["0a.fedc", "t2=fedc-0a", "../../../0a", ""])
def test_what_is_no_file_of_the_region_is_refused_by_its_name(table: Table, process: Process, name: str) -> None:
    with pytest.raises(RemoteTransientError, match=f"d/{name} is no whole file of its region"):
        process.send(load(1, name))


def test_a_region_that_is_no_folder_is_refused(table: Table, process: Process) -> None:
    with pytest.raises(RemoteTransientError, match="is no whole file of its region"):
        process.send(load(1, region="../t2"))


def test_values_that_are_in_mob_files_are_refused(table: Table, process: Process) -> None:
    table.add(cell(b"\0\0\0\7a.mob", tags=[(5, b""), (8, b"t1")]))
    with pytest.raises(RemoteTransientError, match="refers to MOB files"):
        process.send(load(1))
    assert table.values == []


def test_a_damaged_file_is_named_with_what_to_do(table: Table, process: Process) -> None:
    path = table.add(cell(b"a"))
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + b"?")
    with pytest.raises(RemoteTransientError, match=r"is damaged at byte .*remove the peer and add it again"):
        process.send(load(1))


@pytest.mark.parametrize("kind", [TransientError, PermissionDeniedError])
def test_a_source_whose_files_are_not_reached_is_told_with_what_it_needs(
    table: Table, process: Process, monkeypatch: pytest.MonkeyPatch, kind: type[WalferryError]
) -> None:
    error = kind("west does not let me in")

    def status(files: Local, path: str) -> Any:
        raise error

    monkeypatch.setattr(Local, "status", status)
    with pytest.raises(
        RemoteTransientError, match=r"west does not let me in\. Let this process read .*/archive by the webh"
    ):
        process.send(load(1))


def test_cells_that_the_target_refuses_are_named_by_their_load(table: Table, process: Process) -> None:
    def refuse(value: bytes) -> None:
        raise RefusedError("no family d", reason="no family d")

    table.add(cell(b"a"))
    table.before = refuse
    with pytest.raises(
        RemoteTransientError, match=f"bulk load 1 of region {REGION} of t1: the target refuses its cell"
    ):
        process.send(load(1))


def test_a_load_that_lasts_refuses_its_call_and_keeps_its_region_until_it_has_ended_once(
    table: Table, process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receiver, "ANSWER_SECONDS", 0.4)
    go_on = threading.Event()
    table.before = lambda value: value == b"b" and go_on.wait(10)
    table.add(cell(b"a", b"r1"), cell(b"b", b"r2"), name=FILE)
    table.add(cell(b"c", b"r3" * 99), name=OTHER)
    says = (
        f"bulk load 2 of region {REGION} of t1 is being applied: 1 of 2 files, [5-9][0-9]%; the source sends the call"
    )
    with pytest.raises(RemoteTransientError, match=says):
        process.send(edit(1), load(2, FILE, OTHER), edit(3))
    for again in ([edit(1), load(2, FILE, OTHER), edit(3)], [edit(4)]):
        with pytest.raises(RemoteTransientError, match="being applied"):
            process.send(*again)
    process.send(edit(5, region="other"))
    assert table.values == [b"edit 1", b"c", b"a", b"edit 5"]
    go_on.set()
    process.send(edit(1), load(2, FILE, OTHER), edit(3))
    assert table.values == [b"edit 1", b"c", b"a", b"edit 5", b"b", b"edit 3"]
    process.send(edit(1), load(2, FILE, OTHER), edit(3), edit(4))
    assert table.values[-1] == b"edit 4"
    assert table.sums() == (5, 7, 5, 0)
    assert table.guard.dirty == []


def test_the_failure_of_a_load_that_nobody_waited_for_is_told_to_the_next_call(
    table: Table, process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receiver, "ANSWER_SECONDS", 0.3)
    go_on = threading.Event()

    def fails(value: bytes) -> None:
        go_on.wait(10)
        raise TransientError("a server hangs")

    table.add(cell(b"a"))
    table.before = fails
    with pytest.raises(RemoteTransientError, match="being applied"):
        process.send(load(1))
    go_on.set()
    time.sleep(0.2)
    monkeypatch.setattr(receiver, "ANSWER_SECONDS", 5)
    table.before = lambda value: None
    with pytest.raises(RemoteTransientError, match="a server hangs"):
        process.send(load(1))
    process.send(load(1))
    assert table.values == [b"a"]


def test_a_lease_that_is_given_back_ends_the_load_at_once_and_the_next_holder_begins_it_again(
    table: Table, process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receiver, "ANSWER_SECONDS", 2)
    began, go_on = threading.Event(), threading.Event()

    def slow(value: bytes) -> None:
        if value == b"b":
            began.set()
            assert go_on.wait(10)

    table.before = slow
    table.add(*(cell(value, b"r" + value) for value in (b"a", b"b", b"c", b"d")))
    with ThreadPoolExecutor() as pool:
        sent = pool.submit(process.send, load(1), edit(2))
        assert began.wait(10)
        given = pool.submit(table.give_back)
        time.sleep(0.2)
        assert not given.done(), "a request is under way"
        go_on.set()
        given.result(10)
        assert table.values == [b"a", b"b"]
        with pytest.raises(RemoteTransientError, match="not applied in time: nobody has it"):
            sent.result(10)
    table.values.clear()
    table.take()
    process.send(load(1), edit(2))
    assert table.values == [b"a", b"b", b"c", b"d", b"edit 2"]
    assert table.guard.dirty == []


def test_a_large_request_ends_at_its_next_part_when_the_lease_is_given_back(
    table: Table, process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All cells are of one block."""
    began, go_on = threading.Event(), threading.Event()

    def slow(_: bytes) -> None:
        began.set()
        assert go_on.wait(10)

    table.before = slow
    monkeypatch.setattr(hfile, "BATCH_BYTES", 1 << 20)
    table.add(*(cell(value, b"r" + value) for value in (b"a", b"b", b"c", b"d")))
    with ThreadPoolExecutor() as pool:
        sent = pool.submit(process.send, load(1))
        assert began.wait(10)
        given = pool.submit(table.give_back)
        until(lambda: table.mine is None)
        time.sleep(0.1)
        go_on.set()
        given.result(10)
        assert table.values == [b"a"]
        table.take()
        sent.result(30)
    assert table.values == [b"a", b"a", b"b", b"c", b"d"]


def test_a_load_that_comes_after_newer_edits_of_its_region_marks_its_rows(table: Table, process: Process) -> None:
    table.add(cell(b"a", b"r1"), cell(b"b", b"r5"), name=FILE)
    table.add(cell(b"c", b"r3"), cell(b"d", b"r9"), name=OTHER)
    process.send(edit(9))
    process.send(load(5, FILE, OTHER))
    ((rows, why),) = table.guard.dirty
    assert rows == {"copy": (b"r1", b"r9")}
    assert why == f"old values: bulk load 5 of region {REGION} of t1 came after newer edits of the region"
    assert table.sums() == (2, 5, 0, 1)


def test_a_load_without_a_sequence_number_which_is_older_than_all_at_the_source_marks_its_rows(
    table: Table, process: Process
) -> None:
    table.add(cell(b"a", b"r1"), name="0a")
    process.send(load(1, "0a", sequence=-1))
    ((rows, why),) = table.guard.dirty
    assert rows == {"copy": (b"r1", b"r1")}
    assert why.endswith("has no sequence number at the source")


@pytest.mark.parametrize("fields", [{"cluster_ids": [str(UUID(int=9)), str(TARGET)]}, {"replicate": False}])
def test_a_load_that_the_target_had_first_or_that_stays_at_the_source_is_left_out(
    table: Table, process: Process, fields: dict[str, Any]
) -> None:
    process.send(edit(1), load(2, **fields), edit(3))
    assert table.values == [b"edit 1", b"edit 3"]


def test_the_clusters_that_have_had_a_load_go_along_with_its_cells(table: Table, process: Process) -> None:
    table.add(cell(b"a"))
    process.send(load(1, cluster_ids=[str(UUID(int=9)), "no UUID"]))
    assert table.clusters == [[SOURCE, UUID(int=9)]]


def test_a_load_is_passed_on_as_it_came_to_the_process_that_holds_its_table(table: Table, process: Process) -> None:
    other: Any = SimpleNamespace(
        held=[], trouble={}, holder=lambda table: process.name, require_prepared=lambda table: None
    )
    table.add(cell(b"a"))
    with running_for(table) as asked:
        asked.handler._tables = other
        asked.send(edit(1), load(2), edit(3))
    assert table.values == [b"edit 1", b"a", b"edit 3"]
