"""Find rows recently written past the log (SKIP_WAL) by the timestamps of cells: `unlogged_writes: recent`.

Region servers count such mutations, but do not report the rows. So walferry reads all recent cells and markers from
both sides. If a row's recent cells are the same on both sides, the target lacks no recent write, whether the log has it
or not. Otherwise the whole row is read again. A write with an older timestamp goes unseen: for example, a delete of
only the newest version takes that version's timestamp.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

from walferry.clock import CLOCKS_APART_MS, steady_s
from walferry.errors import WalferryError
from walferry.hbase.descriptors import Region
from walferry.hbase.server_pages import COUNTED_LATE_MS
from walferry.migration.sides.digest import unlike_rows
from walferry.migration.sides.fragile_rows import NONE, RowSpan, RowSpans
from walferry.run.run import Run
from walferry.run.spec import TablePair

log = logging.getLogger(__name__)

MOST_ROWS = 100_000
"""the most rows of a table at one look; the rest is read as whole regions"""
MOST_BYTES = 64 << 20
"""the most bytes of their keys"""
MOST_SECONDS = 60.0
"""the longest time for a table at one look"""
_REGIONS_AT_ONCE = 8
_SHOWN_S = 0.5
"""HRegion counts a mutation as it builds the edit, just before scans see it"""


def oldest_unseen_ms(
    counted_ms: Mapping[str, int], servers: Collection[str] | None, silent: Collection[str], unknown: Collection[str]
) -> int | None:
    """The oldest possible timestamp, by its server's clock, of a mutation that is in a risen count but in no earlier
    count; None if that is unknown.

    `counted_ms`: a moment just before each server was asked for its last known count. That count includes every
    mutation that the server took more than COUNTED_LATE_MS earlier. `servers`: those with risen counts; None: a count
    has fallen, so any server may have taken more before a region left it. `silent` servers report no count now, so
    their old counts stand. `unknown` servers reported none the last time: if no count of such a server was ever known,
    it may have been counting for a long time.
    """
    if not counted_ms:
        return None
    if servers is None:
        moments = [at for server, at in counted_ms.items() if server not in silent]
    elif any(server in unknown and server not in counted_ms for server in servers):
        return None
    else:
        newest = max(counted_ms.values())  # a server not seen before is newer
        moments = [counted_ms.get(server, newest) for server in servers]
    return min(moments) - COUNTED_LATE_MS - CLOCKS_APART_MS if moments else None


def in_doubt(region: Region, servers: Collection[str] | None, since_ms: int | None) -> bool:
    """Whether a region is on one of the servers, or may have been on one since a moment, because it has moved since or
    no server has it now."""
    if servers is None or region.server is None or region.server.name in servers:
        return True
    return since_ms is not None and region.changed_ms >= since_ms


def recent_rows(run: Run, pair: TablePair, regions: Sequence[Region], since_ms: int) -> RowSpans:
    """The rows in some regions of either side whose cells from `since_ms` on (by their timestamps) differ between the
    sides.

    A region that cannot be read counts as a whole, and so does the rest after MOST_ROWS, MOST_BYTES or MOST_SECONDS.
    The result includes rows that the log wrote and that are still under way.
    """
    time.sleep(_SHOWN_S)
    bounds = _Bounds()

    def rows_of(region: Region) -> RowSpans:
        found: list[bytes] = []
        whole = RowSpans((RowSpan(region.start, region.end),))
        try:
            parts = unlike_rows(
                region.start,
                region.end,
                lambda start, stop: run.source.scan_raw(pair.source, start, stop, since_ms=since_ms),
                lambda start, stop: run.target.scan_raw(pair.target, start, stop, since_ms=since_ms),
            )
            with closing(parts):  # type: ignore[type-var]
                while bounds.allow():
                    part = next(parts, None)
                    if part is None:
                        return RowSpans.of_rows(found)
                    bounds.add(part)
                    found += part
        except (WalferryError, OSError) as error:
            log.warning("region %s of %s is compared again as a whole: %s", region.encoded, pair.source, error)
        return whole

    with ThreadPoolExecutor(_REGIONS_AT_ONCE, thread_name_prefix="recent rows") as readers:
        return sum(readers.map(rows_of, regions), NONE)


class _Bounds:
    """How much of a table is still read row by row at one look."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rows = self._bytes = 0
        self._until = steady_s() + MOST_SECONDS

    def add(self, rows: Sequence[bytes]) -> None:
        with self._lock:
            self._rows += len(rows)
            self._bytes += sum(map(len, rows))

    def allow(self) -> bool:
        with self._lock:
            return self._rows <= MOST_ROWS and self._bytes <= MOST_BYTES and steady_s() < self._until
