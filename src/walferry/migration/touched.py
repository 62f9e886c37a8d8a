"""What may no longer be equal although the source's log did not write it, since a table was found equal as a whole.

- Fragile rows (`fragile_rows`), once the store files of their region are others, on either side, or a TTL has ended.
- Rows that others than walferry have written at the target, by the target's log.
- Regions of a server, on either side, that counts new mutations which skip the log.

They are read again with what the log wrote (`written_rows`). What cannot be named ends the claim: the table is compared
as a whole again. All of it is in notes of the ledger, so that another process goes on from there.
"""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from walferry.clock import now_ms
from walferry.errors import GapError, WalferryError, is_transient
from walferry.hbase.client import HBaseClient
from walferry.hbase.descriptors import Range, Region
from walferry.ledger import ComparedTable, RunLedger, source_tables
from walferry.ledger.rows import ClusterSide
from walferry.migration.fragile_rows import NONE, Span, Spans
from walferry.replay.retention import retention_of
from walferry.run.last_comparison import whole_comparison
from walferry.run.run import Run
from walferry.wal.others import Others, log_end, written_by_others
from walferry.wal.tail import Offset

log = logging.getLogger(__name__)

_SEEN, _CLAIM = "touched", "claim"
_ASKED_AT_ONCE = 8
SIDES: tuple[ClusterSide, ClusterSide] = ("source", "target")
Counts = Mapping[str, int]
"""mutations that skipped the log, by server"""


# ------------------------------------------------------------------ what the run has seen: one note for all tables


@dataclass(frozen=True)
class Seen:
    """What was seen up to now that concerns all tables. An older one is still true: it only has more to be read."""

    offset: Offset | None = None
    """of the target's log; None: nobody has begun to read it"""
    read_ms: int = 0
    unread: str = ""
    """why the target's log cannot be read"""
    counts: Mapping[str, Counts] = field(default_factory=dict)
    """by side"""
    uncounted: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """servers that do not tell, by side"""
    skipped: bool = False
    """whether servers of the source that have regions of the run's tables have counted new ones"""
    pending: Mapping[str, Spans] = field(default_factory=dict)
    """what is to be read again, by table"""
    void: Mapping[str, str] = field(default_factory=dict)
    """why a table is to be compared as a whole again"""
    touches: Mapping[str, int] = field(default_factory=dict)
    """how often something was added to what is pending, by table: the same rows may be touched again"""
    voids: Mapping[str, int] = field(default_factory=dict)
    """and how often a reason was found for a whole comparison"""

    @classmethod
    def of(cls, ledger: RunLedger) -> Seen:
        """What the ledger has."""
        kept = ledger.notes.get(_SEEN)
        if kept is None:
            return cls()
        offset = kept.pop("offset")
        pending = {table: Spans.unpack(text) for table, text in kept.pop("pending").items()}
        return cls(None if offset is None else Offset.from_json(offset), pending=pending, **kept)

    def keep(self, ledger: RunLedger) -> None:
        """Keep it in the ledger."""
        facts = asdict(replace(self, offset=None, pending={}))
        facts["offset"] = None if self.offset is None else self.offset.as_json()
        facts["pending"] = {table: spans.pack() for table, spans in self.pending.items() if len(spans)}
        ledger.notes.keep(_SEEN, facts)

    def touching(self, table: str, spans: Spans) -> Seen:
        """With more of a table to be read again."""
        if not spans:
            return self
        pending = {**self.pending, table: self.pending.get(table, NONE) + spans}
        return replace(self, pending=pending, touches={**self.touches, table: self.touches.get(table, 0) + 1})

    def voiding(self, why: Mapping[str, str]) -> Seen:
        """With tables to be compared as a whole again."""
        voids = {**self.voids, **{table: self.voids.get(table, 0) + 1 for table in why}}
        return replace(self, void={**self.void, **why}, voids=voids)

    def known(self, table: str) -> Known:
        """What is known of a table now."""
        return Known(
            self.pending.get(table, NONE), self.touches.get(table, 0), self.void.get(table, ""),
            self.voids.get(table, 0),
        )  # fmt: skip

    def without(self, table: str, known: Known, *, whole: bool = False) -> Seen:
        """Once all that was known was read and found equal, with `whole` all of the table. If something was touched
        since, it may have been the same, and is left."""
        now, pending, void = self.known(table), self.pending, self.void
        if now.touches == known.touches:
            pending = {**pending, table: now.pending.without(known.pending)}
        if whole and now.voids == known.voids:
            void = {name: why for name, why in void.items() if name != table}
        return replace(self, pending=pending, void=void)


@dataclass(frozen=True)
class Known:
    """What was known of a table at some moment."""

    pending: Spans
    """to be read again"""
    touches: int
    void: str
    """why it is to be compared as a whole again"""
    voids: int

    def as_json(self) -> dict[str, Any]:
        """As plain values."""
        return {**vars(self), "pending": self.pending.pack()}

    @classmethod
    def from_json(cls, kept: Mapping[str, Any]) -> Known:
        """What `as_json` returned."""
        return cls(**{**kept, "pending": Spans.unpack(kept["pending"])})


def risen(before: Counts | None, now: Counts) -> set[str] | None:
    """The servers of whose regions some may have taken mutations that skipped the log; None: any may have.

    A count is that of the regions that a server has now: where one fell, a region that left may have taken more before.
    """
    if before is None:
        return set()
    if any(now.get(server, 0) < count for server, count in before.items()):
        return None
    return {server for server, count in now.items() if count > before.get(server, 0)}


_looking = threading.Lock()


def look(run: Run) -> None:
    """See what others wrote at the target, and which servers count mutations that skip the log, since the last time.

    Raises transient errors; what cannot be read for another reason is noted, for people.
    """
    with _looking:
        seen = _counted(run, _read_target_log(run, Seen.of(run.ledger)))
        seen.keep(run.ledger)


def _read_target_log(run: Run, seen: Seen) -> Seen:
    files, root, began = run.target_files, run.target_wal_root, now_ms()
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
            log.warning("what others write at the target is not seen: its log cannot be read: %s", error)
        return replace(seen, unread=str(error))
    return replace(after_others(seen, found, targets), read_ms=began, unread="")


def after_others(seen: Seen, found: Others, sources: Mapping[str, str]) -> Seen:
    """With what others wrote at the target. `sources`: target table to source table."""
    for table, rows in found.rows.items():
        if rows:
            log.warning("others wrote %d rows of %s at the target: they are compared again", len(rows), table)
            seen = seen.touching(sources[table], Spans.of_rows(rows))
    void = {sources[table]: why for table, why in found.unnamed.items()}
    return replace(seen, offset=found.end).voiding(void)


def _unseen_for_long(run: Run, seen: Seen, moment_ms: int) -> str:
    seconds = (moment_ms - seen.read_ms) / 1000
    if seconds < _SURELY_KEPT_S or seconds < retention_of(run.target).ttl_seconds:
        return ""
    return f"the target's log was not read for {seconds:.0f} s, longer than the target keeps it"


_SURELY_KEPT_S = 60.0
"""a target that keeps its logs no longer is not asked for how long it does"""


def _from_here(run: Run, seen: Seen, why: str, moment_ms: int) -> Seen:
    log.warning("%s: the tables are compared as a whole again", why)
    void = {pair.source: why for pair in run.tables}
    offset = log_end(run.target_files, run.target_wal_root)
    return replace(seen, offset=offset, read_ms=moment_ms, unread="").voiding(void)


def _counted(run: Run, seen: Seen) -> Seen:
    if run.spec.unlogged_writes == "ignore":
        return replace(seen, skipped=False)
    for side in SIDES:
        client = _client(run, side)
        servers = client.servers()
        with ThreadPoolExecutor(_ASKED_AT_ONCE, thread_name_prefix="counts") as at_once:
            told = dict(zip((s.name for s in servers), at_once.map(client.unlogged_writes, servers), strict=True))
        before = seen.counts.get(side)
        silent = sorted(name for name, count in told.items() if count is None)
        now = {name: count for name, count in told.items() if count is not None}
        now |= {name: before[name] for name in silent if before is not None and name in before}
        seen = _after_counts(run, seen, side, risen(before, now))
        seen = replace(seen, counts={**seen.counts, side: now}, uncounted={**seen.uncounted, side: silent})
    return seen


def _after_counts(run: Run, seen: Seen, side: ClusterSide, servers: set[str] | None) -> Seen:
    if servers is not None and not servers:
        return seen
    for pair in run.tables:
        regions = _client(run, side).regions(_name(run, side, pair.source))
        spans = Spans.of(
            Span(region.start, region.end)
            for region in regions
            if servers is None or region.server is None or region.server.name in servers
        )
        if spans:
            whose = "servers that regions have left" if servers is None else ", ".join(sorted(servers))
            log.warning(
                "%s: %s of the %s counted writes that skip the log (SKIP_WAL): %d regions are compared again",
                pair.source, whose, side, len(spans),
            )  # fmt: skip
            seen = replace(seen.touching(pair.source, spans), skipped=seen.skipped or side == "source")
    return seen


def skips_log(run: Run) -> bool:
    """Whether servers of the source have counted new mutations that skip the log while this run looked."""
    return bool(Seen.of(run.ledger).skipped)


def end_claim(run: Run, table: str, why: str) -> None:
    """Have a table compared as a whole again."""
    with _looking:
        Seen.of(run.ledger).voiding({table: why}).keep(run.ledger)


# ------------------------------------------------------------------ what is claimed of one table


@dataclass(frozen=True)
class Claim:
    """A table was equal as a whole, and so was since what was touched: what may change by itself from here on."""

    table: str
    of: int
    """the number of the whole comparison"""
    fragile: Spans
    files: frozenset[str]
    """digests of the store files of the regions, on both sides, that have fragile rows with markers"""
    rules: str
    """a digest of what the families of both sides keep"""

    @classmethod
    def find(cls, ledger: RunLedger, of: ComparedTable) -> Claim | None:
        """The one that is based on a comparison, if it is in the ledger."""
        kept = ledger.notes.get(_CLAIM, of.table)
        if kept is None or kept["of"] != of.attempt:
            return None
        return cls(of.table, kept["of"], Spans.unpack(kept["fragile"]), frozenset(kept["files"]), kept["rules"])

    def keep(self, ledger: RunLedger) -> None:
        """Keep it in the ledger, unless it is there."""
        facts = {
            "of": self.of, "fragile": self.fragile.pack(), "files": sorted(self.files), "rules": self.rules,
            "rows": len(self.fragile.rows), "ranges": len(self.fragile.ranges),
        }  # fmt: skip
        if ledger.notes.get(_CLAIM, self.table) != facts:
            ledger.notes.keep(_CLAIM, facts, self.table)


Files = Sequence[tuple[Range, str]]
"""a digest of the store files of each region; "" if they are not known now"""


@dataclass(frozen=True)
class Begun:
    """What is known before a table is read as a whole."""

    known: Known
    files: Files
    """of all regions of both sides"""
    rules: str
    claimed: tuple[int, str] | None
    """what was claimed by an earlier comparison: its number, and its fragile rows, packed"""

    def as_json(self) -> dict[str, Any]:
        """As plain values."""
        files = [[start.hex(), stop.hex(), digest] for (start, stop), digest in self.files]
        return {"known": self.known.as_json(), "files": files, "rules": self.rules, "claimed": self.claimed}

    @classmethod
    def from_json(cls, kept: Mapping[str, Any]) -> Begun:
        """What `as_json` returned."""
        files = [((bytes.fromhex(start), bytes.fromhex(stop)), digest) for start, stop, digest in kept["files"]]
        claimed = None if kept["claimed"] is None else (kept["claimed"][0], kept["claimed"][1])
        return cls(Known.from_json(kept["known"]), files, kept["rules"], claimed)


def begin(run: Run, table: str) -> Begun:
    """Call it before a table is read as a whole."""
    look(run)
    known, claimed = Seen.of(run.ledger).known(table), _claimed(run.ledger, table)
    return Begun(known, store_files(run, table), _rules(run, table), claimed)


def _claimed(ledger: RunLedger, table: str) -> tuple[int, str] | None:
    kept = ledger.notes.get(_CLAIM, table)
    return None if kept is None else (kept["of"], kept["fragile"])


def why_outdated(run: Run, table: str, begun: Begun) -> str:
    """Why what was read since then no longer counts; "" if it does."""
    if begun.rules != _rules(run, table):
        return f"the families of {table} keep something else than when it was begun"
    now = Seen.of(run.ledger).known(table)
    if now.voids != begun.known.voids:
        return now.void or "it was compared as a whole meanwhile"
    if _other_ended(begun, _claimed(run.ledger, table)):
        return "another comparison of it has ended meanwhile"
    return ""


def _other_ended(begun: Begun, claimed: tuple[int, str] | None) -> bool:
    return (claimed and claimed[0]) != (begun.claimed and begun.claimed[0])


def keep_whole(run: Run, begun: Begun, compared: ComparedTable, fragile: Spans) -> bool:
    """Call it once the comparison that was begun has named all rows that differ, with its fragile rows. False if
    another one has ended meanwhile, whose differences and logs this one does not know: then nothing is claimed."""
    claimed = _claimed(run.ledger, compared.table)
    if _other_ended(begun, claimed):
        return False
    if claimed is not None and claimed != begun.claimed:  # looks have read logs that this comparison takes for verified
        fragile += Spans.unpack(claimed[1])
    claim = Claim(compared.table, compared.attempt, fragile, of_fragile(begun.files, fragile), begun.rules)
    with _looking:
        claim.keep(run.ledger)
        Seen.of(run.ledger).without(compared.table, begun.known, whole=True).keep(run.ledger)
    return True


def standing_comparison(ledger: RunLedger, table: str) -> ComparedTable | None:
    """The newest whole comparison of a table, if it names all rows that differed and its claim still counts."""
    newest = whole_comparison(ledger, table)
    return None if newest is None or why_void(ledger, newest) else newest


def why_void(ledger: RunLedger, of: ComparedTable) -> str:
    """Why a clean comparison no longer counts; "" if it does."""
    if why := Seen.of(ledger).void.get(of.table, ""):
        return why
    return "" if Claim.find(ledger, of) is not None else f"nothing was recorded of what touched {of.table} since"


def reread_after_flush(ledger: RunLedger) -> list[str]:
    """The tables of which rows with delete markers are read again in the write stop, since READONLY flushes their
    regions."""
    if ledger.record.spec.get("write_stop") != "readonly":
        return []
    whole = [whole_comparison(ledger, table) for table in source_tables(ledger.record.spec)]
    claims = [claim for of in whole if of is not None and (claim := Claim.find(ledger, of)) is not None]
    return [claim.table for claim in claims if claim.fragile.marked]


@dataclass(frozen=True)
class Touched:
    """What is to be read again of a table, beside the rows that the source's log wrote."""

    claim: Claim
    known: Known
    fragile: Spans
    files: Files

    @property
    def pending(self) -> Spans:
        """What others than the log have touched."""
        return self.known.pending

    @property
    def rows(self) -> list[bytes]:
        """Single rows."""
        return [*self.pending.rows, *self.fragile.rows]

    @property
    def ranges(self) -> list[Range]:
        """Ranges of rows, which do not overlap."""
        both = Spans.of(Span(*one) for one in (*self.pending.ranges, *self.fragile.ranges))
        return [(span.start, span.stop) for span in both]

    def has(self, row: bytes) -> bool:
        """Whether it is one of them."""
        return any(spans.hold((row, row + b"\0")) for spans in (self.pending, self.fragile))

    def after(self, rows: Sequence[bytes], found: Spans) -> Claim:
        """What is claimed once its ranges and some rows (in order), all of its own among them, were found equal, with
        fragile ones among them."""
        fragile = self.claim.fragile.after(rows, self.ranges, found)
        return replace(self.claim, fragile=fragile, files=of_fragile(self.files, fragile))


def touched(run: Run, table: str, since: ComparedTable) -> Touched | str:
    """What is to be read again; or why that is not known, so that the table is to be compared as a whole."""
    claim = Claim.find(run.ledger, since)
    if (why := why_void(run.ledger, since)) or claim is None:
        return why
    if claim.rules != _rules(run, table):
        return f"the families of {table} keep something else than when it was compared"
    marked = claim.fragile.marked
    files = store_files(run, table, marked)
    changed = [region for region, digest in files if not digest or digest not in claim.files]
    return Touched(claim, Seen.of(run.ledger).known(table), claim.fragile.due(changed, now_ms()), files)


def keep(run: Run, checked: Touched, claim: Claim) -> None:
    """Call it once all of that was read and found equal."""
    with _looking:
        kept = run.ledger.notes.get(_CLAIM, claim.table)
        if kept is not None and kept["of"] == claim.of:  # otherwise the table was compared as a whole meanwhile
            claim.keep(run.ledger)
            Seen.of(run.ledger).without(claim.table, checked.known).keep(run.ledger)


def store_files(run: Run, table: str, of: Spans | None = None) -> Files:
    """A digest of the store files of a table's regions, on both sides: of those that have some of the spans, or of
    all."""
    return [file for side in SIDES for file in store_files_at(run, side, table, of)]


def stood_still(before: Files, after: Files, fragile: Spans) -> bool:
    """Whether no region that has fragile rows with markers was flushed, compacted or split between two readings."""
    marked = fragile.marked
    first, second = ({file for file in files if marked.meet(file[0])} for files in (before, after))
    return first == second and all(digest for _, digest in second)


def of_fragile(files: Files, fragile: Spans) -> frozenset[str]:
    """The digests, as far as they are known, of the regions that have fragile rows with markers."""
    marked = fragile.marked
    return frozenset(digest for region, digest in files if digest and marked.meet(region))


def store_files_at(run: Run, side: ClusterSide, table: str, of: Spans | None = None) -> Files:
    """The same on one side."""
    if of is not None and not of:
        return []
    client, name = _client(run, side), _name(run, side, table)
    families = [family.encode() for family in client.describe(name).families]

    def digest(region: Region) -> str:
        try:
            files = client.store_files(region, *families)
        except WalferryError:  # it is being moved, say
            return ""
        known = "\n".join([region.encoded, *sorted(files)])
        return hashlib.sha256(known.encode()).hexdigest()[:_DIGITS]

    regions = [region for region in client.regions(name) if of is None or of.meet((region.start, region.end))]
    with ThreadPoolExecutor(_ASKED_AT_ONCE, thread_name_prefix="store files") as at_once:
        return [((r.start, r.end), found) for r, found in zip(regions, at_once.map(digest, regions), strict=True)]


_DIGITS = 16


def _rules(run: Run, table: str) -> str:
    """A digest of what the families of both sides keep: what was surplus may show after a change of it."""
    kept = [
        (side, family.name, family.max_versions, family.min_versions, family.ttl_ms,
         family.attributes.get("KEEP_DELETED_CELLS", "FALSE").upper())
        for side in SIDES
        for family in _client(run, side).describe(_name(run, side, table)).families.values()
    ]  # fmt: skip
    return hashlib.sha256(repr(sorted(kept)).encode()).hexdigest()[:_DIGITS]


def _client(run: Run, side: ClusterSide) -> HBaseClient:
    return run.source if side == "source" else run.target


def _name(run: Run, side: ClusterSide, table: str) -> str:
    pair = run.pair(table)
    return pair.source if side == "source" else pair.target
