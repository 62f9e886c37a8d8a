"""A stream follows files of logs as HBase leaves them, when its writers break and its servers die."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from unit.formats.wal_builder import TRAILER, entry, header
from walferry.errors import GapError
from walferry.formats.cells import encode_cell
from walferry.hbase.client import HBaseClient
from walferry.hbase.descriptors import Region
from walferry.hbase.zookeeper import Server
from walferry.storage import FileStatus, Local
from walferry.streams.delivery import Delivery, Topic
from walferry.streams.follower import Follower, Passed
from walferry.streams.message.changes import Form
from walferry.streams.ordering.regions import KnownRegions
from walferry.streams.ordering.repeated import OldNumberError
from walferry.streams.ordering.sent import GroupRead, RegionSent, StreamPositions, TableSent
from walferry.streams.ordering.stays import LogPlace
from walferry.streams.sending import Sending
from walferry.wal import live_tail
from walferry.wal import open as opening
from walferry.wal.offsets import GroupPosition

SERVER, GROUP, REGION = Server("rs", 1, 2), "rs%2C1%2C2", "a" * 32


class Source:
    """Answers about the regions of one table; `read_point` is what its server has acknowledged."""

    release = SimpleNamespace(opens_past_closing=True)

    def __init__(self) -> None:
        self.read_point: int | None = None
        self.rolled: list[str] = []

    def regions(self, table: str) -> list[Region]:
        return [Region(b"t," + REGION.encode(), REGION, table, b"", b"", SERVER, 1)]

    def read_points(self, asked: Sequence[tuple[str, Region]], *, attempts: int) -> list[int | None]:
        return [self.read_point for _ in asked]

    def servers(self) -> list[Server]:
        return [SERVER]

    def roll_wal(self, server: Server) -> None:
        self.rolled.append(server.name)


class Kafka:
    """Keeps what is committed."""

    keeps_changes = keeps_positions = False

    def __init__(self) -> None:
        self.records: dict[str, bytes] = {}
        self.numbers: list[int] = []
        self._open: list[int] = []

    def send(
        self, topic: str, partition: int, key: bytes, value: bytes | None, headers: list[tuple[str, bytes]] | None
    ) -> None:
        self._open.append(json.loads(value or b"")["sequence_number"])

    def commit(self, changed: Mapping[str, bytes | None]) -> int:
        self.numbers += self._open
        self._open = []
        self.records = {key: value for key, value in (self.records | dict(changed)).items() if value is not None}
        return 0

    def write(self) -> None:
        pass

    @property
    def positions(self) -> Mapping[str, bytes]:
        return self.records


class Unclosed(Local):
    """Lists a file that is not closed as a NameNode does, without its last block."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def status(self, path: str) -> FileStatus | None:
        found = super().status(path)
        return None if found is None else self._listed(found)

    def list(self, path: str) -> list[FileStatus]:
        return [self._listed(one) for one in super().list(path)]

    def _listed(self, one: FileStatus) -> FileStatus:
        return replace(one, length=0) if one.name in self.names else one


class Streamed:
    """The log of one server below a folder, and a stream of it."""

    def __init__(self, root: Path) -> None:
        self.root, self.source, self.kafka, self.files = root, Source(), Kafka(), Unclosed()
        for folder in (f"WALs/{SERVER.name}", "oldWALs"):
            (root / folder).mkdir(parents=True)
        self.kafka.commit(
            StreamPositions(
                {GROUP: GroupRead(GroupPosition(1), LogPlace(1, 0))},
                {REGION: RegionSent("t1", SERVER.name, -1, 0, (b"", b""))},
                {"t1": TableSent("")},
            ).changed(StreamPositions())
        )
        self.restart()

    def restart(self) -> None:
        source, kafka = cast(HBaseClient, self.source), self.kafka
        positions = StreamPositions.of_records(kafka.records)
        delivery = Delivery({"t1": Topic("topic", 1, 10_000)}, kafka)
        sending = Sending(Form("c", 1), delivery, describe=lambda table: None, tells_new_history=True, schemas={})
        known = KnownRegions(source, {REGION: (b"", b"")})
        known.learn("t1", [REGION])
        self.follower = Follower(source, self.files, str(self.root), ["t1"], sending, kafka, known, positions)

    def write(self, number: int, *content: bytes) -> None:
        with (self.root / "WALs" / SERVER.name / f"{GROUP}.{number}").open("ab") as file:
            file.write(b"".join(content))

    def archive(self, number: int, length: int | None = None) -> None:
        path = self.root / "WALs" / SERVER.name / f"{GROUP}.{number}"
        if length is not None:
            path.write_bytes(path.read_bytes()[:length])
        path.rename(self.root / "oldWALs" / path.name)

    def passes(self, count: int = 3) -> Passed:
        made = [self.follower.pass_once() for _ in range(count)]
        return made[-1]


def edit(number: int, value: bytes = b"v") -> bytes:
    cell = encode_cell(b"r", b"f", b"q", 1, 4, value)
    return entry([cell], number, encoded_region_name=REGION.encode(), table_name=b"t1", write_time=number)


@pytest.fixture
def streamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Streamed:
    monkeypatch.setattr(opening, "CLOSE_SECONDS", 0.3)
    monkeypatch.setattr(live_tail, "POLL_SECONDS", 0.02)
    return Streamed(tmp_path)


def test_an_entry_of_an_open_log_is_sent_once_it_is_acknowledged(streamed: Streamed) -> None:
    streamed.write(1, header(), edit(4), edit(5))
    streamed.passes()
    assert streamed.kafka.numbers == []
    streamed.source.read_point = 4
    assert streamed.passes().covered_ms is None, "an entry waits"
    assert streamed.kafka.numbers == [4]
    streamed.source.read_point = 5
    assert streamed.passes().covered_ms is not None
    assert streamed.kafka.numbers == [4, 5]


def test_what_the_destination_keeps_is_neither_told_as_sent_nor_recorded(streamed: Streamed) -> None:
    before = streamed.follower.positions
    streamed.kafka.keeps_changes = streamed.kafka.keeps_positions = True
    streamed.source.read_point = 5
    streamed.write(1, header(), edit(4), edit(5))
    assert streamed.passes().covered_ms is None
    assert streamed.kafka.numbers == [4, 5]
    assert streamed.follower.positions == before
    streamed.kafka.keeps_changes = streamed.kafka.keeps_positions = False
    assert streamed.passes(1).covered_ms is not None
    assert streamed.follower.positions.regions[REGION].number == 5


def test_what_was_sent_before_a_refused_entry_is_written_before_the_ledger_has_the_entry(
    streamed: Streamed, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[list[int]] = []
    monkeypatch.setattr(streamed.kafka, "write", lambda: written.append(list(streamed.kafka.numbers)))
    streamed.source.read_point = 5
    streamed.write(1, header(), edit(4), edit(5, bytes(20_000)))
    while not (refused := streamed.follower.pass_once().refused):
        assert written == []
    assert [one.sequence_number for one in refused] == [5]
    assert written == [[4]]


def test_what_a_server_loses_when_it_dies_is_not_sent(streamed: Streamed, caplog: pytest.LogCaptureFixture) -> None:
    streamed.source.read_point = 4
    kept = header() + edit(4) + edit(5)
    streamed.write(1, kept, edit(6))
    streamed.passes()
    streamed.source.read_point = None
    streamed.archive(1, len(kept))
    streamed.passes()
    assert streamed.kafka.numbers == [4, 5], "what the sealed file has will be recovered"
    assert "was sealed without 1 entries that it had shown" in caplog.text


@pytest.mark.parametrize("splits", [False, True])
def test_what_waits_is_not_dropped_while_nobody_knows_how_long_its_file_is(
    streamed: Streamed, splits: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """A server that dies may have written a trailer, and the NameNode lists length 0 until the lease is recovered."""
    streamed.files.names.add(f"{GROUP}.1")
    streamed.source.read_point = 4
    streamed.write(1, header(), edit(4), edit(5))
    streamed.passes()
    streamed.source.read_point = None
    streamed.write(1, TRAILER)
    live = streamed.root / "WALs" / SERVER.name
    if splits:
        live.rename(f"{live}-splitting")
    streamed.passes()
    assert streamed.kafka.numbers == [4]
    streamed.files.names.clear()
    if splits:
        Path(f"{live}-splitting").rename(live)
        streamed.archive(1)
    streamed.passes()
    assert streamed.kafka.numbers == [4, 5]
    assert "was sealed without" not in caplog.text


@pytest.mark.parametrize("restarts", [False, True])
def test_an_entry_that_a_server_has_written_again_is_sent_once(streamed: Streamed, restarts: bool) -> None:
    streamed.write(1, header(), edit(4), edit(5), TRAILER)
    streamed.archive(1)
    streamed.passes()
    if restarts:
        streamed.restart()
    streamed.write(2, header(), edit(5), edit(6), TRAILER)
    streamed.passes()
    assert streamed.kafka.numbers == [4, 5, 6]


@pytest.mark.parametrize("restarts", [False, True])
def test_an_entry_that_only_the_next_log_has_in_the_end_is_sent_once(streamed: Streamed, restarts: bool) -> None:
    kept = header() + edit(4) + edit(5)
    streamed.source.read_point = 6  # by its second copy
    streamed.write(1, kept, edit(6))
    streamed.passes()
    assert streamed.kafka.numbers == [4, 5, 6]
    if restarts:
        streamed.restart()
    streamed.write(2, header(), edit(6), edit(7), TRAILER)
    streamed.archive(1, len(kept))
    streamed.passes()
    assert streamed.kafka.numbers == [4, 5, 6, 7]


def test_an_old_number_with_another_content_stops_the_stream(streamed: Streamed) -> None:
    streamed.write(1, header(), edit(4), edit(5), TRAILER)
    streamed.archive(1)
    streamed.passes()
    streamed.write(2, header(), edit(5, b"other"), TRAILER)
    with pytest.raises(OldNumberError, match=f"region {REGION} of t1 has an entry 5 in {GROUP}.2"):
        streamed.passes()
    assert streamed.kafka.numbers == [4, 5]


def test_a_new_process_reads_again_only_what_was_not_sent(streamed: Streamed) -> None:
    streamed.source.read_point = 5
    streamed.write(1, header(), edit(4), edit(5), edit(6))
    streamed.passes()
    streamed.restart()
    streamed.source.read_point = 6
    streamed.passes()
    assert streamed.kafka.numbers == [4, 5, 6]


def test_a_log_that_is_gone_before_it_was_sent_stops_the_stream(streamed: Streamed) -> None:
    streamed.write(1, header(), edit(4))
    streamed.passes()
    (streamed.root / "WALs" / SERVER.name / f"{GROUP}.1").unlink()
    with pytest.raises(GapError, match=f"{GROUP}.1 is missing"):
        streamed.passes()


def test_a_log_is_rolled_when_an_entry_has_waited_for_long(streamed: Streamed, monkeypatch: pytest.MonkeyPatch) -> None:
    streamed.write(1, header(), edit(4))
    streamed.passes()
    assert streamed.source.rolled == []
    monkeypatch.setattr("walferry.streams.follower.ROLL_AFTER_SECONDS", 0.0)
    streamed.passes(1)
    assert streamed.source.rolled == [SERVER.name]


def test_entries_of_other_tables_are_left_out(streamed: Streamed) -> None:
    other = entry([encode_cell(b"r", b"f", b"q", 1, 4)], 9, encoded_region_name=b"x" * 32, table_name=b"other")
    streamed.write(1, header(), edit(4), other, TRAILER)
    streamed.archive(1)
    streamed.passes()
    assert streamed.kafka.numbers == [4]
