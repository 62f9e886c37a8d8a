"""The equality of a table after a whole comparison: it was equal, and so was what has been touched since.

Some of its rows may change by themselves from here on, and are to be read again then. These are the fragile rows
(`fragile_rows`), once a change of their region's store files, on either side, may show something else (`store_files`),
or a TTL has ended. An equality is a note in the ledger. It belongs to one comparison.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from walferry.clock import now_ms
from walferry.hbase.descriptors import Range
from walferry.ledger import ComparedTable, RunLedger
from walferry.migration.sides.fragile_rows import RowSpan, RowSpans
from walferry.migration.sides.store_files import Changed, Files, RegionFiles, Stores, store_files
from walferry.migration.touching.touched import Known, Seen, look
from walferry.run.notes.last_comparison import whole_comparison
from walferry.run.recorded_spec import options_of, source_tables
from walferry.run.run import Run
from walferry.run.sides import SIDES, client_at, name_at

_NOTE = "claimed"
_DIGITS = 16


@dataclass(frozen=True)
class Equality:
    """A table was equal as a whole, and so was since what was touched: what may change by itself from here on."""

    table: str
    of: int
    """the number of the whole comparison"""
    fragile: RowSpans
    files: Stores
    """of the regions, on both sides, that have fragile rows with markers: before these were read, or at a later look if
    none had to be read again"""
    rules: str
    """a digest of what the families of both sides keep"""

    @classmethod
    def find(cls, ledger: RunLedger, of: ComparedTable) -> Equality | None:
        """The one that is based on a comparison, if it is in the ledger."""
        kept = ledger.notes.get(_NOTE, of.table)
        if kept is None or kept["of"] != of.attempt:
            return None
        return cls(
            of.table, kept["of"], RowSpans.unpack(kept["fragile"]), Stores.from_json(kept["files"]), kept["rules"]
        )

    def as_json(self) -> dict[str, Any]:
        """As plain values."""
        return {
            "of": self.of, "fragile": self.fragile.pack(), "files": self.files.as_json(), "rules": self.rules,
            "rows": len(self.fragile.rows), "ranges": len(self.fragile.ranges),
        }  # fmt: skip


@dataclass(frozen=True)
class Begun:
    """What is known before a table is read as a whole."""

    known: Known
    files: Files
    """of all regions of both sides"""
    rules: str
    claimed: tuple[int, str] | None
    """what was equal by an earlier comparison: its number, and its fragile rows, packed"""

    def as_json(self) -> dict[str, Any]:
        """As plain values."""
        files = [one.as_json() for one in self.files]
        return {"known": self.known.as_json(), "files": files, "rules": self.rules, "claimed": self.claimed}

    @classmethod
    def from_json(cls, kept: Mapping[str, Any]) -> Begun:
        """What `as_json` returned."""
        files = [RegionFiles.from_json(one) for one in kept["files"]]
        claimed = None if kept["claimed"] is None else (kept["claimed"][0], kept["claimed"][1])
        return cls(Known.from_json(kept["known"]), files, kept["rules"], claimed)


def begin_whole(run: Run, table: str) -> Begun:
    """Call it before a table is read as a whole."""
    look(run)
    known, claimed = Seen.of(run.ledger).known(table), _claimed(run.ledger, table)
    return Begun(known, store_files(run, table), _rules(run, table), claimed)


def _claimed(ledger: RunLedger, table: str) -> tuple[int, str] | None:
    return _named(ledger.notes.get(_NOTE, table))


def _named(kept: Mapping[str, Any] | None) -> tuple[int, str] | None:
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


def keep_whole(run: Run, begun: Begun, compared: ComparedTable, fragile: RowSpans) -> bool:
    """Call it once the comparison that was begun has named all rows that differ, with its fragile rows. False if
    another one has ended meanwhile, whose differences and logs this one does not know: then nothing is recorded."""

    def after(kept: dict[str, Any] | None) -> dict[str, Any] | None:
        if _other_ended(begun, claimed := _named(kept)):
            return None
        rows = fragile
        if claimed is not None and claimed != begun.claimed:  # looks have read logs that count as verified by this one
            rows += RowSpans.unpack(claimed[1])
        return Equality(compared.table, compared.attempt, rows, Stores.among(begun.files, rows), begun.rules).as_json()

    if not run.ledger.notes.change(_NOTE, after, compared.table):
        return False
    Seen.change(run.ledger, lambda seen: seen.without(compared.table, begun.known, whole=True))
    return True


def standing_comparison(ledger: RunLedger, table: str) -> ComparedTable | None:
    """The newest whole comparison of a table, if it names all rows that differed and its equality still counts."""
    newest = whole_comparison(ledger, table)
    return None if newest is None or why_void(ledger, newest) else newest


def why_void(ledger: RunLedger, of: ComparedTable) -> str:
    """Why a clean comparison no longer counts; "" if it does."""
    if why := Seen.of(ledger).void.get(of.table, ""):
        return why
    return "" if Equality.find(ledger, of) is not None else f"nothing was recorded of what touched {of.table} since"


def reread_after_flush(ledger: RunLedger) -> list[str]:
    """The tables of which rows with delete markers are read again in the write stop, since READONLY flushes their
    regions: if a marker hides a single version, or each change of a store counts."""
    if options_of(ledger.record).write_stop != "readonly":
        return []
    whole = [whole_comparison(ledger, table) for table in source_tables(ledger.record)]
    equal = [one for of in whole if of is not None and (one := Equality.find(ledger, of)) is not None]
    return [one.table for one in equal if one.files.each_change_counts or any(span.by_version for span in one.fragile)]


@dataclass(frozen=True)
class ToRead:
    """What is to be read again of a table, beside the rows that the source's log wrote."""

    equal: Equality
    known: Known
    fragile: RowSpans
    files: Files

    @property
    def pending(self) -> RowSpans:
        """What others than the log have touched."""
        return self.known.pending

    @property
    def rows(self) -> list[bytes]:
        """Single rows."""
        return [*self.pending.rows, *self.fragile.rows]

    @property
    def ranges(self) -> list[Range]:
        """Ranges of rows, which do not overlap."""
        both = RowSpans.of(RowSpan(*one) for one in (*self.pending.ranges, *self.fragile.ranges))
        return [(span.start, span.stop) for span in both]

    def has(self, row: bytes) -> bool:
        """Whether it is one of them."""
        return any(spans.hold((row, row + b"\0")) for spans in (self.pending, self.fragile))

    def after(self, rows: Sequence[bytes], found: RowSpans) -> Equality:
        """What is equal once its ranges and some rows (in order), all of its own among them, were found equal, with
        fragile ones among them."""
        fragile = self.equal.fragile.after(rows, self.ranges, found)
        return replace(self.equal, fragile=fragile, files=Stores.among(self.files, fragile))


def to_read(run: Run, table: str, since: ComparedTable) -> ToRead | str:
    """What is to be read again; or why that is not known, so that the table is to be compared as a whole."""
    equal = Equality.find(run.ledger, since)
    if (why := why_void(run.ledger, since)) or equal is None:
        return why
    if equal.rules != _rules(run, table):
        return f"the families of {table} keep something else than when it was compared"
    marked = equal.fragile.marked
    files = store_files(run, table, marked)
    due = equal.fragile.due(Changed.between(equal.files, files).may_show, now_ms())
    return ToRead(equal, Seen.of(run.ledger).known(table), due, files)


def keep_read(run: Run, checked: ToRead, equal: Equality) -> None:
    """Call it once all of that was read and found equal."""
    same = False

    def newer(kept: dict[str, Any] | None) -> dict[str, Any] | None:
        nonlocal same
        same = kept is not None and kept["of"] == equal.of  # otherwise the table was compared as a whole meanwhile
        return facts if same and kept != (facts := equal.as_json()) else None

    run.ledger.notes.change(_NOTE, newer, equal.table)
    if same:
        Seen.change(run.ledger, lambda seen: seen.without(equal.table, checked.known))


def _rules(run: Run, table: str) -> str:
    """A digest of what the families of both sides keep: what was surplus may show after a change of it."""
    kept = [
        (side, family.name, family.max_versions, family.min_versions, family.ttl_ms,
         family.attributes.get("KEEP_DELETED_CELLS", "FALSE").upper())
        for side in SIDES
        for family in client_at(run, side).describe(name_at(run, side, table)).families.values()
    ]  # fmt: skip
    return hashlib.sha256(repr(sorted(kept)).encode()).hexdigest()[:_DIGITS]
