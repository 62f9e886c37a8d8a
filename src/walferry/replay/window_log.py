"""Which files of the log a span of write time needs, and what of them is gone."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from datetime import UTC, datetime

from walferry.errors import UsageError
from walferry.ledger import Ledger
from walferry.replay.cut import as_listed
from walferry.run.run import Run
from walferry.run.spec import TimeWindow
from walferry.wal.files import WalFile

SKEW_MS = int(os.environ.get("WALFERRY_CLOCK_SKEW_SECONDS", "60")) * 1000
"""how far clocks may differ, and how long an edit may wait before it reaches its file"""
FIRST_LOG_MS = 120_000
"""by then a region server that started has opened its first log"""
LONGEST_LOG_MS = 26 * 3600 * 1000
"""how far back a file may begin that holds edits of a window (`hbase.regionserver.logroll.period`: an hour)"""


def covering(files: Iterable[WalFile], start_ms: int, end_ms: int) -> list[WalFile]:
    """The files that may hold entries written in a span: a group's file ends where its next one begins."""
    groups: dict[str, list[WalFile]] = defaultdict(list)
    for file in files:
        groups[file.group].append(file)
    found = []
    for group in groups.values():
        group.sort(key=lambda file: file.number)
        for file, following in zip(group, [*group[1:], None], strict=True):
            ends = following.number + SKEW_MS if following else None
            if file.number - SKEW_MS < end_ms and (ends is None or ends > start_ms):
                found.append(file)
    return sorted(found, key=lambda file: (file.group, file.number))


def missing_ranges(
    files: Sequence[WalFile], alive: Collection[str], known: Sequence[WalFile], start_ms: int, end_ms: int
) -> list[str]:
    """What of the log of a span is gone, as text. `known`: files that the ledger has seen at any time.

    Two things tell: a file that was seen once and is nowhere now, and a living server whose first log begins later
    than the server did. Without a record nothing tells of the logs of a server that has died since.
    """
    present = {file.name for file in files}
    # A server's last log is deleted when the server dies, if it never held a byte. The cleaner takes a server's oldest
    # logs first: where one of them is left, it was not the cleaner.
    left = {file.group for file in files}
    last: dict[str, int] = {}
    for file in (*known, *files):
        last[file.group] = max(last.get(file.group, 0), file.number)
    gone = [
        file
        for file in covering({f.name: f for f in (*known, *files)}.values(), start_ms, end_ms)
        if file.name not in present
        and (file.length or file.server in alive or file.group not in left or file.number < last[file.group])
    ]
    missing = [f"{file.name} (last seen at {file.path})" for file in gone]
    told = {file.server for file in gone}
    firsts: dict[str, int] = {}
    for file in files:
        firsts[file.server] = min(file.number, firsts.get(file.server, file.number))
    for server, first in sorted(firsts.items()):
        begins = max(start_ms, int(server.rpartition(",")[2]) + FIRST_LOG_MS)
        if server in alive and server not in told and begins < min(first - SKEW_MS, end_ms):
            missing.append(f"logs of {server} from {iso(begins)} to {iso(min(first, end_ms))}")
    return missing


def known_files(ledger: Ledger, runs: Collection[str], start_ms: int, end_ms: int) -> list[WalFile]:
    """Files that any of the runs has seen and that may hold entries of a span."""
    seen = ledger.files_between(runs, start_ms - LONGEST_LOG_MS, end_ms + SKEW_MS)
    return [as_listed(file) for file in seen]


def iso(at_ms: int) -> str:
    """A moment as people read it."""
    return f"{datetime.fromtimestamp(at_ms / 1000, UTC):%Y-%m-%dT%H:%M:%S}Z"


def window_of(run: Run) -> TimeWindow:
    """The window of a run's spec; UsageError when it has none."""
    window = run.spec.window
    if window is None:
        raise UsageError(f"run {run.run_id} has no window", run=run.run_id)
    return window
