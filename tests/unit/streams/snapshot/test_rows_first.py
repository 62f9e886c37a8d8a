"""A model of a cluster: rows of a snapshot and changes together have every edit, in row order, and none twice."""

from __future__ import annotations

from hypothesis import example, given, settings
from hypothesis import strategies as st

from unit.streams.ordering.source_model import Entry, Source, Streamer
from unit.streams.ordering.test_order import happen, settle
from walferry.formats.markers import Marker

EVENTS = (
    "write", "write", "write", "sync", "move", "split", "merge", "kill", "recover", "pass", "pass", "long pass", "lost",
    "restart", "truncate",
)  # fmt: skip
events = st.lists(st.tuples(st.sampled_from(EVENTS), st.integers(0, 7), st.integers(0, 7)), max_size=25)
while_flushing = st.sampled_from(["nothing", "write", "move", "split"])


@settings(max_examples=400, deadline=None)
@given(events, events, while_flushing, events, st.integers(1, 3), st.integers(1, 3))
@example([], [("split", 0, 0), ("write", 0, 0)], "nothing", [("write", 0, 0)], 1, 1)
@example([], [("truncate", 0, 0), ("write", 0, 0)], "nothing", [("write", 0, 0)], 1, 1)
@example([("write", 0, 0), ("pass", 0, 0)], [("write", 0, 0)], "write", [("split", 0, 0), ("write", 1, 0)], 2, 1)
def test_rows_and_changes_have_every_edit_once_and_in_row_order(
    before: list[tuple[str, int, int]],
    held: list[tuple[str, int, int]],
    meanwhile: str,
    after: list[tuple[str, int, int]],
    servers: int,
    regions: int,
) -> None:
    source = Source(servers, regions)
    streamer = Streamer(source)
    for what, one, other in before:
        happen(source, streamer, what, one, other)
    if before:
        settle(source, streamer)  # as a stream that follows, before it holds a table
    sent_before = {(one.region, one.number) for one in streamer.sent}
    streamer.hold()
    for what, one, other in held:
        happen(source, streamer, what, one, other)
    for server in source.servers:
        source.recover(server, 0)
    snapshot = source.snapshot(lambda: happen(source, streamer, meanwhile, 0, 1) if meanwhile != "nothing" else None)
    taken = snapshot is not None and streamer.send_rows(snapshot, joins=not before)
    streamer.let_go()
    for what, one, other in after:
        happen(source, streamer, what, one, other)
    settle(source, streamer)

    sent = [(one.region, one.number) for one in streamer.sent if one.marker is Marker.NONE]
    left_out = [(one.region, one.number) for one in streamer.left_out]
    held_by = {(e.region, e.number) for e in source.edits() if taken and snapshot and is_in(source, snapshot, e)}
    assert sorted(sent + left_out) == sorted((one.region, one.number) for one in source.edits())
    assert set(left_out) == held_by - sent_before
    require_rising(streamer, source)


def is_in(source: Source, snapshot: dict[str, int], edit: Entry) -> bool:
    """Whether a snapshot has an edit: its region was flushed after it, or gave way to one of the snapshot's."""
    if edit.region in snapshot:
        return edit.number <= snapshot[edit.region]
    return any(edit.region in source.ancestors(name) for name in snapshot)


def require_rising(streamer: Streamer, source: Source) -> None:
    """Positions rise from the rows before to those after, of a region and of those that have its rows later."""
    seen: dict[str, tuple[int, float]] = {}
    for entry, incarnation in zip(streamer.sent, streamer.incarnations, strict=True):
        position = (incarnation, entry.number + (0.5 if entry.marker is Marker.FLUSH else 0))
        for region in (entry.region, *source.ancestors(entry.region)):
            assert position > seen.get(region, (-1, -1)), (entry, region)
        seen[entry.region] = position
