"""Edits of open logs are passed on in each region's order, through moves; what cannot be put in order is left."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unit.formats.wal_builder import entry, header
from walferry.apply.by_group import Part
from walferry.formats.cells import encode_cell
from walferry.formats.markers import Marker
from walferry.formats.wal import EntryBatch, WalReader
from walferry.replay.log.cut import server_of
from walferry.replay.rounds import sendable
from walferry.replay.rounds.sendable import Sendable

A, B, C = "a,1,1", "b,1,1", "c,1,1"
SERVERS = (A, B, C)
R, OTHER, UNKNOWN = "region", "another region", "daughter"
PUT = encode_cell(b"r", b"f", b"q", 1, 4)
AT_A, AT_B = f"{A} 4", f"{B} 4"
"""lines"""
Line = tuple[str, str, int]
"""region, "edit", "open" or "close", sequence number"""


def batch_of(*lines: Line) -> EntryBatch:
    """A batch of a log with these entries."""
    log = header()
    for region, what, number in lines:
        qualifier = f"HBASE::REGION_EVENT::REGION_{what.upper()}".encode()
        cell = PUT if what == "edit" else encode_cell(b"r", b"METAFAMILY", qualifier, 1, 4)
        log += entry([cell], number, encoded_region_name=region.encode())
    (batch,) = WalReader([log], "log")
    return batch


def take(regions: Sendable, server: str, *lines: Line) -> list[int]:
    """The numbers of the edits that are passed on once a server's log has shown these lines."""
    return numbers_of(regions.take(server, server, batch := batch_of(*lines), batch.marker == Marker.NONE))


def numbers_of(parts: Sequence[Part], region: str | None = None) -> list[int]:
    found = []
    for part in parts:
        mine = [e for e in part.picked.tolist() if region in (None, part.batch.regions[part.batch.region[e]].decode())]
        found += part.batch.sequence_number[mine].tolist()
    return found


def test_what_follows_an_opening_waits_for_all_up_to_the_closing_before_it() -> None:
    regions = Sendable({R: AT_A})
    assert take(regions, A, (R, "edit", 5)) == [5]
    assert take(regions, B, (R, "open", 9), (R, "edit", 10)) == []
    assert regions.waits
    assert regions.is_behind(B)
    assert regions.whole == frozenset()
    assert take(regions, A, (R, "edit", 6), (R, "close", 7)) == [6, 10]
    assert (regions.waits, regions.left) == (False, set())
    assert take(regions, B, (R, "edit", 11)) == [11]
    assert regions.whole == {R}
    assert regions.lines(R) == [AT_A, f"{B} 8"], "as hbase:meta has it"
    assert take(regions, B, (R, "close", 12)) == []
    assert regions.whole == {R}


def test_a_region_that_comes_back_goes_on_in_the_order_of_its_openings() -> None:
    regions = Sendable({R: AT_A})
    assert take(regions, B, (R, "open", 9), (R, "edit", 10), (R, "close", 11)) == []
    back = [(R, "edit", 6), (R, "close", 7), (R, "open", 13), (R, "edit", 14)]
    assert take(regions, A, *back) == [6, 10, 14]
    assert take(regions, A, (R, "edit", 15)) == [15]


def test_a_region_that_opens_again_on_its_server_goes_on() -> None:
    regions = Sendable({R: AT_A, OTHER: AT_A})
    shown = [(R, "edit", 1), (OTHER, "edit", 4), (R, "close", 2), (R, "open", 4), (R, "edit", 5), (OTHER, "edit", 5)]
    assert sorted(take(regions, A, *shown)) == [1, 4, 5, 5]
    assert regions.whole == {R, OTHER}
    assert (regions.lines(R), regions.lines(OTHER)) == ([AT_A, f"{A} 3"], [AT_A])


@pytest.mark.parametrize("opened", [7, 12], ids=["not above the closing", "others may have come between"])
def test_an_opening_of_another_number_is_left_after_the_next_pass(opened: int) -> None:
    regions = Sendable({R: AT_A})
    assert take(regions, A, (R, "close", 8)) == []
    assert take(regions, B, (R, "open", opened), (R, "edit", 20)) == []
    regions.end_pass()
    assert not regions.left, "the closing may be in what was read before it was written"
    regions.end_pass()
    assert regions.left == {R}
    assert regions.is_behind(B)
    assert take(regions, B, (R, "edit", 21)) == []


def test_edits_of_a_server_that_the_region_is_not_known_to_be_on_are_left() -> None:
    regions = Sendable({R: AT_A, OTHER: AT_A})
    assert take(regions, B, (R, "edit", 5), (UNKNOWN, "open", 3), (UNKNOWN, "edit", 4)) == []
    assert regions.left == {R, UNKNOWN}
    assert take(regions, A, (R, "edit", 4), (OTHER, "edit", 1)) == [1], "of what is left, nothing more"


def test_after_a_closing_nothing_of_its_server_is_passed_on() -> None:
    regions = Sendable({R: AT_A})
    assert take(regions, A, (R, "close", 5), (R, "edit", 6)) == []
    assert regions.left == {R}


def test_a_region_that_does_not_go_on_with_what_it_held_is_left() -> None:
    """Hole: edits after `restore_snapshot` were sent before anybody saw that the table had begun anew (R11)."""
    asked: list[str] = []

    def continues(region: str) -> bool:
        asked.append(region)
        return False

    regions = Sendable({R: AT_A, OTHER: AT_A}, continues=continues)
    assert take(regions, A, (R, "edit", 5), (R, "close", 6), (OTHER, "edit", 1)) == [5, 1]
    assert asked == [], "nothing has opened yet"
    assert take(regions, B, (R, "open", 8), (R, "edit", 9)) == []
    assert (asked, regions.left, set(regions.whole)) == ([R], {R}, {OTHER})
    assert regions.is_behind(B)


def test_of_held_regions_nothing_is_passed_on_and_nothing_left() -> None:
    regions = Sendable({R: AT_A, OTHER: AT_A}, {R})
    assert take(regions, A, (R, "edit", 4), (OTHER, "edit", 1)) == [1]
    assert take(regions, A, (R, "edit", 5), (R, "close", 6), (OTHER, "edit", 2)) == [2]
    regions.leave(R)
    assert not regions.left
    assert not regions.waits
    assert regions.whole == {OTHER}


def test_too_much_that_waits_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sendable, "MOST_WAITING_BYTES", 10)
    regions = Sendable({R: AT_A})
    assert take(regions, B, (R, "open", 9), (R, "edit", 10)) == []
    assert (regions.waits, regions.left) == (False, {R})


# ------------------------------------------------------------------ any history


@dataclass
class World:
    """A cluster whose regions are written, moved, reopened and crash; `logs` has what each server logs, and when."""

    at: dict[str, str]
    number: dict[str, int] = field(default_factory=lambda: defaultdict(lambda: 10))
    logs: dict[str, list[tuple[int, Line]]] = field(default_factory=lambda: {server: [] for server in SERVERS})
    written: dict[str, list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))
    dead: dict[str, int] = field(default_factory=dict)
    """and when they died"""
    lines: list[tuple[int, str, str | None]] = field(default_factory=list)
    """of each region from some moment on; None while it is on no server"""
    time: int = 0

    def log(self, region: str, what: str, skip: int = 1) -> None:
        self.time += 1
        self.number[region] += skip
        self.logs[self.at[region]].append((self.time, (region, what, self.number[region])))
        if what == "edit":
            self.written[region].append((self.time, self.number[region]))
        else:
            opened = f"{self.at[region]} {self.number[region] - 1}" if what == "open" else None
            self.lines.append((self.time, region, opened))

    def move(self, region: str, server: str, skip: int) -> None:
        """`skip`: 2, or 3 as in 1.x; more if something else has used numbers."""
        if server not in self.dead:
            self.log(region, "close")
            self.at[region] = server
            self.log(region, "open", skip)

    def die(self, server: str) -> None:
        """Its regions go on elsewhere, without a closing."""
        alive = [other for other in SERVERS if other != server and other not in self.dead]
        if server not in self.dead and alive:
            self.dead[server] = self.time
            for region in sorted(self.at):
                if self.at[region] == server:
                    self.at[region] = alive[0]
                    # Edits raise the number; an opening without one does not.
                    self.log(region, "open", 2 if self.number[region] in self.edits(region) else 0)

    def edits(self, region: str, until: float = math.inf) -> list[int]:
        return [number for at, number in self.written[region] if at <= until]

    def lines_at(self, moment: int) -> dict[str, str]:
        found: dict[str, str | None] = {R: AT_A, OTHER: AT_B}
        found |= {region: line for at, region, line in self.lines if at <= moment}
        return {region: line for region, line in found.items() if line and server_of(line) not in self.dead_at(moment)}

    def dead_at(self, moment: int) -> set[str]:
        return {server for server, at in self.dead.items() if at <= moment}


Act = Callable[[World], None]
REGIONS = [R, OTHER]
acts = st.one_of(
    st.builds(lambda r: lambda w: w.log(r, "edit"), st.sampled_from(REGIONS)),
    st.builds(
        lambda r, s, skip: lambda w: w.move(r, s, skip),
        st.sampled_from(REGIONS), st.sampled_from(SERVERS), st.sampled_from([2, 2, 2, 3, 5, 9]),
    ),
)  # fmt: skip
deaths = st.builds(lambda s: lambda w: w.die(s), st.sampled_from(SERVERS))
looks = st.lists(
    st.tuples(st.lists(st.integers(0, 8), min_size=3, max_size=3), st.sampled_from(["", "", "cut", "batch done"])),
    max_size=8,
)


@dataclass
class Following:
    """What passes over the logs pass on, and batches apply."""

    world: World
    regions: Sendable = field(default_factory=lambda: Sendable({R: AT_A, OTHER: AT_B}))
    passed: dict[str, list[int]] = field(default_factory=lambda: {region: [] for region in REGIONS})
    read: dict[str, int] = field(default_factory=lambda: dict.fromkeys(SERVERS, 0))
    """entries of each log"""
    taken: dict[str, int] = field(default_factory=lambda: dict.fromkeys(SERVERS, 0))
    whole: frozenset[str] = frozenset()
    now: int = 0

    def look(self, later: Sequence[int] = (0, 0, 0)) -> None:
        """A pass; how much later each server's log is read in it."""
        moments = [self.now + more for more in later]
        for server, moment in zip(SERVERS, moments, strict=True):
            shown = [line for at, line in self.world.logs[server] if at <= moment]
            first, self.read[server] = self.read[server], max(self.read[server], len(shown))
            middle = first + (len(shown) - first) // 2
            for begin, end in ((first, middle), (middle, len(shown))):
                if begin < end:
                    self.take(server, begin, shown[begin:end])
        self.regions.end_pass()
        self.now = max(moments)

    def take(self, server: str, begin: int, lines: Sequence[Line]) -> None:
        batch = batch_of(*lines)
        before = np.arange(begin, begin + len(lines)) < self.taken[server]
        again = before & batch.of_regions(self.whole)
        self.pass_on(self.regions.take(server, server, batch, batch.marker == Marker.NONE, again))

    def pass_on(self, parts: Sequence[Part]) -> None:
        for region in REGIONS:
            self.passed[region] += numbers_of(parts, region)

    def cut(self, later: Sequence[int]) -> None:
        """Cut the logs now, go on for a while, and apply what was not passed on of what is before the cut."""
        self.pass_on(self.regions.batch_done())
        moment = self.now
        self.look(later)
        self.look(later)
        lines, dead = self.world.lines_at(moment), self.world.dead_at(moment)
        whole = {
            region: line
            for region, line in lines.items()
            if region in self.regions.whole and line in self.regions.lines(region)
            and dead.isdisjoint(map(server_of, self.regions.lines(region)))
        }  # fmt: skip
        for region in REGIONS:
            written = self.world.edits(region, moment)
            if region not in whole:
                self.passed[region] = written
            assert self.passed[region][: len(written)] == written
        others = {region: line for region, line in lines.items() if region not in whole}
        self.regions.take_up(whole, others, ())
        self.whole, self.taken = frozenset(whole), dict(self.read)
        self.read = {s: sum(1 for at, _ in self.world.logs[s] if at <= moment) for s in SERVERS}


Looks = Sequence[tuple[Sequence[int], str]]


def follow(world: World, looks: Looks, *, quiet: bool = False) -> tuple[Sendable, dict[str, list[int]]]:
    """What passes over the logs pass on, of which some come after a cut, or once its batch is applied. `quiet`: the log
    is not cut while a region moves."""
    following = Following(world)
    for later, what in looks:
        if what == "cut" and not (quiet and len(world.lines_at(following.now)) < len(REGIONS)):
            following.cut(later)
        elif what == "batch done":
            following.pass_on(following.regions.batch_done())
        following.look(later)
    following.pass_on(following.regions.batch_done())
    following.now = max(following.now, world.time)
    for _ in range(3):
        following.look()
    return following.regions, following.passed


@given(st.lists(st.one_of(acts, acts, acts, deaths), max_size=25), looks)
def test_whatever_happens_each_region_is_passed_on_from_its_beginning_in_order(
    history: Sequence[Act], looks: Looks
) -> None:
    world = World({R: A, OTHER: B})
    for act in history:
        act(world)
    regions, passed = follow(world, looks)
    assert not regions.waits
    for region in REGIONS:
        written = world.edits(region)
        assert passed[region] == written[: len(passed[region])]
        assert region in regions.left or passed[region] == written
        assert region not in regions.whole or passed[region] == written


@given(st.lists(st.builds(
    lambda r, s, edits: lambda w: [w.move(r, s, 2), *(w.log(r, "edit") for _ in range(edits))],
    st.sampled_from(REGIONS), st.sampled_from(SERVERS), st.integers(0, 2)), max_size=12,
), looks)  # fmt: skip
def test_moves_alone_leave_nothing(history: Sequence[Act], looks: Looks) -> None:
    world = World({R: A, OTHER: B})
    for act in history:
        act(world)
    regions, passed = follow(world, looks, quiet=True)
    assert regions.left == set()
    assert passed == {region: world.edits(region) for region in REGIONS}


def test_positions_are_those_of_the_batch() -> None:
    batch = batch_of((OTHER, "edit", 1), (R, "edit", 5), (R, "close", 6), (R, "open", 8), (R, "edit", 9))
    (part,) = Sendable({R: AT_A, OTHER: AT_B}).take(A, "log", batch, batch.marker == Marker.NONE)
    assert part.file == "log"
    assert np.array_equal(part.picked, [1, 4])
