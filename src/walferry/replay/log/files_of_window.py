"""Which files of the log a span of write time needs, and which of them no longer exist."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence

from walferry.clock import iso
from walferry.errors import UsageError
from walferry.ledger import Ledger
from walferry.replay.log.cut import as_listed
from walferry.run.run import Run
from walferry.run.spec import TimeWindow
from walferry.wal.files import WalFile

FIRST_LOG_MS = 120_000
"""the longest time from a region server's start to its first log"""
LONGEST_LOG_MS = 26 * 3600 * 1000
"""a file with edits of a window begins at most this long before the window's start (`hbase.regionserver.logroll.period`
is an hour)"""


def covering(files: Iterable[WalFile], start_ms: int, end_ms: int, skew_ms: int) -> list[WalFile]:
    """The files that may hold entries written in a span: a group's file ends where its next one begins.

    `skew_ms`: the largest clock skew, and the longest time an edit takes to reach its file (`LogTimes`).
    """
    groups: dict[str, list[WalFile]] = defaultdict(list)
    for file in files:
        groups[file.group].append(file)
    found = []
    for group in groups.values():
        group.sort(key=lambda file: file.number)
        for file, following in zip(group, [*group[1:], None], strict=True):
            ends = following.number + skew_ms if following else None
            if file.number - skew_ms < end_ms and (ends is None or ends > start_ms):
                found.append(file)
    return sorted(found, key=lambda file: (file.group, file.number))


def missing_ranges(
    files: Sequence[WalFile],
    alive: Collection[str],
    known: Sequence[WalFile],
    start_ms: int,
    end_ms: int,
    skew_ms: int,
) -> list[str]:
    """What is missing from the log of a span, as text. `known`: all files that the ledger has ever seen.

    Two signs show missing logs: a file that was once seen and no longer exists, and a live server whose first log
    begins later than the server. Logs of a server that has since died are noticed only if the ledger has seen them.
    """
    present = {file.name for file in files}
    # HBase deletes a dead server's last log if it never held a byte. The cleaner deletes a server's oldest logs first:
    # if an older log exists, the cleaner did not delete this one.
    left = {file.group for file in files}
    last: dict[str, int] = {}
    for file in (*known, *files):
        last[file.group] = max(last.get(file.group, 0), file.number)
    gone = [
        file
        for file in covering({f.name: f for f in (*known, *files)}.values(), start_ms, end_ms, skew_ms)
        if file.name not in present
        and (file.length or file.server in alive or file.group not in left or file.number < last[file.group])
    ]
    missing = [f"{file.name} (last seen at {file.path})" for file in gone]
    named = {file.server for file in gone}
    firsts: dict[str, int] = {}
    for file in files:
        firsts[file.server] = min(file.number, firsts.get(file.server, file.number))
    for server, first in sorted(firsts.items()):
        begins = max(start_ms, int(server.rpartition(",")[2]) + FIRST_LOG_MS)
        if server in alive and server not in named and begins < min(first - skew_ms, end_ms):
            missing.append(f"logs of {server} from {iso(begins)} to {iso(min(first, end_ms))}")
    return missing


def known_files(ledger: Ledger, runs: Collection[str], start_ms: int, end_ms: int, skew_ms: int) -> list[WalFile]:
    """Files that one of these runs has seen and that may hold entries of a span."""
    seen = ledger.files_between(runs, start_ms - LONGEST_LOG_MS, end_ms + skew_ms)
    return [as_listed(file) for file in seen]


def window_of(run: Run) -> TimeWindow:
    """The window of a run's spec. Raises UsageError when it has none."""
    window = run.spec.window
    if window is None:
        raise UsageError(f"run {run.run_id} has no window", run=run.run_id)
    return window
