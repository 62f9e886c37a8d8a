from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

from walferry.run.turn import Turn
from walferry.streams.follower import Follower, Passed
from walferry.streams.passes import Passes
from walferry.streams.resolved import ResolvedTimes
from walferry.streams.snapshot.records import Snapshots
from walferry.streams.snapshot.sender import SnapshotSender
from walferry.streams.stream_run import StreamRun


def test_a_snapshot_is_told_how_far_the_log_was_followed_and_how_that_is_recorded() -> None:
    calls: list[str] = []
    passed = Passed(0, 0, 0, 0, 7, frozenset({"held"}), None)
    follower: Any = SimpleNamespace(pass_once=lambda: passed, record=lambda: calls.append("recorded"))

    def followed(moment: int, sent: frozenset[str], record: Callable[[], None]) -> None:
        calls.append(f"followed up to {moment}, of {sorted(sent)}")
        record()

    sender: Any = SimpleNamespace(snapshots=Snapshots(), followed=followed)
    times: Any = SimpleNamespace(tell=lambda moment, tables: calls.append(f"resolved {sorted(tables)}"))
    passes = Passes.__new__(Passes)
    passes._run = cast(StreamRun, SimpleNamespace(source_tables=["held", "t"]))
    passes._turn = cast(Turn, None)
    passes._follower, passes._snapshots = cast(Follower, follower), cast(SnapshotSender, sender)
    passes._times = cast(ResolvedTimes, times)
    passes._account = cast(Any, SimpleNamespace(add=lambda passed: 0))
    passes._held, passes._owed = 0, (0, 0)
    passes._pass()
    assert calls == ["followed up to 7, of ['t']", "recorded", "resolved ['t']"]
