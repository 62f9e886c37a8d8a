"""Edits of open logs are passed on in each region's order, through moves; what cannot be put in order is left."""

from __future__ import annotations

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
from walferry.replay import handover
from walferry.replay.handover import Handover

A, B, C = "a,1,1", "b,1,1", "c,1,1"
SERVERS = (A, B, C)
R, OTHER, UNKNOWN = "region", "another region", "daughter"
PUT = encode_cell(b"r", b"f", b"q", 1, 4)
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


def take(regions: Handover, server: str, *lines: Line) -> list[int]:
    """The numbers of the edits that are passed on once a server's log has shown these lines."""
    return numbers_of(regions.take(server, server, batch := batch_of(*lines), batch.marker == Marker.NONE))


def numbers_of(parts: Sequence[Part], region: str | None = None) -> list[int]:
    found = []
    for part in parts:
        mine = [e for e in part.picked.tolist() if region in (None, part.batch.regions[part.batch.region[e]].decode())]
        found += part.batch.sequence_number[mine].tolist()
    return found


def test_what_follows_an_opening_waits_for_all_up_to_the_closing_before_it() -> None:
    regions = Handover({R: A})
    assert take(regions, A, (R, "edit", 5)) == [5]
    assert take(regions, B, (R, "open", 9), (R, "edit", 10)) == []
    assert regions.waits
    assert regions.is_behind(B)
    assert regions.followed == {}
    assert take(regions, A, (R, "edit", 6), (R, "close", 7)) == [6, 10]
    assert (regions.waits, regions.left) == (False, set())
    assert take(regions, B, (R, "edit", 11)) == [11]
    assert regions.still == frozenset()
    assert regions.followed == {R: f"{B} 8"}, "as hbase:meta has it"
    assert take(regions, B, (R, "close", 12)) == []
    assert regions.followed == {}


def test_a_region_that_comes_back_goes_on_in_the_order_of_its_openings() -> None:
    regions = Handover({R: A})
    assert take(regions, B, (R, "open", 9), (R, "edit", 10), (R, "close", 11)) == []
    back = [(R, "edit", 6), (R, "close", 7), (R, "open", 13), (R, "edit", 14)]
    assert take(regions, A, *back) == [6, 10, 14]
    assert take(regions, A, (R, "edit", 15)) == [15]


def test_a_region_that_opens_again_on_its_server_goes_on() -> None:
    regions = Handover({R: A, OTHER: A})
    shown = [(R, "edit", 1), (OTHER, "edit", 4), (R, "close", 2), (R, "open", 4), (R, "edit", 5), (OTHER, "edit", 5)]
    assert sorted(take(regions, A, *shown)) == [1, 4, 5, 5]
    assert regions.still == {OTHER}


@pytest.mark.parametrize("opened", [7, 12], ids=["not above the closing", "others may have come between"])
def test_an_opening_of_another_number_is_left_after_the_next_pass(opened: int) -> None:
    regions = Handover({R: A})
    assert take(regions, A, (R, "close", 8)) == []
    assert take(regions, B, (R, "open", opened), (R, "edit", 20)) == []
    regions.end_pass()
    assert not regions.left, "the closing may be in what was read before it was written"
    regions.end_pass()
    assert regions.left == {R}
    assert regions.is_behind(B)
    assert take(regions, B, (R, "edit", 21)) == []


def test_edits_of_a_server_that_the_region_is_not_known_to_be_on_are_left() -> None:
    regions = Handover({R: A, OTHER: A})
    assert take(regions, B, (R, "edit", 5), (UNKNOWN, "open", 3), (UNKNOWN, "edit", 4)) == []
    assert regions.left == {R, UNKNOWN}
    assert take(regions, A, (R, "edit", 4), (OTHER, "edit", 1)) == [1], "of what is left, nothing more"


def test_after_a_closing_nothing_of_its_server_is_passed_on() -> None:
    regions = Handover({R: A})
    assert take(regions, A, (R, "close", 5), (R, "edit", 6)) == []
    assert regions.left == {R}


def test_a_region_that_does_not_go_on_with_what_it_held_is_left() -> None:
    """Hole: edits after `restore_snapshot` were sent before anybody saw that the table had begun anew (R11)."""
    asked: list[str] = []

    def continues(region: str) -> bool:
        asked.append(region)
        return False

    regions = Handover({R: A, OTHER: A}, continues=continues)
    assert take(regions, A, (R, "edit", 5), (R, "close", 6), (OTHER, "edit", 1)) == [5, 1]
    assert asked == [], "nothing has opened yet"
    assert take(regions, B, (R, "open", 8), (R, "edit", 9)) == []
    assert (asked, regions.left, regions.followed) == ([R], {R}, {})
    assert regions.is_behind(B)


def test_of_held_regions_nothing_is_passed_on_and_nothing_left() -> None:
    regions = Handover({R: A, OTHER: A}, {R})
    assert take(regions, A, (R, "edit", 4), (OTHER, "edit", 1)) == [1]
    assert take(regions, A, (R, "edit", 5), (R, "close", 6), (OTHER, "edit", 2)) == [2]
    regions.leave(R)
    assert not regions.left
    assert not regions.waits
    assert regions.still == {OTHER}


def test_too_much_that_waits_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handover, "MOST_WAITING_BYTES", 10)
    regions = Handover({R: A})
    assert take(regions, B, (R, "open", 9), (R, "edit", 10)) == []
    assert (regions.waits, regions.left) == (False, {R})


# ------------------------------------------------------------------ any history


@dataclass
class World:
    """A cluster whose regions are written, moved, reopened and crash; `logs` has what each server logs, and when."""

    at: dict[str, str]
    number: dict[str, int] = field(default_factory=lambda: defaultdict(lambda: 10))
    logs: dict[str, list[tuple[int, Line]]] = field(default_factory=lambda: {server: [] for server in SERVERS})
    written: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    dead: set[str] = field(default_factory=set)
    time: int = 0

    def log(self, region: str, what: str, skip: int = 1) -> None:
        self.time += 1
        self.number[region] += skip
        self.logs[self.at[region]].append((self.time, (region, what, self.number[region])))
        if what == "edit":
            self.written[region].append(self.number[region])

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
            self.dead.add(server)
            for region in sorted(self.at):
                if self.at[region] == server:
                    self.at[region] = alive[0]
                    # Edits raise the number; an opening without one does not.
                    self.log(region, "open", 2 if self.number[region] in self.written[region] else 0)


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
looks = st.lists(st.lists(st.integers(0, 8), min_size=3, max_size=3), max_size=6)


def follow(world: World, looks: Sequence[Sequence[int]]) -> tuple[Handover, dict[str, list[int]]]:
    """What passes over the logs pass on. Each look is a pass: how much later each server's log is read in it."""
    regions = Handover({R: A, OTHER: B})
    passed: dict[str, list[int]] = {region: [] for region in REGIONS}
    read = dict.fromkeys(SERVERS, 0)
    now = 0
    for look in [*looks, [world.time] * 3, [0] * 3, [0] * 3]:
        moments = [now + later for later in look]
        for server, moment in zip(SERVERS, moments, strict=True):
            shown = [line for at, line in world.logs[server] if at <= moment]
            new, read[server] = shown[read[server] :], len(shown)
            for some in (new[: len(new) // 2], new[len(new) // 2 :]):
                if some:
                    batch = batch_of(*some)
                    parts = regions.take(server, server, batch, batch.marker == Marker.NONE)
                    for region in REGIONS:
                        passed[region] += numbers_of(parts, region)
        regions.end_pass()
        now = max(moments)
    return regions, passed


@given(st.lists(st.one_of(acts, acts, acts, deaths), max_size=25), looks)
def test_whatever_happens_each_region_is_passed_on_from_its_beginning_in_order(
    history: Sequence[Act], looks: Sequence[Sequence[int]]
) -> None:
    world = World({R: A, OTHER: B})
    for act in history:
        act(world)
    regions, passed = follow(world, looks)
    assert not regions.waits
    for region in REGIONS:
        written = world.written[region]
        assert passed[region] == written[: len(passed[region])]
        assert region in regions.left or passed[region] == written
        assert region not in regions.still or passed[region] == written


@given(st.lists(st.builds(
    lambda r, s, edits: lambda w: [w.move(r, s, 2), *(w.log(r, "edit") for _ in range(edits))],
    st.sampled_from(REGIONS), st.sampled_from(SERVERS), st.integers(0, 2)), max_size=12,
), looks)  # fmt: skip
def test_moves_alone_leave_nothing(history: Sequence[Act], looks: Sequence[Sequence[int]]) -> None:
    world = World({R: A, OTHER: B})
    for act in history:
        act(world)
    regions, passed = follow(world, looks)
    assert regions.left == set()
    assert passed == {region: world.written[region] for region in REGIONS}


def test_positions_are_those_of_the_batch() -> None:
    batch = batch_of((OTHER, "edit", 1), (R, "edit", 5), (R, "close", 6), (R, "open", 8), (R, "edit", 9))
    (part,) = Handover({R: A, OTHER: B}).take(A, "log", batch, batch.marker == Marker.NONE)
    assert part.file == "log"
    assert np.array_equal(part.picked, [1, 4])
