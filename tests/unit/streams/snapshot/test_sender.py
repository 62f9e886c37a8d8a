"""A table's snapshot is taken, sent and caught up with: a file that HBase wrote, in a cluster that is made up."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from unit.hfile_snapshot import laid_out, stored
from unit.streams.message.naive_messages import Cell, Entry
from unit.streams.stream_ledger import opened
from unit.streams.test_sending import taken
from walferry.errors import TransientError, UsageError
from walferry.hbase.descriptors import TableDescriptor
from walferry.hbase.errors import TableNotFoundError
from walferry.ledger import Ledger, QuarantineItem
from walferry.ledger.rows import Hold
from walferry.run.notes.table_snapshots import ask_again, asked_again, sends_rows
from walferry.run.run import LogRun
from walferry.snapshots.manifest import read_manifest, snapshot_regions
from walferry.storage import Local
from walferry.streams.delivery import Delivery, Topic
from walferry.streams.message.changes import Form
from walferry.streams.ordering.sent import RegionSent
from walferry.streams.snapshot import rows as reading
from walferry.streams.snapshot import sender as sending
from walferry.streams.snapshot.covered import Covered
from walferry.streams.snapshot.records import Snapshots, Step, TableSnapshot
from walferry.streams.snapshot.sender import Delivered, SnapshotSender

ROWS = len({cell[0] for cell in stored()})


class Source:
    """A cluster whose table `t` always has the same snapshot."""

    def __init__(self, root: Path) -> None:
        self._root = laid_out(root)
        self._names = list[str]()
        self.taken = list[str]()

    def describe(self, table: str) -> TableDescriptor:
        return TableDescriptor(read_manifest(Local(), str(self._root), "s").table_schema)

    def snapshots(self) -> list[Any]:
        return [SimpleNamespace(name=name) for name in self._names]

    def snapshot(self, name: str, table: str) -> None:
        folder = self._root / ".hbase-snapshot"
        shutil.copytree(folder / "s", folder / name)
        self._names.append(name)
        self.taken.append(name)

    def delete_snapshot(self, name: str) -> bool:
        if name not in self._names:
            return False
        self._names.remove(name)
        shutil.rmtree(self._root / ".hbase-snapshot" / name)
        return True


class Kafka:
    """Keeps what is committed."""

    keeps_changes = keeps_positions = False

    def __init__(self) -> None:
        self.records: dict[str, bytes] = {}
        self.values: list[dict[str, Any]] = []
        self._open: list[dict[str, Any]] = []

    def send(
        self, topic: str, partition: int, key: bytes, value: bytes | None, headers: list[tuple[str, bytes]] | None
    ) -> None:
        self._open.append(json.loads(value or b""))

    def commit(self, changed: Mapping[str, bytes | None]) -> int:
        self.values += self._open
        self._open = []
        self.records = {key: value for key, value in (self.records | dict(changed)).items() if value is not None}
        return 0

    def write(self) -> None:
        pass

    @property
    def positions(self) -> Mapping[str, bytes]:
        return self.records

    @property
    def snapshots(self) -> Snapshots:
        return Snapshots.of_records(self.records)

    @property
    def kinds(self) -> list[str]:
        """Runs of equal kinds of message."""
        kinds = [value["event"]["kind"] if "event" in value else "row" for value in self.values]
        return [kind for number, kind in enumerate(kinds) if number == 0 or kinds[number - 1] != kind]


class World:
    """A stream of the table `t`; `sender` makes what a process has after its start."""

    def __init__(self, root: Path, book: Ledger) -> None:
        self.root, self.source, self.kafka = root, Source(root), Kafka()
        self.ledger = opened(book)
        self.sent: dict[str, RegionSent] = {}
        self.most_bytes = 10_000_000
        self.recorded: list[Step | None] = []
        """what Kafka had of the table when positions were recorded"""

    def sender(self) -> SnapshotSender:
        run = SimpleNamespace(
            source=self.source, source_files=Local(), source_root=str(self.root), ledger=self.ledger,
            run_id=self.ledger.run_id,
        )  # fmt: skip
        topic = Topic("topic", 1, self.most_bytes)
        delivery = Delivery({"a": topic, "t": topic}, self.kafka)
        self.covered = Covered({}, lambda region: None)
        return SnapshotSender(
            cast(LogRun, run), Form("c", 1), delivery, self.kafka, dict(self.kafka.records), self.sent, self.covered
        )

    def put(self, snapshot: TableSnapshot) -> None:
        self.kafka.commit(Snapshots({"t": snapshot}).changed(self.kafka.snapshots))

    @property
    def step(self) -> Step | None:
        known = self.kafka.snapshots.tables.get("t")
        return None if known is None else known.step

    def record(self) -> None:
        self.recorded.append(self.step)

    def go_on(self, sender: SnapshotSender, until: Step | None = None) -> None:
        for _ in range(100):
            sender.go_on(5)
            if self.step is until:
                return
        raise AssertionError(f"it stays {self.step}")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}", actor="test") as book:
        yield World(tmp_path / "hbase", book)


def test_a_table_that_joins_is_held_sent_and_caught_up_with(world: World) -> None:
    world.put(TableSnapshot(Step.TAKING, f"{world.ledger.run_id}-t-1"))
    with world.sender() as sender:
        assert sender.snapshots.holding == {"t"}
        world.go_on(sender, Step.CATCHING_UP)
        assert sender.go_on(1) == Delivered(), "there is nothing left to send"
    assert world.kafka.kinds == ["snapshot_begins", "row", "snapshot_ends"]
    begins, *rows, ends = world.kafka.values
    assert (ends["event"]["rows"], len(rows)) == (ROWS, ROWS)
    assert {one["snapshot"] for one in rows} == {begins["event"]["snapshot"]} == set(world.source.taken)
    assert world.source.snapshots() == []
    assert [(one.kind, one.state) for one in world.ledger.objects.all()] == [("snapshot", "removed")]
    assert len(world.kafka.snapshots.covering) == 1


def test_a_snapshot_is_forgotten_only_once_the_log_was_followed_past_it_with_nothing_held(world: World) -> None:
    world.put(TableSnapshot(Step.TAKING, f"{world.ledger.run_id}-t-1"))
    with world.sender() as sender:
        world.go_on(sender, Step.CATCHING_UP)
        since_ms = world.kafka.snapshots.tables["t"].since_ms
        sender.followed(since_ms + 1, {"t"}, world.record)
        assert world.step is Step.CATCHING_UP, "this follower has held the table"
    edits = taken([Entry([Cell()], 3, table="t")])
    with world.sender() as sender:
        assert world.covered.has_some(edits)
        sender.followed(since_ms, {"t"}, world.record)
        sender.followed(since_ms + 1, {"other"}, world.record)
        assert world.step is Step.CATCHING_UP
        sender.followed(since_ms + 1, {"t"}, world.record)
        assert world.recorded == [Step.CATCHING_UP], "before it is forgotten"
        assert not world.covered.has_some(edits)
    assert world.kafka.snapshots == Snapshots({"t": TableSnapshot(Step.DONE, count=0)})


def test_a_process_that_is_killed_in_between_repeats_no_row(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "CHUNK_CELLS", len(stored()) // 20)
    world.put(TableSnapshot(Step.TAKING, f"{world.ledger.run_id}-t-1"))
    starts = 0
    while world.step is not Step.CATCHING_UP:
        with world.sender() as sender:
            sender.go_on(5, 1)
            if starts == 2:
                assert "rows of t, 0 of 1 region" in sends_rows(world.ledger)
        starts += 1
        assert starts < 100
    rows = [value["row"] for value in world.kafka.values if "row" in value]
    assert starts > 5
    assert (len(rows), len(set(rows))) == (ROWS, ROWS)
    assert world.kafka.values[-1]["event"]["rows"] == ROWS
    assert sends_rows(world.ledger) == ""


@pytest.mark.parametrize("name", ["other-7-t-1", None])
def test_if_the_snapshot_is_gone_all_rows_are_sent_from_another_one(
    world: World, name: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "CHUNK_CELLS", 5)
    world.put(TableSnapshot(Step.TAKING, f"{world.ledger.run_id}-t-1"))
    with world.sender() as sender:
        world.go_on(sender, Step.SENDING)
        sender.go_on(5, 1)
    known = world.kafka.snapshots
    if name is None:
        world.source.delete_snapshot(known.tables["t"].name)
    else:  # of a run of the same name that was aborted
        world.put(TableSnapshot(Step.SENDING, name))
    with world.sender() as sender:
        world.go_on(sender, Step.CATCHING_UP)
    assert world.kafka.kinds == ["snapshot_begins", "row"] * 2 + ["snapshot_ends"]
    last = world.kafka.values[-1]["event"]
    indexes = {value["snapshot"]: value["position"][2] for value in world.kafka.values if "row" in value}
    assert list(indexes.values()) == [65280, 65281]
    assert last["rows"] == sum(value.get("snapshot") == last["snapshot"] for value in world.kafka.values) == ROWS


def test_a_snapshot_that_is_deleted_while_it_is_read_is_something_that_may_pass(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "CHUNK_CELLS", 5)
    world.put(TableSnapshot(Step.TAKING, f"{world.ledger.run_id}-t-1"))
    with world.sender() as sender:
        world.go_on(sender, Step.SENDING)
        name = world.kafka.snapshots.tables["t"].name
        world.source.delete_snapshot(name)
        with pytest.raises(TransientError, match=f"snapshot {name} at the source was deleted"):
            world.go_on(sender, Step.CATCHING_UP)


def test_a_snapshot_that_a_killed_process_has_left_is_deleted_at_the_next_start(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.put(TableSnapshot(Step.TAKING, f"{world.ledger.run_id}-t-1"))
    with monkeypatch.context() as killed, world.sender() as sender:
        killed.setattr(sending, "drop_snapshot", lambda *_: None)
        world.go_on(sender, Step.CATCHING_UP)
    assert len(world.source.snapshots()) == 1
    with world.sender():
        assert world.source.snapshots() == []


def test_a_row_that_is_too_large_stops_the_stream_and_is_sent_once_it_fits(world: World) -> None:
    world.put(TableSnapshot(Step.TAKING, f"{world.ledger.run_id}-t-1"))
    world.most_bytes = 600
    with (
        pytest.raises(UsageError, match=r"row .* cannot be sent from snapshot .* its topic takes 600"),
        world.sender() as sender,
    ):
        world.go_on(sender, Step.CATCHING_UP)
    world.most_bytes = 10_000_000
    with world.sender() as sender:
        world.go_on(sender, Step.CATCHING_UP)
    rows = [value["row"] for value in world.kafka.values if "row" in value]
    assert (len(rows), len(set(rows))) == (ROWS, ROWS)


def test_rows_that_a_person_asks_for_again_are_taken_once_the_log_was_followed_up_to_then(world: World) -> None:
    (region,) = snapshot_regions(str(world.root), read_manifest(Local(), str(world.root), "s"))
    world.sent = {region.name: RegionSent("t", "", 7, 0, None)}
    ask_again(world.ledger, "t", "kim", "an index was lost")
    with world.sender() as sender:
        sender.take_up()
        assert asked_again(world.ledger) == {}
        since_ms = world.kafka.snapshots.tables["t"].since_ms
        sender.followed(since_ms, {"t"}, world.record)
        assert world.step is Step.WANTED
        assert world.recorded == [], "nothing is due"
        sender.followed(since_ms + 1, {"t"}, world.record)
        assert world.recorded == [Step.WANTED], "before it is held"
        assert sender.snapshots.holding == {"t"}
    with world.sender() as sender:
        world.go_on(sender, Step.CATCHING_UP)
    assert {value["position"][2] for value in world.kafka.values if "row" in value} == {65281}


def test_regions_that_the_stream_has_not_seen_are_seen_first(world: World) -> None:
    world.put(TableSnapshot(Step.TAKING, f"{world.ledger.run_id}-t-1", asked_ms=5))
    world.sent = {"another": RegionSent("t", "", 7, 0, None)}
    with world.sender() as sender:
        world.go_on(sender, Step.WANTED)
        assert sender.snapshots.holding == frozenset()
    assert world.source.snapshots() == []


def test_a_table_that_is_dropped_before_its_snapshot_is_taken_has_no_rows(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(table: str) -> TableDescriptor:
        raise TableNotFoundError("there is no table t")

    monkeypatch.setattr(world.source, "describe", gone)
    world.put(TableSnapshot(Step.TAKING, f"{world.ledger.run_id}-t-1"))
    with world.sender() as sender:
        world.go_on(sender, Step.CATCHING_UP)
    assert world.kafka.values == []


def test_tables_that_join_together_are_let_go_together(world: World) -> None:
    both = {name: TableSnapshot(Step.TAKING, f"{world.ledger.run_id}-{name}-1") for name in ("a", "t")}
    world.kafka.commit(Snapshots(both).changed(Snapshots()))
    with world.sender() as sender:
        while world.kafka.snapshots.tables["a"].step is not Step.SENT:
            sender.go_on(5)
        assert sender.snapshots.holding == {"a", "t"}
        world.go_on(sender, Step.CATCHING_UP)
        assert sender.snapshots.holding == frozenset()


def test_a_table_with_changes_in_quarantine_is_not_sent_again_before_they_are_released(world: World) -> None:
    item = QuarantineItem("g.5", 1, 2, "t", "r", 3, "too large", b"")
    world.ledger.quarantine.put([item], lambda ids: [Hold("g.5", "t", "r", 1, ids[0])])
    ask_again(world.ledger, "t", "kim", "an index was lost")
    with world.sender() as sender:
        sender.take_up()
    assert world.kafka.records == {}
    assert asked_again(world.ledger).keys() == {"t"}
