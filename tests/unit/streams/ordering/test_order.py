from __future__ import annotations

from collections import defaultdict

from hypothesis import example, given, settings
from hypothesis import strategies as st

from unit.streams.ordering.source_model import Source, Streamer

EVENTS = (
    "write", "write", "write", "sync", "move", "split", "merge", "kill", "recover", "pass", "pass", "long pass", "lost",
    "restart", "truncate", "pass and split", "pass and truncate",
)  # fmt: skip
WRITE, SYNC, PASS = ("write", 0, 0), ("sync", 0, 0), ("pass", 0, 0)
events = st.lists(st.tuples(st.sampled_from(EVENTS), st.integers(0, 7), st.integers(0, 7)), max_size=60)


def happen(source: Source, streamer: Streamer, what: str, one: int, other: int) -> None:
    regions = sorted(source.regions)
    region, server = regions[one % len(regions)], source.servers[one % len(source.servers)]
    match what:
        case "write":
            source.write(region)
        case "truncate":
            source.truncate()
        case "sync":
            source.sync(server)
        case "move":
            source.move(region, other)
        case "split":
            source.split(region)
        case "merge":
            source.merge(region, regions[other % len(regions)])
        case "kill":
            source.kill(server, other)
        case "recover":
            source.recover(server, other)
        case "pass":
            streamer.make_pass(other % 3)
        case "long pass":
            streamer.make_pass(meanwhile=lambda: busy(source, region, other))
        case "pass and split":
            streamer.make_pass(meanwhile=lambda: source.split(region) if region in source.regions else None)
        case "pass and truncate":
            streamer.make_pass(meanwhile=source.truncate)
        case "lost":
            streamer.make_pass(other % 3, commit=False)
            streamer.restart()
        case "restart":
            streamer.restart()


def busy(source: Source, region: str, to: int) -> None:
    """A region that moves, and is written to, all the time."""
    if region in source.regions:
        source.write(region)
        source.move(region, to)
        source.write(region)


def settle(source: Source, streamer: Streamer) -> None:
    for server in source.servers:
        source.recover(server, 0)
        source.sync(server)
    for number in range(12):
        streamer.make_pass(rolled=number >= 6)


def require_row_order(streamer: Streamer, source: Source) -> None:
    """Positions rise within a region, and from a region to those that have its rows later, which follow it."""
    seen: dict[str, tuple[int, int]] = {}
    for entry, incarnation in zip(streamer.sent, streamer.incarnations, strict=True):
        position = (incarnation, entry.number)
        for region in (entry.region, *source.ancestors(entry.region)):
            assert position > seen.get(region, (-1, -1)), (entry, region)
        seen[entry.region] = position
        for child in seen:
            assert entry.region not in source.ancestors(child), (entry, child)


def require_old_histories_end(streamer: Streamer) -> None:
    """Once a new history is told, nothing of the former one follows; of one that was missed it may."""
    for before, incarnation in streamer.begun if not streamer.has_missed else ():
        assert all(later >= incarnation for later in streamer.incarnations[before:])


def require_one_incarnation_of_each_history(streamer: Streamer, source: Source) -> None:
    """What was sent of one history has one incarnation, and that of a later history a higher one."""
    found = defaultdict(set)
    for entry, incarnation in zip(streamer.sent, streamer.incarnations, strict=True):
        found[source.histories[entry.region]].add(incarnation)
    incarnations = [found[history] for history in sorted(found)]
    assert all(len(one) == 1 for one in incarnations), found
    flat = [min(one) for one in incarnations]
    assert flat == sorted(set(flat)), found
    last = max(flat, default=0)
    first = next((at for at, incarnation in enumerate(streamer.incarnations) if incarnation == last), 0)
    assert not last or any(incarnation == last and before <= first for before, incarnation in streamer.begun), (
        "the last truncation is not told before the first change after it"
    )


@settings(max_examples=600, deadline=None)
@given(events, st.integers(1, 4), st.integers(1, 3))
@example([("write", 0, 0), ("pass", 0, 0), ("move", 0, 1), ("write", 0, 0), ("restart", 0, 0), ("pass", 0, 0)], 2, 1)
@example([("split", 0, 0), ("write", 0, 0), ("move", 0, 1), ("pass", 0, 0), ("lost", 0, 0)], 2, 1)
@example([*[WRITE] * 5, SYNC, PASS, ("split", 0, 0), *[PASS] * 4, ("truncate", 0, 0), WRITE], 1, 1)
@example([("write", 0, 0), ("long pass", 1, 1), ("kill", 0, 0), ("lost", 0, 0), ("pass", 0, 0), ("lost", 0, 0)], 2, 2)
@example(
    [("truncate", 5, 0), ("pass and truncate", 5, 1), ("long pass", 4, 4), ("restart", 5, 1), ("write", 1, 3)], 2, 1
)
@example(
    [
        ("pass and truncate", 6, 5), ("merge", 7, 6), ("write", 6, 5), ("move", 2, 6), ("pass", 6, 7),
        ("truncate", 0, 5), ("write", 5, 2), ("pass and split", 7, 3), ("restart", 0, 1),
    ],
    2,
    1,
)  # fmt: skip
def test_every_edit_is_sent_once_and_in_row_order_whatever_happens(
    happened: list[tuple[str, int, int]], servers: int, regions: int
) -> None:
    source = Source(servers, regions)
    streamer = Streamer(source)
    for what, one, other in happened:
        happen(source, streamer, what, one, other)
    settle(source, streamer)
    of_source, of_stream = defaultdict(list), defaultdict(list)
    for entry in source.edits():
        of_source[entry.region].append(entry.number)
    for entry in streamer.sent:
        of_stream[entry.region].append(entry.number)
    assert of_stream == {region: sorted(numbers) for region, numbers in of_source.items()}
    require_row_order(streamer, source)
    require_one_incarnation_of_each_history(streamer, source)
    require_old_histories_end(streamer)
    assert not streamer.repeated
