"""Whatever HBase does to its files, and however little a batch may read: every entry is given out once, in order."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from walferry.errors import GapError, WalferryError
from walferry.wal.files import Place, WalFile
from walferry.wal.offsets import (
    BatchLimits,
    CertainListing,
    FileSpan,
    GroupPosition,
    Offset,
    Reached,
    advance,
    begin_at_end,
    between,
    certain,
    is_news,
)

HEADER = 10


def listed(group: str, number: int, place: Place = Place.LIVE, length: int = 0) -> WalFile:
    return WalFile(f"{group}.{number}", group, group, number, f"/{place.value}/{group}.{number}", place, length)


@dataclass
class Log:
    """One file: where its entries end, in bytes."""

    group: str
    number: int
    ends: list[int] = field(default_factory=list)
    place: Place = Place.LIVE
    closed: bool = False
    deleted: bool = False

    @property
    def length(self) -> int:
        return self.ends[-1] if self.ends else HEADER

    def as_listed(self) -> WalFile:
        return listed(self.group, self.number, self.place, self.length if self.closed else 0)

    def holds(self, span: FileSpan) -> list[tuple[int, int]]:
        stop = self.length if span.sealed else span.stop
        return [(self.number, end) for end in self.ends if span.start < end <= stop]


@dataclass
class Server:
    """A region server with one WAL group. A file's successor exists before the file is closed."""

    group: str
    with_dictionaries: bool
    files: list[Log] = field(default_factory=list)
    writer: int = 0
    dead: bool = False

    def create(self) -> None:
        if not self.dead and self.writer == len(self.files) - 1:
            self.files.append(Log(self.group, self.files[-1].number + 3))

    def write(self, size: int) -> None:
        if not self.dead:
            file = self.files[self.writer]
            file.ends.append(file.length + size)

    def switch(self) -> None:
        if not self.dead and self.writer < len(self.files) - 1:
            self.writer += 1

    def close(self, which: int) -> None:
        if not self.dead and self.writer:
            self.files[which % self.writer].closed = True

    def archive(self, which: int) -> None:
        file = self.files[which % len(self.files)]
        if file.closed or self.dead:
            file.closed = True
            file.place = Place.ARCHIVED

    def crash(self) -> None:
        self.dead = True
        for file in self.files:
            if file.place is Place.LIVE:
                file.place = Place.SPLITTING


class World:
    """Some servers and one reader of their logs."""

    def __init__(self, first: int = 0) -> None:
        self.servers: list[Server] = []
        self.start = Offset()
        self.known: dict[str, int] = {}
        self.served: dict[str, int] = {}
        self.given: dict[str, list[tuple[int, int]]] = {}
        self.seen = 0  # how much of what was written is visible, in 1/8: it changes all the time
        self.boot(first)

    def boot(self, number: int) -> None:
        name = f"s{len(self.servers)}"
        self.servers.append(Server(name, number % 2 == 1, [Log(name, 100 + number)]))

    def files(self) -> dict[str, Log]:
        return {f"{file.group}.{file.number}": file for server in self.servers for file in server.files}

    def delete(self, server: Server) -> None:
        """What the cleaner does to archived files, but only to those that the reader is done with."""
        position = self.start.groups.get(server.group)
        for file in server.files:
            if file.place is Place.ARCHIVED and position and (file.number < position.number or position.over):
                file.deleted = True

    def listing(self, meanwhile: Callable[[], None]) -> CertainListing:
        for group, position in self.start.groups.items():
            self.known[group] = max(self.known.get(group, -1), position.number, *position.ahead)
        there = [file for file in self.files().values() if not file.deleted]
        live = [file.as_listed() for file in there if file.place is not Place.ARCHIVED]
        meanwhile()
        there = [file for file in self.files().values() if not file.deleted]
        archived = [file.as_listed() for file in there if file.place is Place.ARCHIVED]
        listing = certain(live, archived, self.known)
        for file in (*live, *archived):
            self.known[file.group] = max(self.known.get(file.group, -1), file.number)
        return listing

    def reach(self, file: WalFile, offset: int, most: int | None, *, whole_entry: bool, newer: bool) -> Reached:
        log = self.files()[file.name]
        if log.closed and (most is None or log.length - offset <= most):
            return Reached(log.length, True)
        visible = log.length if log.closed else log.length * self.seen // 8
        place = visible if most is None else min(visible, offset + most)
        if next(server for server in self.servers if server.group == file.group).with_dictionaries:
            return Reached(place, False)
        ends = [end for end in log.ends if offset < end <= visible]
        fit = [end for end in ends if end <= place] or ends[: int(whole_entry)]
        if log.closed and not ends and whole_entry:
            return Reached(log.length, True)
        return Reached(fit[-1] if fit else offset, False)

    def step(self, limits: BatchLimits, meanwhile: Callable[[], None] = lambda: None) -> bool:
        """One batch: whether there was anything new. Only what a checkpoint keeps goes from one to the next."""
        end = advance(self.start, self.listing(meanwhile), self.reach, limits, self.served)
        if not is_news(self.start, end):
            return False
        self.served |= {span.file.rpartition(".")[0]: end.batch for span in end.spans}
        end, kept = Offset.from_json(json.loads(json.dumps(end.as_json()))), end
        assert end == kept
        for span in between(self.start, end):
            log = self.files()[span.file]
            assert not log.deleted
            assert log.closed if span.sealed else span.stop <= log.length
            self.given.setdefault(log.group, []).extend(log.holds(span))
        taken = sum(span.stop - span.start for span in end.spans)
        assert limits.bytes is None or taken <= limits.bytes or len(end.spans) == 1
        assert limits.files is None or len(end.spans) <= limits.files
        self.start = end
        return True

    def do(self, action: str, which: int, size: int) -> None:
        server = self.servers[which % len(self.servers)]
        self.seen = size % 9
        match action:
            case "boot" if len(self.servers) < 4:
                self.boot(which)
            case "write":
                server.write(size)
            case "create":
                server.create()
            case "switch":
                server.switch()
            case "close":
                server.close(size)
            case "roll":
                server.create()
                server.switch()
                server.close(server.writer - 1)
            case "archive":
                server.archive(size)
            case "crash":
                server.crash()
            case "delete":
                self.delete(server)
            case "restart":
                self.known, self.served = {}, {}
            case "step":
                self.step(BatchLimits(size if which % 2 else None, which if which % 3 else None))


ACTIONS = ["write", "step", "create", "switch", "close", "roll", "archive", "delete", "boot", "crash", "restart"]
actions = st.tuples(st.sampled_from(ACTIONS), st.integers(0, 7), st.integers(1, 40))


@settings(max_examples=400)
@given(st.integers(0, 1), st.lists(st.tuples(actions, st.lists(actions, max_size=6)), min_size=20, max_size=60))
def test_every_entry_is_given_out_once_and_in_order_whatever_happens(
    first: int, story: list[tuple[tuple[str, int, int], list[tuple[str, int, int]]]]
) -> None:
    world = World(first)
    for (action, which, size), others in story:
        world.do(action, which, size)
        if action == "step":  # things go on between the two halves of a listing

            def meanwhile(others: list[tuple[str, int, int]] = others) -> None:
                for other in others:
                    if other[0] not in ("step", "restart", "delete"):
                        world.do(*other)

            world.step(BatchLimits(size if which % 2 else None), meanwhile)
    for server in world.servers:
        server.crash()
        for number in range(len(server.files)):
            server.archive(number)
    batches = 0
    while world.step(BatchLimits(30, 2)) or batches < 3:
        batches += 1
        assert batches < 5000
    written = {s.group: [(file.number, end) for file in s.files for end in file.ends] for s in world.servers}
    assert {group: world.given.get(group, []) for group in written} == written
    for server in world.servers:
        world.delete(server)
    world.step(BatchLimits())
    assert world.start.groups == {}


# ------------------------------------------------------------------ one by one


def to(stop: int, *, sealed: bool = False) -> Callable[..., Reached]:
    return lambda file, offset, most, *, whole_entry, newer: Reached(stop, sealed)


def listing(*files: WalFile) -> CertainListing:
    live = [file for file in files if file.place is not Place.ARCHIVED]
    return certain(live, [file for file in files if file.place is Place.ARCHIVED], {file.group: 99 for file in files})


def test_a_newer_file_does_not_end_the_one_that_is_still_written_to() -> None:
    two = listing(listed("g", 1), listed("g", 2))
    end = advance(Offset(), two, to(50), BatchLimits())
    assert end.groups["g"] == GroupPosition(1, 50, ahead=(2,))
    assert end.spans == (FileSpan("g.1", 0, 50, sealed=False),)


def test_less_than_was_seen_before_means_nothing() -> None:
    start = Offset(1, {"g": GroupPosition(1, 50)})
    end = advance(start, listing(listed("g", 1)), to(30), BatchLimits())
    assert not is_news(start, end)


@pytest.mark.parametrize(
    ("position", "gone"), [(GroupPosition(1, 50, ahead=(2, 3)), "g.1"), (GroupPosition(2, ahead=(3,)), "g.2")]
)
def test_a_file_that_was_deleted_before_it_was_read_is_a_gap_that_names_it(position: GroupPosition, gone: str) -> None:
    with pytest.raises(GapError, match=gone) as raised:
        advance(Offset(1, {"g": position}), listing(listed("g", 3)), to(10), BatchLimits())
    assert raised.value.file == gone


def test_a_later_file_that_was_seen_and_is_deleted_is_a_gap_too_after_a_restart() -> None:
    start = Offset(1, {"g": GroupPosition(1, 50, ahead=(2, 3))})
    with pytest.raises(GapError, match=r"g\.2"):
        advance(start, listing(listed("g", 1), listed("g", 3)), to(50), BatchLimits())


def test_what_a_dead_server_has_left_may_be_deleted_once_it_is_read_and_is_forgotten() -> None:
    start = Offset(4, {"g": GroupPosition(1, 50)})
    archived = listed("g", 1, Place.ARCHIVED, 60)
    end = advance(start, listing(archived), to(60, sealed=True), BatchLimits())
    assert end.groups["g"] == GroupPosition(1, 60, read=True, over=True)
    assert advance(end, listing(), to(0), BatchLimits()).groups == {}


def test_a_file_that_is_archived_while_the_log_is_listed_may_have_a_successor_that_is_not() -> None:
    now = certain([listed("g", 1)], [listed("g", 1, Place.ARCHIVED, 60)], {})
    end = advance(Offset(1, {"g": GroupPosition(1, 50)}), now, to(60, sealed=True), BatchLimits())
    assert end.groups["g"] == GroupPosition(1, 60, read=True, over=False)
    with pytest.raises(GapError):
        advance(end, listing(listed("g", 4)), to(0), BatchLimits())


def test_a_file_that_was_written_and_archived_during_the_listing_waits_for_the_next_one() -> None:
    # 2 is created after the live files were listed, and cannot be seen; 3 follows it, and is archived at once.
    now = certain([listed("g", 1)], [listed("g", 3, Place.ARCHIVED)], {})
    assert now.groups == {"g": (listed("g", 1),)}
    assert now.unsure
    # Nor is a group at its end while there is such a file.
    now = certain([], [listed("g", 1, Place.ARCHIVED), listed("g", 3, Place.ARCHIVED)], {"g": 1})
    assert now.over == frozenset()


def test_one_entry_is_given_out_even_if_it_is_longer_than_the_limit_and_then_others_have_their_turn() -> None:
    world = World()
    world.boot(2)
    world.seen = 8
    for server in world.servers:
        for _ in range(3):
            server.write(100)
    spans: list[FileSpan] = []
    for _ in range(6):
        assert world.step(BatchLimits(bytes=5))
        spans += world.start.spans
    assert [span.file for span in spans] == ["s0.100", "s1.102"] * 3
    assert [span.stop for span in spans] == [110, 110, 210, 210, 310, 310]


def test_groups_take_turns_when_few_files_may_be_read_at_once() -> None:
    world = World()
    for number in (2, 4):
        world.boot(number)
    world.seen = 8
    read = []
    for _ in range(9):
        for server in world.servers:
            server.write(10)
        assert world.step(BatchLimits(files=1))
        read += [span.file for span in world.start.spans]
    assert read == ["s0.100", "s1.102", "s2.104"] * 3


def test_a_batch_is_read_by_its_own_spans_whatever_start_is_given_now() -> None:
    end = Offset(1, {"g": GroupPosition(1, 50)}, (FileSpan("g.1", 20, 50, sealed=False),))
    assert between(Offset(), end) == end.spans
    assert between(Offset(0, {"g": GroupPosition(1, 40)}), end) == end.spans  # `latest`, asked a second time
    assert between(end, end) == ()
    with pytest.raises(WalferryError, match="one batch at a time"):
        between(Offset(), replace(end, batch=2))


def test_an_offset_of_something_else_is_refused() -> None:
    with pytest.raises(WalferryError, match=r"did not write the offset \{'partition': 3\}$"):
        Offset.from_json({"partition": 3})


def test_what_is_written_from_now_on_begins_in_the_oldest_file_that_may_still_receive_any() -> None:
    files = [listed("g", 1, length=70), listed("g", 2), listed("g", 3)]
    dead = listed("h", 1, Place.ARCHIVED, 80)
    start = begin_at_end(listing(*files, dead), to(50), lambda file: file.number == 1)
    assert start.groups == {"g": GroupPosition(2, 50, ahead=(3,)), "h": GroupPosition(1, 80, read=True, over=True)}
