from __future__ import annotations

from collections.abc import Callable, Collection
from types import SimpleNamespace
from typing import Any, cast

import pytest

from walferry.errors import GapError, TransientError
from walferry.hbase.errors import ZooKeeperError
from walferry.run.spec import Throttle
from walferry.run.turn import Turn
from walferry.streams import passes as passes_module
from walferry.streams.follower import Follower, Passed
from walferry.streams.passes import Passes
from walferry.streams.resolved import ResolvedTimes
from walferry.streams.snapshot.records import Snapshots
from walferry.streams.snapshot.sender import SnapshotSender
from walferry.streams.stream_run import StreamRun


def test_a_snapshot_is_told_how_far_the_log_was_followed_and_how_that_is_recorded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[str] = []
    passed = Passed(0, 0, 0, 0, 7, frozenset({"held"}), None)
    follower: Any = SimpleNamespace(
        pass_once=lambda: passed,
        record=lambda: calls.append("recorded"),
        listing=SimpleNamespace(names=frozenset()),
    )

    def followed(moment: int, sent: frozenset[str], record: Callable[[], None]) -> None:
        calls.append(f"followed up to {moment}, of {sorted(sent)}")
        record()

    sender: Any = SimpleNamespace(snapshots=Snapshots(), followed=followed)
    times: Any = SimpleNamespace(due=True, tell=lambda moment, tables: calls.append(f"resolved {sorted(tables)}"))
    passes = Passes.__new__(Passes)
    passes._run = cast(StreamRun, SimpleNamespace(source_tables=["held", "t"], source=None, wal_files=None))
    passes._all_here, passes._placed, passes._rest_s = True, 0.0, 0.0
    monkeypatch.setattr(passes_module, "log_obstacle", lambda *_: calls.append("looked where servers log"))
    monkeypatch.setattr(passes_module, "require_queued_here", lambda *_: calls.append("looked into the queues"))
    passes._turn = cast(Turn, None)
    passes._follower, passes._snapshots = cast(Follower, follower), cast(SnapshotSender, sender)
    passes._times = cast(ResolvedTimes, times)
    passes._account = cast(Any, SimpleNamespace(add=lambda passed: 0))
    passes._held, passes._owed = 0, (0, 0)
    passes._pass()
    looked = ["looked where servers log", "looked into the queues"]
    told = ["followed up to 7, of ['t']", "recorded", *looked, "resolved ['t']"]
    assert calls == told
    times.due = False
    passes._pass()
    assert calls == told + told[:2]


@pytest.fixture
def stream(monkeypatch: pytest.MonkeyPatch) -> tuple[Passes, list[int]]:
    """The passes of a stream with one table, and the resolved times that it tells: each is due at once."""
    monkeypatch.setattr(passes_module, "throttle_of", lambda ledger: Throttle())
    monkeypatch.setattr(passes_module, "Account", lambda *_: SimpleNamespace(add=lambda passed: 0))
    monkeypatch.setattr(passes_module, "require_queued_here", lambda *_: None)
    told: list[int] = []
    passed = Passed(0, 0, 0, 0, 7, frozenset(), None)
    follower: Any = SimpleNamespace(
        pass_once=lambda: passed, record=lambda: None, tend=lambda: None, listing=SimpleNamespace(names={"a"})
    )
    sender: Any = SimpleNamespace(snapshots=Snapshots(), followed=lambda *_: None, take_up=lambda: None)
    times: Any = SimpleNamespace(due=True, tell=lambda moment, tables: told.append(moment))
    ledger = SimpleNamespace(quarantine=SimpleNamespace(holds=list))
    run: Any = SimpleNamespace(source_tables=["t"], source="source", wal_files="files", ledger=ledger)
    turn: Any = SimpleNamespace(require=lambda: None)
    return Passes(run, turn, follower, sender, times, 0), told


def test_no_time_is_told_and_the_stream_begins_again_while_servers_log_elsewhere(
    stream: tuple[Passes, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What they write looks like silence."""
    passes, told = stream

    def elsewhere(source: str, tables: list[str], files: str) -> str:
        return f"by {source} and {files}, a server with regions of {tables} logs elsewhere"

    with monkeypatch.context() as patch:
        patch.setattr(passes_module, "log_obstacle", elsewhere)
        with pytest.raises(TransientError, match=r"source: by source and files, a server with regions of \['t'\] logs"):
            passes._look()
    monkeypatch.setattr(passes_module, "log_obstacle", lambda *_: None)
    passes._placed = -passes_module.PLACE_SECONDS
    passes._look()
    monkeypatch.setattr(passes_module, "log_obstacle", elsewhere)
    passes._look()  # half a minute has not passed
    with pytest.raises(TransientError):
        passes._pass()
    assert told == []


def test_while_nobody_tells_where_servers_log_the_stream_goes_on_and_tells_no_time(
    stream: tuple[Passes, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """ZooKeeper is away, for example: that is no reason to send nothing."""
    passes, told = stream
    asked: list[object] = []

    def away(*about: object) -> None:
        asked.append(about)
        raise ZooKeeperError("ZooKeeper does not answer")

    monkeypatch.setattr(passes_module, "log_obstacle", away)
    passes._look()
    for _ in range(3):
        passes._pass()
    assert (told, len(asked)) == ([], 1)
    monkeypatch.setattr(passes_module, "log_obstacle", lambda *_: None)
    passes._placed -= passes_module.PLACE_SECONDS
    passes._pass()
    passes._pass()
    assert told == [7, 7]


def test_no_time_is_told_and_the_stream_ends_where_a_queue_names_a_log_that_is_not_here(
    stream: tuple[Passes, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    passes, told = stream

    def gap(run: StreamRun, listed: Collection[str]) -> None:
        raise GapError(f"not among {listed}", file="b")

    monkeypatch.setattr(passes_module, "log_obstacle", lambda *_: None)
    monkeypatch.setattr(passes_module, "require_queued_here", gap)
    with pytest.raises(GapError, match=r"^not among \{'a'\}$"):
        passes._look()
    passes._placed -= passes_module.PLACE_SECONDS
    with pytest.raises(GapError, match=r"^not among"):
        passes._pass()
    assert told == []


def test_the_error_of_a_log_that_was_deleted_says_what_can_be_done(stream: tuple[Passes, list[int]]) -> None:
    passes, _ = stream
    marked: list[str] = []
    log: Any = SimpleNamespace(known=lambda names: names, mark_missing=marked.append)
    cast(Any, passes._run.ledger).log = log

    def gap() -> Passed:
        raise GapError("gone", file="b", start=7)

    cast(Any, passes._follower).pass_once = gap
    with pytest.raises(GapError, match=r"WAL file b is missing .* was not sent past byte 7: HBase .* put it into oldW"):
        passes._pass()
    assert marked == ["b"]


def test_a_look_that_takes_long_is_not_made_at_each_resolved_time(
    stream: tuple[Passes, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With thousands of servers: times are told less often then."""
    passes, told = stream
    now, looks = [1000.0], [0]

    def look(*_: object) -> None:
        looks[0] += 1
        now[0] += 2

    monkeypatch.setattr(passes_module, "steady_s", lambda: now[0])
    monkeypatch.setattr(passes_module, "log_obstacle", lambda *_: None)
    monkeypatch.setattr(passes_module, "require_queued_here", look)
    for _ in range(41):
        passes._pass()
        now[0] += 1
    assert (looks, told) == ([3], [7, 7, 7])
