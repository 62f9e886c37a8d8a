"""Whether the source's log has all that its servers have written, by the queues of the stream's peer."""

from __future__ import annotations

import time
from collections.abc import Collection

from walferry.errors import GapError
from walferry.replay.keeping.protect import way_of
from walferry.streams.stream_run import StreamRun
from walferry.wal.files import list_wals, parse_wal_name

PAUSES_S = (0.0, 1.0, 2.0)
"""before each further listing: a log may be newer than the last one, or on its way to the archive"""


def require_queued_here(run: StreamRun, listed: Collection[str]) -> None:
    """Raise GapError if the peer's queues name a log that was not sent and is in none of the log's folders.

    A server adds a log to the queues before the log's first edit, wherever the log is (see `rounds.completeness`). So
    this finds what a server has logged elsewhere, also after it logs here again. With `protect: stage` nothing tells.
    `listed`: the files of an earlier listing, since most names are there.
    """
    way = way_of(run)
    if not way.NAMES_EVERY_LOG:
        return
    fences = run.fences()
    unlisted = way.kept(run) - set(listed)
    placed = {name: place for name in unlisted if (place := parse_wal_name(name)) is not None}
    missing = {name for name, place in placed.items() if fences.starts_by(place)}
    if missing:
        missing -= run.ledger.log.applied(missing)
    for pause in PAUSES_S:
        if not missing:
            return
        time.sleep(pause)
        missing -= {file.name for file in list_wals(run.wal_files, run.wal_root)}
    if not missing:
        return
    first, root = min(missing), run.wal_root
    raise GapError(
        f"WAL file {first} is in the queue of the stream's peer, was not sent, and is in no folder of the log below "
        f"{root} ({len(missing)} in all). Either its server {placed[first].server} logged elsewhere (hbase.wal.dir) "
        f"while it wrote it, or somebody has removed it. Later changes of the same regions may be sent already, so "
        "the file cannot be put back: start the stream with a higher epoch, which begins at the log that is there",
        file=first, start=0, end=None, files=sorted(missing),
    )  # fmt: skip
