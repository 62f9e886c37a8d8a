"""Rows that something other than the source's log has touched, so that they may no longer be equal:

- Rows that somebody other than walferry wrote at the target, according to the target's log.
- Regions of a server, on either side, whose count of mutations that skip the log has risen; or only the rows in these
  regions that have new cells (`unlogged_rows`).

They are read again together with the rows that the log wrote (`written_rows`). If the touched rows of a table cannot be
named, its equality ends (`equality`) and the table is compared as a whole again. A note in the ledger holds all of
this, so that another process can continue from there.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from walferry.amounts import amount
from walferry.clock import now_ms
from walferry.errors import GapError, TransientError, WalferryError, is_transient
from walferry.ledger import RunLedger
from walferry.ledger.rows import ClusterSide
from walferry.migration.sides.fragile_rows import NONE, RowSpan, RowSpans
from walferry.migration.touching.unlogged_rows import in_doubt, oldest_unseen_ms, recent_rows
from walferry.replay.keeping.retention import retention_of
from walferry.run.run import Run
from walferry.run.sides import SIDES, client_at, name_at
from walferry.wal.offsets import Offset
from walferry.wal.others import WrittenByOthers, log_end, written_by_others

log = logging.getLogger(__name__)

_SEEN = "touched"
_ASKED_AT_ONCE = 8
_LOOKS = 5
"""attempts, since other processes may look at the same time"""
Counts = Mapping[str, int]
"""mutations that skipped the log, by server"""


# ------------------------------------------------------------------ what the run has seen: one note for all tables


@dataclass(frozen=True)
class Seen:
    """What looks have found so far, for all tables. An older one is still true: it only lists more to read."""

    offset: Offset | None = None
    """the place in the target's log at which the next look starts; None: no process has read the log yet"""
    read_ms: int = 0
    unread: str = ""
    """why the target's log cannot be read"""
    counts: Mapping[str, Counts] = field(default_factory=dict)
    """counts of each side"""
    uncounted: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """servers that report no count, by side"""
    skipped: bool = False
    """whether source servers with regions of the run's tables have counted new mutations that skip the log"""
    pending: Mapping[str, RowSpans] = field(default_factory=dict)
    """rows to read again, by table"""
    void: Mapping[str, str] = field(default_factory=dict)
    """why a table must be compared as a whole again, by table"""
    touches: Mapping[str, int] = field(default_factory=dict)
    """how often rows were added to `pending`, by table: the same rows may be touched again"""
    voids: Mapping[str, int] = field(default_factory=dict)
    """how often a reason for a whole comparison was found, by table"""
    counted_ms: Mapping[str, Counts] = field(default_factory=dict)
    """a moment just before each server was asked for its count, by side"""
    recent_ms: Mapping[str, int] = field(default_factory=dict)
    """by table, the last time at which counts had risen and only rows with new cells were read"""

    @classmethod
    def of(cls, ledger: RunLedger) -> Seen:
        """The `Seen` in the ledger."""
        return cls._from_json(ledger.notes.get(_SEEN))

    @classmethod
    def change(cls, ledger: RunLedger, change: Callable[[Seen], Seen | None]) -> bool:
        """Change the `Seen` in the ledger, in one transaction. If `change` returns None, nothing changes and this
        returns False."""

        def changed(kept: dict[str, Any] | None) -> dict[str, Any] | None:
            now = change(cls._from_json(kept))
            return None if now is None else now._as_json()

        return ledger.notes.change(_SEEN, changed)

    def replaces(self, before: Seen, ledger: RunLedger) -> bool:
        """Record this in the ledger in place of `before`; returns False if the ledger has another one by now."""
        return Seen.change(ledger, lambda now: self if now == before else None)

    @classmethod
    def _from_json(cls, kept: Mapping[str, Any] | None) -> Seen:
        if kept is None:
            return cls()
        offset = None if kept["offset"] is None else Offset.from_json(kept["offset"])
        pending = {table: RowSpans.unpack(text) for table, text in kept["pending"].items()}
        return cls(**{**kept, "offset": offset, "pending": pending})

    def _as_json(self) -> dict[str, Any]:
        facts = asdict(replace(self, offset=None, pending={}))
        facts["offset"] = None if self.offset is None else self.offset.as_json()
        facts["pending"] = {table: spans.pack() for table, spans in self.pending.items() if len(spans)}
        return facts

    def touching(self, table: str, spans: RowSpans) -> Seen:
        """A copy with more rows of a table to read again."""
        if not spans:
            return self
        pending = {**self.pending, table: self.pending.get(table, NONE) + spans}
        return replace(self, pending=pending, touches={**self.touches, table: self.touches.get(table, 0) + 1})

    def voiding(self, why: Mapping[str, str]) -> Seen:
        """A copy with tables that must be compared as a whole again."""
        voids = {**self.voids, **{table: self.voids.get(table, 0) + 1 for table in why}}
        return replace(self, void={**self.void, **why}, voids=voids)

    def known(self, table: str) -> Known:
        """The facts about one table."""
        return Known(
            self.pending.get(table, NONE), self.touches.get(table, 0), self.void.get(table, ""),
            self.voids.get(table, 0),
        )  # fmt: skip

    def without(self, table: str, known: Known, *, whole: bool = False) -> Seen:
        """A copy without `known`, whose rows were read and found equal; with `whole`, the whole table was read and
        found equal. If rows were touched since, they may be the same rows, so all rows stay."""
        now, pending, void = self.known(table), self.pending, self.void
        if now.touches == known.touches:
            pending = {**pending, table: now.pending.without(known.pending)}
        if whole and now.voids == known.voids:
            void = {name: why for name, why in void.items() if name != table}
        return replace(self, pending=pending, void=void)


@dataclass(frozen=True)
class Known:
    """What was known about a table at one moment."""

    pending: RowSpans
    """rows to read again"""
    touches: int
    void: str
    """why the table must be compared as a whole again"""
    voids: int

    def as_json(self) -> dict[str, Any]:
        """As plain values."""
        return {**vars(self), "pending": self.pending.pack()}

    @classmethod
    def from_json(cls, kept: Mapping[str, Any]) -> Known:
        """The inverse of `as_json`."""
        return cls(**{**kept, "pending": RowSpans.unpack(kept["pending"])})


def risen(before: Counts | None, now: Counts) -> set[str] | None:
    """The servers whose regions may have taken mutations that skipped the log; None: any server's regions may have.

    A count covers the regions that a server has now. If a count fell, a region that left the server may have taken more
    mutations before.
    """
    if before is None:
        return set()
    if any(now.get(server, 0) < count for server, count in before.items()):
        return None
    return {server for server, count in now.items() if count > before.get(server, 0)}


_looking = threading.Lock()
"""a process does one look at a time"""


def look(run: Run) -> None:
    """Find what happened since the last look: rows that others wrote at the target, and servers that counted mutations
    which skip the log.

    Raises transient errors. Any other reason why something cannot be read is recorded, for a person to read.
    """
    with _looking:
        for _ in range(_LOOKS):
            before = Seen.of(run.ledger)
            seen = _counted(run, _read_target_log(run, before))
            if seen.replaces(before, run.ledger):
                return
    raise TransientError(f"what touched the tables of {run.run_id} changed at each of {_LOOKS} looks: try again")


def _read_target_log(run: Run, seen: Seen) -> Seen:
    files, root, began = run.target_wal_files, run.target_wal_root, now_ms()
    targets = {pair.target: pair.source for pair in run.tables}
    try:
        if seen.offset is None:
            return replace(seen, offset=log_end(files, root), read_ms=began, unread="")
        if why := _unseen_for_long(run, seen, began):
            return _from_here(run, seen, why, began)
        found = written_by_others(files, root, seen.offset, targets, run.source.cluster_uuid())
    except GapError as gap:
        return _from_here(run, seen, f"log {gap.facts['file']} of the target was deleted before it was read", began)
    except (WalferryError, OSError) as error:
        if is_transient(error):
            raise
        if not seen.unread:
            log.warning(
                "what others write at the target cannot be seen, since the target's log cannot be read: %s", error
            )
        return replace(seen, unread=str(error))
    return replace(after_others(seen, found, targets), read_ms=began, unread="")


def after_others(seen: Seen, found: WrittenByOthers, sources: Mapping[str, str]) -> Seen:
    """A copy with the rows that others wrote at the target. `sources`: target table to source table."""
    for table, rows in found.rows.items():
        if rows:
            log.warning("others wrote %s of %s at the target; they are compared again", amount(len(rows), "row"), table)
            seen = seen.touching(sources[table], RowSpans.of_rows(rows))
    void = {sources[table]: why for table, why in found.unnamed.items()}
    return replace(seen, offset=found.end).voiding(void)


def _unseen_for_long(run: Run, seen: Seen, moment_ms: int) -> str:
    seconds = (moment_ms - seen.read_ms) / 1000
    if seconds < _SURELY_KEPT_S or seconds < retention_of(run.target).ttl_seconds:
        return ""
    return f"the target's log was not read for {seconds:.0f} s, longer than the target keeps it"


_SURELY_KEPT_S = 60.0
"""a log unread for a shorter time counts as still kept, without asking the target for its retention"""


def _from_here(run: Run, seen: Seen, why: str, moment_ms: int) -> Seen:
    log.warning("%s; comparing the tables as a whole again", why)
    void = {pair.source: why for pair in run.tables}
    offset = log_end(run.target_wal_files, run.target_wal_root)
    return replace(seen, offset=offset, read_ms=moment_ms, unread="").voiding(void)


def _counted(run: Run, seen: Seen) -> Seen:
    if run.spec.unlogged_writes == "ignore":
        return replace(seen, skipped=False)
    for side in SIDES:
        client, began = client_at(run, side), now_ms()
        servers = client.servers()
        with ThreadPoolExecutor(_ASKED_AT_ONCE, thread_name_prefix="counts") as at_once:
            told = dict(zip((s.name for s in servers), at_once.map(client.unlogged_writes, servers), strict=True))
        before = seen.counts.get(side)
        silent = sorted(name for name, count in told.items() if count is None)
        now = {name: count for name, count in told.items() if count is not None}
        asked_ms, known_ms = dict.fromkeys(now, began), seen.counted_ms.get(side, {})
        now |= {name: before[name] for name in silent if before is not None and name in before}
        asked_ms |= {name: known_ms[name] for name in silent if name in known_ms}
        servers_risen = risen(before, now)
        since_ms = oldest_unseen_ms(known_ms, servers_risen, silent, seen.uncounted.get(side, ()))
        seen = _after_counts(run, seen, side, servers_risen, since_ms)
        seen = replace(
            seen, counts={**seen.counts, side: now}, uncounted={**seen.uncounted, side: silent},
            counted_ms={**seen.counted_ms, side: asked_ms},
        )  # fmt: skip
    return seen


def _after_counts(run: Run, seen: Seen, side: ClusterSide, servers: set[str] | None, since_ms: int | None) -> Seen:
    """A copy with more to read again: the regions that were on the servers since a moment, or only those rows of the
    regions that have cells from then on."""
    if servers is not None and not servers:
        return seen
    for pair in run.tables:
        regions = client_at(run, side).regions(name_at(run, side, pair.source))
        regions = [region for region in regions if in_doubt(region, servers, since_ms)]
        if not regions:
            continue
        whose = "servers that regions have left" if servers is None else ", ".join(sorted(servers))
        if since_ms is None or run.spec.unlogged_writes == "compare":
            spans = RowSpans.of(RowSpan(region.start, region.end) for region in regions)
        else:
            began, spans = now_ms(), recent_rows(run, pair, regions, since_ms)
            seen = replace(seen, recent_ms={**seen.recent_ms, pair.source: began})
        log.log(
            logging.WARNING if len(spans.ranges) else logging.INFO,  # single rows may just be under way
            "%s: %s of the %s counted writes that skip the log (SKIP_WAL): %s and %s in %s are "
            "compared again", pair.source, whose, side, amount(len(spans.rows), "row"),
            amount(len(spans.ranges), "range"), amount(len(regions), "region"),
        )  # fmt: skip
        seen = replace(seen.touching(pair.source, spans), skipped=seen.skipped or side == "source")
    return seen


def skips_log(run: Run) -> bool:
    """Whether servers of the source have counted new mutations that skip the log while this run looked."""
    return bool(Seen.of(run.ledger).skipped)


def end_equality(run: Run, table: str, why: str) -> None:
    """End a table's equality, so that the table is compared as a whole again."""
    Seen.change(run.ledger, lambda seen: seen.voiding({table: why}))
