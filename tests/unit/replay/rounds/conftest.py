"""A run over the logs of three servers, and what follows them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from unit.formats.wal_builder import header
from unit.migration.filled_ledger import CLUSTER, SPEC
from unit.replay.rounds.open_logs_source import (
    LINES,
    NOW,
    ROUTE,
    SERVERS,
    Counting,
    Follow,
    cut_of,
    path_of,
)
from walferry import clock
from walferry.apply.by_group import GroupTask, Part
from walferry.hbase.versions import release_of
from walferry.ledger import Ledger, Round
from walferry.replay.rounds import open_logs as following
from walferry.replay.rounds import open_tail
from walferry.replay.rounds.open_logs import OpenLogs
from walferry.run.facts import keep_lines
from walferry.run.run import Run


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The present moment, for everybody."""
    time = [NOW]
    for module in (clock, following, open_tail):
        monkeypatch.setattr(module, "now_ms", lambda: time[0])
    monkeypatch.setattr(following, "PASS_SECONDS", 0.0)
    monkeypatch.setattr(following, "SECONDS_PER_GROUP", 0.0)
    return time


@pytest.fixture
def run(tmp_path: Path, now: list[int]) -> Iterator[Run]:
    spec = SPEC | {"source": CLUSTER | {"rootdir": f"hdfs://127.0.0.1:1{tmp_path}/hbase"}}
    with Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}", actor="test") as ledger:
        run = Run(ledger, ledger.open_run("move", "test", spec, "test").run_id)
        source = SimpleNamespace(close=lambda: None, release=release_of("2.6.3"))
        run.__dict__.update(source=source, wal_files=Counting())
        for server in SERVERS:
            path_of(run, server).parent.mkdir(parents=True)
            path_of(run, server).write_bytes(header())
        run.ledger.rounds.record(Round(1, NOW - 6_000, NOW - 5_000, 1, 1, 1, 1, lag_ms=1_000, backlog_bytes=0))
        yield run


@pytest.fixture
def follow(run: Run, monkeypatch: pytest.MonkeyPatch) -> Follow:
    """The open logs after a cut five seconds ago."""
    monkeypatch.setattr(following, "send_entries", lambda *_: [])
    monkeypatch.setattr(following, "SETTLE_SECONDS", (0.0, 0.0))

    def begun() -> OpenLogs:
        keep_lines(run, "applied", LINES)
        open_logs = OpenLogs(run, ROUTE, lambda _: None)
        open_logs.applied(cut_of(run, NOW - 5_000))
        return open_logs

    return begun


@pytest.fixture
def sent(follow: Follow, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sequence numbers of what is sent, in this order."""
    found: list[int] = []

    def send(task: GroupTask, parts: Sequence[Part]) -> list[Any]:
        found.extend(n for part in parts for n in part.batch.sequence_number[part.picked].tolist())
        return []

    monkeypatch.setattr(following, "send_entries", send)
    return found
