"""Which region servers have nothing new for a run, so that their WALs need not be rolled (R6).

A region counts a write request when the request begins, shortly before the edit is in the WAL. So a server rests only
after two rolls with equal counts: a write that began before the first roll is in a file that the second roll has
closed. An edit may wait even longer, for a row lock. It is found after the next write, or after the roll that each
server gets from time to time, or at a fence, which rolls all servers.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from pydantic import BaseModel

from walferry.errors import TransientError
from walferry.hbase.zookeeper import Server
from walferry.run.run import LogRun

log = logging.getLogger(__name__)

_SEEN = "write counts"
REST_MS = 600_000
"""how long a server may rest at most"""


class _Seen(BaseModel):
    """A server's write counts at the last cut."""

    counts: dict[str, int]
    settled: bool
    """whether the counts were the same at the previous cut"""
    rolled_ms: int


def idle_servers(
    run: LogRun, servers: Sequence[Server], now_ms: int, *, may_rest: bool
) -> tuple[set[str], Callable[[], None]]:
    """Names of the servers that need not be rolled at a cut that begins now, and a function to call after the rolls.

    With `may_rest` False there are none. Servers that do not report their counts, or do not answer, are always rolled.
    """
    tables = set(run.source_tables)
    before = {name: _Seen.model_validate(kept) for name, kept in (run.ledger.notes.get(_SEEN) or {}).items()}
    seen: dict[str, _Seen] = {}
    idle = set()
    for server in servers:
        try:
            counts = run.source.write_counts(server, tables, attempts=1)
        except TransientError as error:
            log.info("%s does not report its write counts: %s", server.name, error)
            continue
        if counts is None:
            continue
        last = before.get(server.name)
        same = last is not None and last.counts == counts
        if may_rest and last is not None and same and last.settled and now_ms - last.rolled_ms < REST_MS:
            idle.add(server.name)
            seen[server.name] = last
        else:
            seen[server.name] = _Seen(counts=counts, settled=same, rolled_ms=now_ms)
    return idle, lambda: run.ledger.notes.keep(_SEEN, {name: one.model_dump() for name, one in seen.items()})
