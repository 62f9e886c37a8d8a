from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from walferry.streams.follower import Follower, Passed
from walferry.streams.passes import Passes
from walferry.streams.resolved import ResolvedTimes
from walferry.streams.snapshot.records import Snapshots
from walferry.streams.snapshot.sender import SnapshotSender
from walferry.streams.stream_run import StreamRun
from walferry.streams.turn import Turn


def test_the_positions_are_recorded_before_a_snapshot_is_forgotten_that_decides_what_of_the_log_is_sent() -> None:
    calls: list[str] = []
    passed = Passed(0, 0, 0, 0, 7, frozenset({"held"}), None)
    follower: Any = SimpleNamespace(pass_once=lambda: passed, record=lambda: calls.append("recorded"))

    def is_due(moment: int, sent: frozenset[str]) -> bool:
        calls.append(f"due at {moment} of {sorted(sent)}")
        return True

    sender: Any = SimpleNamespace(
        snapshots=Snapshots(), is_due=is_due, followed=lambda moment, sent: calls.append("followed")
    )
    times: Any = SimpleNamespace(tell=lambda moment, tables: calls.append(f"resolved {sorted(tables)}"))
    passes = Passes.__new__(Passes)
    passes._run = cast(StreamRun, SimpleNamespace(source_tables=["held", "t"]))
    passes._turn = cast(Turn, None)
    passes._follower, passes._snapshots = cast(Follower, follower), cast(SnapshotSender, sender)
    passes._times = cast(ResolvedTimes, times)
    passes._account = cast(Any, SimpleNamespace(add=lambda passed: 0))
    passes._held, passes._owed = 0, (0, 0)
    passes._pass()
    assert calls == ["due at 7 of ['t']", "recorded", "followed", "resolved ['t']"]
