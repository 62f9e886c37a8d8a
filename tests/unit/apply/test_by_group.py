"""Requests made of WAL entries keep their order and their limits."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unit.formats.wal_builder import REGION, TRAILER, entry, header
from walferry.apply import by_group
from walferry.apply.by_group import GroupTask, Part, _Lanes, _Request, apply_group, lanes_of, requests, send_entries
from walferry.apply.outcomes import FileReport, Refusal, Withheld
from walferry.apply.prefix import Prefix, Sent
from walferry.apply.route import Route
from walferry.apply.writer_protocol import CellRun, WriteLimits
from walferry.errors import WalferryError
from walferry.formats.cells import encode_cell
from walferry.formats.proto import hbase_pb2 as pb
from walferry.formats.wal import EntryBatch, WalReader
from walferry.hbase.errors import ConnectionFailedError, RequestTimeoutError
from walferry.storage import Local
from walferry.wal.files import list_wals
from walferry.wal.open import open_wal
from write_limits import write_limits

CLUSTERS = [[], [pb.UUID(least_sig_bits=1, most_sig_bits=2)], [pb.UUID(least_sig_bits=3, most_sig_bits=4)]]
TABLES = {"t1": "one", "t2": "two"}
# Cells of an entry, table, clusters the edit went through.
ENTRIES = st.lists(
    st.tuples(st.sampled_from([1, 2, 3000, 6000]), st.sampled_from(["t1", "t2"]), st.sampled_from(range(3))),
    min_size=1,
    max_size=8,
)


LIMITS = write_limits()


def batch_of(entries: list[tuple[int, str, int]]) -> tuple[EntryBatch, dict[tuple[str, int], list[bytes]]]:
    """One batch, and the cells in file order by target table and clusters."""
    cells: dict[tuple[str, int], list[bytes]] = defaultdict(list)
    parts = []
    for number, (count, table, clusters) in enumerate(entries):
        mine = [encode_cell(b"%05d" % i, b"f", b"q", number, 4) for i in range(count)]
        cells[TABLES[table], clusters] += mine
        parts.append(entry(mine, number + 1, table_name=table.encode(), cluster_ids=CLUSTERS[clusters]))
    content = header() + b"".join(parts) + TRAILER
    (batch,) = WalReader([content], "file")
    return batch, cells


@settings(max_examples=30)
@given(ENTRIES)
def test_requests_keep_order_lose_nothing_and_stay_within_the_limits(entries: list[tuple[int, str, int]]) -> None:
    batch, expected = batch_of(entries)
    found: dict[tuple[str, bytes], bytes] = defaultdict(bytes)
    for runs, cells in requests(batch, np.arange(len(batch)), TABLES, LIMITS):
        assert sum(run.cells for run in runs) <= LIMITS.mutations
        assert len({run.clusters for run in runs}) == 1
        content, at = bytes(cells), 0
        for run in runs:
            begin = at
            for _ in range(run.cells):
                at += 4 + int.from_bytes(content[at : at + 4], "big")
            found[run.table, run.clusters] += content[begin:at]
        assert at == len(content)
    raw = [bytes(pb.WALKey(cluster_ids=ids).SerializePartialToString()) for ids in CLUSTERS]
    assert dict(found) == {(table, raw[clusters]): b"".join(cells) for (table, clusters), cells in expected.items()}


def test_a_region_keeps_its_lane_from_file_to_file() -> None:
    regions = [b"%032x" % number for number in range(16)]

    def lanes(names: list[bytes]) -> dict[bytes, int]:
        cell = encode_cell(b"r", b"f", b"q", 1, 4)
        content = header() + b"".join(entry([cell], encoded_region_name=name) for name in names) + TRAILER
        (batch,) = WalReader([content], "file")
        return dict(zip(names, lanes_of(batch, 4).tolist(), strict=True))

    assert lanes(regions) == lanes(regions[::-1])
    assert set(lanes(regions).values()) <= set(range(4))


def test_a_region_waits_from_the_first_place_that_was_refused_in_whatever_order_those_are_met(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The reader runs ahead of the lanes: it may meet a marker in a later file first."""

    def refused(file: str, start: int) -> Refusal:
        return Refusal(file, start, start + 1, "t1", REGION.decode(), 1, "refused", b"")

    monkeypatch.setattr(by_group, "writer_to", lambda _: None)
    route = SimpleNamespace(tables=TABLES, limits=LIMITS)
    lanes = _Lanes(GroupTask(cast(Route, route), (), frozenset()))
    batch, _ = batch_of([(1, "t1", 0), (1, "t1", 0)])
    second = int(batch.start[1])
    lanes.hold(3, refused("d", 0))
    lanes.hold(1, refused("b", second))
    lanes.hold(2, refused("c", 0))
    passing = [
        lanes._let_pass(_Request(number, name, batch, np.arange(2))).picked for number, name in enumerate("abcd")
    ]
    assert [len(picked) for picked in passing] == [2, 1, 0, 0]
    empty = FileReport("b", 9, True, (), (), ())
    assert lanes.amend(empty).withheld == (Withheld("b", "t1", REGION.decode(), second),)


def sizes_of(entries: list[list[bytes]], limits: WriteLimits) -> list[tuple[int, int]]:
    """Of each request the cells and the bytes; the bytes are checked to be all, in order."""
    content = header() + b"".join(entry(cells, n + 1) for n, cells in enumerate(entries)) + TRAILER
    (batch,) = WalReader([content], "file")
    made = list(requests(batch, np.arange(len(batch)), {"t1": "t1"}, limits))
    assert b"".join(bytes(cells) for _, cells in made) == b"".join(cell for cells in entries for cell in cells)
    return [(sum(run.cells for run in runs), len(cells)) for runs, cells in made]


def test_an_entry_with_more_bytes_than_a_request_may_have_goes_in_several_and_no_cell_is_cut() -> None:
    cells = [encode_cell(b"r", b"f", b"q%02d" % i, 1, 4, bytes(1000)) for i in range(10)]
    size = len(cells[0])
    assert sizes_of([cells[:1], cells, cells[:1]], write_limits(bytes=3 * size)) == [
        (1, size), (3, 3 * size), (3, 3 * size), (3, 3 * size), (1, size), (1, size),
    ]  # fmt: skip


def test_a_cell_with_more_bytes_than_a_request_may_have_goes_alone() -> None:
    small, large = (encode_cell(b"r", b"f", b"q", 1, 4, bytes(n)) for n in (10, 5000))
    found = sizes_of([[small, small, large, small]], write_limits(bytes=1000))
    assert [count for count, _ in found] == [2, 1, 1]


def test_an_entry_with_more_mutations_than_the_target_takes_in_order_goes_in_several() -> None:
    cells = [encode_cell(b"%02d" % i, b"f", b"q", 1, 4) for i in range(10)]
    assert [count for count, _ in sizes_of([cells], write_limits(mutations=4))] == [4, 4, 2]


def test_requests_are_cut_at_what_they_aim_at_but_a_row_of_an_entry_only_where_none_may_be_larger() -> None:
    rows = [[encode_cell(row, b"f", b"q%d" % i, 1, 4, bytes(100)) for i in range(4)] for row in (b"a", b"b", b"c")]
    wide = [encode_cell(b"w", b"f", b"q%d" % i, 1, 4, bytes(100)) for i in range(10)]
    one = len(rows[0][0])
    assert {len(cell) for row in rows for cell in row} == {one}
    limits = write_limits(aim_bytes=6 * one, bytes=9 * one)
    several = [cell for row in rows for cell in row]
    assert [count for count, _ in sizes_of([several], limits)] == [4, 4, 4], "each row is whole"
    assert [count for count, _ in sizes_of([rows[0], rows[1][:2], rows[2]], limits)] == [6, 4], "entries are together"
    assert [count for count, _ in sizes_of([rows[0] + wide[:8] + rows[2]], limits)] == [4, 8, 4]
    assert [count for count, _ in sizes_of([rows[0] + wide + rows[2]], limits)] == [4, 9, 5], "too large for one"


def test_reading_waits_while_the_lanes_have_as_many_bytes_as_may_be_read_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many lanes there are, and however large the entries."""
    answered = threading.Event()
    sent: list[int] = []

    class SlowWriter:
        def send(self, runs: Sequence[CellRun], cells: memoryview | bytes) -> None:
            answered.wait(60)
            sent.append(len(cells))

    monkeypatch.setattr(by_group, "writer_to", lambda _: SlowWriter())
    cell = encode_cell(b"r", b"f", b"q", 1, 4, bytes(1000))
    batches: list[EntryBatch] = []
    for number in range(12):
        content = header() + entry([cell], encoded_region_name=b"%032x" % number) + TRAILER
        batches += WalReader([content], "file")
    assert {int(lanes_of(batch, 4)[0]) for batch in batches} == set(range(4))
    limits = write_limits(lanes=4, read_ahead=2, ahead_bytes=3 * batches[0].buffer.nbytes)
    task = GroupTask(cast(Route, SimpleNamespace(tables={"t1": "t1"}, limits=limits)), (), frozenset())
    put: list[EntryBatch] = []

    def read(lanes: _Lanes) -> None:
        for batch in batches:
            lanes.put(_Request(0, "file", batch, np.arange(1)))
            put.append(batch)

    with _Lanes(task) as lanes:
        reader = threading.Thread(target=read, args=(lanes,))
        reader.start()
        deadline = time.monotonic() + 10
        while len(put) < 3 and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.2)
        read_ahead = len(put)
        answered.set()
        reader.join()
        lanes.wait()
    assert read_ahead == 3
    assert sent == [len(cell)] * len(batches)


def test_a_batch_larger_than_what_may_be_read_ahead_goes_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[int] = []
    monkeypatch.setattr(
        by_group, "writer_to", lambda _: SimpleNamespace(send=lambda runs, cells: sent.append(len(runs)))
    )
    task = GroupTask(cast(Route, SimpleNamespace(tables=TABLES, limits=write_limits(ahead_bytes=1))), (), frozenset())
    with _Lanes(task) as lanes:
        for _ in range(3):
            lanes.put(_Request(0, "file", batch_of([(1, "t1", 0)])[0], np.arange(1)))
        lanes.wait()
    assert sent == [1, 1, 1]


NOT_SENT, UNKNOWN = ConnectionFailedError("no connection", sent=False), RequestTimeoutError("no answer", sent=True)
UNMARKED = WalferryError("rows are dirty and could not be marked")


@pytest.mark.parametrize(("first", "later"), [(NOT_SENT, UNKNOWN), (NOT_SENT, UNMARKED), (UNKNOWN, UNMARKED)])
@pytest.mark.parametrize("by", ["put", "wait"])
def test_of_several_lanes_errors_the_one_is_raised_that_must_be_acted_on(
    by: str, first: Exception, later: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hole: a server that refused connections hid another one's request that might still be carried out."""
    batch, _ = batch_of([(1, "t1", 0)])
    both, noticed = threading.Barrier(2, timeout=10), threading.Event()

    def fails(runs: Sequence[CellRun], cells: memoryview | bytes) -> None:
        both.wait()
        raise first

    def fails_later(runs: Sequence[CellRun], cells: memoryview | bytes) -> None:
        both.wait()
        assert noticed.wait(10) or by == "wait"
        raise later

    def send() -> None:
        with lanes:
            lanes._ahead.enter(batch, 2)
            for lane in lanes._queues:
                lane.put(_Request(0, "file", batch, np.arange(1)))
            while by == "put" and not lanes._errors:
                time.sleep(0.01)
            if by == "wait":
                noticed.set()
                lanes.wait()
            threading.Timer(0.1, noticed.set).start()
            lanes.put(_Request(0, "file", batch, np.arange(1)))

    writers = iter([fails, fails_later])
    monkeypatch.setattr(by_group, "writer_to", lambda _: SimpleNamespace(send=next(writers)))
    route = SimpleNamespace(tables=TABLES, limits=replace(LIMITS, lanes=2))
    lanes = _Lanes(cast(GroupTask, SimpleNamespace(route=route, held=frozenset())))
    with pytest.raises(type(later)) as found:
        send()
    assert found.value is later


class Unanswered:
    """A writer to a target that does not answer the request."""

    def send(self, runs: Sequence[CellRun], cells: memoryview | bytes) -> None:
        raise UNKNOWN


def test_a_file_is_reported_only_after_its_last_edit_was_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is reported is recorded as applied (R2)."""
    path = tmp_path / "WALs" / "rs,1,2" / "rs%2C1%2C2.7"
    path.parent.mkdir(parents=True)
    path.write_bytes(header() + b"".join(entries_of(1)) + TRAILER)
    (file,) = list_wals(Local(), str(tmp_path))
    route = SimpleNamespace(
        tables={"t1": "one"}, limits=LIMITS, open=lambda file: open_wal(Local(), str(tmp_path), file)
    )
    monkeypatch.setattr(by_group, "writer_to", lambda _: Unanswered())
    with pytest.raises(RequestTimeoutError):
        apply_group(GroupTask(cast(Route, route), (file,), frozenset({REGION.decode()})))


def test_entries_of_an_open_file_count_as_sent_only_after_the_last_was_acknowledged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    batch, _ = batch_of([(1, "t1", 0)])
    monkeypatch.setattr(by_group, "writer_to", lambda _: Unanswered())
    task = GroupTask(cast(Route, SimpleNamespace(tables=TABLES, limits=LIMITS)), (), frozenset())
    with pytest.raises(RequestTimeoutError):
        send_entries(task, [Part("file", batch, np.arange(1))])


# ------------------------------------------------------------------ what was sent while a file was open

OTHER = b"%032x" % 7


def test_an_interrupt_does_not_wait_for_lanes_that_wait_for_a_paused_run_and_they_send_nothing_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    batch, _ = batch_of([(1, "t1", 0)])
    begun, resumed, sent = threading.Event(), threading.Event(), list[int]()

    def send(runs: Sequence[CellRun], cells: memoryview | bytes) -> None:
        begun.set()
        resumed.wait(20)
        sent.append(len(runs))

    monkeypatch.setattr(by_group, "writer_to", lambda _: SimpleNamespace(send=send))
    route = SimpleNamespace(tables=TABLES, limits=LIMITS)
    lanes = _Lanes(cast(GroupTask, SimpleNamespace(route=route, held=frozenset())))
    began = time.monotonic()
    with suppress(KeyboardInterrupt), lanes:
        for number in range(2):
            lanes.put(_Request(number, "file", batch, np.arange(1)))
        assert begun.wait(10)
        raise KeyboardInterrupt
    assert time.monotonic() - began < 10
    resumed.set()
    for thread in lanes._threads:
        thread.join(10)
        assert not thread.is_alive()
    assert sent == [1], "what was under way, and not the one after it"


class Recorder:
    """A guard and a writer that remember what they were told."""

    def __init__(self) -> None:
        self.cells: list[bytes] = []
        self.marked: dict[str, str] = {}

    def __call__(self, tables: object) -> None:
        pass

    def send(self, runs: Sequence[CellRun], cells: memoryview | bytes) -> None:
        self.cells.append(bytes(cells))

    def mark_dirty(self, rows: dict[str, tuple[bytes, bytes]], why: str = "") -> None:
        self.marked |= dict.fromkeys(rows, why)


def apply_sealed(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    sent_of: list[bytes],
    regions: set[bytes],
    sealed: list[bytes],
    followed: frozenset[str] = frozenset(),
) -> tuple[FileReport, Recorder]:
    """Apply a file of these entries, after it had shown others, of which some regions' were sent."""
    prefix = Prefix()
    for batch in WalReader([header() + b"".join(sent_of)], "file"):
        prefix.add(batch)
    path = tmp_path / "WALs" / "rs,1,2" / "rs%2C1%2C2.7"
    path.parent.mkdir(parents=True)
    path.write_bytes(header() + b"".join(sealed) + TRAILER)
    told = Recorder()
    monkeypatch.setattr(by_group, "writer_to", lambda _: told)
    (file,) = list_wals(Local(), str(tmp_path))
    route = SimpleNamespace(
        tables={"t1": "one"}, limits=LIMITS, guard=told, open=lambda file: open_wal(Local(), str(tmp_path), file)
    )
    shown = ((prefix.end, prefix.crc),)
    sent = Sent(prefix.end, shown, frozenset({"t1"}), frozenset(region.decode() for region in regions))
    standing = frozenset({REGION.decode(), OTHER.decode()})
    task = GroupTask(cast(Route, route), (file,), standing, sent={file.name: sent}, followed=followed)
    (report,) = apply_group(task)
    assert report.compared, "nobody need read it again for that"
    return report, told


def numbers_sent(told: Recorder) -> dict[bytes, list[int]]:
    """Which of `entries_of` were sent of each region."""
    whole = b"".join(told.cells)
    return {
        region: [n for n in range(5) if encode_cell(b"r", b"f", b"q", n, 4, region) in whole]
        for region in (REGION, OTHER)
    }


def entries_of(count: int, region: bytes = REGION) -> list[bytes]:
    return [
        entry([encode_cell(b"r", b"f", b"q", number, 4, region)], number + 1, encoded_region_name=region)
        for number in range(count)
    ]


def test_what_was_sent_of_an_open_file_is_left_out_of_the_sealed_one_and_still_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, other = entries_of(5), entries_of(5, OTHER)
    both = [each for pair in zip(mine, other, strict=True) for each in pair]
    report, told = apply_sealed(tmp_path, monkeypatch, both[:6], {REGION}, both)
    assert report.tallies[0].entries == 10
    assert told.marked == {}
    assert numbers_sent(told) == {REGION: [3, 4], OTHER: [0, 1, 2, 3, 4]}, "of the other region nothing had been sent"


@pytest.mark.parametrize("kept", [2, 3])
def test_what_the_source_has_taken_back_is_marked_and_the_file_is_applied_as_it_is(
    kept: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dead server's file is recovered without its last bytes, or goes on with others."""
    shown = entries_of(4)
    sealed = shown[:kept] + [entry([encode_cell(b"z", b"f", b"q", 9, 4)], 9)] * (kept - 2)
    _, told = apply_sealed(tmp_path, monkeypatch, shown, {REGION}, sealed)
    assert set(told.marked) == {"one"}
    assert "edits that the source has lost: rs%2C1%2C2.7 had shown" in told.marked["one"]
    sent = b"".join(told.cells)
    assert all(encode_cell(b"r", b"f", b"q", number, 4, REGION) in sent for number in range(kept))


def test_of_a_damaged_file_nobody_says_that_its_server_took_something_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = entries_of(4)
    _, told = apply_sealed(tmp_path, monkeypatch, shown, {REGION}, [shown[0], b"\x00\x00\x00\x05what!", *shown[2:]])
    assert "it is unknown whether it was sealed with them, since it is damaged" in told.marked["one"]


def test_what_a_killed_process_may_have_sent_is_checked_and_sent_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = entries_of(4)
    _, told = apply_sealed(tmp_path, monkeypatch, shown, set(), shown)
    assert told.marked == {}
    assert all(encode_cell(b"r", b"f", b"q", number, 4, REGION) in b"".join(told.cells) for number in range(4))


def test_of_a_region_that_was_followed_through_moves_only_the_rest_is_sent_and_all_of_it_counted_as_moved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that another process, which cannot leave it out, knows all files that it has to sort."""
    mine, other = entries_of(5), entries_of(5, OTHER)
    both = [each for pair in zip(mine, other, strict=True) for each in pair]
    moved, regions = frozenset({REGION.decode()}), {REGION, OTHER}
    report, told = apply_sealed(tmp_path, monkeypatch, both[:6], regions, both, followed=moved)
    assert numbers_sent(told) == {REGION: [3, 4], OTHER: [3, 4]}
    whole = sum(len(encode_cell(b"r", b"f", b"q", number, 4, REGION)) for number in range(5))
    assert [(edits.region, edits.size) for edits in report.moved] == [(REGION.decode(), whole)]
    assert told.marked == {}


def test_of_such_a_region_nothing_is_sent_again_if_the_file_was_sealed_with_other_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another file may hold what it wrote later."""
    mine, other = entries_of(5), entries_of(5, OTHER)
    shown, sealed = [mine[0], mine[1], other[0]], [mine[0], other[0], other[1]]
    moved = frozenset({REGION.decode()})
    _, told = apply_sealed(tmp_path, monkeypatch, shown, {REGION, OTHER}, sealed, followed=moved)
    assert told.marked
    assert numbers_sent(told) == {REGION: [], OTHER: [0, 1]}


@pytest.mark.timeout(30)
def test_entries_of_one_batch_may_be_sent_in_several_parts_between_which_another_batch_s_come(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Hole: a lane ended without a word once a batch that it had sent a part of came again, and nobody was told."""
    told = Recorder()
    monkeypatch.setattr(by_group, "writer_to", lambda _: told)
    (batch,) = WalReader([header() + b"".join(entries_of(3))], "file")
    (between,) = WalReader([header() + b"".join(entries_of(5))], "other")
    route = SimpleNamespace(tables={"t1": "one"}, limits=LIMITS)
    parts = [
        Part("file", batch, np.array([0])),
        Part("other", between, np.array([3])),
        Part("file", batch, np.array([1, 2])),
    ]
    assert send_entries(GroupTask(cast(Route, route), (), frozenset()), parts) == []
    expected = [(batch, 0), (between, 3), (batch, 1), (batch, 2)]
    assert b"".join(told.cells) == b"".join(b.buffer[b.cells_start[at] : b.end[at]].tobytes() for b, at in expected)
